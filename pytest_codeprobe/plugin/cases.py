"""A marked test is parametrised as the item of its task is: one for each row, variant and repeat, by the same names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.errors import CodeprobeError

if TYPE_CHECKING:
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.tasks.load import LoadedTask

PARAMETER = "codeprobe_case"
_ROWS = 10  #: named in a message


@dataclass(frozen=True, slots=True)
class Case:
    """One of them."""

    id: str  #: `row-7-sonnet-r2`; empty where a task is one trial
    trial: Trial | None  #: None: sampling has left its row out

    def __repr__(self) -> str:
        """For --setup-show, and for what a failed assertion shows."""
        return f"<{self.id}>"


class Cases:
    """Of all tasks that markers of this run name; each is expanded once."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._known: dict[tuple[str, str], list[Case]] = {}

    def of_item(self, item: pytest.Item, mark: pytest.Mark) -> list[Case]:
        """What a test with this mark is one of. TASK_INVALID where that is nothing."""
        found = find_task(self._live, item, str(mark.kwargs["task"]), "the marker")
        key = str(found.file), found.task.task_id
        if key not in self._known:
            expansion = self._live.expansion(found)
            trials = [trial for task in expansion.tasks() for trial in expansion.trials(task)]
            left_out = [Case(_case_id(name, found.task.task_id), None) for name in expansion.names_left_out()]
            self._known[key] = [*(Case(_case_id(trial.node_id, trial.task_id), trial) for trial in trials), *left_out]
        cases, trials = self._known[key], [case.trial for case in self._known[key] if case.trial is not None]
        wanted = chosen(f"{item.nodeid}: the marker", mark.kwargs, trials)
        narrowed = len(wanted) < len(trials)
        return [case for case in cases if case.trial in wanted or (case.trial is None and not narrowed)]

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Make a test into as many as its task has trials. What is wrong with its marker is told once the test is selected."""
        mark = mark_of(metafunc.definition)
        if mark is None:
            return
        try:
            cases = self.of_item(metafunc.definition, mark)
        except CodeprobeError:
            return
        if any(case.id for case in cases):
            metafunc.fixturenames.append(PARAMETER)
            metafunc.parametrize(PARAMETER, [pytest.param(case, id=case.id) for case in cases])

    def tag(self, item: pytest.Item) -> None:
        """Give a test the marks and keywords of its task's tags."""
        for tag in self.tags(item):
            item.extra_keyword_matches.add(tag)
            for mark in self._live.marks.of_tag(tag):
                item.add_marker(mark)

    def tags(self, item: pytest.Item) -> Sequence[str]:
        """Of its task; none where nobody knows."""
        case, mark = case_of(item), mark_of(item)
        if case is None and mark is not None:
            try:
                case = self.of_item(item, mark)[0]
            except CodeprobeError:
                return ()
        return () if case is None or case.trial is None else case.trial.tags


def mark_of(node: pytest.Item) -> pytest.Mark | None:
    """Our marker that names a task, the closest; tags have marks of the same name."""
    return next((mark for mark in node.iter_markers("codeprobe") if "task" in mark.kwargs), None)


def case_of(item: pytest.Item) -> Case | None:
    """Of a test that was parametrised here."""
    case = getattr(getattr(item, "callspec", None), "params", {}).get(PARAMETER)
    return case if isinstance(case, Case) else None


def test_of(item: pytest.Item) -> str:
    """The node id without our part: what the variants, rows and repeats of one test have in common."""
    case = case_of(item)
    tail = f"{case.id}]" if case is not None else ""
    if not tail or not item.nodeid.endswith(tail):
        return item.nodeid
    head = item.nodeid.removesuffix(tail)
    return head.removesuffix("[") if head.endswith("[") else f"{head.removesuffix('-')}]"


def chosen(who: str, wanted: Mapping[str, Any], trials: Sequence[Trial]) -> list[Trial]:
    """Those that `variant` and `row` leave. TASK_INVALID where that is none; `who` asks for them."""
    found = list(trials)
    for name in ("variant", "row"):
        if (value := wanted.get(name)) is not None:
            found = [trial for trial in found if getattr(trial, f"{name}_id") == str(value)]
    if not found:
        raise _unfit(who, "fits no trial", trials)
    return found


def choose(who: str, wanted: Mapping[str, Any], trials: Sequence[Trial]) -> Trial:
    """The one that `variant` and `row` mean. TASK_INVALID where it is not one."""
    found = chosen(who, wanted, trials)
    if len(found) > 1:
        raise _unfit(who, f"fits {len(found)} trials", trials)
    return found[0]


def _unfit(who: str, what: str, trials: Sequence[Trial]) -> CodeprobeError:
    variants = list(dict.fromkeys(trial.variant_id for trial in trials if trial.variant_id))
    rows = list(dict.fromkeys(trial.row_id for trial in trials if trial.row_id))
    known = [*([f"variant: {', '.join(variants)}"] if variants else []), *([f"row: {', '.join(rows[:_ROWS])}"] if rows else [])]
    return CodeprobeError("TASK_INVALID", f"{who} {what} of its task; name one by {'; '.join(known) or 'its task alone'}")


def _case_id(name: str, task_id: str) -> str:
    return name.removeprefix(f"{task_id}[").removesuffix("]") if name != task_id else ""


def find_task(live: Live, item: pytest.Item, named: str, who: str) -> LoadedTask:
    """The task that `file` or `file::task_id` means to a test. TASK_INVALID; `who` names it."""
    name, _, wanted = named.partition("::")
    places = [live.config.rootpath / name, item.path.parent / name]
    path = next((p for p in places if p.is_file()), None)
    if path is None:
        raise CodeprobeError(
            "TASK_INVALID", f"{item.nodeid}: {who} names the task file {name!r}, which is neither below rootdir nor beside the test"
        )
    found = live.task_files.models(path)
    if isinstance(found, CodeprobeError):
        raise found
    tasks = [t for t in found.tasks if not wanted or t.task.task_id == wanted]
    if len(tasks) != 1:
        ids = ", ".join(t.task.task_id for t in found.tasks) or "none"
        raise CodeprobeError("TASK_INVALID", f"{item.nodeid}: name one task of {name!r} as '{name}::<task_id>' (it holds: {ids})")
    return tasks[0]
