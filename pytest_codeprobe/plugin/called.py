"""The fixture `codeprobe_run`: a test, or a fixture of any scope, calls trials. They are recorded and paid for, and count in no rate."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from pytest_codeprobe.errors import CodeprobeError, Skipped, Stopped
from pytest_codeprobe.model.result import TrialResult, result_text
from pytest_codeprobe.plugin.cases import choose, find_task
from pytest_codeprobe.plugin.collect import no_agent
from pytest_codeprobe.plugin.gate import Fallen
from pytest_codeprobe.plugin.marked import Marked
from pytest_codeprobe.plugin.planning import FIXTURE
from pytest_codeprobe.plugin.protocol import NO_START, PASSES, close_run
from pytest_codeprobe.plugin.views import CallView
from pytest_codeprobe.run.calls import BEGAN, ENDED
from pytest_codeprobe.run.plan import CANARY, planned
from pytest_codeprobe.run.resume import following
from pytest_codeprobe.tasks.load import load_bytes
from pytest_codeprobe.text import Redactor, one_line
from pytest_codeprobe.trial.run import TrialRun

if TYPE_CHECKING:
    from pytest_codeprobe.model.result import Attempt
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live

_PROMPT = "prompt"  #: task_id where there is no task file
#: a task needs a criterion; it is taken out again, and nothing is graded
_NO_CRITERION = [{"type": "file_exists", "path": "."}]


class Caller:
    """What the fixture hands out. One for each process; calls from several threads come one after the other."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._numbers = Counter[str]()  #: calls of each test so far, also of its tries before a rerun
        self._one = threading.RLock()
        self._fallen = Fallen(live.folder)

    def __call__(
        self, prompt: str | None = None, *, task: str | None = None, variant: str | None = None, row: str | None = None, **fields: Any
    ) -> CallView:
        """Run one trial to its end. `prompt` with `fields` of a task file beside it, or `task`: a file, or `file::task_id` of several.

        `variant` and `row` choose one of the experiment's and the dataset's. Without `success_criteria` nothing is graded.
        Skips the test where no agent is chosen, and where the trial is skipped or not run. CodeprobeError: the call is wrong, or the trial
        ended in an error.
        """
        __tracebackhide__ = True
        try:
            return self._call(prompt, task, variant, row, fields)
        except CodeprobeError as error:
            error.add_note(f"what to do: {error.remediation}")  # shown by pytest below the message
            if error.code != "INTERNAL_ERROR":
                error.__traceback__ = None  # the way to it through our own code explains nothing about the call
            raise

    def _call(self, prompt: str | None, task: str | None, variant: str | None, row: str | None, fields: dict[str, Any]) -> CallView:
        __tracebackhide__ = True
        item = self._live.current
        if item is None:
            raise CodeprobeError("USAGE_ERROR", f"{FIXTURE} was called while no test runs", remediation="Call it in a test or a fixture.")
        if (prompt is None) == (task is None):
            what = "both a prompt and a task file were" if prompt is not None else "neither a prompt nor a task file was"
            raise _wrong(item, f"{what} given", "Give one of them: codeprobe_run('…') or codeprobe_run(task='tasks/….yaml').")
        if task is not None and fields:
            what = f"{', '.join(map(repr, fields))} was given beside a task file"
            raise _wrong(item, what, "Write it into the task file, or give a prompt.")
        graded = task is not None or "success_criteria" in fields
        trials = self._of_file(item, task) if task is not None else self._of_prompt(item, prompt or "", fields)
        trial = choose(f"{item.nodeid}: the call of {FIXTURE}", {"variant": variant, "row": row}, trials)
        if self._live.state.no_start:
            pytest.skip(NO_START)
        if not self._chosen(trial, named=task is not None):
            pytest.skip(no_agent(self._live))
        if self._live.state.options.regrade is not None:
            pytest.skip("nothing is run where a run is graded again")
        if trial.skip is not None:
            pytest.skip(trial.skip)
        if not self._live.folder.plan_file.exists():
            remedy = f"Name {FIXTURE} among the arguments of the test or fixture, where pytest sees it before anything runs."
            raise _wrong(item, f"{FIXTURE} was asked for by request.getfixturevalue()", remedy)
        with self._one:
            return self._run(item, trial, graded=graded)

    # ---- what is to run
    def _of_file(self, item: pytest.Item, named: str) -> Sequence[Trial]:
        found = find_task(self._live, item, named, f"the call of {FIXTURE}")
        return [trial for trial in self._live.expand(found) if trial.repeat == 1]

    def _of_prompt(self, item: pytest.Item, prompt: str, fields: dict[str, Any]) -> Sequence[Trial]:
        content = {"task_id": _PROMPT, "initial_prompt": prompt, "success_criteria": _NO_CRITERION, **fields}
        try:
            text = yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
        except yaml.YAMLError as error:
            what = f"a field holds what no task file can: {one_line(str(error), 200)}"
            raise _wrong(item, what, "Give strings, numbers, booleans, lists and mappings.") from error
        try:
            loaded = load_bytes(item.path, text.encode("utf-8", "replace"), self._live.settings)
            trials = [trial for trial in self._live.expand(loaded.tasks[0]) if trial.repeat == 1]
        except CodeprobeError as error:
            if error.code == "TASK_INVALID" and Path(self._live.config.rootpath, str(error.detail.get("file"))) == item.path:
                raise _wrong(item, str(error.detail["message"]), "Correct the call.") from None  # its line is that of no file
            raise
        return trials if "success_criteria" in fields else [t.model_copy(update={"criteria": ()}) for t in trials]

    def _chosen(self, trial: Trial, *, named: bool) -> bool:
        """A file of Python that is named on the command line chooses no agent: it may be all tests of a project."""
        if named:
            return self._live.chosen(Marked(trial))
        options = self._live.state.options
        return options.agent is not None or (options.console and trial.agent.type is not None)

    def _named(self, item: pytest.Item, trial: Trial) -> Trial:
        """The trial as this call: with an id and a folder of its own, and no part of anything that spans several trials."""
        group = item.get_closest_marker("xdist_group")
        name = str((group.args or (group.kwargs.get("name", "default"),))[0]) if group is not None else ""
        base = item.nodeid.removesuffix(f"@{name}")
        self._numbers[base] += 1
        node_id = f"{base}#{self._numbers[base]}"
        variant, task, *rest = Path(trial.folder).parts
        tail = hashlib.sha256(node_id.encode()).hexdigest()[:8]
        alone = {"repeats": 1, "min_passes": None, "expect": "pass", "xfail": None, "tags": tuple(t for t in trial.tags if t != CANARY)}
        return trial.model_copy(update={"node_id": node_id, "folder": "/".join([variant, f"{task}@{tail}", *rest]), **alone})

    # ---- running it
    def _run(self, item: pytest.Item, trial: Trial, *, graded: bool) -> CallView:
        __tracebackhide__ = True
        live, trial = self._live, self._named(item, trial)
        names = frozenset({*trial.sandbox.env, *trial.agent.env})
        missing = live.registry.agent(trial.agent.type or "").unavailable(live.context, names)
        if missing is not None:
            raise missing
        earlier: tuple[Attempt, ...] = live.resume.attempts(trial) if live.resume is not None else ()
        run = TrialRun(trial, live.context, live.make_sandbox, number=following(earlier), earlier=earlier, passes=PASSES)
        live.context.events.emit(BEGAN, node_id=trial.node_id, planned=planned(trial).model_dump_json())
        try:
            with self._at_work():
                record = self._through(run, graded=graded)
        finally:
            if run.result is not None:
                live.context.events.emit(ENDED, node_id=trial.node_id, record=result_text(run.result))
            live.called_secrets = Redactor({*(live.called_secrets.secrets if live.called_secrets else ()), *run.redactor.secrets})
            assert live.protocol is not None
            live.protocol.remove(trial.node_id, run)
        if record.status == "error":
            said = f"{trial.node_id}: {record.reason}"
            raise CodeprobeError(record.code or "INTERNAL_ERROR", said, remediation=record.remediation, detail=record.detail)
        if record.status in ("skipped", "not_run"):
            pytest.skip(self._fallen.told(record, record.reason or record.status))
        return CallView(run, record, live.folder.trial(trial.folder) / "artifacts")

    def _through(self, run: TrialRun, *, graded: bool) -> TrialResult:
        try:
            run.prepare()
            run.session()
            if graded:
                run.score()
        except (Stopped, Skipped) as stop:
            return run.finish(stop)
        except PASSES as error:
            close_run(run, error)
            raise
        except BaseException as error:  # noqa: BLE001  # the record says it, and the caller raises it in our words
            return close_run(run, error)
        return run.finish() if graded else run.finish(outcome="passed")

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        """As a trial of an item: with a slot among the jobs, and a signal ends the session, not the test around it."""
        interrupts, engine = self._live.interrupts, self._live.engine
        ordinary, interrupts.ordinary = interrupts.ordinary, False
        slots = engine.slots if engine is not None and not engine.slots.first else None
        try:
            with interrupts.held():
                if slots is not None:
                    slots.take_first()
                yield
        finally:
            if slots is not None:
                slots.give_first()
            interrupts.ordinary = ordinary


def _wrong(item: pytest.Item, what: str, remedy: str) -> CodeprobeError:
    return CodeprobeError("USAGE_ERROR", f"{item.nodeid}: {FIXTURE}: {what}", remediation=remedy)
