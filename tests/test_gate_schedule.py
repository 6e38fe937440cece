"""Who gets which item while there are canaries: xdist's own schedulers behind ours, with workers that only look like some."""

from __future__ import annotations

import collections
import errno
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xdist import scheduler  # type: ignore[import-untyped]

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.plugin.gate import Fallen, Gate, WorkerGate
from pytest_codeprobe.plugin.marked import MARKED
from pytest_codeprobe.plugin.schedule import OVER, Schedule, put_between
from pytest_codeprobe.run.folder import RunFolder
from pytest_codeprobe.run.plan import PlannedTrial

SCHEDULERS = {
    "load": scheduler.LoadScheduling,
    "loadscope": scheduler.LoadScopeScheduling,
    "loadfile": scheduler.LoadFileScheduling,
    "loadgroup": scheduler.LoadGroupScheduling,
    "worksteal": scheduler.WorkStealingScheduling,
}
SHUTDOWN = -9


class Worker:
    """xdist's: begins with an item once it knows the next. `say` goes to the controller; what it hears is in `queue`."""

    def __init__(self, name: str, world: World) -> None:
        self.gateway = SimpleNamespace(id=name, spec=name)
        self.world = world
        self.queue = collections.deque[int]()
        self.next: int | None = None
        self.running: int | None = None
        self.shutting_down = self.over = self.dead = self.ended = False

    def send_runtest_some(self, indices: list[int]) -> None:
        if self.dead:
            raise OSError("cannot send (already closed?)")
        self.queue.extend(indices)

    def send_steal(self, indices: list[int]) -> None:
        if self.dead:
            raise OSError("cannot send (already closed?)")
        if self.ended:
            return
        fits = set(indices) <= set(self.queue)
        if fits:
            self.queue = collections.deque(i for i in self.queue if i not in indices)
        self.world.events.append((self, "unscheduled", list(indices) if fits else []))

    def shutdown(self) -> None:
        self.queue.append(SHUTDOWN)
        self.shutting_down = True

    def can_step(self) -> bool:
        return not (self.dead or self.ended) and (self.running is not None or self.next == SHUTDOWN or bool(self.queue))

    def step(self) -> None:
        if self.running is not None:
            self.world.ran(self, self.running)
            self.world.events.append((self, "complete", self.running))
            self.running = None
        elif self.next == SHUTDOWN:
            self.ended = True
            self.world.events.append((self, "finished", None))
        elif self.next is None:
            self.next = self.queue.popleft()
        else:
            self._begin(self.next)
            self.next = self.queue.popleft()

    def _begin(self, index: int) -> None:
        ids = self.world.ids
        if index >= 0 and not (self.over and ids[index] in self.world.canaries):
            self.world.begins(self, index)
            self.running = index
            return
        self.over = self.over or index == OVER
        self.world.events.append((self, "complete", index))


class World:
    """xdist's loop, and what became of each item."""

    def __init__(self, dist: str, ids: list[str], canaries: set[str], workers: int) -> None:
        self.ids, self.canaries = ids, canaries
        self.events = collections.deque[tuple[Worker, str, Any]]()
        self.begun = collections.Counter[str]()
        self.over = set[str]()
        self.crashed = list[str]()
        self.shutting_down = False
        config = SimpleNamespace(
            getvalue=lambda _: ["popen"] * workers,
            getoption=lambda _: None,
            option=SimpleNamespace(loadscopereorder=True),
            hook=None,
        )

        def make() -> Any:
            return SCHEDULERS[dist](config, None)

        first = make()
        self.workers = [Worker(f"gw{n}", self) for n in range(workers)]
        for worker in self.workers:
            first.add_node(worker)
        self.sched = Schedule(first, make, canaries.__contains__, self.over.__contains__, gated=bool(canaries))
        self.events.extend((worker, "collected", None) for worker in self.workers)

    def begins(self, worker: Worker, index: int) -> None:
        node_id = self.ids[index]
        assert node_id in self.canaries or self.canaries <= self.over, (node_id, self.over)
        self.begun[node_id] += 1
        self.events.append((worker, "begun", node_id))

    def ran(self, worker: Worker, index: int) -> None:
        self.over.add(self.ids[index])

    def kill(self, worker: Worker) -> None:
        worker.dead = True
        self.events.append((worker, "down", None))

    # ---- as xdist's dsession.py
    def handle(self) -> None:
        worker, event, value = self.events.popleft()
        if event == "collected":
            if not self.shutting_down:
                self.sched.add_node_collection(worker, self.ids)
                if self.sched.collection_is_completed:
                    self.sched.schedule()
        elif event == "begun":
            self.sched.begun(value)
        elif event == "complete":
            self.sched.mark_test_complete(worker, value, 0.0)
        elif event == "unscheduled":
            self.sched.remove_pending_tests_from_node(worker, value)
        elif event == "finished":
            assert worker not in self.sched.nodes or not self.sched.remove_node(worker)
        else:
            self._replace(worker)
        if self.sched.tests_finished and not self.shutting_down:
            self.shutting_down = True
            for node in self.sched.nodes:
                node.shutdown()

    def _replace(self, worker: Worker) -> None:
        try:
            crashed = self.sched.remove_node(worker)
        except KeyError:
            crashed = None
        if crashed:
            self.crashed.append(crashed)
            self.over.add(crashed)  # its record
            self.sched.look()
        self.shutting_down = False
        clone = Worker(f"gw{len(self.workers)}", self)
        self.workers.append(clone)
        self.sched.add_node(clone)
        self.events.append((clone, "collected", None))

    def run(self, chance: random.Random, deaths: int) -> None:
        """Everything in an order that chance chooses, until nothing can go on."""
        while True:
            ready = [w for w in self.workers if w.can_step()]
            alive = [w for w in self.workers if not (w.dead or w.ended)]
            if deaths and alive and not any(event == "down" for _, event, _ in self.events) and chance.random() < 0.05:
                deaths -= 1
                self.kill(chance.choice(alive))
            elif self.events and (not ready or chance.random() < 0.5):
                self.handle()
            elif ready:
                chance.choice(ready).step()
            else:
                return


def suite(files: int, trials: int, canaries: int, ordinary: int, group: bool) -> tuple[list[str], set[str]]:
    """Ids in the order of a worker's items: ordinary tests, canaries, the rest, all over some files."""
    ids = [f"test_{n % files}.py::test_{n}" for n in range(ordinary)]
    gate = [f"test_{n % files}.py::canary_{n}" + ("@g" if group and n % 2 else "") for n in range(canaries)]
    rest = [f"test_{n % files}.py::trial_{n}" + ("@g" if group and n % 2 else "") for n in range(trials)]
    return [*ids, *gate, *rest], set(gate)


@pytest.mark.joint
@pytest.mark.parametrize("dist", SCHEDULERS)
@settings(max_examples=100, deadline=None)
@given(
    files=st.integers(1, 4),
    trials=st.integers(0, 14),
    canaries=st.integers(0, 5),
    ordinary=st.integers(0, 6),
    workers=st.integers(1, 4),
    deaths=st.integers(0, 3),
    seed=st.integers(0, 10**6),
)
def test_nothing_else_begins_before_the_canaries_are_over_and_all_is_run(
    dist: str, files: int, trials: int, canaries: int, ordinary: int, workers: int, deaths: int, seed: int
) -> None:
    ids, gate = suite(files, trials, canaries, ordinary, dist == "loadgroup")
    world = World(dist, ids, gate, workers)
    world.run(random.Random(seed), deaths)
    assert all(w.ended or w.dead for w in world.workers), "somebody waits for ever"
    assert set(world.begun) == set(ids)
    assert set(world.begun.values()) <= {1}, "something was run, and paid for, twice"
    assert set(world.crashed) <= set(world.begun)
    assert world.over == set(ids)


@pytest.mark.joint
@pytest.mark.parametrize("dist", SCHEDULERS)
@settings(max_examples=50, deadline=None)
@given(trials=st.integers(1, 14), workers=st.integers(2, 4), deaths=st.integers(2, 3), gated=st.booleans(), seed=st.integers(0, 10**6))
def test_workers_that_die_at_once_end_no_run(dist: str, trials: int, workers: int, deaths: int, gated: bool, seed: int) -> None:
    """As when a machine has no memory left: xdist hears of one, and hands its items to another that is dead, too."""
    ids, gate = suite(2, trials, int(gated), 0, dist == "loadgroup")
    world, chance = World(dist, ids, gate, workers), random.Random(seed)
    for _ in range(chance.randint(workers, 60)):
        ready = [w for w in world.workers if w.can_step()]
        if world.events and (not ready or chance.random() < 0.5):
            world.handle()
        elif ready:
            chance.choice(ready).step()
    for worker in [w for w in world.workers if not (w.dead or w.ended)][:deaths]:
        world.kill(worker)
    world.run(chance, 0)
    assert all(w.ended or w.dead for w in world.workers), "somebody waits for ever"
    assert set(world.begun) == world.over == set(ids)
    assert set(world.begun.values()) <= {1}, "something was run, and paid for, twice"


# ---- what a scheduler is told, one thing at a time


def world_in_a_canary() -> tuple[World, Worker, Worker]:
    """Two workers: the one that has the canary, which it has not begun, and the other."""
    ids, gate = suite(1, 4, 1, 0, False)
    world = World("load", ids, gate, 2)
    while world.events:
        world.handle()
    first, other = sorted(world.workers, key=lambda w: not w.queue)
    assert (list(first.queue), list(other.queue)) == ([0, -2], [])
    return world, first, other


def test_a_canary_that_nobody_has_begun_goes_to_another_worker() -> None:
    world, first, other = world_in_a_canary()
    world.kill(first)
    world.handle()
    assert (list(other.queue), world.crashed) == ([0, -2], [])


def test_one_that_killed_its_worker_holds_the_rest_back_until_its_record_is_there() -> None:
    world, first, other = world_in_a_canary()
    world.sched.begun(world.ids[0])
    first.dead = True
    assert world.sched.remove_node(first) == world.ids[0]
    world.sched.look()
    assert not other.queue
    world.over.add(world.ids[0])
    world.sched.look()
    assert other.queue[0] == OVER


def test_one_that_is_to_run_again_does() -> None:
    """As pytest-rerunfailures asks for it."""
    world, first, other = world_in_a_canary()
    world.sched.begun(world.ids[0])
    first.dead = True
    world.sched.mark_test_pending(str(world.sched.remove_node(first)))
    assert list(other.queue) == [0, -2]


def test_where_workers_can_not_be_told_that_a_gate_fell_nothing_is_handed_out_any_more() -> None:
    world, first, other = world_in_a_canary()

    def full(_: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    book: Any = SimpleNamespace(final={world.ids[0]: SimpleNamespace(gate="fell")})
    gate = Gate(SimpleNamespace(stops=SimpleNamespace(raise_flag=full)), book)  # type: ignore[arg-type]  # all that it asks
    gate._schedule = world.sched
    first.queue.clear()
    gate.finished(world.ids[0])
    world.sched.mark_test_complete(first, 0)
    assert world.sched.tests_finished
    assert not other.queue


def test_the_same_before_anything_is_scheduled() -> None:
    """Of the built-in canary. Where there is no scheduler of ours, workers are ended."""
    ended = list[bool]()

    def full(_: str) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    interrupts = SimpleNamespace(untold=lambda: ended.append(True))
    gate = Gate(SimpleNamespace(stops=SimpleNamespace(raise_flag=full), interrupts=interrupts), SimpleNamespace())  # type: ignore[arg-type]
    gate.fell()
    assert ended == [True]
    world = World("loadfile", *suite(2, 4, 0, 0, False), 2)
    gate._schedule = world.sched
    gate.fell()
    world.run(random.Random(0), 0)
    assert (ended, world.begun) == ([True], {})
    assert all(w.ended for w in world.workers)


def test_another_plugins_scheduler_refuses_a_run_with_canaries() -> None:
    """Nothing would hold the rest back. Without canaries nobody needs it."""
    live: Any = SimpleNamespace(config=SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda _: object())))
    assert put_between(live, frozenset(), str, bool) is None
    with pytest.raises(CodeprobeError, match="nothing can wait") as caught:
        put_between(live, frozenset({"a"}), str, bool)
    assert (caught.value.code, "--codeprobe-jobs" in (caught.value.remediation or "")) == ("USAGE_ERROR", True)


class Item:
    """With a stash of its own."""

    def __init__(self, stash: pytest.Stash) -> None:
        self.stash = stash


def test_a_worker_starts_no_trial_before_it_has_heard_that_the_canaries_are_over() -> None:
    stash = pytest.Stash()
    stash[MARKED] = SimpleNamespace()  # type: ignore[misc]  # that there is one
    canary, trial, ordinary = (Item(s) for s in (stash, stash, pytest.Stash()))
    gate: Any = WorkerGate([canary])  # type: ignore[list-item]  # all that it asks of one
    for item in (canary, ordinary):
        gate.pytest_runtest_setup(item)
    with pytest.raises(CodeprobeError, match="has handed out this task before"):
        gate.pytest_runtest_setup(trial)


def test_without_a_record_the_reason_is_what_it_was(tmp_path: Path) -> None:
    fallen = Fallen(RunFolder(tmp_path))
    for status, reason, said in [("not_run", "canary", "not run: canary"), ("not_run", "time", "not run: time"), ("skipped", "no", "no")]:
        assert fallen.told(SimpleNamespace(status=status), reason) == said  # type: ignore[arg-type]


# ---- what a verdict means, and what a person reads of it


@pytest.mark.parametrize(
    ("expect", "status", "gate"),
    [
        ("pass", "passed", "held"),
        ("pass", "failed", "fell"),
        ("fail", "failed", "held"),
        ("fail", "passed", "fell"),
        ("pass", "error", "fell"),  # a provider that is down, a login that is refused: nobody knows what the rest would cost
        ("fail", "error", "fell"),
        ("pass", "not_run", None),  # the budget, the time, an interrupt: these stop the rest by themselves
        ("fail", "skipped", None),
    ],
)
def test_what_a_canarys_status_means_for_the_rest(expect: str, status: str, gate: str | None) -> None:
    assert planned_trial("z", expect=expect, tags=("canary",)).gate(status) == gate
    assert planned_trial("z").gate(status) is None


def planned_trial(name: str, **fields: Any) -> PlannedTrial:
    return PlannedTrial(
        node_id=name, task_id=name, variant_id=None, row_id=None, repeat=1, folder=name, task_file="t.yaml", agent="nop", model=None,
        driver="auto", limits={}, **fields,
    )  # fmt: skip


def test_how_many_the_others_wait_for() -> None:
    """None where there are no others, and none of those that are skipped."""
    canaries = [planned_trial(f"z{n}", tags=("canary",), starts=n < 2) for n in range(3)]
    live: Any = SimpleNamespace(state=SimpleNamespace(xdist=False))
    for others, left in [([], 0), ([planned_trial("a", starts=False)], 0), ([planned_trial("a")], 2)]:
        book: Any = SimpleNamespace(plan={t.node_id: t for t in [*canaries, *others]}, final={})
        gate = Gate(live, book)
        gate.planned()
        assert gate.holds_up == left
    gate.finished("z1")
    assert gate.holds_up == 1
