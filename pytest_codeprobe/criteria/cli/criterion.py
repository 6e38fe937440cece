"""The criterion `cli_called`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from pytest_codeprobe.criteria.base import NotThere, WorkspacePath, broken, read_bytes
from pytest_codeprobe.criteria.cli.matching import SlowPattern, fits
from pytest_codeprobe.model.base import Int, Text
from pytest_codeprobe.model.criterion import Criterion, Grading, Score
from pytest_codeprobe.model.invocations import CALLS_FILE, Facets
from pytest_codeprobe.text import one_line

_SHOWN, _EVIDENCE = 3, 20  #: calls in an explanation, in the evidence
_SECONDS = 20.0  #: for all expressions on all calls


@dataclass(slots=True)
class _Log:
    """The calls of a log, and how many lines can't be read as one."""

    calls: list[tuple[str, list[str]]] = field(default_factory=list)  #: tool, arguments
    unreadable: int = 0
    lost: int = 0  #: calls that the log had no room for

    @classmethod
    def of(cls, content: bytes) -> _Log:
        log = cls()
        for line in content.split(b"\n"):
            if line.strip():
                log._line(line)
        return log

    def _line(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            entry = None
        argv = entry.get("argv") if isinstance(entry, dict) else None
        if isinstance(entry, dict) and isinstance(entry.get("lost"), int):
            self.lost += entry["lost"]
        elif not isinstance(argv, list) or not all(isinstance(part, str) for part in argv) or entry.get("truncated"):
            self.unreadable += 1
        else:
            tool = entry.get("tool")
            self.calls.append((tool if isinstance(tool, str) else "", argv))


class CliCalled(Facets, Criterion):
    """A program was called with these arguments, often enough and not too often."""

    type: Literal["cli_called"]
    tool: Text | None = Field(default=None, min_length=1)
    log: WorkspacePath = CALLS_FILE
    min_count: Int = Field(default=1, ge=0)
    max_count: Int | None = Field(default=None, ge=0)

    needs_session: ClassVar[bool] = True

    @model_validator(mode="after")
    def _ordered(self) -> CliCalled:
        if self.max_count is not None and self.max_count < self.min_count:
            hint = "; for what must not be called say min_count: 0 as well"
            raise ValueError(f"'max_count' is {self.max_count}, below 'min_count', which is {self.min_count}{hint}")
        return self

    def preflight(self, grading: Grading) -> None:
        """VERIFIER_FAILED where nothing records such calls."""
        sandbox = grading.trial.sandbox
        if self.log != CALLS_FILE or not sandbox.record_cli:
            if not sandbox.mock_path_dirs and not (grading.workspace / self.log).is_file():
                raise broken(f"nothing writes {self.log}: the task has neither sandbox.record_cli nor sandbox.mock_path_dirs")
            return
        recorded = [entry.tool for entry in sandbox.record_cli]
        if self.tool is not None and self.tool not in recorded:
            raise broken(f"sandbox.record_cli has no {self.tool!r}, only {', '.join(recorded)}")

    def evaluate(self, grading: Grading) -> Score:
        """1 or 0. The harness's own log counts where it is asked for; one in the workspace is as good as the programs that write it."""
        content = grading.cli_calls if self.log == CALLS_FILE else None
        if content is None:
            try:
                content = read_bytes(grading.workspace, self.log)
            except NotThere as error:
                return Score(0.0, f"there is no log of calls: {error}")
        log = _Log.of(content)
        try:
            until = monotonic() + grading.time_left(_SECONDS)
            found = [call for call in log.calls if self.tool in (None, call[0]) and fits(self, call[1], until)]
        except SlowPattern:
            return Score(0.0, "the expressions took too long on the arguments of the calls")
        return self._score(grading, log, found)

    def _score(self, grading: Grading, log: _Log, found: Sequence[tuple[str, list[str]]]) -> Score:
        count = len(found)
        evidence: dict[str, Any] = {"count": count, "recorded": len(log.calls), "calls": _shown(grading, found[:_EVIDENCE], 300)}
        if log.unreadable or log.lost:
            evidence |= {"unreadable": log.unreadable, "lost": log.lost}
        said = f"{count} of {len(log.calls)} recorded calls {'fits' if count == 1 else 'fit'}"
        if self.max_count is not None and count > self.max_count:
            return Score(0.0, f"{said}, at most {self.max_count} allowed: {'; '.join(_shown(grading, found[:_SHOWN], 100))}", evidence)
        if self.max_count is not None and (log.unreadable or log.lost):
            return Score(0.0, f"{said}, but {log.unreadable + log.lost} more can't be read", evidence)
        if count < self.min_count:
            others = "; ".join(_shown(grading, log.calls[:_SHOWN], 100))
            return Score(0.0, f"{said}, at least {self.min_count} wanted{f'; there were: {others}' if others else ''}", evidence)
        return Score(1.0, said, evidence)


def _shown(grading: Grading, calls: Sequence[tuple[str, list[str]]], limit: int) -> list[str]:
    return [one_line(grading.redact(shlex.join([tool or "?", *argv])), limit) for tool, argv in calls]
