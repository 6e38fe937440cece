"""`-D PATH=VALUE` and the flags that are short for one: the highest layer, with each conflict told."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.tasks import sentences
from pytest_codeprobe.tasks.agent_fields import AgentFields
from pytest_codeprobe.tasks.checks import check_sandbox
from pytest_codeprobe.tasks.layers import Layer, copied, lookup
from pytest_codeprobe.tasks.problems import FieldPath, Problems, dotted
from pytest_codeprobe.tasks.repositories import secrets_of_url
from pytest_codeprobe.tasks.resolve import Resolver
from pytest_codeprobe.tasks.settings import LoadSettings
from pytest_codeprobe.tasks.spellings import renamed, respelled
from pytest_codeprobe.tasks.yaml import Document, parse
from pytest_codeprobe.text import is_secret_name

_TABLES: Mapping[str, type[BaseModel]] = {"agent": AgentConfig, "sandbox": SandboxConfig, "run_limits": RunLimits}
#: options that are short for a path
ALIASES: Mapping[str, FieldPath] = {
    "agent": ("agent", "type"),
    "model": ("agent", "model"),
    "permission-mode": ("agent", "permission_mode"),
    "driver": ("sandbox", "driver"),
    "timeout": ("run_limits", "task_timeout"),
}
_FLAG = "--codeprobe-set"


@dataclass(frozen=True, slots=True)
class Override:
    """One `PATH=VALUE`."""

    text: str
    path: FieldPath
    value: Any

    @property
    def sets(self) -> FieldPath:
        """What the path is in our names."""
        return renamed(self.path)

    @property
    def spelled(self) -> str:
        """The flag as it was given, for messages."""
        return f"{_FLAG} {self.text}"


def read_override(text: str) -> Override:
    """OVERRIDE_INVALID where the text is no PATH=VALUE, or its value is no YAML."""
    name, equals, value = text.partition("=")
    path = tuple(name.strip().split("."))
    if not equals or not all(path):
        _invalid(f"{_FLAG} {text!r} is not PATH=VALUE", "Write it as agent.model=NAME or sandbox.env={A: b}.", setting=text)
    if path[0] not in _TABLES or (len(path) == 1 and not value.strip().startswith("{")):
        whole = next((f"{table}.{name.strip()}" for table, model in _TABLES.items() if path[0] in model.model_fields), None)
        hint = did_you_mean(path[0], _TABLES) if whole is None else f" (did you mean {whole!r}?)"
        known = ", ".join(_TABLES)
        if path[0] not in _TABLES:
            _invalid(f"{_FLAG} {text!r}: needs a path below {known}{hint}", f"Begin the path with one of {known}.", setting=text)
        way = f"Name one setting, as in {path[0]}.NAME=VALUE, or write a mapping."
        _invalid(f"{_FLAG} {text!r}: needs a mapping, such as {path[0]}={{…}}", way, setting=text)
    if not value.strip():  # a variable of a shell that is not set, more likely than the wish to lift a limit
        way = "Write null to take a lower value away, or '\"\"' for an empty text."
        _invalid(f"{_FLAG} {text!r} has no value", way, setting=text)
    try:
        documents = parse(value.encode(), _FLAG)
    except CodeprobeError as error:
        words = str(error.detail.get("message") or error.message)
        _invalid(f"{_FLAG} {text!r}: the value can't be read: {words}", "Quote it as YAML wants it.", setting=text)
    return Override(text, path, documents[0].value if documents else None)


def settle(options: RunOptions) -> RunOptions:
    """The options with each `-D` that is as good as a flag in its place. OVERRIDE_INVALID where two settings are at odds.

    What stands on the command line beats what comes from addopts, and either beats environment and ini.
    """
    if not options.set:
        return options
    given = [read_override(text) for text in options.set]
    first_typed = len(given) - options.typed_sets
    early, typed = given[:first_typed], given[first_typed:]
    aliases = {name: path for name, path in ALIASES.items() if name in options.on_command_line}
    for ours, mine in ((early, aliases.keys() - set(options.typed)), (typed, aliases.keys() & set(options.typed))):
        _check([*((o.spelled, o.sets) for o in ours), *((f"--codeprobe-{name}", aliases[name]) for name in sorted(mine))])
    flags = [(path, _of(options, name)) for name, path in aliases.items() if name in options.typed]
    last = [Override(f"{dotted(path)}={json.dumps(value)}", path, value) for path, value in flags]
    return _with_aliases(dataclasses.replace(options, set=tuple(o.text for o in (*early, *last, *typed))), [*early, *last, *typed])


def _check(settings: Sequence[tuple[str, FieldPath]]) -> None:
    for number, (spelled, path) in enumerate(settings):
        for other, its in settings[:number]:
            if path[: len(its)] == its or its[: len(path)] == path:
                _invalid(
                    f"{other} and {spelled} both set {dotted(path if len(path) < len(its) else its)}",
                    "Keep one of the two.",
                    setting=spelled,
                    other=other,
                )


def _with_aliases(options: RunOptions, ordered: Sequence[Override]) -> RunOptions:
    """What other parts read from an option's own field is what the layer will say."""
    tree = _tree(ordered)
    changed: dict[str, Any] = {}
    named = set(options.on_command_line)
    for name, path in ALIASES.items():
        if _names(tree, path):
            value = lookup(tree, path)
            changed[name.replace("-", "_")] = None if value is None else getattr(value, "source", value) if name != "timeout" else value
            named.add(name)
    order = [*options.on_command_line, *sorted(named - set(options.on_command_line))]
    return dataclasses.replace(options, on_command_line=tuple(order), **changed)


def _of(options: RunOptions, name: str) -> Any:
    return getattr(options, name.replace("-", "_"))


def _names(tree: Any, path: FieldPath) -> bool:
    for key in path:
        if not isinstance(tree, dict) or key not in tree:
            return False
        tree = tree[key]
    return True


def _tree(overrides: Sequence[Override]) -> dict[str, Any]:
    """All of them as one mapping, later ones over earlier ones; a null stays, for it removes."""
    tree: dict[str, Any] = {}
    for override in overrides:
        holder = tree
        for key in override.path[:-1]:
            inner = holder.get(str(key))
            holder[str(key)] = holder = inner if isinstance(inner, dict) else {}
        last = str(override.path[-1])
        lower, value = holder.get(last), override.value
        holder[last] = _over(lower, value) if isinstance(lower, dict) and isinstance(value, dict) else value
    return tree


def _over(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    return {**lower, **{k: _over(lower[k], v) if isinstance(v, dict) and isinstance(lower.get(k), dict) else v for k, v in upper.items()}}


def flags_again(options: Mapping[str, Any]) -> list[str]:
    """Flags that set what an earlier run's flags have set; `options`: those of its plan.json. OVERRIDE_INVALID.

    Where there were `-D`, one for each table has all of it: two that were settled once would be at odds now.
    """
    aliases = {name: options.get(name.replace("-", "_")) for name in ALIASES}
    if not options.get("set"):
        return [f"--codeprobe-{name}={value}" for name, value in aliases.items() if value is not None]
    tree = _tree([read_override(text) for text in options["set"]])
    for name, (table, field) in ALIASES.items():
        inner = tree.setdefault(str(table), {})
        if aliases[name] is not None and isinstance(inner, dict):
            inner.setdefault(str(field), aliases[name])
    return [f"{_FLAG}={table}={_flow(values)}" for table, values in tree.items() if values]


def _flow(value: Any) -> str:
    """As a YAML flow collection; a number as it was written."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(str(key))}: {_flow(inner)}" for key, inner in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return str(value.source) if hasattr(value, "source") else json.dumps(value)


# ---- the layer


def flags_layer(options: RunOptions, settings: LoadSettings) -> Layer:
    """What flags, environment and ini set. OVERRIDE_INVALID where a path or a value is wrong."""
    overrides = [read_override(text) for text in options.set]
    aliases = {name: path for name, path in ALIASES.items() if _of(options, name) is not None}
    tree: dict[str, Any] = {}
    for name, (table, field) in aliases.items():
        tree.setdefault(str(table), {})[field] = _of(options, name)
    values, spelled = _checked(overrides, settings)
    return Layer(name="flags", values=_over(tree, values), spelled=spelled)


def _checked(overrides: Sequence[Override], settings: LoadSettings) -> tuple[dict[str, Any], Mapping[FieldPath, str]]:
    """The overrides as one mapping, paths absolute, valid by the models of their tables; and those in which variables stood."""
    ours = respelled(_tree(overrides), "flags")
    tree = ours.value
    problems = Problems(_FLAG)
    for note in ours.notes:
        settings.warn(note)
    document = Document({})
    folder = settings.invoked_in or settings.rootdir
    faults = [*ours.faults]

    def fault(path: FieldPath, words: str) -> None:
        faults.append((path, sentences.about(path, words)))

    resolver = Resolver(Path(folder, "-"), settings.places, settings.environ, fault)
    tree = resolver.task(tree)
    for table, model in _TABLES.items():
        values = tree.get(table)
        if not isinstance(values, dict):
            continue
        if table == "agent":
            tree[table] = values = AgentFields(settings, problems, document, (table,), (table,)).read(values)
        data = copied(values)
        try:
            valid = model.model_validate(data)
        except ValidationError as error:
            sentences.report(error, data, model, problems, document, (table,), prefix=(table,))
        else:
            if isinstance(valid, SandboxConfig):
                check_sandbox(valid, lambda path, message: problems.add(document.place(path), path, message))
    for path, message in faults:
        problems.add(document.place(path), path, message)
    for _, name, message, _ in problems.found:
        culprit = next((o for o in overrides if _concerns(o.path, name) or _concerns(o.sets, name)), overrides[0])
        _invalid(f"{culprit.spelled}: {message}", "Correct the path or the value.", setting=culprit.text, field=name)
    return tree, resolver.spelled


def _concerns(path: FieldPath, name: str) -> bool:
    own = dotted(path)
    return name == own or name.startswith((f"{own}.", f"{own}[")) or own.startswith(f"{name}.")


def given(options: RunOptions) -> Iterator[tuple[FieldPath, str]]:
    """Paths that the command line sets, and how each was spelled there."""
    for text in options.set:
        override = read_override(text)
        yield override.sets, override.spelled
    for name, path in ALIASES.items():
        if name in options.on_command_line:
            yield path, f"--codeprobe-{name}"


def secrets_in(settings: Sequence[str]) -> Iterator[str]:
    """Values that overrides set for names that look like keys; those of variables do not stand in them."""
    for override in map(read_override, settings):
        yield from _secrets(override.value, str(override.path[-1]))


def _secrets(value: Any, name: str) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _secrets(inner, str(key))
    elif isinstance(value, list):
        for inner in value:
            yield from _secrets(inner, name)
    elif isinstance(value, str) and name == "url":
        yield from secrets_of_url(value)
    elif isinstance(value, str) and is_secret_name(name) and "$" not in value:
        yield value


def _invalid(message: str, remediation: str, **detail: Any) -> NoReturn:
    raise CodeprobeError("OVERRIDE_INVALID", message, remediation=remediation, detail=detail)
