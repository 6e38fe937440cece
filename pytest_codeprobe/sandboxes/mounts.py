"""Mounts made by this process for workspaces: layers over each other, places of bounded size. Linux, and the right to mount.

What works is found out by doing it, once for each file system. Layers are named by open descriptors: any path will do, and what the
kernel shows of a mount does not lead to them.
"""

# ruff: noqa: PTH100, PTH101, PTH102, PTH106, PTH108, PTH116, PTH118, PTH123
# (names that need not be text, a call or two for each trial: plain calls)
from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
from collections.abc import Sequence

_MS_REMOUNT, _MS_BIND = 0x20, 0x1000
_MNT_DETACH, _UMOUNT_NOFOLLOW = 2, 8
_ESCAPED = re.compile(rb"\\([0-7]{3})")
#: everything whose default a kernel's configuration decides; `volatile`: nothing of it must survive a crash, so nothing is synced
_OPTIONS = "redirect_dir=on,metacopy=off,index=off"
OPAQUE, REDIRECT = "trusted.overlay.opaque", "trusted.overlay.redirect"


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)  # lets other threads run meanwhile


def _checked(result: int, path: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)


def _mount(kind: str, source: str, target: str, flags: int, data: str) -> None:
    arguments = os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), data.encode()
    _checked(_libc().mount(*arguments), target)


def mount_layers(lowers: Sequence[str], target: str, upper: str | None = None, work: str | None = None) -> None:
    """Show the folders `lowers`, the first one on top, as one at `target`; what changes there goes to `upper`. OSError.

    `work` is an empty folder beside `upper`. Without these two nothing can be changed.
    """
    opened: list[int] = []

    def name(folder: str) -> str:
        opened.append(os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
        return f"/proc/self/fd/{opened[-1]}"

    try:
        options = f"lowerdir={':'.join(map(name, lowers))},{_OPTIONS}"
        if upper is not None and work is not None:
            options += f",upperdir={name(upper)},workdir={name(work)},volatile"
        _mount("overlay", "overlay", target, 0, options)
    finally:
        for fd in opened:
            os.close(fd)


def mount_room(target: str, size: int, entries: int) -> None:
    """An empty place in memory at `target` for so many bytes, and files and folders. OSError."""
    _mount("tmpfs", "tmpfs", target, 0, f"size={size},nr_inodes={entries},mode=700")


def resize_room(target: str, size: int, entries: int) -> None:
    """Change what mount_room() has set. OSError."""
    _mount("tmpfs", "tmpfs", target, _MS_REMOUNT, f"size={size},nr_inodes={entries}")


def bind(source: str, target: str) -> None:
    """Show folder `source` at `target` as well. OSError."""
    _mount("none", source, target, _MS_BIND, "")


def unmount(target: str, *, lazily: bool = False) -> bool:
    """Take away the topmost mount at `target`; False where it is in use, which does not matter if `lazily`. OSError."""
    try:
        _checked(_libc().umount2(os.fsencode(target), _UMOUNT_NOFOLLOW | (_MNT_DETACH if lazily else 0)), target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        return False
    return True


def take_off(target: str) -> bool:
    """unmount(), and the mount point is a new folder: that takes the mount off where another namespace has a copy of it. OSError."""
    if not unmount(target):
        return False
    _renew(target)
    return True


def _renew(target: str) -> None:
    mode = stat.S_IMODE(os.lstat(target).st_mode)
    if take_point(target):
        os.mkdir(target, 0o700)
        os.chmod(target, mode)


def take_point(target: str) -> bool:
    """Remove a mount point; False where there is something in it: a session could take the mount off in its own namespace. OSError."""
    try:
        os.rmdir(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def below(top: str) -> list[str]:
    """Where something is mounted at `top` and below it, as this process sees it: the last mounts first."""
    if sys.platform != "linux":
        return []
    head, tail = os.path.split(os.path.abspath(top))
    real = os.fsencode(os.path.join(os.path.realpath(head), tail))
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            text = file.read()
    except OSError:
        return []
    if real not in text and b"\\" not in text:
        return []
    points = [_ESCAPED.sub(lambda match: bytes([int(match[1], 8)]), line.split(b" ", 5)[4]) for line in text.splitlines()]
    return [os.fsdecode(point) for point in reversed(points) if point == real or point.startswith(real.rstrip(b"/") + b"/")]


def detach(top: str) -> list[str]:
    """Take away all that is mounted at `top` and below it, also what is in use; what could not be taken away."""
    left = []
    for point in below(top):
        try:
            unmount(point, lazily=True)
        except OSError:
            left.append(point)
            continue
        with contextlib.suppress(OSError):
            os.rmdir(point)  # then it is off in all other namespaces too
    return left


# ---- what works here

_LOCK = threading.Lock()
_TRIED: dict[tuple[int, int], str | None] = {}  #: process and device -> why layers can't be mounted there


def layers_unusable(folder: str) -> str | None:
    """Why mount_layers() can't be used, with all layers in this folder's file system; None if it can. Tried out once."""
    if sys.platform != "linux":
        return f"it needs mounts, which are not made on {sys.platform}"
    with _LOCK:
        key = os.getpid(), os.stat(folder).st_dev
        if key not in _TRIED:
            _TRIED[key] = _try(folder, room=False)
        return _TRIED[key]


def room_unusable(folder: str) -> str | None:
    """The same with what changes in a mount_room(), and lower layers in this folder's file system."""
    if sys.platform != "linux":
        return f"it needs mounts, which are not made on {sys.platform}"
    os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    with _LOCK:
        key = -os.getpid(), os.stat(folder).st_dev
        if key not in _TRIED:
            _TRIED[key] = _try(folder, room=True)
        return _TRIED[key]


def _try(folder: str, *, room: bool) -> str | None:
    if os.geteuid() != 0:
        return "it needs mounts, which take the rights of root"
    top = ""
    try:
        top = tempfile.mkdtemp(prefix="mounts-", dir=folder)
        why = _done(top, f"{top}/room", room=room)
    except OSError as error:
        why = f"nothing can be mounted here: {error.strerror}"
    finally:
        if top and not detach(top):
            shutil.rmtree(top, ignore_errors=True)
    return why


def _done(top: str, place: str, *, room: bool) -> str | None:
    """Do what sessions do: take away a file, rename a folder, put one in a folder's place; why it did not come out right. OSError."""
    for name in ("lower/kept", "lower/gone", "shown", "room"):
        os.makedirs(f"{top}/{name}")  # noqa: PTH103
    for name in ("kept/file", "gone/file", "file"):
        with open(f"{top}/lower/{name}", "w", encoding="ascii") as file:
            file.write("text")
    if room:
        mount_room(place, 1 << 20, 100)
    for name in ("upper", "work"):
        os.mkdir(f"{place}/{name}")
    shown, upper = f"{top}/shown", f"{place}/upper"
    mount_layers([f"{top}/lower"], shown, upper, f"{place}/work")
    try:
        os.unlink(f"{shown}/file")
        os.rename(f"{shown}/kept", f"{shown}/moved")  # noqa: PTH104
        shutil.rmtree(f"{shown}/gone")
        os.mkdir(f"{shown}/gone")
        with open(f"{shown}/moved/file", encoding="ascii") as file:
            right = file.read() == "text" and os.listdir(f"{shown}/gone") == []  # noqa: PTH208
        right = right and is_whiteout(os.lstat(f"{upper}/file")) and not merges(os.fsencode(f"{upper}/gone"))
        return None if right and not merges(os.fsencode(f"{upper}/moved")) else "layers do not show what was changed"
    finally:
        unmount(shown, lazily=True)


def is_whiteout(info: os.stat_result) -> bool:
    """Whether it stands for the absence of what lower layers have there."""
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def merges(folder: bytes) -> bool:
    """Whether a folder of an upper layer lies over that of the same path below: not over nothing, nor over another one. OSError."""
    for name in (OPAQUE, REDIRECT):
        try:
            os.getxattr(folder, name, follow_symlinks=False)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.ENOTSUP):
                raise
        else:
            return False
    return True
