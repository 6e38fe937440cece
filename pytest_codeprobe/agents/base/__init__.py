"""What all adapters share: reading JSON lines that nobody vouches for, and the parts of a parser that are the same for each CLI."""

from __future__ import annotations

import json
import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pytest_codeprobe import __version__
from pytest_codeprobe.agents.base.transcripts import MAX_BYTES, TranscriptBuilder
from pytest_codeprobe.model.agent import Agent, SessionEnd, SessionParser, SessionRequest
from pytest_codeprobe.model.context import TRUNCATE
from pytest_codeprobe.model.result import AgentInfo, Usage, no_usage
from pytest_codeprobe.model.sandbox import ProcessExit
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.text import ending, one_line, plain

_MAX_COUNT = 2**53
_MAX_WARNINGS = 50


def json_object(line: bytes) -> dict[str, Any] | None:
    """The JSON object on a line, None if there is something else on it. Never raises."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        value = json.loads(line.decode("utf-8", "surrogateescape"))
    except (ValueError, RecursionError):  # a number of 5000 digits is a ValueError too
        return None
    return value if isinstance(value, dict) else None


def mapping(value: Any) -> Mapping[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def sequence(value: Any) -> Sequence[Any]:
    """The value if it is an array, else an empty one."""
    return value if isinstance(value, list) else ()


def text(value: Any) -> str:
    """The value if it is text, else an empty one."""
    return value if isinstance(value, str) else ""


def count(value: Any) -> int | None:
    """The value if it can be a number of things."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _MAX_COUNT else None


def amount(value: Any) -> float | None:
    """The value if it can be an amount of money or of seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def exit_words(ended: ProcessExit) -> str:
    """How a process ended, for a reason: `exit status 3`, `signal 9`."""
    if ended.status is None:
        return f"no exit status ({ended.cause})"
    return f"signal {-ended.status}" if ended.status < 0 else f"exit status {ended.status}"


def last_words(stderr_tail: str, limit: int = 300) -> str:
    """The end of stderr on one line, led by `: `; empty where there is none."""
    words = ending(one_line(ending(stderr_tail, 4 * limit), 4 * limit), limit)
    return f": {words}" if words else ""


def no_price(model: str) -> str:
    """The warning that the price of a model is unknown; the same for all sessions, so that it is said once in a run."""
    return f"no price is known for model {one_line(model, 100)!r}: what its sessions cost is unknown"


class BaseParser(SessionParser):
    """The common part of all parsers: transcript, oversized lines, warnings.

    A subclass reads events in `event()`; a line that is no JSON object goes to `other()`.
    """

    agent: ClassVar[type[Agent]]

    def __init__(self, request: SessionRequest) -> None:
        self.request = request
        options, used_up = request.context.options, request.context.stops.is_raised(TRUNCATE)
        limit = options.trace_max_bytes or MAX_BYTES
        if request.exchange is not None:
            limit = max(1, limit - request.exchange.transcript_bytes)
        self.steps = TranscriptBuilder(request.prompt, limit=0 if used_up else limit, off=options.trace_overflow == "off")
        self.session_id = ""
        self.version: str | None = __version__
        self.model: str | None = request.trial.agent.model
        self.details: dict[str, Any] = {}  #: facts about the session for the transcript's `agent.extra`
        self._warnings: dict[str, None] = {}
        self._oversized = 0

    @abstractmethod
    def event(self, event: Mapping[str, Any]) -> None:
        """One JSON object. Must take any content."""

    def other(self, line: bytes) -> None:
        """A line that is no JSON object."""
        if line.strip():
            self.steps.raw(line)

    def feed(self, line: bytes) -> None:
        event = json_object(line)
        if event is None:
            self.other(line)
        else:
            self.event(event)

    def oversized(self, offset: int, length: int) -> None:
        self._oversized += 1
        self.steps.oversized(offset, length)

    def warn(self, message: str) -> None:
        """Say something to the user, once."""
        if len(self._warnings) < _MAX_WARNINGS:
            self._warnings[plain(message)] = None

    @property
    def overflowed(self) -> bool:
        return self.steps.over_limit and self.request.context.options.trace_overflow == "fail"

    @property
    def warnings(self) -> Sequence[str]:
        found = list(self._warnings)
        if self._oversized:
            found.append(f"{self._oversized} lines of output were too long to be read; they are in the raw log only")
        if self.steps.truncated:
            found.append(f"the transcript was truncated {self.steps.cut}; the raw log has the rest")
        return found

    def info(self) -> AgentInfo:
        return AgentInfo(name=self.agent.name, version=self.version, model=self.model)

    def transcript(self) -> Transcript:
        fallback = f"{self.request.context.run_id}:{self.request.trial.node_id}"
        return self.steps.build(self.info(), self.usage(), session_id=self.session_id or fallback, extra=self.details)


class QuietParser(BaseParser):
    """For agents that call no model and print no events: what they print is kept as one step."""

    keep: ClassVar[int] = 64 << 10  #: bytes of output

    def __init__(self, request: SessionRequest) -> None:
        super().__init__(request)
        self._tail = bytearray()
        self._cut = False

    def event(self, event: Mapping[str, Any]) -> None:
        """Not called: lines are not read as JSON."""

    def feed(self, line: bytes) -> None:
        self._tail += line + b"\n"
        if len(self._tail) > 2 * self.keep:
            del self._tail[: -self.keep]
            self._cut = True

    def output(self) -> str:
        """The end of what was printed, safe to show."""
        cut = "…" if self._cut or len(self._tail) > self.keep else ""
        return cut + plain(bytes(self._tail[-self.keep :]).decode("utf-8", "replace")).strip("\n")

    def usage(self) -> Usage:
        return no_usage()

    def final_message(self) -> str:
        return ""

    def end(self, exit: ProcessExit, *, stopped_for: str | None, stderr_tail: str) -> SessionEnd:
        if stopped_for is None and exit.status != 0:
            return SessionEnd(code="AGENT_CRASHED", reason=f"{self.agent.name} ended with {exit_words(exit)}{last_words(stderr_tail)}")
        return SessionEnd()

    def transcript(self) -> Transcript:
        if output := self.output():
            self.steps.step("agent", output, llm_call_count=0)
        return super().transcript()
