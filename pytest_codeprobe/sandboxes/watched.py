"""A process whose end is looked at more closely than its keeper can: in an enclosure it may be that of the enclosure."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pytest_codeprobe.model.sandbox import Process, ProcessExit
from pytest_codeprobe.text import one_line

_MOST = 300  #: characters that are shown


class WatchedProcess:
    """A driver's own class says in `looked_at` what an end is. `stderr`: where the program that makes the enclosure complains."""

    maker = ""  #: that program, as a sentence names it
    by_hand = ""  #: how one sees more of it, behind its last words

    def __init__(self, process: Process, stderr: Path) -> None:
        self._process, self._stderr = process, stderr

    def wait(self, timeout: float | None = None) -> ProcessExit | None:
        """As the process's."""
        ended = self._process.wait(timeout)
        return None if ended is None else self.looked_at(ended)

    def stop(self, grace: float) -> None:
        """As the process's."""
        self._process.stop(grace)

    def destroy(self, timeout: float = 2.0) -> ProcessExit:
        """As the process's."""
        return self.looked_at(self._process.destroy(timeout))

    def looked_at(self, ended: ProcessExit) -> ProcessExit:
        """The end as it is to be told."""
        raise NotImplementedError

    def not_made(self, ended: ProcessExit, why: str = "") -> ProcessExit:
        """The end of an enclosure that could not be made; without a reason in the maker's own last words, as nobody else was there."""
        return replace(ended, status=None, cause=f"enclosure: {why or self._last_words() + self.by_hand}")

    def taken_away(self, ended: ProcessExit) -> ProcessExit:
        """The end of an enclosure that came before that of what ran in it."""
        return replace(ended, status=None, cause=f"taken: {self._last_line()}")

    def _last_words(self) -> str:
        return self._last_line() or f"{self.maker} said nothing"

    def _last_line(self) -> str:
        try:
            lines = self._stderr.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return one_line(lines[-1], _MOST) if lines else ""


class ThroughDoor(WatchedProcess):
    """A process that begins as children/door.py. `came_out`: whether that could hand its socket out, and so became the command.

    `doorless`: whether an enclosure may be one in which the command starts at once.
    """

    maker = "children/door.py"
    _FAILED = 125

    def __init__(self, process: Process, stderr: Path, came_out: Callable[[], bool], doorless: Callable[[], bool]) -> None:
        super().__init__(process, stderr)
        self._came_out, self._doorless = came_out, doorless
        self._lock = threading.Lock()
        self._own: bool | None = None  #: whether the status is the command's own; what could tell is gone later

    def looked_at(self, ended: ProcessExit) -> ProcessExit:
        """See the class."""
        if ended.cause != "exit" or ended.status != self._FAILED:
            return ended
        with self._lock:
            if self._own is None:
                try:
                    self._own = self._came_out() or self._doorless()
                except OSError:  # the sink does not answer: that is said when the trial is over
                    self._own = True
        return ended if self._own else self.not_made(ended)
