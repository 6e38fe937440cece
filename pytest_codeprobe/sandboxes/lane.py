"""The one lane for Python loops over file trees.

Each system call of such a loop lets go of the interpreter and takes it again: loops of several threads hold each other up by far more
than they would take one after another. Contents of files are neither compared nor copied in the lane, beyond the few of a small tree.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import TypeVar

PIECE = 500  #: entries that a loop over a large tree takes in one go: some 3 ms
FEW = 64  #: files whose contents are read in one go
T = TypeVar("T")


class Lane:
    """A lock that is handed on in the order of asking, so that a long loop that lets go now and then lets the others go first."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._guard:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:  # an interrupt of the thread that waits here
            with self._guard:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                    raise
            self._hand_on()  # our turn came at the same moment
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._hand_on()

    def _hand_on(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

    def pieces(self, items: Iterator[T], size: int = PIECE) -> Iterator[list[T]]:
        """The items in lists of at most `size`; the lane is taken while one is filled, and only then."""
        while True:
            with self:
                piece = list(itertools.islice(items, size))
            if not piece:
                return
            yield piece


#: for every loop over a tree of a trial
LANE = Lane()
#: for loops that look into files, FEW at a time; whoever waits for it is not kept from laying out, scanning or deleting
CONTENTS = Lane()
