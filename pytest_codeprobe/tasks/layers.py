"""How the settings of several layers become one: later layers win, four lists append, null takes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pytest_codeprobe.model.config import AgentConfig
from pytest_codeprobe.tasks.problems import FieldPath, Place
from pytest_codeprobe.tasks.yaml import Document

#: low to high; built-in defaults are those of the models
LayerName = Literal["dialect", "default", "experiment", "task", "variant", "flags"]
LAYERS: tuple[LayerName, ...] = ("dialect", "default", "experiment", "task", "variant", "flags")

_Order = tuple[LayerName, ...]
#: lists that append instead of being replaced -> the order of the layers in them
APPENDED: Mapping[tuple[str, ...], _Order] = {
    # an experiment's files overlay the task's
    ("sandbox", "template_sources"): ("task", "default", "experiment", "variant", "flags"),
    ("sandbox", "env_passthrough"): LAYERS,
    # what surrounds comes first before the session, and last after it
    ("pre_run",): ("default", "experiment", "variant", "flags", "task"),
    ("post_run",): ("task", "flags", "variant", "experiment", "default"),
}
#: agent fields that belong to the type in force where their own layer names none
_TYPED = frozenset({"model", "effort", "args"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """The settings that one layer makes, as plain data; paths in it are absolute already."""

    name: LayerName
    values: Mapping[str, Any]
    file: str | None = None  #: that it was read from, as messages show it
    document: Document | None = None
    at: FieldPath = ()  #: of the layer in the document
    moved: Mapping[FieldPath, FieldPath] = field(default_factory=dict)  #: where something stands in the document, if not at its own path
    spelled: Mapping[FieldPath, str] = field(default_factory=dict)  #: settings in which variables stood, as the file or flag says them

    def place(self, path: FieldPath) -> Place:
        """Where a setting stands in the layer's file, or what is nearest to it."""
        if self.document is None:
            return Place()
        for length in range(len(path), 0, -1):
            if path[:length] in self.moved:
                return self.document.place((*self.at, *self.moved[path[:length]], *path[length:]))
        return self.document.place((*self.at, *path))


def merge(lower: Mapping[str, Any], upper: Mapping[str, Any], *, path: tuple[str, ...] = ()) -> dict[str, Any]:
    """`upper` over `lower`: mappings merge deep, scalars and lists replace, the lists of APPENDED grow, null removes.

    Neither argument is changed. `path` is where the two mappings stand among the settings.
    """
    merged: dict[str, Any] = copied(lower)
    for key, value in upper.items():
        here = (*path, key)
        below = merged.get(key)
        if value is None:
            merged.pop(key, None)
        elif isinstance(value, dict):
            merged[key] = merge(below if isinstance(below, dict) else {}, value, path=here)
        elif here in APPENDED and isinstance(value, list) and isinstance(below, list):
            merged[key] = below + copied(value)
        else:
            merged[key] = copied(value)
    return merged


def combine(layers: Sequence[Layer]) -> dict[str, Any]:
    """All layers, given low to high, as one; the appended lists in the order that each of them has."""
    layers = [layer for layer in layers if layer.values]
    if len(layers) == 1:
        return dict(copied(layers[0].values))
    result: dict[str, Any] = {}
    for layer in layers:
        result = merge(result, layer.values)
    for path, order in APPENDED.items():
        parts = _appended(layers, path)
        holder = lookup(result, path[:-1])
        if parts and isinstance(holder, dict):
            holder[path[-1]] = [entry for name in order for entry in parts.get(name, ())]
    return result


def _appended(layers: Sequence[Layer], path: tuple[str, ...]) -> dict[LayerName, list[Any]]:
    """What each layer adds to one list; a null takes away what layers below it have added."""
    parts: dict[LayerName, list[Any]] = {}
    for layer in layers:
        inner: Any = layer.values
        for depth, key in enumerate(path):
            if not isinstance(inner, Mapping) or key not in inner:
                break
            inner = inner[key]
            if inner is None:
                parts = {}
                break
            if depth == len(path) - 1 and isinstance(inner, list):
                parts[layer.name] = [*parts.get(layer.name, []), *copied(inner)]
    return parts


def lookup(values: Any, path: Sequence[str | int]) -> Any:
    """What stands at a path; None if nothing does."""
    for key in path:
        in_mapping = isinstance(values, dict) and key in values
        in_list = isinstance(values, list) and isinstance(key, int) and 0 <= key < len(values)
        if not (in_mapping or in_list):
            return None
        values = values[key]
    return values


def copied(value: Any) -> Any:
    """The same plain data in containers of its own, without what a null takes away from mappings."""
    if isinstance(value, dict):
        return {k: copied(v) for k, v in value.items() if v is not None}
    if isinstance(value, list):
        return [_kept(v) for v in value]
    return value


def _kept(value: Any) -> Any:
    """Within a list a null is a value."""
    if isinstance(value, dict):
        return {k: _kept(v) for k, v in value.items()}
    return [_kept(v) for v in value] if isinstance(value, list) else value


def without_foreign_fields(layers: Sequence[Layer], canonical: Mapping[str, str]) -> list[Layer]:
    """The layers without the agent fields that were set for another type than a higher layer chose.

    A field belongs to the type that its own layer names; without one, model, effort and args belong to the type in force
    below, the others to none. An agent's own table always belongs to that agent. `canonical` maps names and aliases of
    agents to their names.
    """
    chosen = [_type(layer, canonical) for layer in layers]
    result = []
    for number, layer in enumerate(layers):
        agent = layer.values.get("agent")
        later = {name for name in chosen[number + 1 :] if name is not None}
        if not later or not isinstance(agent, dict):
            result.append(layer)
            continue
        below = next((name for name in reversed(chosen[:number]) if name is not None), None)
        kept = {}
        for key, value in agent.items():
            if key in canonical and key not in AgentConfig.model_fields:  # `command` is a field, and an agent's name
                owner: str | None = None
            else:
                owner = chosen[number] or (below if key in _TYPED else None)
            if key == "type" or owner is None or later <= {owner}:
                kept[key] = value
        result.append(replace(layer, values={**layer.values, "agent": kept}))
    return result


def _type(layer: Layer, canonical: Mapping[str, str]) -> str | None:
    agent = layer.values.get("agent")
    name = agent.get("type") if isinstance(agent, dict) else None
    return None if name is None else canonical.get(str(name), str(name))


def origins(layers: Sequence[Layer]) -> dict[FieldPath, Layer]:
    """Each leaf of what combine() makes of the layers -> the layer that it came from. A list is a leaf, but those of APPENDED."""
    found: dict[FieldPath, Layer] = {}
    combined = combine(layers)
    _origins(combined, (), layers, found)
    for path, order in APPENDED.items():
        if lookup(combined, path):
            found.pop(path, None)
            parts, by_name = _appended(layers, path), {layer.name: layer for layer in layers}
            owners = [by_name[name] for name in order for _ in parts.get(name, ())]
            found.update({(*path, number): owner for number, owner in enumerate(owners)})
    return found


def _origins(values: Mapping[str, Any], path: FieldPath, layers: Sequence[Layer], found: dict[FieldPath, Layer]) -> None:
    for key, value in values.items():
        here = (*path, key)
        if isinstance(value, dict) and value:
            _origins(value, here, layers, found)
        else:
            owner = next((layer for layer in reversed(layers) if lookup(layer.values, here) is not None), None)
            if owner is not None:
                found[here] = owner
