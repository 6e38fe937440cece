"""How the settings of several layers become one: later layers win, four lists append, null takes away."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ValidationError

from pytest_codeprobe.errors import did_you_mean
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.tasks import sentences
from pytest_codeprobe.tasks.checks import check_sandbox
from pytest_codeprobe.tasks.paths import DEFAULTS
from pytest_codeprobe.tasks.problems import FieldPath, Problems, relative, shown
from pytest_codeprobe.tasks.resolve import Resolver
from pytest_codeprobe.tasks.settings import LoadSettings
from pytest_codeprobe.tasks.yaml import Document, load_documents

#: low to high; built-in defaults are those of the models
LayerName = Literal["default", "experiment", "task", "variant", "flags"]
LAYERS: tuple[LayerName, ...] = ("default", "experiment", "task", "variant", "flags")

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
        for field, value in agent.items():
            if field in canonical and field not in AgentConfig.model_fields:  # `command` is a field, and an agent's name
                owner: str | None = None
            else:
                owner = chosen[number] or (below if field in _TYPED else None)
            if field == "type" or owner is None or later <= {owner}:
                kept[field] = value
        result.append(Layer(name=layer.name, values={**layer.values, "agent": kept}))
    return result


def _type(layer: Layer, canonical: Mapping[str, str]) -> str | None:
    agent = layer.values.get("agent")
    name = agent.get("type") if isinstance(agent, dict) else None
    return None if name is None else canonical.get(str(name), str(name))


#: tables of an experiment's `defaults` that count without an experiment
_TABLES: Mapping[str, type[BaseModel]] = {"run_limits": RunLimits, "sandbox": SandboxConfig}
#: what `defaults` may hold besides, for experiments
_OTHERS = frozenset(("repeats", "driver", "gateway", "agent", "pre_run", "post_run", "template_sources", "simulation", "prompt_mutations"))


def load_defaults(settings: LoadSettings) -> dict[str, Any]:
    """What read_defaults() finds in experiments/default.yaml below rootdir; empty if there is none.

    CodeprobeError TASK_INVALID with file:line:column for a fault in it.
    """
    file = settings.rootdir / DEFAULTS
    if not file.is_file():
        return {}
    problems = Problems(relative(file, settings.rootdir))
    documents = [d for d in load_documents(file, rootdir=settings.rootdir) if d.value is not None]
    if not documents:
        return {}
    resolved = read_defaults(documents[0], file, settings, problems)
    problems.check()
    return {key: value for key, value in resolved.items() if value is not None}  # below it there is nothing to take away


def read_defaults(document: Document, file: Path, settings: LoadSettings, problems: Problems) -> dict[str, Any]:
    """`defaults.run_limits` and `defaults.sandbox` of an experiment file; faults in them are added to `problems`.

    Paths in it are absolute, variables expanded; a null is kept, since it takes away what a lower layer sets.
    """
    values = document.value.get("defaults") if isinstance(document.value, dict) else document.value
    if values is None:
        return {}
    if not isinstance(values, dict):
        at: FieldPath = () if not isinstance(document.value, dict) else ("defaults",)
        problems.add(document.place(at), at, f"'defaults' must be a mapping, not {shown(values)}")
        problems.raise_first()

    def add(path: FieldPath, message: str) -> None:
        problems.add(document.place(("defaults", *path)), ("defaults", *path), message)

    for key in values.keys() - _TABLES.keys() - _OTHERS:  # a misspelt limit would hold nothing
        place = document.place(("defaults", key), key=True)
        problems.add(place, ("defaults", key), f"unknown field {key!r}{did_you_mean(key, [*_TABLES, *_OTHERS])} in 'defaults'")
    resolver = Resolver(file, settings.places, settings.environ, lambda path, words: add(path, sentences.about(("defaults", *path), words)))
    resolved = resolver.task({key: values[key] for key in _TABLES if values.get(key) is not None})
    resolved |= {key: None for key in _TABLES if key in values and values[key] is None}  # takes away what a lower file sets
    for key, model in _TABLES.items():
        if resolved.get(key) is None:
            continue
        data = copied(resolved[key])
        try:
            valid = model.model_validate(data)
        except ValidationError as error:
            where: FieldPath = ("defaults", key)
            sentences.report(error, data, model, problems, document, where, prefix=where)
        else:
            if isinstance(valid, SandboxConfig):
                check_sandbox(valid, add)
    return resolved
