"""What grades a trial is what it was when its session began: under a driver that does not isolate, the session could write to it."""

# ruff: noqa: PTH118
# (names need not be text: plain calls)
from __future__ import annotations

import functools
import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.leftout import graders_files
from pytest_codeprobe.text import one_line

_SHOWN = 3


class Untouched:
    """Hidden tests, schemas, the reference, and what the task's commands name as `$TASK_DIR/…`."""

    def __init__(self, trial: Trial) -> None:
        self._paths: Sequence[str] = graders_files(trial)
        self._known: dict[str, str] | None = None

    def look(self) -> None:
        """Now, before anything of the agent runs; what is there later, in a second attempt, say, counts no more."""
        if self._known is None:
            self._known = self._seen()

    def check(self) -> None:
        """VERIFIER_FAILED where it is otherwise by now: nobody knows who it was, so it is no verdict on the agent."""
        if self._known is None:
            return
        now = self._seen()
        if now == self._known:
            return
        changed = sorted(path for path in {*now, *self._known} if now.get(path) != self._known.get(path))
        more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
        raise CodeprobeError(
            "VERIFIER_FAILED",
            f"what grades this trial was changed while it ran: {', '.join(one_line(path, 200) for path in changed[:_SHOWN])}{more}",
            remediation="Let these files alone while it runs, also by its own commands, and run it again. Under driver tempdir the session "
            "can write there, too: look at what it did, and take `--codeprobe-driver bubblewrap`.",
        )

    def _seen(self) -> dict[str, str]:
        return {file: what for path in self._paths for file, what in _files(path)}


def _files(path: str) -> Iterator[tuple[str, str]]:
    """Each file at or below a path, and what it is."""
    if not os.path.isdir(path):  # noqa: PTH112
        yield path, _what(path)
        return
    for folder, folders, files in os.walk(path):
        folders[:] = [name for name in folders if not name.startswith((".", "__pycache__"))]  # of tools that other trials' graders run
        for name in files:
            file = os.path.join(folder, name)
            yield file, _what(file)


def _what(path: str) -> str:
    try:
        found = os.stat(path)  # noqa: PTH116
        if not stat.S_ISREG(found.st_mode):
            return f"no file {stat.S_IFMT(found.st_mode)}"
        return _content(path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino)
    except OSError as error:
        return f"not there {error.errno}"


@functools.lru_cache(4096)
def _content(path: str, *_stat: int) -> str:
    """Looked at once for all trials while its stat stays: ctime is nothing that a session can set."""
    with Path(path).open("rb", buffering=0) as file:
        return hashlib.file_digest(file, hashlib.blake2b).hexdigest()
