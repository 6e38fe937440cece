"""Where trials run that do not wait for their turn: `submit(trial)` answers with a future of the record.

A thread for each trial here; an engine on other machines has the same face.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Protocol

from pytest_codeprobe.model.result import TrialResult
from pytest_codeprobe.model.trial import Trial

_UNTOLD = 4  #: so many records for each slot may wait to be told; their workspaces are on disk until then


class Engine(Protocol):
    """Runs trials, as many at once as it has slots, in the order in which they were submitted."""

    def submit(self, trial: Trial) -> Future[TrialResult]:
        """Run a trial as soon as there is a slot. If the engine is closed before that, the future is cancelled or raises Closed."""

    def close(self) -> None:
        """Start nothing more and wait for what runs."""


class Closed(Exception):
    """The engine was closed before the trial had begun."""


class Slots:
    """How many trials may run at once. One thread, pytest's own, comes before all others."""

    def __init__(self, number: int) -> None:
        self._free = number
        self._most_untold = _UNTOLD * number
        self._asked = self._closed = False
        self._holds = self._untold = 0
        self._changed = threading.Condition()
        self.first = False  #: pytest's thread has a slot

    @contextmanager
    def taken(self) -> Iterator[None]:
        """One slot, for a thread of the engine. Closed if there will be none any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._may_begin())
            if self._closed:
                raise Closed
            self._free -= 1
        try:
            yield
        finally:
            with self._changed:
                self._free += 1
                self._changed.notify_all()

    def _may_begin(self) -> bool:
        return self._free > 0 and not self._asked and not self._holds and self._untold < self._most_untold

    def try_first(self) -> bool:
        """One slot for pytest's thread if there is one at once; else the next that is free is kept for it, to be asked for again.

        None while there is a hold().
        """
        with self._changed:
            if not self.first:
                self._asked = True
                if self._free and not self._holds:
                    self._free, self._asked, self.first = self._free - 1, False, True
            return self.first

    def take_first(self) -> None:
        """One slot for pytest's thread, unless it has one: the next that is free, whoever else waits, and whatever is held."""
        with self._changed:
            if not self.first:
                self._asked = True
                self._changed.wait_for(lambda: self._free > 0)
                self._free, self._asked, self.first = self._free - 1, False, True
                self._changed.notify_all()

    def give_first(self) -> None:
        """Give back what pytest's thread has, if it has any."""
        with self._changed:
            if self.first:
                self._free, self.first = self._free + 1, False
                self._changed.notify_all()

    @property
    def held(self) -> bool:
        """Whether there is a hold()."""
        return self._holds > 0

    def hold(self) -> None:
        """Let nothing begin until as many go_on() have come: what has just ended may be the end of the run."""
        with self._changed:
            self._holds += 1

    def go_on(self) -> None:
        """Take one hold() back."""
        with self._changed:
            self._holds -= 1
            self._changed.notify_all()

    def over(self) -> None:
        """A record waits to be told. Where too many do, no thread of the engine begins."""
        with self._changed:
            self._untold += 1

    def told(self) -> None:
        """One of them has been told."""
        with self._changed:
            self._untold -= 1
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing begins any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()


class ThreadEngine:
    """An Engine of threads in this process. `whole` runs one trial from nothing to its record."""

    def __init__(self, jobs: int, whole: Callable[[Trial], TrialResult]) -> None:
        self.slots = Slots(jobs)
        self._jobs, self._whole = jobs, whole
        self._closed = False
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._orders: queue.SimpleQueue[tuple[Future[TrialResult], Trial] | None] = queue.SimpleQueue()

    @property
    def threads(self) -> int:
        """How many there are: fewer than the slots where the system gives no more."""
        return len(self._threads)

    def submit(self, trial: Trial) -> Future[TrialResult]:
        """See Engine. RuntimeError where not even one thread can be started."""
        future: Future[TrialResult] = Future()
        with self._lock:
            if self._closed:
                future.cancel()
                return future
            self._add_thread()
            self._orders.put((future, trial))
        return future

    def _add_thread(self) -> None:
        if len(self._threads) >= self._jobs:
            return
        thread = threading.Thread(target=self._work, name=f"codeprobe-trial-{len(self._threads) + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # a limit on processes
            if not self._threads:
                raise
            return
        self._threads.append(thread)

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            future, trial = order
            del order
            if future.set_running_or_notify_cancel():
                try:
                    with self.slots.taken():
                        result = self._whole(trial)
                except BaseException as error:  # noqa: BLE001  # the future's to raise
                    future.set_exception(error)
                else:
                    future.set_result(result)
                    del result
            del future, trial  # they would stay until the next order comes

    def close(self) -> None:
        """See Engine."""
        self.slots.close()
        with self._lock:
            self._closed = True
        with_orders = True
        while with_orders:
            try:
                order = self._orders.get_nowait()
            except queue.Empty:
                with_orders = False
            else:
                if order is not None:
                    order[0].cancel()
                    order[0].set_running_or_notify_cancel()
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            thread.join()
