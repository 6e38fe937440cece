"""What leaves a trial's private folder: logs, transcript, diff, the workspace; always through the redactor."""

from __future__ import annotations

import errno
import json
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Literal

from pytest_codeprobe import text
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.text import Redactor

_IN_PROCESS = 1 << 20  #: bytes; larger files are redacted by a process of their own, so that no other trial waits for the GIL


def copy_log(source: Path, target: Path, redactor: Redactor) -> bool:
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
    with os.fdopen(fd, "rb") as reader:
        size = status.st_size
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            if size <= _IN_PROCESS or not redactor:
                with target.open("wb") as writer:
                    redactor.stream(reader, writer)
                return True
        except OSError as error:
            target.unlink(missing_ok=True)  # half a log would pass for a whole one
            raise _failed(target, error) from error
    try:
        _in_a_process(redactor, str(source), str(target))
    except CodeprobeError:
        target.unlink(missing_ok=True)
        raise
    return True


def scrub_tree(folder: Path, redactor: Redactor) -> int:
    """Replace each regular file below that holds a secret by a mark; the number of files replaced."""
    if not redactor or not folder.exists():
        return 0
    return int(_in_a_process(redactor, "--tree", str(folder)) or 0)


def _in_a_process(redactor: Redactor, *arguments: str) -> bytes:
    done = subprocess.run(
        [sys.executable, "-I", "-S", text.__file__, *arguments],
        input=json.dumps(redactor.secrets).encode(),
        capture_output=True,
        check=False,
        env={},
    )
    if done.returncode:
        raise CodeprobeError("SANDBOX_FAILED", f"redaction failed: {done.stderr.decode(errors='replace')[-500:]}")
    return done.stdout


def _failed(path: Path, error: OSError) -> CodeprobeError:
    return CodeprobeError("SANDBOX_FAILED", f"{path}: {error.strerror}")


class TrialLog:
    """A trial's own log file, written through `logging`; belongs to no logger tree, so that nothing else hears it."""

    def __init__(self, path: Path) -> None:
        self.logger = logging.Logger("codeprobe.trial", logging.DEBUG)  # noqa: LOG001  # of its own: thousands of trials leave none behind
        self._handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        self.logger.addHandler(self._handler)

    def close(self) -> None:
        """Write out and close."""
        self._handler.close()
        self.logger.handlers.clear()


def preserve_mode(asked: Literal["none", "move", "direct"] | None) -> Literal["none", "move", "direct"]:
    """What is kept of a workspace: as asked, else a copy."""
    return asked or "move"
