"""Copy, keep and delete whole folders, cheaply and without following a link.

Python loops over a tree from many threads hold each other up, so they take one lane; what is large goes to `cp` and `rm`, as many
at a time as there are processors.
"""

# ruff: noqa: PTH101, PTH102, PTH108, PTH112, PTH114, PTH115, PTH120, PTH211
# (hot loops over names that need not be text: plain calls, no Path objects)
from __future__ import annotations

import errno
import functools
import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import AnyStr, Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.sandboxes.patterns import Patterns

SMALL_FILES = 64  #: files and folders; a tree up to this size is copied in Python: below the cost of a process
SMALL_BYTES = 4 << 20
_TOOL_TIMEOUT = 1800.0  # seconds for one cp or rm; only a dead disk takes as long
_CHUNK = 1 << 24
_SHOWN = 20  # paths that could not be removed

#: one Python loop over a tree at a time
LANE = threading.Lock()
_TOOLS = threading.BoundedSemaphore(max(1, os.cpu_count() or 1))


def failed(what: str, error: OSError, path: str | os.PathLike[str] | None = None) -> CodeprobeError:
    """SANDBOX_FAILED that says what could not be done, where, and why."""
    where = os.fspath(path) if path is not None else error.filename or ""
    shown = os.fsdecode(where) if isinstance(where, str | bytes) else str(where)
    reason = error.strerror or str(error)
    remediation = None
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
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
    reader = open_regular(source)
    try:
        info = os.fstat(reader)
        mode = stat.S_IMODE(info.st_mode) & 0o777
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode | 0o200)
        try:
            if info.st_size:
                _transfer(reader, writer)
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


def _transfer(reader: int, writer: int) -> None:
    if sys.platform == "linux":
        try:
            while os.copy_file_range(reader, writer, _CHUNK):
                pass
            return
        except OSError as error:  # other file systems, old kernels: the plain way, from where it stopped
            if error.errno not in (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM):
                raise
    with open(reader, "rb", closefd=False) as source, open(writer, "wb", closefd=False) as target:
        source.seek(os.lseek(reader, 0, os.SEEK_CUR))
        shutil.copyfileobj(source, target, 1 << 20)


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
        try:
            with LANE:
                _copy_level(source, target)
            return
        except PermissionError:
            pass  # `cp` goes on behind what it may not read, and then complains
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
                info = entry.stat(follow_symlinks=False)
                os.chmod(there, stat.S_IMODE(info.st_mode) & 0o777)
                os.utime(there, ns=(info.st_atime_ns, info.st_mtime_ns))
            else:
                copy_file(entry.path, there)


@functools.cache
def _cp() -> tuple[str, ...]:
    """`cp` that keeps all attributes and shares blocks where it can say so."""
    shown = subprocess.run(["cp", "--version"], env=_environment(), capture_output=True, timeout=60, check=False).stdout
    return ("cp", "-a", "--reflink=auto") if b"coreutils" in shown else ("cp", "-a")


def _environment() -> dict[str, str]:
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}


def _tool(argv: Sequence[str], *, stdin: bytes = b"", cwd: str | None = None) -> None:
    """Run a tool of the system on a tree. OSError with its complaint, ENOSPC recognised."""
    try:
        with _TOOLS:
            done = subprocess.run(
                [os.fsencode(part) for part in argv],
                input=stdin,
                cwd=cwd,
                env=_environment(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,  # a Ctrl-C is ours to act on
                timeout=_TOOL_TIMEOUT,
                check=False,
            )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(errno.ETIMEDOUT, f"{argv[0]} took longer than {_TOOL_TIMEOUT:.0f} s") from error
    if done.returncode:
        complaint = done.stderr.decode("utf-8", "backslashreplace").strip()
        number = next((n for n in (errno.ENOSPC, errno.EDQUOT) if os.strerror(n) in complaint), errno.EIO)
        raise OSError(number, f"{complaint[:500] or f'status {done.returncode}'}", None)


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


class _Selection:
    """What of a tree is to be left out, and the shortest list of what remains."""

    def __init__(self, top: bytes, ignore: Patterns) -> None:
        self._top, self._ignore = top, ignore
        self.left_out: list[bytes] = []
        self._split: set[bytes] = set()  # folders that are not copied as a whole
        self.entries = self.bytes = 0
        for path, entry in _walk(top, self._skip):
            self.entries += 1
            if not entry.is_dir(follow_symlinks=False):
                self.bytes += _size(entry)
                if not (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
                    self._leave_out(path)

    @property
    def small(self) -> bool:
        return self.entries <= SMALL_FILES and self.bytes <= SMALL_BYTES

    def _skip(self, path: bytes, entry: os.DirEntry[bytes]) -> bool:
        if self._ignore and self._ignore.match(os.fsdecode(path), folder=entry.is_dir(follow_symlinks=False)):
            self._leave_out(path)
            return True
        return False

    def _leave_out(self, path: bytes) -> None:
        self.left_out.append(path)
        while path:
            path = path.rpartition(b"/")[0]
            self._split.add(path)

    def remaining(self) -> list[bytes]:
        """Paths that, copied as a whole, are the tree without what is left out."""
        parts, gone = [], set(self.left_out)
        for folder in sorted(self._split):
            with os.scandir(self._top + b"/" + folder if folder else self._top) as entries:
                for entry in entries:
                    path = folder + b"/" + entry.name if folder else entry.name
                    if path not in gone and path not in self._split:
                        parts.append(path)
        return parts

    def make_split_folders(self, target: bytes) -> None:
        for folder in sorted(self._split - {b""}):
            make_folders(target + b"/" + folder)


def _size(entry: os.DirEntry[bytes]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return SMALL_BYTES + 1  # left to cp, which will complain


def _walk(top: bytes, skip: Callable[[bytes, os.DirEntry[bytes]], bool]) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    todo = [b""]
    while todo:
        folder = todo.pop()
        try:
            with os.scandir(top + b"/" + folder if folder else top) as entries:
                found = list(entries)
        except OSError as error:
            if folder and error.errno in (errno.EACCES, errno.ENAMETOOLONG):
                continue  # cp will complain about it too, and the copy be called partial
            raise
        for entry in found:
            path = folder + b"/" + entry.name if folder else entry.name
            if skip(path, entry):
                continue
            yield path, entry
            if entry.is_dir(follow_symlinks=False):
                todo.append(path)


def keep_tree(source: Path, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
    """Copy a tree to `target`, which does not exist yet, without what `ignore` matches and without devices, FIFOs and sockets.

    `partial`: something was left out. CodeprobeError SANDBOX_FAILED for a full disk or a target that can't be made.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.mkdir()
        if not is_folder(source):
            return "partial"  # the session removed it or put something else there
        target.chmod(0o700 | stat.S_IMODE(source.stat().st_mode) & 0o777)
        with LANE:
            selection = _Selection(os.fsencode(source), Patterns(ignore))
        if not selection.left_out:
            copy_tree(str(source), str(target), small=selection.small)
            return "whole"
        selection.make_split_folders(os.fsencode(target))
        copy_paths(str(source), str(target), selection.remaining())
    except OSError as error:
        if error.errno == errno.EIO and target.is_dir():
            return "partial"  # cp has copied what it could read
        raise failed("the workspace could not be kept in", error, target) from error
    return "partial"


def move_tree(source: Path, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
    """As keep_tree(), by rename where it can be; `source` is gone afterwards."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not is_folder(source):
            kept = keep_tree(source, target, ignore)
            remove_tree(source)  # a link in its place, say
            return kept
        with LANE:
            selection = _Selection(os.fsencode(source), Patterns(ignore))
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise failed("the workspace could not be moved to", error, target) from error
        kept = keep_tree(source, target, ignore)
        remove_tree(source)
        return kept
    for path in selection.left_out:
        remove_tree(target / os.fsdecode(path))
    return "partial" if selection.left_out else "whole"


def remove_tree(path: Path) -> list[str]:
    """Remove a folder or file with all in it, links as links. The paths that could not be removed, at most 20; idempotent."""
    if not os.path.lexists(path):
        return []
    if not is_folder(path):
        try:
            os.unlink(path)
        except OSError:
            return [str(path)]
        return []
    with LANE:
        if _has_few_files(str(path)):
            shutil.rmtree(path, ignore_errors=True)
    if os.path.lexists(path):
        for argv in (["rm", "-rf", "--", str(path)], ["chmod", "-R", "u+rwx", "--", str(path)], ["rm", "-rf", "--", str(path)]):
            try:
                _tool(argv)
            except OSError:
                continue  # what is left is looked up below
            if not os.path.lexists(path):
                break
    return _left(str(path))


def _has_few_files(top: str) -> bool:
    count, todo = 0, [top]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    count += 1
                    if count > 2 * SMALL_FILES:
                        return False
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
        except OSError:
            return False
    return True


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
