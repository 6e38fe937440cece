"""Signals: while trials are in their stages they only raise the stop flag; else pytest's own KeyboardInterrupt."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_codeprobe.model.context import StopFlags

SIGNALS = (signal.SIGINT, signal.SIGTERM, *((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()))


class Interrupts:
    """Handlers of one process, from the first task on; restore() puts the old ones back."""

    def __init__(self, stops: StopFlags, *, worker: bool) -> None:
        self._stops, self._worker = stops, worker
        self.session: pytest.Session | None = None
        self.count = 0  #: signals from outside
        self.first = ""  #: name of the first of them
        self.ordinary = False  #: an ordinary test is running in this thread
        self.collecting = True  #: cleared at the end of collection; an import can take for ever
        self.busy: Callable[[], bool] = lambda: False  #: set by the controller: a trial is open in some worker
        self.untold: Callable[[], bool] = lambda: False  #: set by the controller: tells workers where no flag can; whether there were any
        self.raised = False
        self.ending = False  #: the loop is over: pytest is at its traceback and sessionfinish, never raise there
        self.woken = False  #: set by the controller's follower, whose signal is no further one from outside
        self._depth = 0
        self._old: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                # a background job of sh inherits SIGINT as ignored; CI runners do this and mean nothing by it
                if number == signal.SIGINT or signal.getsignal(number) is not signal.SIG_IGN:
                    self._old[number] = signal.signal(number, self._handle)

    def restore(self) -> None:
        """Put the old handlers back."""
        for number, handler in self._old.items():
            if handler is not None:  # one that was not set from Python can't be set again from here
                signal.signal(number, handler)
        self._old.clear()

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Within, a signal only raises the flag."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def _handle(self, number: int, frame: object) -> None:
        if not self.woken:
            self.first = self.first or signal.Signals(number).name
            self.count += 1
        self.woken = False
        told = self._tell() or self.untold()
        if self.session is not None:
            self.session.shouldstop = "interrupted"  # pytest's own loop, or the worker's, ends after this item
        # An idle worker must not raise: xdist would replace it as crashed; its controller wakes and ends it.
        idle = self._depth == 0 and not self.busy() and not self._worker and not self.raised and not self.ending
        held_up = self.ordinary or (self._worker and self.collecting) or (self.count > 2 and not self._worker)
        if (held_up or idle or not (told or self.raised)) and not self.ending:
            self.raised = True
            raise KeyboardInterrupt

    def _tell(self) -> bool:
        """Raise the flags; False where a full disk forbids it: then what runs in this process is ended the hard way."""
        try:
            if self.count:
                self._stops.raise_flag("interrupt")
            if self.count > 1:
                self._stops.raise_flag("now")
        except OSError:
            return False
        return True
