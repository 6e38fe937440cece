"""Task files and tasks as nodes of pytest's collection tree."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.plugin.failure import failure_text, told
from pytest_codeprobe.tasks.load import LoadedTask

if TYPE_CHECKING:
    from pytest_codeprobe.model.result import Attempt, TrialResult
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.plugin.views import ScoreView
    from pytest_codeprobe.trial.run import TrialRun

NO_AGENT = "no agent chosen: pass --codeprobe-agent"


class Unmet(Exception):
    """The verdict is fail: the only thing that the call phase of a task raises."""


class TaskFile(pytest.Module):
    """A task file. A Module, so that module-scoped fixtures resolve; never imported."""

    live: Live

    def _getobj(self) -> types.ModuleType:
        return types.ModuleType(self.path.stem)

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        loaded = self.live.load(self.path)
        if isinstance(loaded, CodeprobeError):
            raise TaskError(loaded)
        try:
            for task in loaded.tasks:
                self.live.identities.add(task.task.task_id, f"{task.name}:{task.line}")
                for trial in self.live.expand(task, f"{self.nodeid}::{task.task.task_id}"):
                    yield self._item(task, trial)
        except CodeprobeError as error:
            if not self.live.is_fault_of_run(error):
                raise TaskError(error) from None

    def _item(self, task: LoadedTask, trial: Trial) -> TaskItem:
        name = trial.node_id.removeprefix(f"{self.nodeid}::")
        item: TaskItem = TaskItem.from_parent(self, name=name, callobj=_call(task.task.fixtures), trial=trial, live=self.live)
        item.add_marker(pytest.mark.codeprobe(task=trial.task_id))
        for tag in trial.tags:
            item.add_marker(pytest.mark.codeprobe(tag=tag))
            if self.live.tag_is_mark(tag):
                item.add_marker(getattr(pytest.mark, tag))
        item.extra_keyword_matches.update(trial.tags)
        if trial.skip is not None:
            item.add_marker(pytest.mark.skip(reason=trial.skip))
        if trial.xfail is not None:  # raises=: trouble of the harness is never expected
            item.add_marker(pytest.mark.xfail(reason=trial.xfail, raises=Unmet))
        return item


class TaskError(pytest.Collector.CollectError):
    """A collection error of one line that carries its code."""

    def __init__(self, error: CodeprobeError) -> None:
        super().__init__(error.message)
        self.error = error


def _call(fixtures: tuple[str, ...]) -> Callable[..., None]:
    def call(codeprobe_score: ScoreView) -> None:
        """The call phase only looks at the verdict: set-up has done the rest."""
        if not codeprobe_score.passed:
            raise Unmet

    return pytest.mark.usefixtures(*fixtures)(call) if fixtures else call


class TaskItem(pytest.Function):
    """One trial."""

    def __init__(self, *, trial: Trial, live: Live, **kw: Any) -> None:
        self.trial, self.live = trial, live
        self.run: TrialRun | None = None
        self.record: TrialResult | None = None
        self.earlier: tuple[Attempt, ...] = ()  #: of the tries before a rerun
        self.ahead = False  #: `run` is a whole trial that a thread has been through, and pytest's set-up of this item is yet to come
        self.ran_ahead = False  #: the same, once that set-up has begun
        self.holds = False  #: the other threads wait until pytest has counted its failure
        super().__init__(**kw)

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self.trial.line - 1, f"task: {self.name}"

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], *args: Any, **kw: Any) -> Any:
        """No Python traceback for what is not Python's fault."""
        if self.record is not None and isinstance(excinfo.value, Unmet):
            text = failure_text(self.record, self.live.shown_run_dir())
            return told(self.record, excinfo, text, self.path, self.trial.line)
        return super().repr_failure(excinfo, *args, **kw)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Put the code on the report: it travels to the controller."""
    report = yield
    error = getattr(getattr(report, "call", None), "excinfo", None)
    if isinstance(collector, TaskFile) and error is not None and isinstance(error.value, TaskError):
        wrong = error.value.error
        report.codeprobe = json.dumps(  # type: ignore[attr-defined]
            {"code": wrong.code, "message": wrong.message, "remediation": wrong.remediation, "detail": wrong.detail}, default=str
        )
    return report
