"""Where trials run that do not wait for their turn: `submit(trial)` answers with a future of the record.

A thread for each trial here; an engine on other machines has the same face.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Protocol

from pytest_codeprobe.model.result import TrialResult
from pytest_codeprobe.model.trial import Trial


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
        self._asked = self._holds = 0
        self._closed = False
        self._changed = threading.Condition()

    @contextmanager
    def taken(self) -> Iterator[None]:
        """One slot, for a thread of the engine. Closed if there will be none any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._free > 0 and not self._asked and not self._holds))
            if self._closed:
                raise Closed
            self._free -= 1
        try:
            yield
        finally:
            self.give()

    def take_first(self) -> None:
        """One slot, for pytest's thread: the next that is free, whoever else waits, and whatever is held."""
        with self._changed:
            self._asked += 1
            try:
                self._changed.wait_for(lambda: self._free > 0)
                self._free -= 1
            finally:
                self._asked -= 1
                self._changed.notify_all()

    def give(self) -> None:
        """Give a slot back."""
        with self._changed:
            self._free += 1
            self._changed.notify_all()

    def close(self) -> None:
        """Nothing begins any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def hold(self) -> None:
        """Let no thread of the engine begin until as many go_on() have come: what has just ended may be the end of the run."""
        with self._changed:
            self._holds += 1

    def go_on(self) -> None:
        """Take one hold() back."""
        with self._changed:
            self._holds -= 1
            self._changed.notify_all()


class ThreadEngine:
    """An Engine of threads in this process. `whole` runs one trial from nothing to its record."""

    def __init__(self, jobs: int, whole: Callable[[Trial], TrialResult]) -> None:
        self.slots = Slots(jobs)
        self._whole = whole
        self._threads = ThreadPoolExecutor(jobs, thread_name_prefix="codeprobe-trial")

    def submit(self, trial: Trial) -> Future[TrialResult]:
        """See Engine."""
        try:
            return self._threads.submit(self._run, trial)
        except RuntimeError:  # it is closed
            future: Future[TrialResult] = Future()
            future.cancel()
            return future

    def _run(self, trial: Trial) -> TrialResult:
        with self.slots.taken():
            return self._whole(trial)

    def close(self) -> None:
        """See Engine."""
        self.slots.close()
        self._threads.shutdown(wait=True, cancel_futures=True)
