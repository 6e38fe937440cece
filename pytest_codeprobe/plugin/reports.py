"""What pytest's reports say of trials: the record on exactly one of them, the outcome that it stands for, and no secrets."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import VERDICTS, TrialResult, result_text
from pytest_codeprobe.plugin.collect import TaskItem
from pytest_codeprobe.plugin.failure import allowed_miss, failure_text, harness_text, place_skip, told
from pytest_codeprobe.plugin.marked import MARKED, holder_of, note, record_of, redact, redact_report, run_of
from pytest_codeprobe.plugin.protocol import close_run
from pytest_codeprobe.text import Redactor, one_line

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live

_TOLD = (CodeprobeError, pytest.FixtureLookupError)  #: in our words


class Reports:
    """The hook that makes them, in the process that runs items."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._sent = 0  #: our warnings that the controller knows

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # outermost: sees what pytest's xfail handling made of it
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """The record goes on exactly one report: set-up's for error, skipped and not_run, the call's for a verdict."""
        report = yield
        run = run_of(item)
        place_skip(item, report)
        record = record_of(item)
        if run is not None and record is not None:
            if call.when == "setup" and call.excinfo is not None and record.status in VERDICTS:
                record = note(item, close_run(run, call.excinfo.value))  # a wrapper outside ours raised
            if call.when == "call" and report.failed and record.status == "passed":
                record = note(item, run.finish(outcome="failed", reason=_why_pytest_failed(call, run.redactor)))
            if call.when == "call" and record.status == "failed" and record.verdict is not None and not isinstance(item, TaskItem):
                report.sections.append(("codeprobe", failure_text(record, self._live.shown_run_dir())))
            _fit(item, call, record, report)
            if record.status == "error" and call.excinfo is not None and isinstance(call.excinfo.value, _TOLD):
                text = harness_text(record, self._live.shown_run_dir())
                path, line, _ = item.reportinfo()
                report.longrepr = told(record, call.excinfo, text, Path(path), (line or 0) + 1)  # type: ignore[assignment]  # a TerminalRepr
            if _is_final(record) and item.config.pluginmanager.has_plugin("rerunfailures"):
                item.add_marker(pytest.mark.flaky(condition=False), append=False)  # read after each try
            _time(item, record, report)
            if call.when == _phase_of(item, record):
                _properties(item, record)
                report.user_properties = list(item.user_properties)
                report.codeprobe = result_text(record)  # type: ignore[attr-defined]  # travels to the controller
        redact_report(item, call, report)
        if self._live.called_secrets:
            redact(report, call, self._live.called_secrets)
        new = self._live.warnings[self._sent :]
        if call.when == "teardown" and self._live.state.worker and new:
            self._sent += len(new)
            report.codeprobe_warnings = json.dumps(new)  # type: ignore[attr-defined]
        return report


def _time(item: pytest.Item, record: TrialResult, report: pytest.TestReport) -> None:
    """Of a trial that ran ahead the set-up took as long as the trial, for --durations and JUnit."""
    if report.when == "setup" and isinstance(item, TaskItem) and (item.ahead or item.ran_ahead):
        report.duration = record.duration_seconds
        report.start = report.stop - report.duration


def _why_pytest_failed(call: pytest.CallInfo[None], redactor: Redactor) -> str:
    """Of a trial whose verdict is pass."""
    if call.excinfo is None:
        return "passes, but is expected to fail (strict xfail)"
    return one_line(redactor.text(call.excinfo.exconly()), 500)


def _fit(item: pytest.Item, call: pytest.CallInfo[None], record: TrialResult, report: pytest.TestReport) -> None:
    """Make of pytest's outcome what the record says: a miss that a gate allows is expected, trouble of the harness is an error."""
    holder = holder_of(item)
    if call.when == "call" and report.failed and holder is not None and (word := allowed_miss(holder.trial, record)):
        report.outcome, report.wasxfail = "skipped", word
    if record.status == "error" and call.excinfo is not None:
        report.when, report.outcome = "setup", "failed"  # trouble of the harness stays an error, also in a marked test's body
        if hasattr(report, "wasxfail"):  # and under a user's own xfail mark
            del report.wasxfail


def _is_final(record: TrialResult) -> bool:
    """Whether a rerun could only repeat what a limit, a budget or a refused login decided, or what was decided in an earlier run.

    A miss in a gate over repeats is final too: others may have been left out for it, and the gate says how many are allowed.
    """
    return (
        record.cached
        or record.regraded  # another try would be a session, and this was to be without one
        or record.miss is not None
        or record.limit_hit is not None
        or record.code in ("AUTH_FAILED", "BUDGET_EXCEEDED", "OFFLINE_NET_ATTEMPT")
    )


def _phase_of(item: pytest.Item, record: TrialResult) -> Literal["setup", "call"]:
    if isinstance(item, TaskItem):
        return "call" if record.status in VERDICTS else "setup"
    return item.stash[MARKED].phase


def _properties(item: pytest.Item, record: TrialResult) -> None:
    """Score, cost, tokens and turns as JUnit properties; a rerun replaces those of the try before."""
    item.user_properties[:] = [p for p in item.user_properties if not str(p[0]).startswith("codeprobe_")]
    values = {
        "status": record.status,
        "score": None if record.score is None else round(record.score, 6),
        "cost_usd": record.cost_usd,
        "tokens": record.usage.total_tokens,
        "turns": record.usage.turns,
        "agent": record.agent.name if record.agent else None,
        "model": record.agent.model if record.agent else None,
    }
    item.user_properties.extend((f"codeprobe_{name}", str(value)) for name, value in values.items() if value is not None)
