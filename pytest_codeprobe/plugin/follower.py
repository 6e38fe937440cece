"""The controller's thread that publishes what trials say while they run, and looks at whatever bounds the run meanwhile."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from pytest_codeprobe.run.book import RunBook

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.plugin.logs import Logs

_FOLLOW = 0.2  #: seconds between two looks at the spools
_IDLE_BEFORE_WAKING = 0.5  #: by then every worker has seen the flag


class Follower:
    """One for each run. `looks`: what it does each time beside publishing; none may wait or raise."""

    def __init__(self, live: Live, book: RunBook, logs: Logs, *looks: Callable[[], None]) -> None:
        self._live, self._book, self._logs = live, book, logs
        self._looks = looks
        self._interrupt_told = False
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def has_started(self) -> bool:
        """Whether there was a plan to follow."""
        return self._thread is not None

    def start(self) -> None:
        """The plan is there."""
        self._thread = threading.Thread(target=self._follow, name="codeprobe-follower", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Once it returns nobody else writes to the book."""
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def also(self, look: Callable[[], None]) -> None:
        """One more look, after the others."""
        self._looks = (*self._looks, look)

    def _follow(self) -> None:
        """Publish what workers say. Wakes the main thread out of xdist's queue once an interrupt has nothing to wait for."""
        interrupts, idle_since = self._live.interrupts, 0.0
        while not self._done.wait(_FOLLOW):
            self._book.drain_all()
            self.tell_interrupt()
            for look in self._looks:
                look()
            if not (self._live.state.xdist and interrupts.count and not self._book.open):
                idle_since = 0.0
                continue
            idle_since = idle_since or time.monotonic()
            if time.monotonic() - idle_since > _IDLE_BEFORE_WAKING and not interrupts.raised and not interrupts.ending:
                interrupts.woken = True
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                idle_since = time.monotonic()

    def tell_interrupt(self) -> None:
        """The event, once."""
        if self._live.interrupts.count and not self._interrupt_told:
            self._interrupt_told = True
            self._book.event("run_interrupted", reason=self._live.interrupts.first)
            self._logs.say(logging.WARNING, f"interrupted: {self._live.interrupts.first}")
