"""Tasks tagged `canary`: they go first, and one whose verdict is not what it declares keeps everything else from starting.

Without xdist the order alone does it. Under xdist the controller hands out nothing else until they are over: plugin/schedule.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.plugin.collect import HasTrial, TaskItem
from pytest_codeprobe.plugin.marked import holder_of
from pytest_codeprobe.plugin.refusal import refused
from pytest_codeprobe.plugin.schedule import OVER, Between, Schedule, handed_out_early, places, put_between
from pytest_codeprobe.run.book import RunBook
from pytest_codeprobe.run.final import Final
from pytest_codeprobe.run.folder import RunFolder
from pytest_codeprobe.run.plan import CANARY, PlannedTrial

if TYPE_CHECKING:
    from pytest_codeprobe.model.result import TrialResult
    from pytest_codeprobe.plugin.live import Live


def is_canary(holder: HasTrial | None) -> bool:
    """Whether what stands for a trial is a canary's; None stands for none."""
    return holder is not None and CANARY in holder.tags


def canaries_first(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """The items with the canaries in front of all other trials. Ordinary tests before the first trial stay there."""
    holders = [holder_of(item) for item in items]
    flags = [is_canary(holder) for holder in holders]
    if not any(flags):
        return list(items)
    start = next(number for number, holder in enumerate(holders) if holder is not None)
    canaries = [item for item, flag in zip(items, flags, strict=True) if flag]
    rest = [item for item, flag in zip(items[start:], flags[start:], strict=True) if not flag]
    return [*items[:start], *canaries, *rest]


def gate_error(final: Final, expect: str, run_dir: str | None) -> CodeprobeError:
    """What is said of a canary that kept the rest from starting."""
    folder = f"{run_dir}/trials/{final.folder}" if run_dir is not None and final.folder is not None else None
    said = f"the canary {_became(final.status, final.code)}, and its task declares expect: {expect}"
    return CodeprobeError(
        "CANARY_GATE_FAILED",
        f"{final.node_id}: {said}; what had not started was not run",
        remediation=f"Look at {folder or 'its result in the run directory'} before anything else is paid for.",
        detail={"trial": final.node_id, "folder": folder, "status": final.status, "expect": expect},
    )


def _became(status: str, code: str | None) -> str:
    return f"ended in error ({code})" if status == "error" else f"has {status}"


class Fallen:
    """Why trials of this process are not run, in words; for the reason `canary` with its name, from what lies in the run dir."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._words: str | None = None

    def told(self, record: TrialResult, reason: str) -> str:
        """What pytest is told of a trial that was skipped or not run: `not run: canary: tasks/z.yaml::z has failed, expect: pass`."""
        if record.status != "not_run":
            return reason
        if reason == CANARY:
            self._words = reason = self._words or self._read()
        return f"not run: {reason}"

    def _read(self) -> str:
        """`canary` alone where no record says which."""
        plan = self._folder.read_plan()
        for line in plan["trials"] if plan is not None else ():
            if CANARY not in line["tags"]:
                continue
            trial = PlannedTrial.model_validate(line)
            result = self._folder.read_result(trial.folder)
            if result is not None and trial.gate(result.status) == "fell":
                return f"{CANARY}: {trial.node_id} {_became(result.status, result.code)}, expect: {trial.expect}"
        return CANARY


class Gate:
    """The controller's side."""

    def __init__(self, live: Live, book: RunBook) -> None:
        self._live, self._book = live, book
        self._schedule: Schedule | None = None
        self._left = set[str]()

    @property
    def holds_up(self) -> int:
        """How many canaries the other trials of the run wait for."""
        return len(self._left)

    def planned(self) -> None:
        """The plan is known, and nothing is scheduled yet. USAGE_ERROR where xdist's scheduler can't be held back."""
        starting = [t for t in self._book.plan.values() if t.starts]
        canaries = frozenset(t.node_id for t in starting if t.is_canary)
        self._left = set(canaries) if len(canaries) < len(starting) else set()
        if not self._live.state.xdist:
            return
        try:
            self._schedule = put_between(self._live, canaries, self._book.named, self._book.final.__contains__)
        except CodeprobeError as error:
            raise refused(error, self._live.config) from error

    def begun(self, node_id: str) -> None:
        """A process has begun with an item, which has the id that xdist gave it."""
        if self._schedule is not None:
            self._schedule.begun(node_id)

    def finished(self, node_id: str) -> None:
        """A trial has its final record."""
        self._left.discard(node_id)
        final = self._book.final.get(node_id)
        if final is not None and final.gate == "fell":
            self.fell()
        if self._schedule is not None:
            self._schedule.look()

    def fell(self) -> None:
        """Nothing may start any more: a canary's verdict, or the proof that an agent works, is not what it must be."""
        try:
            self._live.stops.raise_flag(CANARY)
        except OSError:  # those in this process hear of it all the same; workers can't, and so nothing is handed out any more
            if self._schedule is not None:
                self._schedule.ended = True
            else:
                self._live.interrupts.untold()


class WorkerGate:
    """A worker's side, where there are canaries: starts no other trial before OVER, and none of them from then on."""

    def __init__(self, canaries: Collection[pytest.Item]) -> None:
        self._canaries = frozenset(canaries)  #: that will start
        self._places = list[Between]()
        self._over = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """xdist's controller has had the list of items."""
        self._places = places(session)
        session.items.extend(self._places)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        if not isinstance(item, Between):
            return None
        if item is self._places[OVER]:
            self._over = True
            # as the next item, a canary that is not run again would keep fixtures alive that the one behind it has no use for
            item.session.items[:] = [item if one in self._canaries else one for one in item.session.items]
        return True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if not self._over and item not in self._canaries and holder_of(item) is not None:
            raise handed_out_early()


def guard(live: Live, items: Iterable[pytest.Item]) -> None:
    """In a worker: hold the trials back that come too early. In any other process the order does it."""
    holders = [(item, holder_of(item)) for item in items] if live.state.worker else []
    canaries = [i for i, h in holders if h is not None and is_canary(h) and live.chosen(h) and h.skip_reason is None]
    if (resume := live.resume) is not None:  # those whose earlier result counts hold nothing up: the controller counts them out as well
        canaries = [i for i in canaries if not isinstance(i, TaskItem) or resume.runs(i.trial.folder)]
    if canaries:
        live.config.pluginmanager.register(WorkerGate(canaries), "codeprobe-gate")
