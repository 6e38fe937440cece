"""The controller's eye on what the run may cost: money and wall time. Warns in time, and says at the end what did not fit."""

from __future__ import annotations

import contextlib
from time import monotonic
from typing import TYPE_CHECKING

from pytest_codeprobe.amounts import dollars, span
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import CENT_FRACTION
from pytest_codeprobe.plugin.refusal import refused
from pytest_codeprobe.run.book import RunBook
from pytest_codeprobe.run.budget import Fates, ledger_lost, money_used_up, refuse, time_used_up, unheld

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.run.ledger import LedgerFile

_WARN_AT = (80, 100)  #: per cent
_TIME = "time"
_OWN_WORD = 1.0  #: seconds in which the process that crossed the limit says so itself


def ledger_of(live: Live) -> LedgerFile | None:
    """For the trials of this process."""
    limit = live.state.options.max_cost_usd
    return None if limit is None else _ledger(live, limit)


def _ledger(live: Live, limit: float) -> LedgerFile:
    from pytest_codeprobe.run.ledger import LedgerFile  # sqlite3 loads with a budget

    ledger = LedgerFile(live.folder.ledger_file, limit)
    live.config.add_cleanup(ledger.close)
    return ledger


class Budget:
    """One for each run. Everything is a no-op where neither money nor time is bounded."""

    def __init__(self, live: Live, book: RunBook) -> None:
        self._live, self._book = live, book
        self._money, self._time = live.state.options.max_cost_usd, live.state.options.max_duration
        self._began = live.state.began
        self._ledger: LedgerFile | None = None  #: of its own: a trial of this process that waits must not hold up the follower
        self._told: dict[str, int] = {}
        self._gone_since: float | None = None
        self._out_of_time: float | None = None  #: seconds that the run had taken when it was stopped for it

    def begin(self) -> None:
        """The plan is known, and nothing has started: refuse what could not be held, and make the ledger."""
        plan, registry = self._book.plan.values(), self._live.registry
        if self._money is None:
            for warning in unheld(plan, registry):
                self._live.warn(warning)
            self.look()
            return
        error = refuse(plan, registry, self._live.context.prices, self._money)
        if error is None:
            self._ledger = _ledger(self._live, self._money)
            try:
                self._ledger.open()
                if self._live.resume is not None and self._live.resume.ours:
                    self._ledger.take_over(self._live.resume.earlier.spent(plan))
            except CodeprobeError as trouble:
                error = CodeprobeError("USAGE_ERROR", trouble.message, remediation=trouble.remediation)
        if error is not None:
            raise refused(error, self._live.config) from error
        self.look()

    def look(self) -> None:
        """Five times a second."""
        if self._time is not None:
            spent = monotonic() - self._began
            self._warn(_TIME, self._time, spent, None)
            waiting = len(self._book.final) < len(self._book.plan)
            if spent >= self._time and (waiting or self._book.may_call) and not self._live.stops.is_raised(_TIME):
                self._out_of_time = spent if waiting else None
                with contextlib.suppress(OSError):  # a full disk: this process has heard of it all the same
                    self._live.stops.raise_flag(_TIME)
        if self._ledger is not None:
            with contextlib.suppress(CodeprobeError):  # the trials themselves say so
                balance = self._ledger.balance()
                self._warn("cost", balance.limit, balance.spent, balance.reserved)
                self._stop_late(balance.is_gone)

    def _stop_late(self, is_gone: bool) -> None:
        """Whoever crossed the limit tells the others, once its session had a moment to end; unless it was killed in that moment."""
        self._gone_since = (self._gone_since or monotonic()) if is_gone else None
        if self._gone_since is not None and monotonic() - self._gone_since > _OWN_WORD and not self._live.stops.is_raised("budget"):
            with contextlib.suppress(OSError):
                self._live.stops.raise_flag("budget")

    def _warn(self, kind: str, limit: float, spent: float, reserved: float | None) -> None:
        for percent in _WARN_AT:
            if spent > limit * percent / 100 - CENT_FRACTION and self._told.get(kind, 0) < percent:
                self._told[kind] = percent
                self._book.event("budget_warning", kind=kind, percent=percent, limit=limit, spent=round(spent, 6), reserved=reserved)

    def close(self) -> list[CodeprobeError]:
        """Every trial has its record: what of it is an error of the run."""
        found = []
        if self._ledger is not None:
            fates = self._fates("budget")
            try:
                error = money_used_up(self._ledger.balance(), self._ledger.refused(), fates, self._ledger.assumed())
            except CodeprobeError as trouble:
                spent = sum(final.cost_usd or 0.0 for final in self._book.final.values())
                error = ledger_lost(self._ledger.limit, spent, fates, trouble) if fates.ended or fates.unstarted else trouble
            found += [error] if error is not None else []
            self._ledger.close()
        if self._time is not None and self._out_of_time is not None:
            found.append(time_used_up(self._time, self._out_of_time, self._fates(_TIME)))
        return found

    def _fates(self, reason: str) -> Fates:
        began = [final.attempts > 0 for final in self._book.final.values() if final.reason == reason and final.status == "not_run"]
        return Fates(ended=sum(began), unstarted=len(began) - sum(began))

    def shown(self) -> list[str]:
        """For the header line."""
        return [
            *([f"budget {dollars(self._money)}"] if self._money is not None else []),
            *([f"at most {span(self._time)}"] if self._time is not None else []),
        ]
