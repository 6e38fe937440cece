"""Python tests with the marker: trials of their own, run by the same fixtures."""

from __future__ import annotations

import hashlib
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
    phase: Literal["setup", "call"] = "setup"  #: the report that carries the record: of the phase in which it was made


MARKED = pytest.StashKey[Marked]()


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
            raise refused(error) from error


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
    found = live.load(path)
    if isinstance(found, CodeprobeError):
        raise found
    tasks = [t for t in found.tasks if not wanted or t.task.task_id == wanted]
    if len(tasks) != 1:
        ids = ", ".join(t.task.task_id for t in found.tasks) or "none"
        raise CodeprobeError("TASK_INVALID", f"{item.nodeid}: name one task of {name!r} as '{name}::<task_id>' (it holds: {ids})")
    return tasks[0]
