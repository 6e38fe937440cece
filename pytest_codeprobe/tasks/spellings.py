"""Field names of coder-eval 0.8 to 0.12, read as ours: applied to the plain data of a file before any model sees it, places kept.

One table says what becomes of each. What has no field of its own here is left out with a sentence that says so; a name that is another
system's own, and that nothing here can mean, stays a fault with its reason.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_codeprobe.tasks.layers import lookup
from pytest_codeprobe.tasks.problems import FieldPath, dotted

#: where the settings stand: a whole task, `defaults` or a variant of an experiment, the flags of a run
Kind = Literal["task", "defaults", "variant", "flags"]
_Path = tuple[str, ...]
_EVERY: tuple[Kind, ...] = ("task", "defaults", "variant", "flags")
_EXPERIMENT: tuple[Kind, ...] = ("defaults", "variant")


class _Refused(ValueError):
    """Why a value can't be read as ours; begins with a verb where it is about the field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """One name, and what it is here. `*` in a path is each entry of a list or mapping."""

    theirs: _Path
    ours: _Path = ()  #: empty: nothing
    change: Callable[[Any], Any] | None = None  #: theirs -> our value; _Refused
    where: tuple[Kind, ...] = _EVERY
    adds: bool = False  #: a list that goes behind what stands under our name
    wins: bool = False  #: over what stands under our name
    idle: tuple[Any, ...] = ()  #: values that say what holds here anyway: no word of them
    why: str = ""  #: of what is left out: why it has no effect
    said: str = ""  #: how messages call it, if not by its path
    ours_too: bool = False  #: a second place of ours: nothing is said but where the value is another system's
    of: frozenset[str] = frozenset()  #: types of criteria that have it; criteria of other plugins may have a field of that name


def _network(value: Any) -> Any:
    return {"bridge": "on", "none": "off"}.get(value, value) if isinstance(value, str) else value


def _nothing_else(value: Any) -> Any:
    if isinstance(value, dict) and value:
        raise _Refused(f"has {min(value)!r}, which has no meaning here; of the SDK's options only effort and max_thinking_tokens have")
    return value


_FLAG_BITS = {2: "IGNORECASE", 8: "MULTILINE", 16: "DOTALL", 64: "VERBOSE", 256: "ASCII"}
_UNICODE = 32  #: what texts are read as anyway


def _flag_names(value: Any) -> Any:
    """Flags of a regular expression as a number, as names."""
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    known = sum(_FLAG_BITS) | _UNICODE
    if value < 0 or value & ~known:
        raise _Refused(f"has bits that are no flag of a regular expression: {value}")
    return [name for bit, name in _FLAG_BITS.items() if value & bit]


_EACH = ("success_criteria", "*")
_ANSWERED = ("sandbox", "record_cli", "*", "responses", "*", "when", "flags", "*", "flags")
_COMPARISON, _COMMAND, _CALLED = frozenset(("reference_comparison",)), frozenset(("run_command",)), frozenset(("cli_called",))
_PATTERN, _PATTERNS = frozenset(("file_matches_regex",)), frozenset(("file_check",))
_OBSERVED = frozenset(("command_executed", "command_not_executed", "skill_triggered"))
_AUTHORS = "it says how a session may be cut short, which no run here does"
_KILL = Spelling(theirs=("run_limits", "stop_early"), idle=(False, None), why=_AUTHORS)

#: in the order in which they are applied: a name inside of a table before the table itself moves
TABLE: tuple[Spelling, ...] = (
    # dead there too
    Spelling(theirs=("max_iterations",), where=("task", "defaults"), why="it has none in coder-eval either"),
    Spelling(theirs=("llm_reviewer",), where=("task",), why="it has none in coder-eval either"),
    # sandbox
    Spelling(theirs=("sandbox", "python"), ours=("sandbox", "setup", "python")),
    Spelling(theirs=("sandbox", "node"), ours=("sandbox", "setup", "node")),
    Spelling(theirs=("sandbox", "setup", "python", "env_packages"), ours=("sandbox", "setup", "python", "packages"), said="env_packages"),
    Spelling(theirs=("sandbox", "setup", "node", "env_packages"), ours=("sandbox", "setup", "node", "packages"), said="env_packages"),
    Spelling(theirs=("sandbox", "limits", "max_memory_mb"), ours=("sandbox", "limits", "memory_mb")),
    Spelling(theirs=("sandbox", "limits", "max_cpus"), ours=("sandbox", "limits", "cpus")),
    Spelling(theirs=("sandbox", "limits", "max_pids"), ours=("sandbox", "limits", "pids")),
    Spelling(theirs=("sandbox", "limits", "max_disk_mb"), ours=("sandbox", "limits", "disk_mb")),
    Spelling(
        theirs=("sandbox", "limits", "timeout"),
        where=("defaults", "variant", "flags"),
        why="it is the time-out of each run_command of the task that says it, so give it there",
    ),
    Spelling(theirs=("sandbox", "template_sources", "*", "include_patterns"), ours=("sandbox", "template_sources", "*", "include")),
    Spelling(theirs=("template_sources", "*", "include_patterns"), ours=("template_sources", "*", "include"), where=_EXPERIMENT),
    Spelling(theirs=("sandbox", "additional_ignore_patterns"), ours=("sandbox", "ignore_patterns")),
    Spelling(theirs=("sandbox", "docker", "dockerfile_path"), ours=("sandbox", "docker", "dockerfile")),
    Spelling(theirs=("sandbox", "docker", "extra_mounts"), ours=("sandbox", "docker", "mounts")),
    Spelling(theirs=("sandbox", "docker", "env_passthrough"), ours=("sandbox", "env_passthrough"), adds=True),
    Spelling(theirs=("sandbox", "docker", "env_passthrough_extra"), ours=("sandbox", "env_passthrough"), adds=True),
    Spelling(theirs=("sandbox", "docker", "network"), ours=("sandbox", "network"), change=_network, ours_too=True),
    # agent
    Spelling(theirs=("agent", "additional_ignore_patterns"), ours=("sandbox", "ignore_patterns"), adds=True),
    Spelling(theirs=("agent", "ignore_patterns"), ours=("sandbox", "ignore_patterns"), adds=True),
    Spelling(theirs=("agent", "sdk_options", "effort"), ours=("agent", "effort")),
    Spelling(theirs=("agent", "sdk_options", "max_thinking_tokens"), ours=("agent", "max_thinking_tokens")),
    Spelling(theirs=("agent", "sdk_options"), change=_nothing_else, idle=(None,)),
    Spelling(theirs=("agent", "claude_settings"), ours=("agent", "claude", "settings")),
    Spelling(theirs=("agent", "setting_sources"), ours=("agent", "claude", "setting_sources")),
    # limits
    _KILL,
    Spelling(theirs=("run_limits", "stop_early_gate_threshold"), idle=(1,), why=_AUTHORS),
    Spelling(theirs=("run_limits", "count_cache_creation"), idle=(True,), why="what is written to a cache counts as input here"),
    # simulated user
    Spelling(theirs=("simulation", "n_trials"), ours=("repeats",), where=("task", "defaults", "variant"), wins=True),
    Spelling(theirs=("simulation", "parallel_trials"), why="it has none in coder-eval either: --codeprobe-jobs and -n say it"),
    Spelling(theirs=("simulation", "model"), ours=("simulation", "agent", "model")),
    # criteria
    Spelling(theirs=(*_EACH, "stop_early"), of=_OBSERVED, idle=(None,), why=_AUTHORS),
    Spelling(theirs=(*_EACH, "read_only"), of=_COMMAND, idle=(False,), why="each criterion is evaluated after a limit too"),
    Spelling(theirs=(*_EACH, "agent_file"), ours=(*_EACH, "path"), of=_COMPARISON),
    Spelling(theirs=(*_EACH, "comparison_method"), ours=(*_EACH, "method"), of=_COMPARISON),
    Spelling(theirs=(*_EACH, "reference_file"), ours=(*_EACH, "reference"), of=_COMPARISON),
    Spelling(theirs=(*_EACH, "flags"), ours=(*_EACH, "flags"), of=_PATTERN, change=_flag_names),
    Spelling(theirs=(*_EACH, "patterns", "*", "flags"), ours=(*_EACH, "patterns", "*", "flags"), of=_PATTERNS, change=_flag_names),
    Spelling(theirs=(*_EACH, "flags", "*", "flags"), ours=(*_EACH, "flags", "*", "flags"), of=_CALLED, change=_flag_names),
    Spelling(theirs=_ANSWERED, ours=_ANSWERED, change=_flag_names),
)


@dataclass(slots=True)
class Respelled:
    """What a mapping says, in our names."""

    value: dict[str, Any]
    at: FieldPath = ()  #: where the mapping stands in its document
    stands: dict[FieldPath, FieldPath] = field(default_factory=dict)  #: place in our spelling -> where it is written, both in the document
    notes: list[str] = field(default_factory=list)  #: a sentence for each name, whatever its places
    faults: list[tuple[FieldPath, str]] = field(default_factory=list)  #: place as it is written, sentence

    def note(self, text: str) -> None:
        """Say something once."""
        if text not in self.notes:
            self.notes.append(text)


def respelled(raw: Mapping[str, Any], kind: Kind, at: FieldPath = ()) -> Respelled:
    """A mapping in our names; `raw` is not changed."""
    found = Respelled(dict(raw), at)
    for row in TABLE:
        if kind in row.where:
            for path in list(_places(found.value, row.theirs)):
                _apply(found, row, path)
    if kind == "task":
        _command_timeouts(found)
        _judges(found)
    return found


def renamed(path: FieldPath) -> FieldPath:
    """Where a path in coder-eval's names leads, for settings that are given by path."""
    for row in TABLE:
        if row.ours and not row.change and path[: len(row.theirs)] == row.theirs:
            path = (*row.ours, *path[len(row.theirs) :])
        elif row.ours and path == row.theirs:
            path = row.ours
    return path


def respelled_experiment(raw: Mapping[str, Any]) -> Respelled:
    """A whole experiment file."""
    found = Respelled(dict(raw))
    if isinstance(raw.get("defaults"), dict):
        found.value["defaults"] = _part(found, raw["defaults"], "defaults", ("defaults",))
    if isinstance(raw.get("variants"), list):
        found.value["variants"] = [
            _part(found, each, "variant", ("variants", number)) if isinstance(each, dict) else each
            for number, each in enumerate(raw["variants"])
        ]
    _judge_of_experiment(found)
    return found


def _part(whole: Respelled, raw: Mapping[str, Any], kind: Kind, at: FieldPath) -> dict[str, Any]:
    part = respelled(raw, kind, at)
    whole.stands.update(part.stands)
    whole.faults += part.faults
    for text in part.notes:
        whole.note(text)
    return part.value


# ---- one row of the table


def _places(value: Any, pattern: _Path, path: FieldPath = ()) -> Iterator[FieldPath]:
    """Where something stands that a pattern means."""
    if not pattern:
        yield path
        return
    head, rest = pattern[0], pattern[1:]
    if head == "*":
        keys: Sequence[str | int] = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    else:
        keys = (head,) if isinstance(value, dict) and head in value else ()
    for key in keys:
        yield from _places(value[key], rest, (*path, key))


def _apply(found: Respelled, row: Spelling, path: FieldPath) -> None:
    if row.of and lookup(found.value, (*path[:2], "type")) not in row.of:
        return
    value = lookup(found.value, path)
    try:
        new = row.change(value) if row.change is not None else value
    except _Refused as refusal:
        found.faults.append(((*found.at, *path), f"'{dotted(path)}' {refusal}"))
        _take(found, path)
        return
    steps = iter(key for key, step in zip(path, row.theirs, strict=True) if step == "*")
    target: FieldPath = tuple(next(steps) if step == "*" else step for step in row.ours)
    if target == path:
        if new is not value:
            _holder(found, path)[path[-1]] = new
        return
    written = _written(found, path)
    _take(found, path)
    if not row.ours:
        _left_out(found, row, value)
    elif row.wins and lookup(found.value, ("simulation", "enabled")) is False:
        return  # of a user who is not there
    else:
        _put(found, row, target, new, written, quiet=row.ours_too and new == value)


def _left_out(found: Respelled, row: Spelling, value: Any) -> None:
    is_idle = any(value is idle if isinstance(value, bool) or idle is None else value == idle for idle in row.idle)
    if not is_idle and row.why:
        found.note(f"{row.said or _named(row.theirs)} has no effect: {row.why}")


def _put(found: Respelled, row: Spelling, target: FieldPath, new: Any, written: FieldPath, *, quiet: bool) -> None:
    if any(not isinstance(lookup(found.value, target[:length]), dict | list | None) for length in range(1, len(target))):
        return  # where it would go stands something else, which is a fault itself
    holder = _holder(found, target)
    there = holder.get(target[-1])
    if row.adds and new in (None, []):
        return
    if row.adds and isinstance(there, list) and isinstance(new, list):
        new = [*there, *new]
    elif target[-1] in holder and not row.wins:
        ours, theirs = dotted((*found.at, *target)), dotted(written)
        found.faults.append((written, f"{theirs!r} and {ours!r} are one setting; use one of the two"))
        return
    holder[target[-1]] = new
    found.stands[(*found.at, *target)] = written
    if not quiet:
        found.note(f"{row.said or _named(row.theirs)} is read as {_named(row.ours)}")


def _written(found: Respelled, path: FieldPath) -> FieldPath:
    """Where the file has what stands at a path now: it may have moved before."""
    whole = (*found.at, *path)
    for length in range(len(whole), 0, -1):
        if (origin := found.stands.get(whole[:length])) is not None:
            return (*origin, *whole[length:])
    return whole


def _holder(found: Respelled, path: FieldPath) -> Any:
    """The container of a path, the way there copied or made: what the caller gave is not changed."""
    holder: Any = found.value
    steps: Iterator[tuple[Any, Any]] = itertools.pairwise(path)
    for key, after in steps:
        inner = holder[key] if isinstance(holder, list) or key in holder else None
        fresh: Any = [*inner] if isinstance(inner, list) and isinstance(after, int) else dict(inner) if isinstance(inner, dict) else {}
        holder[key] = holder = fresh
    return holder


def _take(found: Respelled, path: FieldPath) -> None:
    """Remove what stands at a path, and tables below the first level that are empty by that."""
    _holder(found, path).pop(path[-1])
    for length in range(len(path) - 1, 1, -1):
        if isinstance(path[length - 1], int) or lookup(found.value, path[:length]) != {}:
            break
        _holder(found, path[:length]).pop(path[length - 1])


def _named(path: _Path) -> str:
    """A pattern as messages say it: `sandbox.template_sources[].include`."""
    return ".".join(path).replace(".*", "[]")


# ---- what takes more than a name


def _command_timeouts(found: Respelled) -> None:
    """`sandbox.limits.timeout` of a task is the time-out of each run_command that has none."""
    path: FieldPath = ("sandbox", "limits", "timeout")
    if not any(_places(found.value, ("sandbox", "limits", "timeout"))):
        return
    seconds, written = lookup(found.value, path), (*found.at, *path)
    _take(found, path)
    criteria = found.value.get("success_criteria")
    for number, entry in enumerate(criteria if isinstance(criteria, list) else ()):
        if seconds is not None and isinstance(entry, dict) and entry.get("type") == "run_command" and "timeout" not in entry:
            at: FieldPath = ("success_criteria", number, "timeout")
            _holder(found, at)["timeout"] = seconds
            found.stands[(*found.at, *at)] = written
    found.note("sandbox.limits.timeout is read as the timeout of each run_command that has none")


_ROUTE: _Path = ("checker_context", "api_route")
_NOT_SENT = "is not available: what else is sent with each request of a judge can't be set here"


def _route(found: Respelled, context: FieldPath) -> tuple[Mapping[str, Any], FieldPath]:
    """`checker_context.api_route`, taken out; faults where it says what nothing here can do."""
    holder = lookup(found.value, context)
    route = holder.get("api_route") if isinstance(holder, dict) else None
    for at, table in ((context, holder), ((*context, "api_route"), route)):
        for name in ("params", "env_params"):
            if isinstance(table, dict) and table.get(name):
                found.faults.append(((*found.at, *at, name), f"'{dotted((*at, name))}' {_NOT_SENT}"))
    _take(found, context)
    return (route if isinstance(route, dict) else {}), (*found.at, *context, "api_route")


def _judges(found: Respelled) -> None:
    """Of a task: the model of each judge that names none."""
    if "checker_context" not in found.value:
        return
    route, written = _route(found, ("checker_context",))
    criteria = found.value.get("success_criteria")
    if route.get("model") is not None:
        for number, entry in enumerate(criteria if isinstance(criteria, list) else ()):
            if isinstance(entry, dict) and entry.get("type") in ("llm_judge", "agent_judge") and "model" not in entry:
                at: FieldPath = ("success_criteria", number, "model")
                _holder(found, at)["model"] = route["model"]
                found.stands[(*found.at, *at)] = (*written, "model")
        found.note(f"{_named((*_ROUTE, 'model'))} of a task is read as the model of each judge that has none")
    if route.get("route") is not None:
        found.note(f"{_named((*_ROUTE, 'route'))} of a task has no effect: `judge.backend` of an experiment says how judges are reached")


def _judge_of_experiment(found: Respelled) -> None:
    """Of an experiment's defaults: its judge."""
    variants = found.value.get("variants")
    for number, variant in enumerate(variants if isinstance(variants, list) else ()):
        if isinstance(variant, dict) and "checker_context" in variant:
            at: FieldPath = ("variants", number, "checker_context")
            found.faults.append((at, f"'{dotted(at)}' is not available: all variants have one judge, or they could not be compared"))
            _take(found, at)
    if not any(_places(found.value, ("defaults", "checker_context"))):
        return
    route, written = _route(found, ("defaults", "checker_context"))
    for theirs, ours in (("model", "model"), ("route", "backend")):
        if route.get(theirs) is None:
            continue
        if lookup(found.value, ("judge", ours)) is not None:
            at = (*written, theirs)
            found.faults.append((at, f"{dotted(at)!r} and 'judge.{ours}' are one setting; use one of the two"))
            continue
        _holder(found, ("judge", ours))[ours] = route[theirs]
        found.stands[("judge", ours)] = (*written, theirs)
        found.note(f"defaults.{_named((*_ROUTE, theirs))} is read as judge.{ours}")
