"""A look at a run's stop flags by the thread that waits for a process.

Keepers hear of a new flag from their spawner. A session can kill or stop that one, so whoever waits looks as well.
"""

from __future__ import annotations

import os
from time import monotonic

LOOK_EVERY = 0.25  #: seconds


class FlagWatch:
    """What has been seen of one stop folder, which need not exist yet; an empty name is none."""

    def __init__(self, folder: str) -> None:
        self._folder, self._seen = folder, frozenset[str]()
        self._next = monotonic() + LOOK_EVERY  # what is there already the keeper itself has looked at

    def news(self) -> bool:
        """Whether there is a flag that was not there before; looks no oftener than every LOOK_EVERY seconds."""
        now = monotonic()
        if not self._folder or now < self._next:
            return False
        self._next = now + LOOK_EVERY
        try:
            names = frozenset(os.listdir(self._folder))  # noqa: PTH208  # names, four times a second
        except OSError:
            return False  # not made yet
        before, self._seen = self._seen, names
        return bool(names - before)

    def before(self, end: float | None) -> float | None:
        """`end`, or the time of the next look if that is earlier."""
        if not self._folder:
            return end
        return self._next if end is None else min(end, self._next)
