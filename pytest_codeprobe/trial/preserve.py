"""What leaves a trial's private folder: logs, transcript, diff, the workspace; always through the redactor."""

# ruff: noqa: PTH115
# (done for every log of every trial: plain calls)
from __future__ import annotations

import contextlib
import errno
import itertools
import json
import logging
import os
import stat
import sys
import threading
from pathlib import Path
from subprocess import PIPE
from typing import Any, BinaryIO, Literal

from pytest_codeprobe import text
from pytest_codeprobe.errors import CodeprobeError, with_frames
from pytest_codeprobe.sandboxes.lane import LANE
from pytest_codeprobe.sandboxes.tools import run_tool
from pytest_codeprobe.sandboxes.trees import SMALL_FILES, remove_tree
from pytest_codeprobe.text import Redactor, ending, whole_file, write_whole

_IN_PROCESS = 1 << 20  #: bytes; larger files are redacted by a process of their own, so that no other trial waits for the GIL
_SMALL_FILE = 1 << 16
_TIMEOUT = 1800.0  # seconds for the process; only a dead disk takes as long
_SMALL_TREE = 1 << 18  #: the same for all files of a tree, that the lane is held for


def copy_log(source: str, target: str, redactor: Redactor) -> bool:
    """Copy one file without secrets; nothing where it does not exist. SANDBOX_FAILED on trouble with the disk.

    False where something else lies in its place: a session has no business here, and gains nothing by what it breaks.
    """
    try:
        fd = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):  # a link, a file for the folder, a socket
            return False
        raise _failed(source, error) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        return False
    with os.fdopen(fd, "rb", 0) as reader:
        if not redactor or status.st_size <= _IN_PROCESS:
            _copy(reader, status.st_size, target, redactor)
            return True
    place = Path(target)
    place.parent.mkdir(parents=True, exist_ok=True)
    _in_a_process(redactor, source, str(fresh(place)))
    return True


def _copy(reader: BinaryIO, size: int, target: str, redactor: Redactor) -> None:
    """All of it or nothing: half a log would pass for a whole one."""
    try:
        if size <= _SMALL_FILE:
            write_new(target, redactor.data(reader.read()) if size else b"")
            return
        Path(target).parent.mkdir(parents=True, exist_ok=True)
        with whole_file(fresh(Path(target))) as writer:
            redactor.stream(reader, writer)
    except OSError as error:
        raise _failed(target, error) from error


def write_new(target: str, content: bytes) -> None:
    """A file of this content, all or nothing, whatever lies in its place; its folder is made if need be. OSError if it can't be written."""
    try:
        write_whole(target, content)
    except (FileNotFoundError, IsADirectoryError):  # a session may have planted a folder
        fresh(Path(target)).parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, content)


def fresh(path: Path) -> Path:
    """A place that is about to be written: what a session put there, a FIFO that blocks or a link, is gone."""
    if left := remove_tree(path):
        raise CodeprobeError("SANDBOX_FAILED", f"what the session left could not be removed: {left[0]}")
    return path


def scrub_tree(folder: Path, redactor: Redactor) -> int:
    """Replace each regular file below that holds a secret by a mark; the number of files replaced."""
    if not redactor or not folder.exists():
        return 0
    with LANE:
        few = _few_files(str(folder))
        if few is not None:
            return text.scrub(str(folder), redactor) if any(_gives_away(entry, redactor) for entry in few) else 0
    return int(_in_a_process(redactor, "--tree", str(folder)) or 0)


def _few_files(top: str) -> list[os.DirEntry[str]] | None:
    """All there is below; None if reading it here would take longer than a process does."""
    found: list[os.DirEntry[str]] = []
    size, todo = 0, [top]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                below = list(itertools.islice(entries, SMALL_FILES + 1))
        except PermissionError:  # of a folder that the session locked, say
            return None
        found += below
        todo += [entry.path for entry in below if entry.is_dir(follow_symlinks=False)]
        size += sum(entry.stat(follow_symlinks=False).st_size for entry in below if not entry.is_dir(follow_symlinks=False))
        if len(found) > SMALL_FILES or size > _SMALL_TREE:
            return None
    return found


def _gives_away(entry: os.DirEntry[str], redactor: Redactor) -> bool:
    if redactor.found(os.fsencode(entry.name)):
        return True
    if entry.is_symlink():
        return redactor.found(os.fsencode(os.readlink(entry.path)))
    return entry.is_file(follow_symlinks=False) and text.holds_secret(entry.path, redactor)


def _in_a_process(redactor: Redactor, *arguments: str) -> bytes:
    argv = [sys.executable, "-I", "-S", text.__file__, *arguments]
    done = run_tool(argv, env={}, timeout=_TIMEOUT, stdin=json.dumps(redactor.secrets).encode(), stdout=PIPE)
    if done.status:
        raise CodeprobeError("SANDBOX_FAILED", f"redaction failed: {ending(done.complaints.decode(errors='replace'), 500)}")
    return done.output


def _failed(path: str, error: OSError) -> CodeprobeError:
    return CodeprobeError("SANDBOX_FAILED", f"{path}: {error.strerror}")


class TrialLog:
    """A trial's own log file, written through `logging`; belongs to no logger tree, so that nothing else hears it."""

    def __init__(self, path: Path) -> None:
        self.logger = _FileLogger(path)

    def close(self) -> None:
        """No further line."""
        self.logger.close()


class _FileLogger(logging.Logger):
    """Appends to a file, one write per line, and does without what a line does not show: who called, from which thread."""

    def __init__(self, path: Path) -> None:
        super().__init__("codeprobe.trial", logging.DEBUG)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._writing = threading.Lock()

    def _log(self, level: int, msg: object, args: Any, exc_info: Any = None, *_: Any, **__: Any) -> None:
        if exc_info and not isinstance(exc_info, tuple):
            exc_info = sys.exc_info()
        record = logging.LogRecord(self.name, level, "", 0, msg, args, exc_info or None)
        line = _FORMAT.format(record) + "\n"
        with self._writing:
            if self._fd >= 0:
                with contextlib.suppress(OSError):  # a full disk: whatever counts is written elsewhere too, and says so
                    os.write(self._fd, line.encode("utf-8", "backslashreplace"))

    def close(self) -> None:
        with self._writing:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class _Format(logging.Formatter):
    """Does not parse a line of source to show where in it something was raised."""

    def formatException(self, ei: Any) -> str:  # noqa: N802  # logging's own name
        """See with_frames()."""
        return with_frames(ei[1]) if ei[1] is not None else ""


_FORMAT = _Format("%(asctime)s %(levelname)s %(message)s")


def preserve_mode(asked: Literal["none", "move", "direct"] | None) -> Literal["none", "move", "direct"]:
    """What is kept of a workspace: as asked, else a copy."""
    return asked or "move"
