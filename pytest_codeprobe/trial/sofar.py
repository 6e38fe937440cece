"""What a dialog has used: by the sessions that are over, and together with the one that runs."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_codeprobe.model.agent import Fault, SessionEnd, SessionParser
from pytest_codeprobe.model.capabilities import Capabilities
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import AgentInfo, Usage, no_usage
from pytest_codeprobe.model.sandbox import ProcessExit
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.trial.spending import cost_at_most, usage_of


class Sofar:
    """Of both sides, over all sessions that have ended."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.usage = no_usage()
        self.most = 0.0  #: US dollars that they have cost at most
        self.unpriced: str | None = None  #: a model that makes their cost unknown

    def add(self, ended: Together) -> None:
        """One more that is over."""
        usage, most = ended.usage(), ended.cost_at_most()
        self.usage, self.most, self.unpriced = usage, most, ended.unpriced


class Together(SessionParser):
    """The parser of the session that runs, as the limits and the run's budget see it: with what the dialog had used before.

    Turns are those of the running session, since `max_turns` holds for each exchange.
    """

    def __init__(self, own: SessionParser, before: Sofar, context: Context) -> None:
        self._own, self._context = own, context
        self._usage, self._most, self._unpriced = before.usage, before.most, before.unpriced

    def own(self) -> Usage:
        """Of the running session alone."""
        return usage_of(self._own, self._context)

    def usage(self) -> Usage:
        """See above."""
        own = self.own()
        return self._usage.plus(own).model_copy(update={"turns": own.turns})

    def cost_at_most(self) -> float:
        """Of the whole dialog, whether or not its cost is known."""
        own = self.own()
        most = own.cost_usd if own.cost_usd is not None else cost_at_most(self._own, own, self._context)
        return self._most + (most or 0.0)

    # attributes in the class that it stands for
    @property
    def unpriced(self) -> str | None:  # type: ignore[override]
        """See SessionParser."""
        return self._unpriced if self._unpriced is not None else self._own.unpriced

    @property
    def fault(self) -> Fault | None:  # type: ignore[override]
        """See SessionParser."""
        return self._own.fault

    @property
    def replied(self) -> bool:  # type: ignore[override]
        """See SessionParser."""
        return self._own.replied

    @property
    def final_seen(self) -> bool:  # type: ignore[override]
        """See SessionParser."""
        return self._own.final_seen

    @property
    def doomed(self) -> bool:  # type: ignore[override]
        """See SessionParser."""
        return self._own.doomed

    @property
    def session_id(self) -> str:  # type: ignore[override]
        """See SessionParser."""
        return self._own.session_id

    @property
    def overflowed(self) -> bool:
        """See SessionParser."""
        return self._own.overflowed

    def feed(self, line: bytes) -> None:
        """See SessionParser."""
        self._own.feed(line)

    def oversized(self, offset: int, length: int) -> None:
        """See SessionParser."""
        self._own.oversized(offset, length)

    def info(self) -> AgentInfo:
        """See SessionParser."""
        return self._own.info()

    def final_message(self) -> str:
        """See SessionParser."""
        return self._own.final_message()

    def end(self, exit: ProcessExit, *, stopped_for: str | None, stderr_tail: str) -> SessionEnd:
        """See SessionParser."""
        return self._own.end(exit, stopped_for=stopped_for, stderr_tail=stderr_tail)

    def transcript(self) -> Transcript:
        """See SessionParser."""
        return self._own.transcript()

    def capabilities(self) -> Capabilities | None:
        """See SessionParser."""
        return self._own.capabilities()

    @property
    def warnings(self) -> Sequence[str]:
        """See SessionParser."""
        return self._own.warnings
