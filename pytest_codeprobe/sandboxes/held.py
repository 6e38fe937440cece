"""A process tree with limits that somebody else counts: whoever waits for it looks at the counters, and ends it once one was hit."""

from __future__ import annotations

import threading
from dataclasses import replace
from time import monotonic
from typing import Protocol

from pytest_codeprobe.model.sandbox import Process, ProcessExit
from pytest_codeprobe.sandboxes.room import Room


class Counters(Protocol):
    """What tells which limits were hit."""

    @property
    def ends(self) -> bool:
        """Whether there is a limit that ends a session."""

    def hit(self) -> str | None:
        """The limit that was hit."""

    def throttled(self) -> tuple[int, int]:
        """Periods in which all processors of the limit were used up, of those in which something ran."""

    def remove(self) -> list[str]:
        """The process is gone: nothing more is asked. What could not be removed."""


LOOK_EVERY = 0.1  #: seconds
#: causes of an end that a limit may be behind: it kills some process, which may be the keeper on its way
_OPEN = ("exit", "stopped", "lost")


class HeldProcess:
    """A process whose end is put down to the limit that was hit; then the groups are gone. `grace`: seconds from TERM to KILL."""

    def __init__(self, process: Process, group: Counters | None, grace: float, room: Room | None = None) -> None:
        self._process, self._group, self._grace = process, group, grace
        self._counters = [counter for counter in (group, room) if counter is not None and counter.ends]
        self._lock = threading.Lock()
        self._looked, self._hit = 0.0, ""
        self._stopped = False  # before a limit was hit
        self._exit: ProcessExit | None = None

    def wait(self, timeout: float | None = None) -> ProcessExit | None:
        """As the process's."""
        end = None if timeout is None else monotonic() + timeout
        while True:
            left = None if end is None else max(0.0, end - monotonic())
            if self._counters and not self._hit:
                left = LOOK_EVERY if left is None else min(left, LOOK_EVERY)
            ended = self._process.wait(left)
            if ended is not None:
                return self._told(ended)
            self._look()
            if end is not None and monotonic() >= end:
                return None

    def stop(self, grace: float) -> None:
        """As the process's."""
        self._stopped = self._stopped or not self._hit
        self._process.stop(grace)

    def destroy(self, timeout: float = 2.0) -> ProcessExit:
        """As the process's."""
        return self._told(self._process.destroy(timeout))

    def _look(self) -> None:
        now = monotonic()
        if self._hit or self._stopped or now - self._looked < LOOK_EVERY:
            return
        self._looked, self._hit = now, self._counted()
        if self._hit:
            self._process.stop(self._grace)

    def _counted(self) -> str:
        return next((name for counter in self._counters if (name := counter.hit())), "")

    def _told(self, ended: ProcessExit) -> ProcessExit:
        with self._lock:
            if self._exit is None:
                cause = ended.cause
                if cause in _OPEN and not self._stopped:
                    cause = self._hit or self._counted() or cause
                throttled, periods = self._group.throttled() if self._group is not None else (0, 0)
                self._exit = replace(ended, cause=cause, throttled=throttled, periods=periods)
                if self._group is not None:
                    self._group.remove()
            return self._exit
