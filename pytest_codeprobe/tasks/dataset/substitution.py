"""`${row.field}` in a task: the values of one row in the place of their names, escaped where a shell will read them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from pytest_codeprobe.errors import did_you_mean
from pytest_codeprobe.model.base import SourcedFloat, SourcedInt
from pytest_codeprobe.model.rows import variable_name
from pytest_codeprobe.tasks.problems import FieldPath, dotted

#: fields of a task whose strings may name fields of the row
PLACES = ("initial_prompt", "success_criteria", "solution", "reference", "pre_run", "post_run", "sandbox", "tags", "simulation")
#: and those of an agent's settings, which are otherwise the same for all rows
AGENT_PLACES = ("scripted", "system_prompt", "append_system_prompt")
#: keys whose text is a command of a shell
COMMANDS = frozenset({"command", "script", "run"})
#: of a task without a dataset, what nobody means otherwise; code in files and criteria may well have a `${row.id}` of its own
_ROWLESS = ("initial_prompt", "solution", "pre_run", "post_run", "tags", "simulation")
_ROWLESS_OF_AGENT = ("system_prompt", "append_system_prompt")
_MEANT = re.compile(r"\$?\$\{row(?:\.[^{}]*)?\}")
#: in `sandbox`, where variables are expanded afterwards: what a row says is no name of one
_EXPANDED = re.compile(r"sandbox\.(template_sources\[\d+\]\.path|docker\.(dockerfile|build\b.*))")
_PLACEHOLDER = re.compile(r"\$\$\{|\$\{row\.([^{}]*)\}|\$\{row\}")
#: in a command as it is
_SAFE = re.compile(r"[A-Za-z0-9_./:@%+=-]+")
#: what a scan for quotes alone can't see through
_NESTED = re.compile(
    r"<<|`|\$\(|\$'"
    r"|(?<![\w./-])(?:eval|ssh)\s"  # these read it a second time, as a shell does
    r"|(?<![\w.-])(?:(?:ba|da|k|z|a|c|fi)?sh|su)\s+(?:[-+]\S+\s+(?:pipefail\s+)?)*-\w*c(?=\s|$)"
)


class SubstitutionProblem(ValueError):
    """Why a row can't be put in, as the end of a sentence about the field at `path`."""

    def __init__(self, path: FieldPath, message: str) -> None:
        super().__init__(message)
        self.path = path


def has_placeholders(value: Any) -> bool:
    """Whether any string in it names a field of the row, or has the way to write a literal one."""
    if isinstance(value, str):
        return "${" in value and _PLACEHOLDER.search(value) is not None
    if isinstance(value, dict):
        return any(map(has_placeholders, value.values()))
    return isinstance(value, list) and any(map(has_placeholders, value))


def with_row(task: Mapping[str, Any], row: Mapping[str, Any], *, resolved: bool = False) -> dict[str, Any]:
    """A task (plain data) with the row's values where it may name them; what has none is shared. SubstitutionProblem.

    `resolved`: variables are expanded already; else they will be, and a `$` in a value is none.
    """
    filled = {key: _put(value, row, (key,), "") if key in PLACES else value for key, value in task.items() if key != "agent"}
    if "agent" in task:
        filled["agent"] = _agent(task["agent"], row, ("agent",))
    if not resolved and isinstance(task.get("sandbox"), dict):
        filled["sandbox"] = _guarded(task["sandbox"], filled["sandbox"], row, ("sandbox",))
    return filled


def _agent(settings: Any, row: Mapping[str, Any], path: FieldPath) -> Any:
    if not isinstance(settings, dict):
        return settings
    for key, value in settings.items():
        if key not in AGENT_PLACES and (match := _first_name(value)) is not None:
            places = f"of an agent, rows reach {', '.join(AGENT_PLACES[:-1])} and {AGENT_PLACES[-1]} alone"
            raise SubstitutionProblem((*path, key), f"names {match}, which is not filled in here: {places}")
    return {key: _put(value, row, (*path, key), key) if key in AGENT_PLACES else value for key, value in settings.items()}


def _first_name(value: Any) -> str | None:
    """The first `${row.x}` in it."""
    if isinstance(value, str):
        return next((m[0] for m in _PLACEHOLDER.finditer(value) if m[0] != "$${"), None) if "${row" in value else None
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return next((found for each in inner if (found := _first_name(each)) is not None), None)


def _guarded(before: Any, after: Any, row: Mapping[str, Any], path: FieldPath) -> Any:
    """The values put in anew where variables are expanded later, each `$` of a row doubled."""
    if isinstance(before, dict):
        return {k: _guarded(v, after[k], row, (*path, k)) for k, v in before.items()}
    if isinstance(before, list):
        return [_guarded(v, after[n], row, (*path, n)) for n, v in enumerate(before)]
    if isinstance(before, str) and before != after and _EXPANDED.fullmatch(dotted(path)):
        return _PLACEHOLDER.sub(lambda m: m[0] if _literal(m) else as_text(_value(m, row, path), m[0], path).replace("$", "$$"), before)
    return after


def without_rows(task: Mapping[str, Any]) -> dict[str, Any]:
    """A task that has no dataset. SubstitutionProblem where it names a field of a row all the same."""
    bare = {key: _bare(value, (key,)) if key in _ROWLESS else value for key, value in task.items()}
    if isinstance(agent := task.get("agent"), dict):
        bare["agent"] = {key: _bare(value, ("agent", key)) if key in _ROWLESS_OF_AGENT else value for key, value in agent.items()}
    return bare


def _bare(value: Any, path: FieldPath) -> Any:
    if isinstance(value, str):
        return without_row(value, path) if "${row" in value else value
    if isinstance(value, dict):
        return {k: _bare(v, (*path, k)) for k, v in value.items()}
    return [_bare(v, (*path, n)) for n, v in enumerate(value)] if isinstance(value, list) else value


def without_row(text: str, path: FieldPath = ()) -> str:
    """A text of a task that has no dataset; `$${row.x}` is a literal `${row.x}`. SubstitutionProblem where it names a field of a row."""

    def literal(match: re.Match[str]) -> str:
        if match[0].startswith("$$"):
            return match[0][1:]
        raise SubstitutionProblem(path, f"names {match[0]}, and the task has no dataset; write ${match[0]} where that is the text itself")

    return _MEANT.sub(literal, text)


def _put(value: Any, row: Mapping[str, Any], path: FieldPath, key: str) -> Any:
    if path == ("simulation", "agent"):
        return _agent(value, row, path)
    if isinstance(value, str):
        return _put_text(value, row, path, key) if "${" in value else value
    if isinstance(value, dict):
        return {k: _put(v, row, (*path, k), str(k)) for k, v in value.items()}
    if isinstance(value, list):
        return [_put(v, row, (*path, n), key) for n, v in enumerate(value)]
    return value


def _put_text(text: str, row: Mapping[str, Any], path: FieldPath, key: str) -> Any:
    alone = _PLACEHOLDER.fullmatch(text)
    if alone is not None and alone[1] is not None and key not in COMMANDS:
        value = look_up(row, alone[1], path)
        if key == "expected" or isinstance(value, SourcedInt | SourcedFloat):
            return "" if value is None else value
    if key in COMMANDS:
        return _put_command(text, row, path)
    return substituted(text, row, path)


def substituted(text: str, row: Mapping[str, Any], path: FieldPath = ()) -> str:
    """The text with the row's values in it. SubstitutionProblem."""
    return _PLACEHOLDER.sub(lambda match: _literal(match) or as_text(_value(match, row, path), match[0], path), text)


def _literal(match: re.Match[str]) -> str:
    return "${" if match[0] == "$${" else ""


def _value(match: re.Match[str], row: Mapping[str, Any], path: FieldPath) -> Any:
    if match[1] is None:
        raise SubstitutionProblem(path, f"names no field of the row: write ${{row.NAME}}, one of {', '.join(map(str, row))}")
    return look_up(row, match[1], path)


def look_up(row: Mapping[str, Any], name: str, path: FieldPath) -> Any:
    """The value of a field; dots reach into mappings, unless a field has the whole name. SubstitutionProblem where there is none."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, Mapping) or part not in value:
            known = [str(key) for key in value] if isinstance(value, Mapping) else []
            hint = did_you_mean(part, known) or (f"; it has: {', '.join(known)}" if known else "")
            raise SubstitutionProblem(path, f"names ${{row.{name}}}, which the row does not have{hint}")
        value = value[part]
    return value


def as_text(value: Any, spelled: str, path: FieldPath) -> str:
    """A value of a row within a text."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "a mapping"
        raise SubstitutionProblem(path, f"names {spelled}, which is {kind} and can't stand in a text")
    return str(getattr(value, "source", value))


# ---- commands


def _put_command(text: str, row: Mapping[str, Any], path: FieldPath) -> str:
    parts: list[str] = []
    done = 0
    for match in _PLACEHOLDER.finditer(text):
        parts.append(text[done : match.start()])
        done = match.end()
        if literal := _literal(match):
            parts.append(literal)
            continue
        value = as_text(_value(match, row, path), match[0], path)
        parts.append(value if _SAFE.fullmatch(value) else _escaped(value, match, text, path))
    return "".join((*parts, text[done:]))


def _escaped(value: str, match: re.Match[str], text: str, path: FieldPath) -> str:
    way = f'use "${variable_name(match[1])}", which commands find in their environment'
    if "\0" in value:
        raise SubstitutionProblem(path, f"names {match[0]}, whose value has a NUL byte, which no command can hold")
    quote = "#" if _NESTED.search(text) else _quote_at(text, match.start())
    if quote == "#":
        where = "in a command with <<, a backtick, $(, $', eval, ssh or sh -c, behind a backslash or in a comment"
        raise SubstitutionProblem(path, f"names {match[0]}, whose value {json.dumps(value)[:60]} can't be put in safely {where}; {way}")
    if quote == "'":
        return value.replace("'", "'\"'\"'")
    if quote == '"':
        return re.sub(r'([\\"$`])', r"\\\1", value)
    return "'" + value.replace("'", "'\"'\"'") + "'"


def _quote_at(text: str, position: int) -> str:
    """The quotes that a place of a command stands in: `'`, `"`, none, or `#` for a comment and for behind a backslash."""
    state, at = "", 0
    while at < position:
        char = text[at]
        if state == "#":
            state = "" if char == "\n" else state
        elif state == "'":
            state = "" if char == "'" else state
        elif char == "\\":
            at += 1  # what it escapes
        elif state == '"':
            state = "" if char == '"' else state
        elif char in "'\"":
            state = char
        elif char == "#" and (at == 0 or text[at - 1] in " \t\n;&|()"):
            state = "#"
        at += 1
    return state if at == position else "#"
