"""Which tools a session called, how often and in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import regex
from pydantic import Field, model_validator

from pytest_codeprobe.criteria.base import compile_pattern, listing
from pytest_codeprobe.criteria.trajectory.calls import Call, Finder, TooSlow, Trajectory, trajectory
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.base import Flag, Int, Text
from pytest_codeprobe.model.criterion import Criterion, Grading, Score

_SHOWN = 3  #: calls in an explanation
_EVIDENCE = 20  #: calls in the evidence
_CUT = "the transcript was cut short, so there may have been more"


def _pattern(text: str | None) -> regex.Pattern[str] | None:
    """`.` takes newlines too: agents write long commands over several lines."""
    return None if text is None else compile_pattern(text, ("DOTALL",))


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def judged(count: int, least: int, most: int | None, *, cut: bool, what: str, calls: Sequence[Call]) -> Score:
    """The share of `least` that there is, 0 above `most`; with the calls that count."""
    shown = f": {listing([call.label() for call in calls], _SHOWN)}" if calls else ""
    evidence: dict[str, Any] = {"count": count, "calls": [call.label(300) for call in calls[:_EVIDENCE]]}
    found = f"{_number(count, 'call')} of {what}{shown}"
    if most is not None and count > most:
        return Score(0.0, f"{found}; at most {most} allowed", evidence)
    if cut and most is not None:
        return Score(0.0, f"{found}; {_CUT}", evidence)
    if count < least:
        return Score(count / least, f"{found}; at least {least} wanted{f'; {_CUT}' if cut else ''}", evidence)
    return Score(1.0, found, evidence)


def _bounds(least: int, most: int | None, names: tuple[str, str]) -> None:
    if most is not None and most < least:
        hint = "; for what must not happen say min_count: 0 as well, or use command_not_executed" if names[0] == "min_count" else ""
        raise ValueError(f"{names[1]!r} is {most}, below {names[0]!r}, which is {least}{hint}")


class _OnCommands(Criterion):
    tool_name: Text | None = Field(default=None, min_length=1)
    command_pattern: Text | None = Field(default=None, min_length=1)
    exclude_pattern: Text | None = Field(default=None, min_length=1)
    require_success: Flag = False

    needs_session: ClassVar[bool] = True

    @model_validator(mode="after")
    def _compiles(self) -> _OnCommands:
        _pattern(self.command_pattern)
        _pattern(self.exclude_pattern)
        return self

    def _what(self) -> str:
        tool = self.tool_name or ("shell" if self._shell_only() else "any tool")
        parts = [tool, f"with {self.command_pattern!r}" if self.command_pattern else ""]
        parts += [f"without {self.exclude_pattern!r}" if self.exclude_pattern else "", "that succeeded" if self.require_success else ""]
        return " ".join(part for part in parts if part)

    def _shell_only(self) -> bool:
        return self.tool_name is None and (self.command_pattern or self.exclude_pattern) is not None

    def _matching(self, seen: Trajectory, finder: Finder) -> list[Call]:
        """Those of the calls that count. TooSlow."""
        pattern, exclude = _pattern(self.command_pattern or (r"" if self.exclude_pattern else None)), _pattern(self.exclude_pattern)
        wanted = self.tool_name or "shell"
        calls = [c for c in seen.calls if not (self.tool_name or self._shell_only()) or seen.names.is_meant(wanted, c.tool)]
        if self.require_success:
            calls = [c for c in calls if c.status == "ok"]
        return [c for c in calls if pattern is None or finder.matches(c, pattern, exclude)]

    def _score(self, grading: Grading, least: int, most: int | None) -> Score:
        seen = trajectory(grading)
        try:
            calls = self._matching(seen, Finder(grading))
        except TooSlow:
            return Score(0.0, f"looking for {self._what()} took too long")
        return judged(len(calls), least, most, cut=seen.cut, what=self._what(), calls=calls)


class CommandExecuted(_OnCommands):
    """The agent called a tool, or ran a command, often enough and not too often."""

    type: Literal["command_executed"]
    min_count: Int = Field(default=1, ge=0)
    max_count: Int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _ordered(self) -> CommandExecuted:
        _bounds(self.min_count, self.max_count, ("min_count", "max_count"))
        return self

    def evaluate(self, grading: Grading) -> Score:
        """min(1, n / min_count); 0 above max_count. NotApplicable where nothing is known of the calls."""
        return self._score(grading, self.min_count, self.max_count)


class CommandNotExecuted(_OnCommands):
    """The agent did not call a tool, or run a command."""

    type: Literal["command_not_executed"]

    def evaluate(self, grading: Grading) -> Score:
        """1 or 0. NotApplicable where nothing is known of the calls."""
        return self._score(grading, 0, 0)


class CommandOrder(Criterion):
    """Commands that match some patterns were run in that order, whatever else was run between them."""

    type: Literal["command_order"]
    patterns: tuple[Text, ...] = Field(min_length=1, max_length=100)

    default_threshold: ClassVar[float] = 0.9
    needs_session: ClassVar[bool] = True

    @model_validator(mode="after")
    def _compiles(self) -> CommandOrder:
        for pattern in self.patterns:
            _pattern(pattern)
        return self

    def evaluate(self, grading: Grading) -> Score:
        """The longest part of the patterns that was seen in their order, as a share of all."""
        seen = trajectory(grading)
        compiled = [_pattern(text) for text in self.patterns]
        finder = Finder(grading)
        try:
            rows = [[p is not None and finder.found(p, text) for p in compiled] for text in _events(seen)]
        except TooSlow:
            return Score(0.0, "looking for the patterns took too long")
        kept = _longest(rows, len(self.patterns))
        missing = [text for number, text in enumerate(self.patterns) if not kept >> number & 1]
        why = f"not in this order, or not at all: {listing(missing)}" if missing else "all in order"
        return Score(kept.bit_count() / len(self.patterns), f"{why}{f'; {_CUT}' if seen.cut and missing else ''}", {"missing": missing})


def _events(seen: Trajectory) -> list[str]:
    """The shell's commands in their order, one for each simple command; the whole line where it has only one."""
    found: list[str] = []
    for call in seen.calls:
        if seen.names.is_meant("shell", call.tool):
            found += call.simple or [call.text]
    return found


def _longest(rows: Sequence[Sequence[bool]], width: int) -> int:
    """The patterns, as bits, of a longest common subsequence of events and patterns."""
    best = [0] * (width + 1)
    for row in rows:
        if not any(row):
            continue
        new = [0]
        for number in range(width):
            options = (best[number + 1], new[number], best[number] | 1 << number if row[number] else 0)
            new.append(max(options, key=int.bit_count))
        best = new
    return best[width]


class CommandsEfficiency(Criterion):
    """The agent needed no more tool calls than were expected."""

    type: Literal["commands_efficiency"]
    expected_commands: Int | None = Field(default=None, gt=0)  #: None: the task's own field of that name

    default_threshold: ClassVar[float] = 0.9
    needs_session: ClassVar[bool] = True

    def evaluate(self, grading: Grading) -> Score:
        """min(1, expected / actual), over the calls of all tools."""
        seen = trajectory(grading)
        actual, expected = len(seen.calls), self._expected(grading)
        why = f"{_number(actual, 'tool call')}, {expected} expected"
        evidence = {"actual": actual, "expected": expected}
        if seen.cut:
            return Score(0.0, f"{why}; {_CUT}", evidence)
        return Score(1.0 if actual <= expected else expected / actual, why, evidence)

    def _expected(self, grading: Grading) -> int:
        expected = self.expected_commands or grading.trial.expected_commands
        if expected is None:
            raise CodeprobeError("VERIFIER_FAILED", "neither the criterion nor the task says expected_commands")
        return expected

    def preflight(self, grading: Grading) -> None:
        """Somebody must say how many are expected."""
        self._expected(grading)


class ToolUsed(Criterion):
    """The agent called a tool, or any tool of an MCP server."""

    type: Literal["tool_used"]
    name: Text | None = Field(default=None, min_length=1)
    mcp: Text | None = Field(default=None, min_length=1)  #: name of an MCP server
    min: Int = Field(default=1, ge=0)
    max: Int | None = Field(default=None, ge=0)

    needs_session: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one(self) -> ToolUsed:
        if (self.name is None) == (self.mcp is None):
            raise ValueError("needs either 'name' or 'mcp'")
        _bounds(self.min, self.max, ("min", "max"))
        return self

    def evaluate(self, grading: Grading) -> Score:
        """min(1, n / min); 0 above max."""
        seen = trajectory(grading)
        wanted = self.name if self.name is not None else f"mcp:{self.mcp}"
        calls = [call for call in seen.calls if seen.names.is_meant(wanted, call.tool)]
        return judged(len(calls), self.min, self.max, cut=seen.cut, what=wanted, calls=calls)
