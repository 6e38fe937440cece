"""Copy and delete whole folders, cheaply and without following a link.

Python loops over a tree from many threads hold each other up, so they take one lane; what is large goes to `cp` and `rm`, as many
at a time as there are processors.
"""

# ruff: noqa: PTH101, PTH102, PTH106, PTH108, PTH112, PTH114, PTH115, PTH120, PTH211
# (hot loops over names that need not be text: plain calls, no Path objects)
from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import stat
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import AnyStr

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.sandboxes.lane import LANE
from pytest_codeprobe.sandboxes.mounts import below
from pytest_codeprobe.sandboxes.tools import run_tool
from pytest_codeprobe.text import one_line

SMALL_FILES = 64  #: files and folders; a tree up to this size is copied in Python: below the cost of a process
SMALL_BYTES = 4 << 20
_TOOL_TIMEOUT = 1800.0  # seconds for one cp or rm; only a dead disk takes as long
_CHUNK = 1 << 24
_SHOWN = 20  # paths that could not be removed
_FEW_LEVELS = 32  # of a tree that is removed in Python; a deeper one is left to `rm`

#: where the system's tools are, as of the start: ordinary tests may change the environment while trials run beside them
PATH = os.environ.get("PATH", os.defpath)
_TOOLS = threading.BoundedSemaphore(max(1, os.cpu_count() or 1))


def failed(what: str, error: OSError, path: str | os.PathLike[str] | None = None, *, remedy: str | None = None) -> CodeprobeError:
    """SANDBOX_FAILED that says what could not be done, where, and why."""
    where = os.fspath(path) if path is not None else error.filename or ""
    shown = os.fsdecode(where) if isinstance(where, str | bytes) else str(where)
    reason = error.strerror or str(error)
    remediation = remedy
    if remedy is None and error.errno in (errno.ENOSPC, errno.EDQUOT):
        remediation = "Free disk space, or point TMPDIR to a file system that has more."
    return CodeprobeError(
        "SANDBOX_FAILED",
        f"{what}{f' {shown!r}' if shown else ''}: {reason}",
        remediation=remediation,
        detail={"path": shown.encode("utf-8", "backslashreplace").decode(), "errno": error.errno},
    )


def is_folder(path: str | bytes | os.PathLike[str]) -> bool:
    """Whether it is a folder itself, not a link to one."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def open_regular(path: str | bytes) -> int:
    """A descriptor to read a regular file; OSError EINVAL for what is none. Never waits for a FIFO, never follows a link."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return fd


def copy_file(source: str | bytes, target: str | bytes) -> None:
    """A new regular file `target` with content, mode and times of `source`; blocks are shared where the file system can."""
    reader = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(reader)
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", source)
        mode = stat.S_IMODE(info.st_mode) & 0o777
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode | 0o200)
        try:
            if info.st_size:
                _transfer(reader, writer, info.st_size)
        except OSError as error:
            error.filename = error.filename or os.fsdecode(target)
            raise
        else:
            os.fchmod(writer, mode)
            os.utime(writer, ns=(info.st_atime_ns, info.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _transfer(reader: int, writer: int, size: int) -> None:
    if sys.platform == "linux":
        try:
            while size > 0 and (done := os.copy_file_range(reader, writer, min(size, _CHUNK))):
                size -= done
            return
        except OSError as error:  # other file systems, old kernels: the plain way, from where it stopped
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                raise
    while data := os.read(reader, 1 << 20):
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(writer, rest) :]


def copy_link(source: AnyStr, target: AnyStr) -> None:
    """The same symbolic link at `target`, its time included."""
    info = os.lstat(source)
    os.symlink(os.readlink(source), target)
    if os.utime in os.supports_follow_symlinks:
        os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns), follow_symlinks=False)


def copy_tree(source: str, target: str, *, small: bool) -> None:
    """Everything in folder `source` into the existing empty folder `target`: regular files, folders, links as links.

    OSError if it can't be done. `small`: no more than SMALL_FILES and SMALL_BYTES.
    """
    if small:
        with LANE:
            _copy_level(source, target)
    else:
        _tool([*_cp(), "--", f"{source}/.", target])


def _copy_level(source: str, target: str) -> None:
    with os.scandir(source) as entries:
        for entry in entries:
            there = f"{target}/{entry.name}"
            if entry.is_symlink():
                copy_link(entry.path, there)
            elif entry.is_dir(follow_symlinks=False):
                os.mkdir(there, 0o700)
                _copy_level(entry.path, there)
                finish_folder(there, entry)
            else:
                copy_file(entry.path, there)


def finish_folder(target: AnyStr, source: os.DirEntry[AnyStr]) -> None:
    """Mode and times of a copied folder, once nothing is written into it any more."""
    info = source.stat(follow_symlinks=False)
    os.chmod(target, stat.S_IMODE(info.st_mode) & 0o777)
    os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))


@functools.cache
def _cp() -> tuple[str, ...]:
    """`cp` that keeps all attributes and shares blocks where it can say so."""
    shown = run_tool(["cp", "--version"], env=_environment(), timeout=60, stdout=PIPE)
    return ("cp", "-a", "--reflink=auto") if b"coreutils" in shown.output else ("cp", "-a")


def _environment() -> dict[str, str]:
    return {"PATH": PATH, "LC_ALL": "C"}


def _tool(argv: Sequence[str], *, stdin: bytes = b"", cwd: str | None = None) -> None:
    """Run a tool of the system on a tree. OSError with its complaint, ENOSPC recognised."""
    with _TOOLS:
        done = run_tool([os.fsencode(part) for part in argv], env=_environment(), timeout=_TOOL_TIMEOUT, cwd=cwd or "/", stdin=stdin)
    if done.status:
        complaint = done.complaints.decode("utf-8", "backslashreplace").strip()
        number = next((n for n in (errno.ENOSPC, errno.EDQUOT) if os.strerror(n) in complaint), errno.EIO)
        raise OSError(number, f"{one_line(complaint, 500) or f'status {done.status}'}", None)


def copy_paths(source: str, target: str, paths: Sequence[bytes]) -> None:
    """The named paths below `source`, folders with all in them, to the same places below the existing folder `target`."""
    if not paths:
        return
    if "--reflink=auto" not in _cp():  # another cp than GNU's knows no --parents either
        _copy_each(os.fsencode(source), os.fsencode(target), paths)
        return
    _tool(["xargs", "-0", *_cp(), "--parents", "-t", target, "--"], stdin=b"\0".join(paths) + b"\0", cwd=source)


def _copy_each(source: bytes, target: bytes, paths: Sequence[bytes]) -> None:
    for path in paths:
        there = target + b"/" + path
        make_folders(os.path.dirname(there))
        if is_folder(source + b"/" + path):
            os.mkdir(there)
            copy_tree(os.fsdecode(source + b"/" + path), os.fsdecode(there), small=False)
        elif os.path.islink(source + b"/" + path):
            copy_link(source + b"/" + path, there)
        else:
            copy_file(source + b"/" + path, there)


def make_folders(path: bytes) -> None:
    """The folder and those above it that are missing. os.makedirs calls itself: a session's tree can be too deep for that."""
    missing: list[bytes] = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for folder in reversed(missing):
        os.mkdir(folder)


def remove_tree(path: Path) -> list[str]:
    """Remove a folder or file with all in it, links as links. The paths that could not be removed, at most 20; idempotent.

    Nothing is removed of what is mounted there.
    """
    top = str(path)
    try:
        mode = os.lstat(top).st_mode
    except OSError:
        return []
    if not stat.S_ISDIR(mode):
        try:
            os.unlink(top)
        except OSError:
            return [top]
        return []
    with LANE:
        if _removed(top):
            return []
    if mounted := below(top):
        return mounted[:_SHOWN]  # `rm` would go on in there
    remove = ["rm", "-rf", "--", top]
    for argv in (remove, ["chmod", "-R", "u+rwx", "--", top], remove, *([_loosening(top), remove] if os.geteuid() == 0 else ())):
        try:
            _tool(argv)
        except OSError:
            continue  # what is left is looked up below
        if not os.path.lexists(top):
            break
    return _left(top)


def _loosening(top: str) -> list[str]:
    """Takes away what keeps even root from changing a file; a session that runs as root can have set it."""
    return ["chattr", "-R", "-f", "-ia", top]


def loosen(top: str) -> bool:
    """Take that away from all in a folder, as far as it can be done. False: it is not what hinders whoever runs this."""
    if os.geteuid() != 0:
        return False
    with contextlib.suppress(OSError):  # it complains of each link, too
        _tool(_loosening(top))
    return True


def empty_folder(path: Path) -> list[str]:
    """Remove all in a folder, which stays, with what is mounted there; what could not be removed, as remove_tree(). OSError.

    What is no folder, or is not there, becomes one (mode 0700).
    """
    if not is_folder(path):
        left = remove_tree(path)
        if not left:
            os.mkdir(path, 0o700)
        return left
    with os.scandir(path) as entries:
        found = [entry.path for entry in entries]
    return [left for each in found for left in remove_tree(Path(each))][:_SHOWN]


def _removed(top: str) -> bool:
    """Remove a folder with few entries; False where there are more, or some can't be removed. No link on the way is ever followed."""
    try:
        if _is_gone(top):
            return True
        folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if _emptied(folder, 2 * SMALL_FILES, _FEW_LEVELS) < 0:
                return False
        finally:
            os.close(folder)
        os.rmdir(top)
    except OSError:
        return False
    return True


def _is_gone(name: str, folder: int | None = None) -> bool:
    """Remove a folder, if it is empty. OSError if that is not what hinders it: EBUSY where something is mounted."""
    try:
        os.rmdir(name, dir_fd=folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def _emptied(folder: int, budget: int, levels: int) -> int:
    """Remove all in an open folder. How many more entries may be removed; -1 where that is not all. OSError if one can't be."""
    with os.scandir(folder) as entries:
        found = [(entry.is_dir(follow_symlinks=False), entry.name) for entry in itertools.islice(entries, budget + 1)]
    budget -= len(found)
    if budget < 0 or levels < 0:
        return -1
    for is_dir, name in sorted(found, reverse=True):  # files last: the mark of a private folder says whose it is until it is empty
        if not is_dir:
            os.unlink(name, dir_fd=folder)
            continue
        if not _is_gone(name, folder):  # most folders in a private one are empty
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            try:
                budget = _emptied(below, budget, levels - 1)
            finally:
                os.close(below)
            if budget < 0:
                return -1
            os.rmdir(name, dir_fd=folder)
    return budget


def _left(top: str) -> list[str]:
    if not os.path.lexists(top):
        return []
    left: list[str] = []
    todo = [top]
    while todo and len(left) < _SHOWN:
        folder = todo.pop()
        try:
            with os.scandir(folder) as entries:
                found = list(entries)
        except OSError:
            found = []
        todo.extend(entry.path for entry in found if entry.is_dir(follow_symlinks=False))
        left.extend(entry.path for entry in found if not entry.is_dir(follow_symlinks=False))
        if not found:
            left.append(folder)
    return left[:_SHOWN]
