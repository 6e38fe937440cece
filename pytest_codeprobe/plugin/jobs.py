"""--codeprobe-jobs: threads run whole trials, and pytest's own protocol runs here, in the main thread, in the order of completion."""

from __future__ import annotations

import collections
import contextlib
import functools
import importlib
import itertools
import queue
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.model.result import TrialResult
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.plugin.ahead import Ahead, fixture_definitions, remedies
from pytest_codeprobe.plugin.collect import TaskItem, Unmet
from pytest_codeprobe.plugin.gate import is_canary
from pytest_codeprobe.plugin.marked import MARKED, holder_of
from pytest_codeprobe.plugin.protocol import close_run
from pytest_codeprobe.plugin.schedule import Between
from pytest_codeprobe.text import one_line
from pytest_codeprobe.trial.engine import ThreadEngine

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live

_LOOK = 0.25  #: seconds between two looks at what pytest or a signal wants while nothing ends


class Jobs:
    """Takes the place of pytest's loop where trials may run ahead of their items."""

    def __init__(self, live: Live) -> None:
        self.live = live

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """None, so that pytest's own loop runs, where there is nothing to run ahead."""
        option = session.config.option
        if option.collectonly or (session.testsfailed and not option.continue_on_collection_errors):
            return None
        ahead, forced = self._sort(session.items)
        if forced:
            self._tell(forced, session.items)
        if not ahead:
            return None
        with self.live.interrupts.held():  # trials are in their stages all along: a signal sets shouldstop, seen in the loop
            _Loop(self.live, session, ahead).run()
        return True

    def _tell(self, forced: dict[str, str], items: Sequence[pytest.Item]) -> None:
        """What does not run ahead: now, while it can still be changed, and in the summary."""
        allowed = self.live.state.options.ahead_fixtures
        said = [_said(self.live.jobs, forced), *remedies(allowed, forced.values(), items)]
        for line in said:
            self.live.warn(line)
        reporter = self.live.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self.live.config.get_verbosity() >= 0:
            for line in said:
                reporter.write_line(f"codeprobe: {one_line(line, 300)}")

    def _sort(self, items: Sequence[pytest.Item]) -> tuple[list[TaskItem], dict[str, str]]:
        """What runs ahead, in the order of the start, and why other trials don't: node id -> reason."""
        rules = Ahead(self.live.config, self.live.state.options.ahead_fixtures)
        ahead, forced = [], {}
        for item in items:
            if isinstance(item, TaskItem):
                if any(item.iter_markers("skip")) or not self.live.may_start(item) or item.is_kept:
                    continue  # pytest skips it at once, in its own set-up
                reason = rules.forced(item)
                if reason is None:
                    ahead.append(item)
                    continue
                forced[item.nodeid] = reason
            elif item.stash.get(MARKED, None) is not None:
                forced[item.nodeid] = "a Python test with a task"
        return ahead, forced


def _said(jobs: int, forced: dict[str, str]) -> str:
    counts = collections.Counter(forced.values())
    many = len(counts) > 1
    reasons = "; ".join(f"{reason} ({number})" if many else reason for reason, number in counts.most_common())
    total = len(forced)
    return f"{total} trial{'s' if total != 1 else ''} run one at a time in spite of {jobs} jobs, because of: {reasons}"


@dataclass
class _Block:
    """Items that the main thread runs one directly after the other, since they share fixtures of a module, class or package."""

    place: int  #: so many trials that run ahead were collected before it
    items: list[pytest.Item] = field(default_factory=list)


class _Loop:
    """One run of the items. Threads touch `_done` and what belongs to their own item."""

    def __init__(self, live: Live, session: pytest.Session, ahead: Sequence[TaskItem]) -> None:
        self._live, self._session = live, session
        self._ahead = {item.node_id: item for item in ahead}
        self._waiting = collections.deque(ahead)  #: not submitted yet: their trials are text until then
        self._untold = len(ahead)
        self._canaries = sum(map(is_canary, map(holder_of, session.items)))  #: pytest knows nothing of yet: no other trial begins
        self._submitting = threading.Lock()
        self._blocks = collections.deque(_blocks(session.items, set(ahead)))
        self._left = len(session.items)
        self._any_next: pytest.Item = Between.from_parent(session, name="whichever trial ends next")
        self._started = 0  #: trials that run ahead and have begun
        #: what a thread has to say: a trial has begun (None), or is over
        self._done: queue.SimpleQueue[TaskItem | None] = queue.SimpleQueue()
        self._stops_early = bool(session.config.getoption("maxfail"))
        importlib.import_module("jsonschema.validators")  # of what threads may import, all that builds syntax trees: two must not at once
        self._engine = live.engine = ThreadEngine(live.jobs, self._whole)

    # ---- in a thread of the engine
    def _whole(self, trial: Trial) -> TrialResult:
        item = self._ahead[trial.node_id]
        self._done.put(None)
        self._submit_next()
        assert self._live.protocol is not None
        run = self._live.protocol.new_run(item)
        item.ahead = True
        result = None
        try:
            result = run.whole()
            return result
        finally:
            self._engine.slots.over()
            if self._stops_early and self._may_fail(item, result):
                item.holds = True
                self._engine.slots.hold()  # until pytest has counted it: nothing may start after the last failure that is allowed

    def _may_fail(self, item: TaskItem, result: TrialResult | None) -> bool:
        """Whether pytest may count a failure: a pass too, where one was expected to fail."""
        if result is None or result.status in ("failed", "error"):
            return True
        return result.status == "passed" and item.get_closest_marker("xfail") is not None

    # ---- in the main thread
    def run(self) -> None:
        """All items, until pytest wants to stop. Nothing runs on afterwards, whatever is raised."""
        trials = [i for i in self._session.items if isinstance(i, TaskItem) or i.stash.get(MARKED, None) is not None]
        before = set(self._session.items[: self._session.items.index(trials[0])])
        while self._blocks and self._blocks[0].items[0] in before:
            self._run_block(self._blocks.popleft())
        live = self._live
        live.build()
        with ThreadPoolExecutor(1, thread_name_prefix="codeprobe-delete") as deleter:
            live.deleter = deleter
            try:
                self._trials()
            except BaseException as stop:
                live.stop_trials("maxfail" if isinstance(stop, pytest.Session.Failed) else "interrupt")
                raise
            finally:
                try:
                    self._engine.close()  # a third signal breaks this off
                finally:
                    try:
                        self._tell_rest()
                    finally:
                        live.deleter = None

    def _trials(self) -> None:
        self._submit_first()
        told = 0  #: since the last block
        while self._untold or self._blocks:
            at_its_place = bool(self._blocks) and self._blocks[0].place <= self._started and not self._must_wait(self._blocks[0])
            ready = at_its_place and self._has_room(self._blocks[0])
            try:
                if ready and told >= self._live.jobs:
                    raise queue.Empty  # where trials end all the time, the place of an ordinary test would come last
                done = self._done.get(block=not ready, timeout=_LOOK)
            except queue.Empty:
                if ready:
                    told = 0
                    self._run_block(self._blocks.popleft())
                else:
                    self._look()
                continue
            if done is None:
                self._started += 1
            else:
                told += 1
                if not done.ahead:  # no thread took it, and so none has submitted the next one
                    self._submit_next()
                self._protocol(done, None)
        if 0 < self._engine.threads < min(self._live.jobs, len(self._ahead)):
            self._live.warn(f"only {self._engine.threads} of {self._live.jobs} jobs ran at once: the system gave no more threads")

    def _has_room(self, block: _Block) -> bool:
        """Whether the block can begin: what runs a trial of its own needs a slot, and has it from here on."""
        return not any(map(self._live.needs_slot, block.items)) or self._engine.slots.try_first()

    def _must_wait(self, block: _Block) -> bool:
        """Whether the block holds a trial, and canaries are still to come or to end."""
        return self._canaries > 0 and any(map(self._live.needs_slot, block.items)) and not any(is_canary(holder_of(i)) for i in block.items)

    def _submit_first(self) -> None:
        for _ in range(2 * self._live.jobs):  # each that begins submits one more
            self._submit_next()

    def _submit_next(self) -> None:
        with self._submitting:  # to the end, or the next one could come first
            if not self._waiting or (self._canaries and not is_canary(self._waiting[0])):
                return
            item = self._waiting.popleft()
            try:
                self._engine.submit(item.trial).add_done_callback(_Callback(self._done, item))
            except Exception:  # noqa: BLE001  # it is raised again in the item's own set-up
                self._engine.slots.over()
                self._done.put(None)
                self._done.put(item)

    def _run_block(self, block: _Block) -> None:
        for number, (item, following) in enumerate(itertools.pairwise([*block.items, None])):
            assert item is not None
            if number and self._engine.slots.held and self._live.needs_slot(item):
                self._tell_rest()  # one of them may be the last failure that is allowed
                self._look()
            self._protocol(item, following)

    def _protocol(self, item: pytest.Item, following: pytest.Item | None) -> None:
        self._left -= 1
        if following is None and self._left:
            following = self._any_next
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        self._look()
        self._told(item)

    def _told(self, item: pytest.Item) -> None:
        """pytest knows of it, and goes on."""
        if isinstance(item, TaskItem) and item.node_id in self._ahead:
            self._untold -= 1
            self._engine.slots.told()
        if isinstance(item, TaskItem) and item.holds:
            item.holds = False
            self._engine.slots.go_on()
        if is_canary(holder_of(item)):
            self._canaries -= 1
            if not self._canaries:
                self._submit_first()

    def _look(self) -> None:
        """As pytest's own loop does after each item."""
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)

    def _tell_rest(self) -> None:
        """Report trials that are over without their fixtures. What they cost is paid, so pytest is told what became of them."""
        over, not_begun = list[TaskItem](), list[TaskItem]()
        with contextlib.suppress(queue.Empty):
            while True:
                if (item := self._done.get_nowait()) is None:
                    self._started += 1
                else:
                    (not_begun if item.run is None else over).append(item)
        for item in not_begun:
            self._done.put(item)  # for its own set-up, should there be one
        for item in over:
            item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for item in over:
            self._left -= 1
            _report(self._live, item)
            self._told(item)


class _Callback:
    """Says that a trial is over; not of one that was never begun."""

    def __init__(self, done: queue.SimpleQueue[TaskItem | None], item: TaskItem) -> None:
        self._done, self._item = done, item

    def __call__(self, future: Future[TrialResult]) -> None:
        if not future.cancelled():
            self._done.put(self._item)


def _report(live: Live, item: TaskItem) -> None:
    """Log the reports of a trial that is over, without any fixture: pytest is at its end, and none may be set up again."""
    assert live.protocol is not None
    protocol, hook = live.protocol, item.ihook

    def setup() -> None:
        assert item.run is not None
        try:
            record = item.run.whole()  # it answers what it has answered
        except BaseException as error:  # noqa: BLE001  # a skip or sys.exit() of a criterion of the user's
            record = close_run(item.run, error)
        protocol.conclude(item, record)

    def call() -> None:
        assert item.record is not None
        mark = None if item.config.option.runxfail else item.get_closest_marker("xfail")
        if item.record.status == "failed":
            if mark is not None and issubclass(Unmet, mark.kwargs.get("raises") or Unmet):
                pytest.xfail(mark.kwargs.get("reason") or "")
            raise Unmet
        if mark is not None and mark.kwargs.get("strict", item.config.getini("xfail_strict")):
            pytest.fail(f"[XPASS(strict)] {mark.kwargs.get('reason') or ''}", pytrace=False)

    for when, phase in (("setup", setup), ("call", call), ("teardown", lambda: protocol.delete(item))):
        info: pytest.CallInfo[None] = pytest.CallInfo.from_call(phase, when=when)  # type: ignore[arg-type]  # one of three words
        report = hook.pytest_runtest_makereport(item=item, call=info)
        hook.pytest_runtest_logreport(report=report)
        if when == "setup" and not report.passed:
            protocol.delete(item)
            break
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


# ---- which items of the main thread stay together


def _blocks(items: Sequence[pytest.Item], ahead: set[TaskItem]) -> Iterator[_Block]:
    """The items that don't run ahead, in their order.

    Where a report of another trial comes between two items, fixtures of their module, class and package are torn down: so two
    items that share one must be neighbours.
    """
    place, main = 0, list[tuple[int, pytest.Item]]()
    for item in items:
        if item in ahead:
            place += 1
        else:
            main.append((place, item))
    together = _held([item for _, item in main])
    block: _Block | None = None
    for number, (place, item) in enumerate(main):
        if block is None:
            block = _Block(place)
        block.items.append(item)
        if not together[number]:
            yield block
            block = None


def _held(items: Sequence[pytest.Item]) -> list[bool]:
    """For each item whether something that it, or one before it, has set up is used by one after it, and must be kept."""
    first, last = dict[object, int](), dict[object, int]()
    for number, item in enumerate(items):
        for key in _shared(item):
            first.setdefault(key, number)
            last[key] = number
    steps = [0] * (len(items) + 1)
    for key, number in first.items():
        steps[number] += 1
        steps[last[key]] -= 1
    return [held > 0 for held in itertools.accumulate(steps[:-1])]


def _shared(item: pytest.Item) -> Iterable[object]:
    """What the item may have in common with its neighbours: fixtures of a scope between function and session, and where they live."""
    for definitions in fixture_definitions(item).values():
        for definition in definitions:
            if definition.scope == "class":
                yield definition, item.getparent(pytest.Class) or item.getparent(pytest.Module)
            elif definition.scope == "module":
                yield definition, item.getparent(pytest.Module)
            elif definition.scope == "package":
                yield definition, None
    yield from (node for node in item.listchain() if isinstance(node, pytest.Package) and _sets_up(node.path / "__init__.py"))


@functools.cache
def _sets_up(module: Path) -> bool:
    """Whether a package has a setup_module() or the like of its own, which pytest calls whenever it comes to the package."""
    try:
        return re.search(rb"(setup|teardown)_?module", module.read_bytes(), re.IGNORECASE) is not None
    except OSError:
        return False
