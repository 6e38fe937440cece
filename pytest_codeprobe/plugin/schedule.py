"""What stands between pytest-xdist and its scheduler while there is a plan: canaries alone first, and a dead worker's trial told truly.

Until the canaries are over, workers have nothing else, and so nobody has to wait, ask or be told: each gets one canary at a time.
Then a scheduler of xdist's own, of whatever `--dist`, takes all items; those canaries that it hands out once more are passed by.

A worker of xdist begins with an item only once it knows the next one. So the canary is followed by PLACE, and before the first item
of the rest comes OVER: two items that each worker has behind those that it told of, and that only say something.
"""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.errors import CodeprobeError

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live

PLACE, OVER = -2, -1  #: indices: the last of a worker's items
_TAKEN = "Run the tasks with --codeprobe-jobs instead of -n, or without the plugin that takes the place of xdist's scheduler."


class Between(pytest.Item):
    """Stands for an item that nobody knows yet, where pytest is told what comes next: its session fixtures stay, others are torn down."""

    def runtest(self) -> None:
        raise AssertionError("only the place of an item")


def places(session: pytest.Session) -> list[Between]:
    """PLACE and OVER, for a worker whose items xdist knows already."""
    return [Between.from_parent(session, name=name) for name in ("whichever comes next", "the canaries are over")]


class Schedule:
    """A scheduler as xdist's controller knows it. All calls come from its loop, in the main thread.

    `canaries`: ids, as xdist has them, that go first. `make` makes another scheduler of xdist's like `first`, which has no items yet.
    `is_final` says whether a trial has its record.
    """

    def __init__(
        self, first: Any, make: Callable[[], Any], is_canary: Callable[[str], bool], is_final: Callable[[str], bool], *, gated: bool
    ) -> None:
        self._first, self._make, self._is_canary, self._is_final = first, make, is_canary, is_final
        self._inner: Any = None if gated else first
        self._gated, self._is_scheduled = gated, False
        self._nodes: dict[Any, list[str] | None] = dict.fromkeys(first.nodes)  #: worker -> what it has collected
        self._ids: list[str] | None = None
        self._waiting = collections.deque[str]()  #: canaries that no worker has
        self._running: dict[Any, str] = {}
        self._unsure = set[str]()  #: canaries that killed their worker: the record is on its way
        self._begun = set[str]()  #: ids with which some worker has begun, and that are not complete
        self.ended = False  #: nothing may be handed out any more

    def __getattr__(self, name: str) -> Any:
        """For other plugins: `config`, say."""
        return getattr(self._inner or self._first, name)

    # ---- what xdist asks
    @property
    def nodes(self) -> list[Any]:
        return list(self._nodes)

    @property
    def collection_is_completed(self) -> bool:
        return bool((self._inner or self._first).collection_is_completed)

    @property
    def tests_finished(self) -> bool:
        return self.ended or (self._inner is not None and bool(self._inner.tests_finished))

    @property
    def has_pending(self) -> bool:
        return bool(self._waiting or self._running) if self._inner is None else bool(self._inner.has_pending)

    # ---- workers come and go
    def add_node(self, node: Any) -> None:
        self._nodes[node] = None
        if self._inner is None:
            self._first.add_node(node)
        elif not self.collection_is_completed:
            self._inner.add_node(node)
        # else once it has collected: loadscope and its kin would hand it items before, and can't

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        if node not in self._nodes:  # it is dead
            return
        self._nodes[node] = list(collection)
        if self._inner is None:
            if not self._first.collection_is_completed:  # it only counts them
                self._first.add_node_collection(node, collection)
            return
        if self._gated:  # before a scheduler hands it anything
            _send(node, [OVER])
        if node not in self._inner.nodes:
            self._inner.add_node(node)
        self._inner.add_node_collection(node, collection)

    def remove_node(self, node: Any) -> str | None:
        """The item with which the worker died; None where it had begun with none, whatever was in its queue: that is run elsewhere."""
        self._nodes.pop(node, None)
        if self._inner is not None:
            return self._remove_from_inner(node)
        canary = self._running.pop(node, None)
        if canary is None:
            return None
        if canary in self._begun:
            self._unsure.add(canary)
            return canary
        self._waiting.appendleft(canary)
        self._hand_out()
        return None

    def _remove_from_inner(self, node: Any) -> str | None:
        if node not in self._inner.nodes:
            return None
        units: dict[str, dict[str, bool]] | None = getattr(self._inner, "assigned_work", {}).get(node)
        if units is None:
            crashed = self._next_of(node)
            with _dead_ones():
                crashed = self._inner.remove_node(node)
            if crashed is None or crashed in self._begun:
                return None if crashed is None else str(crashed)
            with _dead_ones():
                self._inner.mark_test_pending(crashed)
            return None
        # loadscope and its kin would begin again, in the next worker, with what has just killed this one
        unit = next((unit for unit in units.values() if not all(unit.values())), {})
        killer = next((one for one, is_over in unit.items() if not is_over), None)
        if killer is not None and killer not in self._begun:
            killer = None
        if killer is not None:
            unit[killer] = True
        for name in [name for name, unit in units.items() if all(unit.values())]:
            del units[name]  # handed out again, it would be an empty unit, and a worker that needs one more item waits for ever
        with _dead_ones():
            self._inner.remove_node(node)
        return killer

    def _next_of(self, node: Any) -> str | None:
        """The item at the head of a worker's queue, as a scheduler is about to answer it: another dead worker may keep it from that."""
        queue = getattr(self._inner, "node2pending", {}).get(node)
        return str(self._inner.collection[queue[0]]) if queue else None

    # ---- items
    def schedule(self) -> None:
        if self.ended:
            return
        if self._inner is not None:
            self._schedule_inner()
            return
        lists = [ids for ids in self._nodes.values() if ids is not None]
        if any(ids != lists[0] for ids in lists):  # xdist refuses that
            self._open()
            return
        if self._ids is None:
            self._ids = lists[0]
            self._waiting.extend(filter(self._is_canary, self._ids))
        self._hand_out()

    def begun(self, node_id: str) -> None:
        """A worker has begun with an item."""
        self._begun.add(node_id)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        if item_index < 0:
            return  # PLACE or OVER
        ids = self._nodes.get(node)
        if ids is not None:
            self._begun.discard(ids[item_index])
        if self._inner is not None:
            with _dead_ones():
                self._inner.mark_test_complete(node, item_index, duration)
        elif ids is not None and self._running.get(node) == ids[item_index]:
            del self._running[node]
            self._hand_out()

    def mark_test_pending(self, item: str) -> None:
        """pytest-rerunfailures: what has killed its worker is to run again."""
        self._begun.discard(item)
        if self._inner is not None:
            with _dead_ones():
                self._inner.mark_test_pending(item)
            return
        self._unsure.discard(item)
        self._waiting.appendleft(item)
        self._hand_out()

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        with _dead_ones():
            self._inner.remove_pending_tests_from_node(node, indices)

    # ---- the canaries
    def _hand_out(self) -> None:
        for node, ids in list(self._nodes.items()):
            if self.ended or not self._waiting:
                break
            if ids is None or node in self._running or node.shutting_down or self._waiting[0] not in ids:
                continue
            if _send(node, [ids.index(self._waiting[0]), PLACE]):
                self._running[node] = self._waiting.popleft()
        self.look()

    def look(self) -> None:
        """Let the rest go on if no canary is left."""
        self._unsure = {one for one in self._unsure if not self._is_final(one)}
        if self._inner is None and self._ids is not None and not (self.ended or self._waiting or self._running or self._unsure):
            self._open()

    def _open(self) -> None:
        self._inner = self._make()
        for node, ids in list(self._nodes.items()):
            if ids is None:
                continue
            if not _send(node, [OVER]):  # it is dead, and xdist is about to hear of it
                del self._nodes[node]
            else:
                self._inner.add_node(node)
                self._inner.add_node_collection(node, ids)
        if self._inner.collection_is_completed:
            self._schedule_inner()

    def _schedule_inner(self) -> None:
        # loadscope and its kin give one unit to a worker that comes later: less, it may be, than the two items it takes to begin
        times = 2 if self._is_scheduled and hasattr(self._inner, "assigned_work") else 1
        self._is_scheduled = True
        for _ in range(times):
            with _dead_ones():
                self._inner.schedule()


def _dead_ones() -> contextlib.AbstractContextManager[None]:
    """A scheduler of xdist's may send to a worker whose end nobody has told of yet. What it was sent is handed out again then."""
    return contextlib.suppress(OSError)


def _send(node: Any, indices: list[int]) -> bool:
    """Whether the worker could be told."""
    try:
        node.send_runtest_some(indices)
    except OSError:
        return False
    return True


def put_between(live: Live, canaries: frozenset[str], named: Callable[[str], str], is_final: Callable[[str], bool]) -> Schedule | None:
    """Put a Schedule in the place of the scheduler that xdist has just made, which no worker's items are known to.

    Not public in xdist: the plugin's attributes `sched` and `log`. Where they are not there, a run with canaries is refused (None: there
    are none), since nothing would hold the rest back.
    """
    config = live.config
    controller: Any = config.pluginmanager.get_plugin("dsession")
    first = getattr(controller, "sched", None)
    if first is None or not hasattr(first, "nodes") or not hasattr(controller, "log"):
        if not canaries:
            return None
        raise CodeprobeError("USAGE_ERROR", "under this pytest-xdist nothing can wait for tasks tagged `canary`", remediation=_TAKEN)
    made = Schedule(
        first,
        lambda: config.hook.pytest_xdist_make_scheduler(config=config, log=controller.log),
        lambda one: named(one) in canaries,
        lambda one: is_final(named(one)),
        gated=bool(canaries),
    )
    controller.sched = made
    return made


def handed_out_early() -> CodeprobeError:
    """Of a trial that has come to a worker before the canaries are over."""
    return CodeprobeError("USAGE_ERROR", "a plugin has handed out this task before those tagged `canary` were over", remediation=_TAKEN)
