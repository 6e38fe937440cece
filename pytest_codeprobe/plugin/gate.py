"""Tasks tagged `canary`: they go first, and one whose verdict is not what it declares keeps everything else from starting.

Without xdist the order alone does it. An xdist worker waits before each other trial until the controller has all their records.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.plugin.collect import HasTrial
from pytest_codeprobe.plugin.marked import holder_of
from pytest_codeprobe.run.book import Final, RunBook
from pytest_codeprobe.run.plan import CANARY

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live

_OPEN = "canaries.over"  #: in the spool folder: workers may go on
_WAITS = ".waits"  #: the same place, behind a worker's name: it waits
_LOOK = 0.05  #: seconds between two looks of a waiting worker
_STUCK = 10.0  #: seconds in which nothing begins or ends anywhere, though workers wait


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
    became = f"ended in error ({final.code})" if final.status == "error" else f"has {final.status}"
    return CodeprobeError(
        "CANARY_GATE_FAILED",
        f"{final.node_id}: the canary {became}, and its task declares expect: {expect}; what had not started was not run",
        remediation=f"Look at {folder or 'its result in the run directory'} before anything else is paid for.",
        detail={"trial": final.node_id, "folder": folder, "status": final.status, "expect": expect},
    )


def wait_for_canaries(live: Live) -> bool:
    """In an xdist worker: until no canary is left, or nothing may start any more. Whether the next trial has to ask again."""
    folder = live.folder.spool
    with contextlib.suppress(OSError):
        (folder / f"{live.state.worker_id}{_WAITS}").touch()
    while not (folder / _OPEN).exists():
        if live.stops.forbids_start("") is not None:
            return True  # the trial finds that out by itself
        time.sleep(_LOOK)
    with contextlib.suppress(OSError):
        (folder / f"{live.state.worker_id}{_WAITS}").unlink()
    return False


class Gate:
    """The controller's side."""

    def __init__(self, live: Live, book: RunBook) -> None:
        self._live, self._book = live, book
        self._left = set[str]()
        self._running = 0  #: items that some process has begun with and not ended
        self._moved = time.monotonic()  #: when that last changed

    def planned(self) -> None:
        """The plan is known, and nothing is scheduled yet."""
        self._left = {t.node_id for t in self._book.plan.values() if t.is_canary and t.starts}
        if self._left and self._live.state.xdist:
            # loadfile, loadscope and loadgroup would put the longest group first; else they keep the order of the items
            self._live.config.option.loadscopereorder = False

    def moved(self, step: int) -> None:
        """An item has begun (1) or is over (-1)."""
        self._running += step
        self._moved = time.monotonic()

    def finished(self, node_id: str) -> None:
        """A trial has its final record."""
        final = self._book.final.get(node_id)
        if final is not None and final.gate == "fell":
            with contextlib.suppress(OSError):  # a full disk: those in this process hear of it all the same
                self._live.stops.raise_flag(CANARY)
        if node_id in self._left:
            self._left.discard(node_id)
            if not self._left:
                self._open()

    def _open(self) -> None:
        if self._live.state.xdist:
            try:
                (self._live.folder.spool / _OPEN).touch()
            except OSError as error:  # then workers would wait for ever
                self._live.warn(f"the canaries are over, but workers can't be told: {error.strerror}")
                with contextlib.suppress(OSError):
                    self._live.stops.raise_flag("interrupt")

    def look(self) -> None:
        """Let workers go on that wait for a canary which can't come, because it stands behind their own items. For the follower."""
        if not self._left:
            return
        now, folder = time.monotonic(), self._live.folder.spool
        if self._running > 0 or not any(folder.glob(f"*{_WAITS}")):
            self._moved = now
        elif now - self._moved > _STUCK:
            names = ", ".join(sorted(self._left)[:3])
            self._live.warn(f"other trials did not wait for {names}: xdist had handed it to a worker behind them")
            self._left.clear()
            self._open()
