"""Where a stop flag can't be written (a full disk, a file system that became read-only), no other process would ever hear of it.

Then the controller ends those that run trials as a signal from outside would: each writes what it has, and the run is interrupted.
"""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

from pytest_codeprobe.model.context import TRUNCATE
from pytest_codeprobe.run.book import RunBook
from pytest_codeprobe.run.plan import CANARY

if TYPE_CHECKING:
    from pytest_codeprobe.model.result import TrialResult
    from pytest_codeprobe.plugin.live import Live

_HARMLESS = frozenset({CANARY, TRUNCATE})  #: the first keeps the controller from handing anything out; the other stops nothing
_ENDS_SESSIONS = frozenset({"budget", "time", "trace"})  #: of this very process too, whose keepers look for the file


class LastResort:
    """The controller's. Looked at by its follower, and by the handler of a signal."""

    def __init__(self, live: Live, book: RunBook) -> None:
        self._live, self._book = live, book
        self._told = set[str]()
        self.ended_workers = False
        live.interrupts.untold = self._end_workers

    def look(self) -> None:
        """End what runs on in spite of a flag. Once for each."""
        xdist = self._live.state.xdist
        for name in set(self._live.stops.unwritten) - self._told:
            self._told.add(name)
            error = self._live.stops.unwritten[name]
            self._book.note(f"stop/{name}", error)
            if name in _HARMLESS or not (xdist or name in _ENDS_SESSIONS):
                continue
            self._live.warn(f"stop/{name} could not be written: {error.strerror}; what ran was ended as by an interrupt")
            if xdist:
                self._end_workers()
            elif self._book.open:
                os.kill(os.getpid(), signal.SIGTERM)

    def finished(self, record: TrialResult) -> None:
        """A trial has its final record: its own process may not have been able to tell the others that the login was refused."""
        if record.code == "AUTH_FAILED" and record.agent is not None and not self._live.stops.is_raised(f"auth@{record.agent.name}"):
            with contextlib.suppress(OSError):
                self._live.stops.raise_flag("auth", record.agent.name)

    def _end_workers(self) -> bool:
        """Whether there were any that had not been told so before.

        Not public in xdist and execnet: the process ids of workers. System calls only: a signal may have come at any moment.
        """
        if self.ended_workers or not self._live.state.xdist:
            return self.ended_workers
        manager = getattr(self._live.config.pluginmanager.get_plugin("dsession"), "nodemanager", None)
        for gateway in list(getattr(manager, "group", ())):
            process = getattr(getattr(gateway, "_io", None), "popen", None)
            if process is not None and process.poll() is None:
                process.send_signal(signal.SIGTERM)
                self.ended_workers = True
        return self.ended_workers
