"""sandbox.limits.disk_mb: what a trial writes goes to a place in memory that has no more room than that. Linux, as root."""

# ruff: noqa: PTH102
# (made for a trial: plain calls)
from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from pytest_codeprobe.model.config import SandboxLimits
from pytest_codeprobe.sandboxes.mounts import bind, mount_room, resize_room, room_unusable, unmount

_PER_MB = 256  #: files and folders for each MiB: one for each page, the least that a file takes which is not empty
_LEAST_ENTRIES = 4096
_OWN_ENTRIES = 64  #: for our own folders, where a session left none


def unheld(limits: SandboxLimits, scratch: Path) -> list[str]:
    """A sentence, if the limit is set and can't be held below this folder."""
    why = None if limits.disk_mb is None else room_unusable(str(scratch))
    return [f"sandbox.limits.disk_mb can't be held here, it is left out: {why}"] if why else []


def charged(limits: SandboxLimits, room: Room | None) -> SandboxLimits:
    """As control groups have to hold them: files in memory count for whoever writes them."""
    if room is None or limits.memory_mb is None or limits.disk_mb is None:
        return limits
    return limits.model_copy(update={"memory_mb": limits.memory_mb + limits.disk_mb})


class Room:
    """Mounted on the new folder `place`, with the folders `parts` in it that are shown where they were. OSError if it can't be made.

    The workspace's layers go there as well, so that of the workspace only what changes takes room.
    """

    ends = True  #: a session that has used it up

    def __init__(self, place: Path, size_mb: int, parts: Sequence[Path]) -> None:
        self.place = place
        self._size, self._entries = size_mb << 20, max(_LEAST_ENTRIES, size_mb * _PER_MB)
        self._size_now, self._entries_now, self._widened = self._size, self._entries, False
        self._mounted: list[str] = []
        os.mkdir(place, 0o700)
        try:
            self._mount(parts)
        except BaseException:
            self.release()
            raise

    def _mount(self, parts: Sequence[Path]) -> None:
        mount_room(str(self.place), self._size, self._entries)
        self._mounted.append(str(self.place))
        for part in parts:
            inner = self.place / part.name
            os.mkdir(inner, 0o700)
            bind(str(inner), str(part))
            self._mounted.append(str(part))

    def hit(self) -> str | None:
        """The limit's name, once no room is left: for content, or for one more file."""
        there = os.statvfs(self.place)
        return None if there.f_bfree and there.f_ffree else "disk_mb"

    def spare(self) -> None:
        """Let us make a few folders, whatever a session left. OSError."""
        self._entries_now += _OWN_ENTRIES
        resize_room(str(self.place), self._size_now, self._entries_now)

    def widen(self) -> None:
        """The session is over: those after it have as much room as it had. OSError."""
        if not self._widened:
            self._widened = True
            there = os.statvfs(self.place)
            self._size_now = self._size + (there.f_blocks - there.f_bfree) * there.f_frsize
            self._entries_now += self._entries
            resize_room(str(self.place), self._size_now, self._entries_now)

    def release(self) -> list[str]:
        """Take it away, with all in it; where that was not possible."""
        left = []
        for point in reversed(list(self._mounted)):
            try:
                unmount(point, lazily=True)
                self._mounted.remove(point)
            except OSError:
                left.append(point)
        return left
