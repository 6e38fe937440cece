"""Python tests with the marker: trials of their own, run by the same fixtures."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import Attempt, TrialResult
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.plugin.collect import TaskItem
from pytest_codeprobe.plugin.refusal import refused
from pytest_codeprobe.tasks.load import LoadedTask

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.trial.run import TrialRun


@dataclass(slots=True)
class Marked:
    """What a marked test has of its trial."""

    trial: Trial
    run: TrialRun | None = None
    record: TrialResult | None = None
    earlier: tuple[Attempt, ...] = ()  #: of the tries before a rerun
    why_again: str | None = None  #: what the last of them ended with
    phase: Literal["setup", "call"] = "setup"  #: the report that carries the record: of the phase in which it was made

    @property
    def agent_name(self) -> str | None:
        """None: nobody has chosen one."""
        return self.trial.agent.type

    @property
    def task_file(self) -> str:
        return self.trial.task_file

    @property
    def skip_reason(self) -> str | None:
        """Of the task."""
        return self.trial.skip

    @property
    def tags(self) -> Sequence[str]:
        """Of the task."""
        return self.trial.tags

    def make_trial(self) -> Trial:
        """What is to run."""
        return self.trial


MARKED = pytest.StashKey[Marked]()


def holder_of(item: pytest.Item) -> TaskItem | Marked | None:
    """What stands for the trial that an item runs; None for an ordinary test."""
    return item if isinstance(item, TaskItem) else item.stash.get(MARKED, None)


def mark_tests(live: Live, session: pytest.Session) -> None:
    """Give each selected test with `@pytest.mark.codeprobe(task=…)` its trial. Refuses the run where a task can't be read."""
    for item in session.items:
        if isinstance(item, TaskItem):
            continue
        mark = item.get_closest_marker("codeprobe")
        if mark is None or "task" not in mark.kwargs:
            continue
        try:
            item.stash[MARKED] = Marked(_trial(live, item, str(mark.kwargs["task"])))
        except CodeprobeError as error:
            raise refused(error, live.config) from error


class _Cleaned(Exception):
    """Its message is all that is shown."""


def redact_report(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Take secrets out of what pytest itself tells of a marked test: its failure with the values in it, and what was printed."""
    marked = item.stash.get(MARKED, None)
    if marked is None or marked.run is None:
        return
    redactor, told = marked.run.redactor, report.longrepr
    report.sections = [(name, redactor.text(text)) for name, text in report.sections]
    if isinstance(told, tuple):
        report.longrepr = (told[0], told[1], redactor.text(told[2]))
    elif told is not None and (clean := redactor.text(str(told))) != str(told) and call.excinfo is not None:
        carrier = _Cleaned(clean).with_traceback(call.excinfo.value.__traceback__)
        shown = pytest.ExceptionInfo.from_exception(carrier).getrepr(style="value", tbfilter=False, chain=False)
        old = getattr(told, "reprcrash", None)
        if shown.reprcrash is not None and old is not None:  # the line of the short summary, and JUnit's message
            shown.reprcrash.path, shown.reprcrash.lineno, shown.reprcrash.message = old.path, old.lineno, redactor.text(old.message)
        report.longrepr = shown


def _trial(live: Live, item: pytest.Item, named: str) -> Trial:
    loaded = _find(live, item, named)
    trial = live.expand(loaded, item.nodeid)[0]
    tail = hashlib.sha256(item.nodeid.encode()).hexdigest()[:8]
    variant, task, *rest = Path(trial.folder).parts
    return trial.model_copy(update={"node_id": item.nodeid, "marked": True, "folder": "/".join([variant, f"{task}@{tail}", *rest])})


def _find(live: Live, item: pytest.Item, named: str) -> LoadedTask:
    name, _, wanted = named.partition("::")
    places = [live.config.rootpath / name, item.path.parent / name]
    path = next((p for p in places if p.is_file()), None)
    if path is None:
        raise CodeprobeError(
            "TASK_INVALID", f"{item.nodeid}: the marker names the task file {name!r}, which is neither below rootdir nor beside the test"
        )
    found = live.task_files.models(path)
    if isinstance(found, CodeprobeError):
        raise found
    tasks = [t for t in found.tasks if not wanted or t.task.task_id == wanted]
    if len(tasks) != 1:
        ids = ", ".join(t.task.task_id for t in found.tasks) or "none"
        raise CodeprobeError("TASK_INVALID", f"{item.nodeid}: name one task of {name!r} as '{name}::<task_id>' (it holds: {ids})")
    return tasks[0]
