"""xdist's workers that are gone: their last words at the end of a run, and the trial that one has died in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import VERDICTS, TrialResult
from pytest_codeprobe.plugin.ending import Ending
from pytest_codeprobe.plugin.failure import allowed_miss
from pytest_codeprobe.plugin.last_resort import LastResort
from pytest_codeprobe.plugin.refusal import refused
from pytest_codeprobe.run.book import RunBook

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live


class Workers:
    """The controller's hooks on them. Without xdist none is called."""

    def __init__(self, live: Live, book: RunBook, ending: Ending, last_resort: LastResort) -> None:
        self._live, self._book, self._ending, self._last_resort = live, book, ending, last_resort

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        """A worker is gone."""
        with self._live.interrupts.held():
            self._gone(node)

    def _gone(self, node: Any) -> None:
        self._book.drain(node.gateway.id)
        text = getattr(node, "workeroutput", {}).get("codeprobe")
        if text is None:
            return
        told = json.loads(text)
        self._ending.take_warnings(json.dumps(told["warnings"]))
        self._ending.take_left_out(told)
        if told["usage"] is not None and self._ending.refused is None:
            usage = told["usage"]
            error = CodeprobeError(usage["code"], usage["message"], remediation=usage["remediation"], detail=usage["detail"])
            raise refused(error, self._live.config) from error

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: pytest.TestReport) -> None:
        """xdist's report has when `???`: make it the set-up phase of an error, or what the worker had already written."""
        with self._live.interrupts.held():
            if (node_id := self._book.named(crashitem)) in self._book.plan:
                self._crashed(node_id, report)

    def _crashed(self, node_id: str, report: pytest.TestReport) -> None:
        worker = str(getattr(getattr(report, "node", None), "gateway", None) and report.node.gateway.id)
        self._book.drain(worker)
        if node_id in self._book.final:  # died in teardown, which only deletes: never a second outcome
            report.when, report.outcome, report.longrepr = "teardown", "passed", None
            return
        record = self._book.recovered(node_id) or self._lost(node_id, worker)
        planned = self._book.plan[node_id]
        if record.cached:  # its miss is one of the gate that is judged now
            record = record.model_copy(update={"miss": self._live.proportions.miss_of(planned)})
        if record.status not in VERDICTS:
            self._live.proportions.give_back(planned)  # it may have died between the verdict and its record
        report.when = "call" if record.status in VERDICTS else "setup"
        expected = planned.xfail or ("expect: fail" if planned.expect == "fail" else None) or allowed_miss(planned, record)
        if record.status == "passed":
            report.outcome, report.longrepr = "passed", None
        elif record.status == "failed" and expected is not None:
            report.outcome, report.longrepr = "skipped", f"{record.task_id}: {record.reason}"
            report.wasxfail = expected
        elif record.status in ("skipped", "not_run"):
            report.outcome, report.longrepr = "skipped", (record.task_id, 0, f"Skipped: {record.reason}")
        else:
            report.longrepr = f"{record.task_id}: {record.code or record.status}: {record.reason}"
        report.codeprobe = record.model_dump_json()  # type: ignore[attr-defined]

    def _lost(self, node_id: str, worker: str) -> TrialResult:
        """The record of a trial whose worker has left none."""
        self._book.presume_started(node_id)
        if self._last_resort.ended_workers:
            return self._book.lost(node_id, worker, "not_run", self._ending.reason())
        return self._book.lost(node_id, worker, "error", f"worker {worker} died in this trial", code="WORKER_DIED")
