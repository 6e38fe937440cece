"""The controller's side: plan, open table, events, final records. The same for plain pytest and xdist; what comes of it: ending.py."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.result import TrialResult, no_usage
from pytest_codeprobe.options import spelled
from pytest_codeprobe.plugin.budget import Budget
from pytest_codeprobe.plugin.canary import BuiltInCanary
from pytest_codeprobe.plugin.checks import check_agents, make_ready, slips
from pytest_codeprobe.plugin.ending import Ending
from pytest_codeprobe.plugin.failure import allowed_miss
from pytest_codeprobe.plugin.follower import Follower
from pytest_codeprobe.plugin.gate import Gate
from pytest_codeprobe.plugin.last_resort import LastResort
from pytest_codeprobe.plugin.logs import Logs
from pytest_codeprobe.plugin.offline import check_offline
from pytest_codeprobe.plugin.refusal import as_error, refusal_in, refusal_line, refused
from pytest_codeprobe.plugin.trace import TraceBudget
from pytest_codeprobe.plugin.workers import Workers
from pytest_codeprobe.run.book import RunBook
from pytest_codeprobe.run.final import final_of
from pytest_codeprobe.run.folder import point_latest
from pytest_codeprobe.run.resume import rebuild_gates
from pytest_codeprobe.sandboxes import sweep, sweep_groups
from pytest_codeprobe.sandboxes.base import passed_over
from pytest_codeprobe.text import write_whole

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live


class Controller:
    """One for each run, in pytest's own process or xdist's controller."""

    def __init__(self, live: Live) -> None:
        self.live, self.state = live, live.state
        self.config = live.config
        output = self.state.output
        self.book = RunBook(live.folder, self.state.run_id, live.clock, output.event if output is not None else _nothing)
        self.ending = Ending(live, self.book)
        self.trace = TraceBudget(live, self.book)
        self.logs = Logs(live, self.book)
        self.budget = Budget(live, self.book)
        self.gate = Gate(live, self.book)
        self.last_resort = LastResort(live, self.book)
        self.canary = self.ending.canary = BuiltInCanary(live, self.book)
        self.slips: list[str] = []  #: of the command line, perhaps
        self.workers = Workers(live, self.book, self.ending, self.last_resort)
        self.follower = Follower(live, self.book, self.logs, self.trace.look, self.budget.look, self.last_resort.look, self.logs.calls)
        self._closed = self._begun = False
        # xdist ends its workers ten seconds after a KeyboardInterrupt here: too early for a trial in its stages
        live.interrupts.busy = lambda: self.state.xdist and bool(self.book.open)

    # ---- the plan
    def planned(self) -> None:
        """Without xdist: the plan of this very process is known."""
        self._take_plan()

    def _take_plan(self) -> None:
        if self.state.no_plan or self.book.taken or not self.book.take_plan():
            return
        self.live.stops.expected = True
        self.live.proportions.judge(self.book.gates)
        self._take_lock()
        make_ready(self.live, self.book.plan.values())
        self.logs.begin()
        self._check_agents()
        check_offline(self.live, self.book.plan.values())
        self.canary.examine()
        self.budget.begin()
        if self.state.default_place and not self.state.options.dry_run:
            point_latest(self.state.run_dir)
        place = Path(tempfile.gettempdir())
        if (wanted := passed_over(os.environ, place)) is not None:
            self.ending.warnings.append(f"TMPDIR={wanted} can't be used: the private folders of trials lie in {place}")
        self.ending.warnings.extend(f"swept: {path}, left by a run that was killed" for path in sweep(place))
        if groups := sweep_groups():
            names = f"control group {groups[0]}" if len(groups) == 1 else f"{len(groups)} control groups, {groups[0]} among them"
            self.ending.warnings.append(f"swept: {names}, left by a run that was killed")
        if not self._closed:
            self.gate.planned()
        self.follower.start()

    def begin(self) -> None:
        """The header line is printed: what has to be done before the first trial."""
        if self._begun or not self.follower.has_started:
            return
        self._begun = True
        self.canary.run()
        if self.canary.forbids:
            self.gate.fell()
        self.ending.raised += [self.canary.failure] if self.canary.failure is not None else []

    def _take_lock(self) -> None:
        """Nobody resumes a run that goes on. Under resume it is held already, and what results have counted for is told anew."""
        resume = self.live.resume
        try:
            if resume is None or not resume.ours:
                self.live.lock.take(stamp(self.live.clock.now()))
                return
            self.book.earlier = resume.earlier
            gated = [t.folder for t in self.book.plan.values() if t.resumed == "keep" and t.min_passes is not None]
            rebuild_gates(self.state.run_dir / "gates", {folder: resume.earlier.results[folder] for folder in gated})
        except OSError as error:
            trouble = CodeprobeError("USAGE_ERROR", f"run directory {self.state.run_dir}: {error.strerror}")
            raise refused(trouble, self.config) from error
        except CodeprobeError as error:
            raise refused(error, self.config) from error

    def _check_agents(self) -> None:
        """Refuse before anything is paid, and tell what may not be meant."""
        plan = self.book.plan.values()
        asked = check_agents(self.live, plan)
        self.slips = [spelled(said, console=self.state.options.console) for said in slips(self.live, plan)]
        self.ending.warnings.extend(self.slips)
        if self.state.options.dry_run:
            from pytest_codeprobe.plugin.dry_run import check_versions

            check_versions(self.live, asked)

    # ---- hooks
    def adopt(self, session: pytest.Session | None) -> None:
        """This plugin was registered after pytest_sessionstart."""
        if session is not None and self.ending.session is None:
            self.pytest_sessionstart(session)

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self.ending.session = self.live.interrupts.session = session

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        self.adopt(session)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self) -> None:
        """Without xdist: pytest's reporter has printed the header line."""
        self.begin()

    @pytest.hookimpl(optionalhook=True, wrapper=True)
    def pytest_xdist_node_collection_finished(self) -> Generator[None, object, object]:
        """The header line is printed in between, and nothing is scheduled before the last worker's."""
        self.node_collected()
        result = yield
        self.begin()
        return result

    def node_collected(self) -> None:
        """A worker has collected: the plan is there."""
        with self.live.interrupts.held():
            self._collected()

    def woken_late(self, session: pytest.Session | None, header: Callable[[], None]) -> None:
        """By the hook in progress, which goes on to what it has woken by hand."""
        self.adopt(session)
        self.node_collected()
        header()
        self.begin()

    def _collected(self) -> None:
        if (self.ending.task_errors or self.state.module_errors) and not self.ending.went_on() and self.ending.about_tasks():
            count = len(self.ending.task_errors) + self.state.module_errors
            raise pytest.Session.Interrupted(f"{count} error{'s' * (count != 1)} during collection")  # as pytest does without xdist
        self._take_plan()

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        text = getattr(report, "codeprobe", None)
        if text is not None:
            wrong = json.loads(text)
            error = CodeprobeError(wrong["code"], wrong["message"], remediation=wrong["remediation"], detail=wrong["detail"])
            if error.message not in {e.message for e in self.ending.task_errors}:
                self.ending.task_errors.append(error)
        elif report.failed and not self.state.xdist:  # there the state counts them, from the first report on
            self.state.module_errors += 1

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.book.opened(self.book.named(nodeid))
        self.gate.begun(nodeid)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> Generator[None, object, object]:
        try:
            return (yield)  # pytest's session counts failures first
        finally:
            self.logged(report)
            report.__dict__.pop("codeprobe", None)  # pytest keeps its reports to the end: thousands of records would stay in memory

    def logged(self, report: pytest.TestReport) -> None:
        """A report has come."""
        with self.live.interrupts.held():
            self.ending.take_warnings(getattr(report, "codeprobe_warnings", None))
            text = getattr(report, "codeprobe", None)
            if text is not None:
                self._trial_report(report, TrialResult.model_validate_json(text))
                self.trace.look()
            elif self.book.named(report.nodeid) not in self.book.plan and report.nodeid not in self.ending.unplanned:
                self.state.count(report)
            maxfail = self.config.getoption("maxfail")
            if maxfail and self.ending.session is not None and self.ending.session.testsfailed >= maxfail:
                with contextlib.suppress(OSError):  # see last_resort.py
                    self.live.stops.raise_flag("maxfail")  # a worker would else start what is in its queue

    def _trial_report(self, report: pytest.TestReport, record: TrialResult) -> None:
        if record.node_id not in self.book.plan:
            self.ending.unplanned[record.node_id] = final_of(record)
            return
        if str(report.outcome) != "rerun":
            word = getattr(report, "wasxfail", None)
            if record.regraded and self.live.resume is not None and not self.live.resume.ours:
                record = record.model_copy(update={"cost_usd": 0.0, "usage": no_usage()})  # of this run: the session was the other's
            mine = allowed_miss(self.book.plan[record.node_id], record)  # whether it counts is known once all repeats are over
            self.book.finish(record, expected=word is not None and word != mine and record.status == "failed")
            self.gate.finished(record.node_id)
            self.last_resort.finished(record)
            self.logs.trial(record.node_id)

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self.ending.internal = True
        self.ending.stop = self.ending.stop or excinfo.value  # the first is the cause: xdist's controller stumbles over a worker's

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        if (refusal := refusal_in(excinfo.value)) is not None:
            self.ending.refused = refusal
        else:
            self.ending.stop = self.ending.stop or excinfo.value

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
        """Teardown of fixtures and workers, and the terminal summary, come first."""
        error = sys.exc_info()[1]
        if isinstance(error, pytest.UsageError):
            self.ending.refused = as_error(error)
        try:
            return (yield)
        except pytest.exit.Exception as stop:
            self.ending.stop = self.ending.stop or stop
            stop.returncode = None  # pytest would put it in the place of the contract's code
            raise
        except Exception as fault:  # noqa: BLE001  # of any plugin; pytest would end with a bare traceback and exit 1
            self._report_fault(session, fault)
            return None
        finally:
            try:
                self._end(session, int(exitstatus))
            except Exception as fault:  # noqa: BLE001  # ours: still an envelope, and the code that it says
                self._report_fault(session, fault)
                session.exitstatus = 3
                if self.state.output is not None:
                    self.state.output.envelope(refusal_line(fault, self.config))

    def _report_fault(self, session: pytest.Session, fault: Exception) -> None:
        """As pytest reports what is raised while tests run: the traceback, and exit 3."""
        session.config.notify_exception(pytest.ExceptionInfo.from_exception(fault), session.config.option)

    def _end(self, session: pytest.Session, exitstatus: int) -> None:
        self.close()
        code = self.ending.exit_code(exitstatus)
        if code is not None:
            session.exitstatus = code
        if self.book.taken:
            self._note_agents()
            told = [f"{e.code}: {e.message}" for e in self.ending.errors(int(session.exitstatus))]
            self.logs.close(int(session.exitstatus), told, self.ending.warnings)
            session.exitstatus = self.ending.exit_code(exitstatus) or session.exitstatus  # run.log itself may not be whole
        line = self.ending.envelope_line(int(session.exitstatus))
        if line is not None and self.book.taken:
            try:
                write_whole(self.live.folder.envelope_file, line + "\n")
            except OSError as error:  # a full disk is said on stdout, and by the exit code
                self.book.note("envelope.json", error)
                session.exitstatus = self.ending.exit_code(exitstatus) or session.exitstatus
                line = self.ending.envelope_line(int(session.exitstatus))
        if line is not None and self.state.output is not None:
            self.state.output.envelope(line)

    def _note_agents(self) -> None:
        from pytest_codeprobe.run.resolved import note_agents, note_commits

        try:
            note_agents(self.state.run_dir, self.ending.finals())
            note_commits(self.state.run_dir)
        except OSError as error:
            self.book.note("lock.json", error)

    # ---- the end
    def close(self) -> None:
        """Every trial of the plan gets its record; called once the loop is over, before the summary."""
        if self._closed:
            return
        self._closed = True
        self._take_plan_late()
        self.follower.end()
        if self.book.taken:
            self.follower.tell_interrupt()
            self.book.drain_all()
            self.ending.raised += self.trace.close()
            self.budget.look()
            self.book.close(self.ending.reason())
            self.ending.raised += self.budget.close()
        self.ending.take_left_out(self.live.collected())
        self.ending.take_warnings(json.dumps(self.live.warnings))

    def _take_plan_late(self) -> None:
        """Interrupted while workers were collecting: one may have published the plan after pytest had given up."""
        if not self.book.taken and not self.state.no_plan:
            self.book.take_plan()


def _nothing(line: str) -> None:
    """Events go to events.ndjson alone."""
