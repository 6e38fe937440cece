"""The tool calls of a session, from its transcript, and whether one is of the tool that a task names."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

import regex

from pytest_codeprobe.criteria.trajectory.shell import simple_commands, without_assignments
from pytest_codeprobe.model.context import TRUNCATE
from pytest_codeprobe.model.criterion import Grading, NotApplicable
from pytest_codeprobe.model.transcript import Step, Transcript
from pytest_codeprobe.text import one_line

_ALIASES = "claude"  #: the agent whose own names are aliases of those that mean the same for every agent
SEARCH_SECONDS = 20.0  #: for all searches of one criterion: an agent can write commands on which a pattern takes for ever
_COMMAND_KEYS = ("command", "cmd", "script")

Status = Literal["ok", "failed", "unknown"]


class TooSlow(Exception):
    """The patterns were not through with the commands in time."""


@dataclass(slots=True)
class Call:
    """One tool call. `command` is the whole command of a shell's call, None of another tool's."""

    tool: str
    arguments: Mapping[str, Any]
    status: Status = "unknown"  #: unknown: the session ended before its answer
    answer: str = ""
    command: str | None = None
    redact: Callable[[str], str] = str  #: takes secrets out of a text, before any of it is cut off
    _simple: list[str] | None = field(default=None, repr=False)

    @property
    def text(self) -> str:
        """What a pattern is looked for in: the command, or the arguments as JSON."""
        return json.dumps(self.arguments, ensure_ascii=False) if self.command is None else self.command

    @property
    def simple(self) -> Sequence[str]:
        """The simple commands of a shell's command line; empty for another tool."""
        if self._simple is None:
            self._simple = [] if self.command is None else simple_commands(self.command)
        return self._simple

    @property
    def units(self) -> Sequence[str]:
        """The same, once as they are written and once without the variables set for them; what is the whole command is left out."""
        bare = (without_assignments(part) for part in self.simple)
        return [part for part in dict.fromkeys((*self.simple, *bare)) if part != self.command]

    def label(self, limit: int = 100) -> str:
        """For an explanation."""
        return one_line(self.redact(self.text if self.command is not None else f"{self.tool}({self.text})"), limit)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """The calls of a session in their order; `cut`: the transcript was truncated, so there may have been more."""

    calls: Sequence[Call]
    cut: bool
    names: ToolNames


class ToolNames:
    """Which of an agent's tools a name in a task means."""

    def __init__(self, own: Mapping[str, Sequence[str]], aliases: Mapping[str, Sequence[str]]) -> None:
        self._own = own
        self._neutral = {name: neutral for neutral, names in aliases.items() for name in names}
        self._all = frozenset(name for names in own.values() for name in names)

    def of(self, name: str) -> frozenset[str]:
        """The agent's own names for a tool."""
        if name in self._own:
            return frozenset(self._own[name])
        if name in self._all:
            return frozenset((name,))
        return frozenset((name, *self._own.get(self._neutral.get(name, ""), ())))

    def is_meant(self, name: str, tool: str) -> bool:
        """Whether a call of `tool` is one of the tool that a task calls `name`."""
        if name.startswith("mcp:"):
            wanted = f"mcp__{name.removeprefix('mcp:')}"
            return tool == wanted or tool.startswith(f"{wanted}__")
        return tool in self.of(name)


def trajectory(grading: Grading) -> Trajectory:
    """What a session did. NotApplicable where nothing is known of that."""
    transcript = grading.transcript
    if transcript is None:
        raise NotApplicable("there is no transcript to look at")
    registry = grading.context.registry
    agent = registry.agent(grading.trial.agent.type or "")
    if not agent.tells_calls:
        raise NotApplicable(f"agent {agent.name} tells nothing of its tool calls")
    names = ToolNames(agent.tool_names, registry.agents[_ALIASES].tool_names if _ALIASES in registry.agents else {})
    cut = _is_cut(transcript.steps)
    if cut and (grading.context.options.trace_max_bytes is not None or grading.context.stops.is_raised(TRUNCATE)):
        raise NotApplicable("the transcript was cut short by a limit of the run")
    return Trajectory(list(calls_of(transcript, names, grading.redact)), cut, names)


def _is_cut(steps: Sequence[Step]) -> bool:
    return steps[-1].source == "system" and (steps[-1].extra or {}).get("truncated") is True


def calls_of(transcript: Transcript, names: ToolNames, redact: Callable[[str], str] = str) -> Iterator[Call]:
    """All calls, sub-agents' too; those that a resumed session only repeats are left out."""
    shells = names.of("shell")
    for step in transcript.steps:
        if step.is_copied_context:
            continue
        results = {result.source_call_id: result for result in (step.observation.results if step.observation else ())}
        for made in step.tool_calls or ():
            call = Call(made.function_name, made.arguments, redact=redact)
            if made.function_name in shells:
                call.command = command_of(made.arguments)
            if (result := results.get(made.tool_call_id)) is not None:
                extra = result.extra or {}
                call.status = "failed" if extra.get("failed") or extra.get("refused") else "ok"
                call.answer = result.content or ""
            yield call


def command_of(arguments: Mapping[str, Any]) -> str | None:
    """The command line in a shell call's arguments, as text or as a list of words."""
    for key in _COMMAND_KEYS:
        value = arguments.get(key)
        if isinstance(value, str):
            return value
        if isinstance(value, list) and value and all(isinstance(part, str) for part in value):
            return shlex.join(value)
    return None


class Finder:
    """Looks for patterns in calls, for as long as the criterion may take."""

    def __init__(self, grading: Grading) -> None:
        self._left = grading.time_left(SEARCH_SECONDS)

    def found(self, pattern: regex.Pattern[str], text: str) -> bool:
        """TooSlow where the time is over."""
        if self._left <= 0:
            raise TooSlow
        began = monotonic()
        try:
            return pattern.search(text, timeout=self._left, concurrent=True) is not None
        except TimeoutError as error:
            raise TooSlow from error
        finally:
            self._left -= monotonic() - began

    def matches(self, call: Call, pattern: regex.Pattern[str], exclude: regex.Pattern[str] | None = None) -> bool:
        """Whether the pattern is found in the whole call, or in a simple command of it, in which `exclude` is not."""
        return any(
            self.found(pattern, text) and not (exclude is not None and self.found(exclude, text)) for text in (call.text, *call.units)
        )
