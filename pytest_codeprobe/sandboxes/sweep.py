"""Whose a private folder is, and the removal of those whose owner is dead.

Folders are called `codeprobe-<pid>-<start time>-<random>` and hold a mark that says the same and on which machine. One is removed
only if name, mark and user fit and its owner is certainly gone; in doubt it stays.
"""

# ruff: noqa: PTH102
# (made for every trial: plain calls)
from __future__ import annotations

import contextlib
import errno
import functools
import json
import os
import re
import secrets
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pytest_codeprobe.sandboxes.mounts import detach
from pytest_codeprobe.sandboxes.trees import remove_tree

MARK = "owner.json"
_NAME = re.compile(r"codeprobe-(\d{1,10})-(\d{1,20})-[0-9a-z]{8,}")


def start_time(pid: int) -> int | None:
    """When a process started, in a unit of its own that tells it from a later one with the same number; None if it is dead."""
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            return None
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    import psutil

    try:
        return int(psutil.Process(pid).create_time() * 100)
    except psutil.Error:
        return None


def is_private(name: str) -> bool:
    """Whether a folder of that name is one of these."""
    return _NAME.fullmatch(name) is not None


def new_folder(parent: Path) -> Path:
    """A new private folder (mode 0700) of this process below `parent`, with its mark. OSError if it can't be made."""
    name, mark = _own(os.getpid())
    folder = f"{parent}/{name}-{secrets.token_hex(6)}"
    try:
        os.mkdir(folder, 0o700)
    except FileNotFoundError:
        parent.mkdir(parents=True, exist_ok=True)
        os.mkdir(folder, 0o700)
    try:
        fd = os.open(f"{folder}/{MARK}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if os.write(fd, mark) < len(mark):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), folder)
        finally:
            os.close(fd)
    except OSError:
        remove_tree(Path(folder))  # without its mark nobody would ever
        raise
    return Path(folder)


def place_of(pid: int, parent: Path, name: str) -> Path:
    """Where folder_of() has it, whether or not it is there."""
    return parent / f"{_own(pid)[0]}-{name}"


def folder_of(pid: int, parent: Path, name: str) -> Path:
    """A private folder of the process `pid`, one for each `name` (8 hexadecimal digits or more), which all that know both find.

    The first makes it. It goes with that process: by itself, or swept once it is dead. OSError if it can't be made.
    """
    folder, mark = place_of(pid, parent, name), _own(pid)[1]
    try:
        folder.mkdir(0o700, parents=True)
    except FileExistsError:
        if (folder / MARK).exists():
            return folder
    with contextlib.suppress(FileExistsError):  # whoever made the folder may have been killed before it wrote the mark
        fd = os.open(folder / MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(mark)
    return folder


@functools.cache
def _own(pid: int) -> tuple[str, bytes]:
    """How the folders of a process begin, and their mark."""
    started = start_time(pid) or 0
    return f"codeprobe-{pid}-{started}", json.dumps({"pid": pid, "start": started, **_machine()}).encode("ascii")


def sweep(root: Path) -> list[str]:
    """Remove the folders below `root` whose owner is dead; the names of those removed.

    May run at the same time as other sweeps and beside living runs. Another user's folder, one without a fitting name and mark,
    and one of another machine or container are left alone; links are never followed.
    """
    return [name for name, left in take_away(root) if left is None]


def take_away(root: Path) -> Iterator[tuple[str, Path | None]]:
    """sweep(), one by one: the name of each abandoned folder, and what is left of it where it could not be removed as a whole."""
    for name in abandoned(root, keep_empty=False):
        claimed = root / f"{_own(os.getpid())[0]}-{secrets.token_hex(6)}"
        try:
            (root / name).rename(claimed)  # of two sweeps one gets it; if we die on the way, the next one takes it from us
        except OSError:
            continue
        yield name, None if _remove(claimed) else claimed


def abandoned(root: Path, *, keep_empty: bool = True) -> Iterator[str]:
    """Names of the folders below `root` whose owner is dead, in their order; nothing is changed but, unless kept, empty ones removed."""
    try:
        with os.scandir(root) as entries:
            names = sorted(entry.name for entry in entries if _NAME.fullmatch(entry.name))
    except OSError:
        return  # no such folder: nothing to sweep
    yield from (name for name in names if _is_abandoned(root / name, keep_empty=keep_empty))


def owner_of(name: str) -> int:
    """The process id in a private folder's name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else 0


def _remove(folder: Path) -> bool:
    """The mark goes last, so that an interrupted removal can be taken up again. What is still mounted, and can't be taken off, stays."""
    detach(str(folder))
    with contextlib.suppress(OSError):  # where no boundary kept it from that, a session may have taken all rights to it
        folder.chmod(0o700)
        for entry in list(os.scandir(folder)):
            if entry.name != MARK:
                remove_tree(Path(entry.path))
    with contextlib.suppress(OSError):
        if [entry.name for entry in os.scandir(folder)] in ([MARK], []):
            (folder / MARK).unlink(missing_ok=True)
            folder.rmdir()
    return not os.path.lexists(folder)


def _is_abandoned(folder: Path, *, keep_empty: bool) -> bool:
    try:
        info = folder.lstat()
        if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid():
            return False
        named = _NAME.fullmatch(folder.name)
        if named is None or _is_alive(int(named[1]), int(named[2])):
            return False
        mark = _read_mark(folder / MARK)
        if mark is None:
            if not keep_empty:
                folder.rmdir()  # made by a process that died before it wrote the mark; only if there is nothing in it
            return False
    except OSError:
        return False
    here = _machine()
    if mark.get("host") != here["host"]:
        return False
    if mark.get("boot") != here["boot"]:
        return True  # this machine was started anew since
    if mark.get("pids") != here["pids"]:
        return False  # of a container that shares the folder with us
    pid, started = mark.get("pid"), mark.get("start")
    return isinstance(pid, int) and isinstance(started, int) and not _is_alive(pid, started)


def _is_alive(pid: int, started: int) -> bool:
    return start_time(pid) == started


def _read_mark(path: Path) -> dict[str, Any] | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(fd, "rb") as file:
        try:
            mark = json.loads(file.read(4096))
        except ValueError:
            return {}
    return mark if isinstance(mark, dict) else {}


@functools.cache
def _machine() -> dict[str, str]:
    """What a process id is only unique within."""
    return {"host": socket.gethostname(), "boot": _text("/proc/sys/kernel/random/boot_id"), "pids": _link("/proc/self/ns/pid")}


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""
