"""Hears whether anything was done in a tree that nobody should write to, so that it need not be looked through again and again. Linux.

It does not hear what is written under a name elsewhere, by a hard link. Drivers that isolate let nobody make one.
"""

# (a loop over a large tree: plain calls, no Path objects)
from __future__ import annotations

import ctypes
import os
import sys
import weakref
from collections.abc import Iterator

from pytest_codeprobe.sandboxes.lane import LANE

#: modified, attributes, closed after writing, moved from and to, created, deleted, itself deleted and moved; folders only, no links
_EVENTS = 0x2 | 0x4 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200 | 0x400 | 0x800 | 0x1000000 | 0x2000000
_READ = 1 << 16


class Watch:
    """Of all folders of a tree. OSError where the system gives no more watches."""

    def __init__(self, top: str) -> None:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1()")
        weakref.finalize(self, os.close, self._fd)
        for piece in LANE.pieces(_folders(top)):
            for folder in piece:
                if libc.inotify_add_watch(self._fd, os.fsencode(folder), ctypes.c_uint32(_EVENTS)) < 0:
                    raise OSError(ctypes.get_errno(), "inotify_add_watch()", folder)

    def heard(self) -> bool:
        """Whether anything was done since the last call."""
        heard = False
        try:
            while os.read(self._fd, _READ):
                heard = True
        except BlockingIOError:
            return heard
        return heard


def _folders(top: str) -> Iterator[str]:
    for folder, folders, _ in os.walk(top):
        folders[:] = [name for name in folders if not os.path.islink(f"{folder}/{name}")]  # noqa: PTH114
        yield folder


def watch(top: str) -> Watch | None:
    """None where this system has no such thing, or none to spare."""
    if sys.platform != "linux":
        return None
    try:
        return Watch(top)
    except OSError:
        return None
