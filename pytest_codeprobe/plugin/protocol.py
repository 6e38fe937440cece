"""pytest's item protocol around a trial: set-up is prepare to preserve, the call phase is the verdict, teardown deletes."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe import sandboxes
from pytest_codeprobe.errors import CodeprobeError, Skipped, Stopped
from pytest_codeprobe.model.result import TrialResult
from pytest_codeprobe.plugin.ahead import FIXTURE_MODULE, OURS, fixture_definitions
from pytest_codeprobe.plugin.checks import refuse_what_cannot_run
from pytest_codeprobe.plugin.collect import TaskItem, no_agent
from pytest_codeprobe.plugin.failure import no_fixture
from pytest_codeprobe.plugin.gate import Fallen, canaries_first, guard
from pytest_codeprobe.plugin.marked import MARKED, Marked, holder_of, mark_tests, note, run_of
from pytest_codeprobe.plugin.planning import may_call, publish
from pytest_codeprobe.plugin.refusal import refusal_in, usage_of
from pytest_codeprobe.plugin.timeouts import deadline, ignored
from pytest_codeprobe.run.resume import following
from pytest_codeprobe.text import Redactor, one_line
from pytest_codeprobe.trial.again import KeptTrial, Regrading
from pytest_codeprobe.trial.run import TrialRun

if TYPE_CHECKING:
    from pytest_codeprobe.model.context import Context
    from pytest_codeprobe.model.sandbox import Sandbox
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live

#: what a criterion, an adapter or a sandbox of the user's says to pytest
PASSES = (KeyboardInterrupt, pytest.exit.Exception, pytest.skip.Exception, pytest.fail.Exception, pytest.xfail.Exception)
NO_START = "no agent starts under --setup-only and --setup-plan"


class TrialProtocol:
    """Hooks of the process that runs items: pytest itself, or a worker."""

    def __init__(self, live: Live) -> None:
        self.live, self.state = live, live.state
        self._fallen = Fallen(live.folder)
        self._refusal: BaseException | None = None  #: what ended this process's session, where that is no error in flight at its end

    # ---- the plan
    @pytest.hookimpl(tryfirst=True)  # before xdist's own: the plan is on disk when the controller hears of the collection
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Each process computes the same plan; the first writes it."""
        self.live.interrupts.session, self.live.interrupts.collecting = session, False
        if sys.exc_info()[1] is not None:
            return  # pytest calls this in a finally: what an interrupted collection has found so far is no plan
        mark_tests(self.live, session)
        session.items[:] = canaries_first(session.items)
        broken = self.live.broken = bool(session.testsfailed) and not session.config.option.continue_on_collection_errors
        found: list[TaskItem | Marked] = [holder for item in session.items if (holder := holder_of(item)) is not None]
        trials = sorted(found, key=lambda holder: isinstance(holder, Marked))  # task items first
        if not broken:
            refuse_what_cannot_run(self.live, trials)
        if self.state.no_plan or broken:
            return
        self.live.stops.expected = publish(self.live, trials, calls=may_call(self.live, session.items))
        guard(self.live, session.items)
        if self.live.controller is not None:
            self.live.controller.planned()

    # ---- one item
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        """Signals only raise the flag from the first stage of a task to its report."""
        interrupts, self.live.current = self.live.interrupts, item
        if holder_of(item) is None:
            interrupts.ordinary = True
            try:
                return (yield)
            finally:
                interrupts.ordinary = False
        with interrupts.held():
            try:
                result = yield
            finally:
                if self.live.engine is not None:
                    self.live.engine.slots.give_first()
                if (holder := holder_of(item)) is not None:
                    holder.earlier = ()  # no rerun will follow
                # pytest-rerunfailures keeps each failure with all its frames, and in those are the session's transcripts
                vars(item).pop("_rerun_condition_excinfos", None)
        if self.live.stops.is_raised("interrupt"):
            item.session.shouldstop = "interrupted"
        return result

    @pytest.hookimpl(tryfirst=True, specname="pytest_runtest_setup")
    def pytest_codeprobe_never_start(self, item: pytest.Item) -> None:
        """Not in the wrapper below: one that raises before its yield breaks pytest's own teardown."""
        holder = holder_of(item)
        if holder is None:
            return
        if self.state.no_start:
            pytest.skip(NO_START)
        if not self.live.chosen(holder):
            pytest.skip(no_agent(self.live))
        if self.live.broken:
            raise Stopped("collection errors")
        if isinstance(holder, Marked) and holder.skip_reason is not None:  # an item of a task has a mark
            pytest.skip(holder.skip_reason)
        if self.state.options.regrade is not None and isinstance(holder, Marked):
            pytest.skip("nothing is run where a run is graded again")
        if self.live.resume is not None and isinstance(holder, TaskItem) and (why := self.live.resume.skips(holder.trial)):
            pytest.skip(why)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Generator[None, object, object]:
        """Set-up phase of a task: whatever stage was reached and whatever was raised, finish() makes the record."""
        __tracebackhide__ = True
        if holder_of(item) is None:
            return (yield)
        run = self._run_ahead(item) or self.new_run(item)
        try:
            result = yield
        except (Stopped, Skipped) as stop:
            record = self.conclude_error(item, run.finish(stop))
            pytest.skip(self._fallen.told(record, str(stop)))
        except BaseException as error:
            note(item, close_run(run, error))
            if _ends_pytest(error):
                self.delete(item)
            raise
        if isinstance(item, TaskItem):
            self.conclude(item, run.finish())
        return result

    def conclude_error(self, item: pytest.Item, record: TrialResult) -> TrialResult:
        """Of a trial that was not run or skipped, unless it had tried before what --codeprobe-offline forbids."""
        note(item, record)
        if record.status == "error":
            self.conclude(item, record)
        return record

    def conclude(self, item: pytest.Item, record: TrialResult) -> None:
        """finish() itself may have failed, or found that nothing can be judged: still the set-up phase."""
        note(item, record)
        if record.status == "error":
            raise CodeprobeError(record.code or "INTERNAL_ERROR", record.reason or "", remediation=record.remediation)
        if record.status in ("skipped", "not_run"):
            pytest.skip(self._fallen.told(record, record.reason or record.status))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """A marked test's own outcome is its status."""
        __tracebackhide__ = True
        marked = item.stash.get(MARKED, None)
        if marked is None or marked.run is None:
            return (yield)
        run, marked.phase = marked.run, "call"
        try:
            result = yield
        except pytest.skip.Exception as skip:
            self.conclude_error(item, run.finish(Skipped(str(skip))))
            raise
        except (KeyboardInterrupt, pytest.exit.Exception):
            marked.record = run.finish(Stopped("interrupted"))
            self.delete(item)
            raise
        except (Stopped, Skipped) as stop:  # a stage that the test itself asked for
            self.conclude_error(item, run.finish(stop))
            assert marked.record is not None
            pytest.skip(self._fallen.told(marked.record, str(stop)))
        except BaseException as error:
            if isinstance(error, CodeprobeError) or run.raised(error):  # the harness's trouble, not the agent's failure
                marked.record = run.finish(error)
            else:
                marked.record = run.finish(outcome="failed", reason=_first_line(error, run.redactor))
            raise
        self.conclude(item, run.finish(outcome="passed"))
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, object, object]:
        """Only deletes; a failure there is a warning, never a second outcome."""
        try:
            return (yield)
        finally:
            self.delete(item)

    def delete(self, item: pytest.Item) -> None:
        """The private folder goes, here or where pytest is at its end and no teardown phase will follow.

        With it the run: pytest keeps its items to the end, and thousands of transcripts would stay in memory.
        """
        holder, run = holder_of(item), run_of(item)
        if holder is None or run is None:
            return
        holder.why_again = holder.record.reason if holder.record is not None else None
        holder.earlier, holder.run, holder.record = run.attempts, None, None
        if isinstance(holder, TaskItem):
            holder.forget_trial()
        if self.live.deleter is not None:
            with contextlib.suppress(RuntimeError):  # the system gives no more threads
                self.live.deleter.submit(self.remove, item.nodeid, run)
                return
        self.remove(item.nodeid, run)

    def remove(self, node_id: str, run: TrialRun) -> None:
        """Delete the private folder; what goes wrong is a warning."""
        try:
            left = run.delete()
        except Exception as error:  # noqa: BLE001  # of a sandbox of the project's own
            self.live.warn(run.redactor.text(f"{node_id}: could not be deleted: {type(error).__name__}: {error}"))
            return
        if left:
            self.live.warn(run.redactor.text(f"{node_id}: could not be deleted: {', '.join(left[:3])}"))

    def _run_ahead(self, item: pytest.Item) -> TrialRun | None:
        """What a thread has run already, once; else a slot is taken for what runs in this thread."""
        if isinstance(item, TaskItem) and item.ahead:
            item.ahead, item.ran_ahead = False, True
            return item.run
        if isinstance(item, TaskItem):
            item.ran_ahead = False
        if self.live.engine is not None and self.live.needs_slot(item):
            self.live.engine.slots.take_first()  # at once, or for a rerun
        return None

    def new_run(self, item: pytest.Item) -> TrialRun:
        """A new life of the trial; a rerun of pytest-rerunfailures uses the same item again and is a further attempt."""
        holder = holder_of(item)
        assert holder is not None
        earlier = holder.earlier
        if earlier:  # said here: under xdist the report of the last try may reach the controller after the start of this one
            again = {"attempt": following(earlier), "cause": "rerun", "reason": holder.why_again}
            self.live.context.events.emit("trial_retried", node_id=holder.trial.node_id, **again)
        elif self.live.resume is not None:
            earlier = self.live.resume.attempts(holder.trial)
        seconds = deadline(item)
        if seconds is not None and (said := ignored(item)):
            self.live.warn(said)
        run = self._resumed(holder, seconds) or TrialRun(
            holder.trial,
            self.live.context,
            self.live.make_sandbox,
            number=following(earlier),
            earlier=earlier,
            deadline=seconds,
            overridden=_overridden(item),
            passes=PASSES,
        )
        holder.run, holder.record = run, None
        if isinstance(holder, Marked):
            holder.phase = "setup"
        return run

    def _resumed(self, holder: TaskItem | Marked, seconds: float | None) -> TrialRun | None:
        """A trial whose earlier session counts; None where it runs. Not for a rerun, which is another try."""
        resume, trial = self.live.resume, holder.trial
        if resume is None or isinstance(holder, Marked) or holder.earlier:
            return None
        record = resume.result(trial)
        if record is None:
            return None
        context, make = self.live.context, self.live.make_sandbox
        if resume.is_kept(trial.folder):
            return KeptTrial(trial, context, make, record)
        return Regrading(trial, context, make, resume.past(trial, record), deadline=seconds, passes=PASSES)

    @pytest.hookimpl(trylast=True)
    def pytest_codeprobe_make_sandbox(self, trial: Trial, context: Context) -> Sandbox:
        """Of the driver that the trial asks for, where nobody else makes one."""
        return sandboxes.choose(trial.sandbox.driver, context.registry, context).create(trial, context)

    # ---- ends of the process
    @pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_runtestloop")
    def pytest_codeprobe_ending(self, session: pytest.Session) -> Generator[None, object, object]:
        """After the loop no signal may raise: it would hit pytest's own traceback or sessionfinish."""
        self.live.interrupts.session = session
        try:
            return (yield)
        finally:
            self.live.interrupts.ending = True

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._refusal = excinfo.value if refusal_in(excinfo.value) is not None else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """What a worker knows as a whole goes to the controller: its usage error would else be exit 5 there."""
        self.live.interrupts.ending = True
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            error = sys.exc_info()[1] or self._refusal
            output["codeprobe"] = json.dumps({"usage": usage_of(error), "warnings": self.live.warnings, **self.live.collected()})


def close_run(run: TrialRun, error: BaseException) -> TrialResult:
    """What was raised in set-up, as a record. pytest's own outcomes are BaseExceptions."""
    if isinstance(error, pytest.skip.Exception | pytest.xfail.Exception):
        return run.finish(Skipped(one_line(run.redactor.text(str(error))) or "skipped"))
    if _ends_pytest(error):
        return run.finish(Stopped("interrupted"))
    return run.finish(no_fixture(error) if isinstance(error, pytest.FixtureLookupError) else error)


def _first_line(error: BaseException, redactor: Redactor) -> str:
    """Of an assertion: what follows is pytest's explanation, with addresses of objects in it."""
    return one_line(f"{type(error).__name__}: {redactor.text(str(error)).partition(chr(10))[0]}", 500)


def _ends_pytest(error: BaseException) -> bool:
    return isinstance(error, KeyboardInterrupt | pytest.exit.Exception)


def _overridden(item: pytest.Item) -> bool:
    """Whether one of our fixtures comes from somewhere else for this item."""
    found = fixture_definitions(item)
    return any(d.func.__module__ != FIXTURE_MODULE for name in OURS for d in found.get(name, ()))
