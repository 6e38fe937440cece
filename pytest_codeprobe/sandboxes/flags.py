"""Waiting for processes, with a look at the run's stop flags now and then.

Keepers hear of a new flag from their spawner. A session can kill or stop that one, so whoever waits looks as well; one look serves
all that wait.
"""

from __future__ import annotations

import os
import select
import threading
from time import monotonic

LOOK_EVERY = 0.25  #: seconds


class StopFolders:
    """What is in the stop folders that processes are held to; looked at no oftener than every LOOK_EVERY seconds. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, frozenset[str]]] = {}  # folder -> when to look again, names in it

    def names(self, folder: str) -> frozenset[str]:
        """The flags that stood there a moment ago; none where there is no such folder."""
        now = monotonic()
        with self._lock:
            again, names = self._known.get(folder, (0.0, frozenset[str]()))
            if now < again:
                return names
            try:
                names = frozenset(os.listdir(folder))  # noqa: PTH208  # names, four times a second
            except OSError:
                names = frozenset()  # not made yet
            self._known[folder] = now + LOOK_EVERY, names
            return names


class FlagWatch:
    """What one waiting process has seen of its stop folder; an empty name is none."""

    def __init__(self, folders: StopFolders, folder: str) -> None:
        self._folders, self._folder, self._seen = folders, folder, frozenset[str]()

    def news(self) -> bool:
        """Whether there is a flag that was not there before."""
        if not self._folder:
            return False
        names = self._folders.names(self._folder)
        if names is self._seen:
            return False
        before, self._seen = self._seen, names
        return not names <= before

    def before(self, end: float | None) -> float | None:
        """`end`, or the time of the next look where that would be too late for it."""
        if not self._folder:
            return end
        look = monotonic() + LOOK_EVERY
        return look if end is None or end > look else end


def wait_readable(fd: int, end: float | None) -> bool:
    """True once the descriptor is readable, False when the time `end` (monotonic) is over. poll: no limit on numbers."""
    if fd < 0:
        return False
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    while True:
        left = 3600.0 if end is None else min(max(0.0, end - monotonic()), 3600.0)
        if poll.poll(left * 1000):
            return True
        if end is not None and monotonic() >= end:
            return False
