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
from pytest_codeprobe.plugin.cases import case_of, choose, mark_of, test_of
from pytest_codeprobe.plugin.collect import TaskItem
from pytest_codeprobe.plugin.refusal import refused

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.text import Redactor
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


def run_of(item: pytest.Item) -> TrialRun | None:
    """The trial's life; None for an ordinary test, and where it has not begun or is deleted."""
    holder = holder_of(item)
    return holder.run if holder is not None else None


def record_of(item: pytest.Item) -> TrialResult | None:
    """What the trial has come to so far; None as above."""
    holder = holder_of(item)
    return holder.record if holder is not None else None


def note(item: pytest.Item, record: TrialResult) -> TrialResult:
    """Keep the record of an item that runs a trial, until its report is made."""
    holder = holder_of(item)
    assert holder is not None
    holder.record = record
    return record


def mark_tests(live: Live, session: pytest.Session) -> None:
    """Give each selected test with `@pytest.mark.codeprobe(task=…)` its trial. Refuses the run where a task can't be read."""
    for item in session.items:
        if isinstance(item, TaskItem):
            continue
        mark = mark_of(item)
        if mark is None:
            continue
        try:
            item.stash[MARKED] = Marked(_trial(live, item, mark))
        except CodeprobeError as error:
            raise refused(error, live.config) from error


class _Cleaned(Exception):
    """Its message is all that is shown."""


def redact_report(item: pytest.Item, call: pytest.CallInfo[None], report: pytest.TestReport) -> None:
    """Take secrets out of what pytest itself tells of a marked test: its failure with the values in it, and what was printed."""
    marked = item.stash.get(MARKED, None)
    if marked is None or marked.run is None:
        return
    redact(report, call, marked.run.redactor)


def redact(report: pytest.TestReport, call: pytest.CallInfo[None], redactor: Redactor) -> None:
    """The same for whatever may tell secrets that this one knows."""
    told = report.longrepr
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


def _trial(live: Live, item: pytest.Item, mark: pytest.Mark) -> Trial:
    case = case_of(item)
    trials = [case.trial for case in (live.cases.of_item(item, mark) if case is None else (case,)) if case.trial is not None]
    trial = choose(f"{item.nodeid}: the marker", {}, trials)
    tail = hashlib.sha256(test_of(item).encode()).hexdigest()[:8]
    variant, task, *rest = Path(trial.folder).parts
    return trial.model_copy(update={"node_id": item.nodeid, "marked": True, "folder": "/".join([variant, f"{task}@{tail}", *rest])})
