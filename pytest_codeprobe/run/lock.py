"""The lock of a run directory: one live run holds it, and nobody who is dead."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from pytest_codeprobe.errors import CodeprobeError

try:
    import fcntl
except ImportError:  # where no run can start anyway
    fcntl = None  # type: ignore[assignment]

_NAME = "run.lock"


class RunLock:
    """Held from take() to release(), or to the death of the process: the system lets go of it then."""

    def __init__(self, run_dir: Path) -> None:
        self._path = run_dir / _NAME
        self._fd: int | None = None

    def take(self, started: str) -> None:
        """RUN_DIR_IN_USE where another live process holds it. `started`: when this run did, for whoever is refused. OSError on trouble."""
        fd = self._locked()
        while not self._is_there(fd):  # its holder took it away before it let go: whoever comes next would lock another file
            os.close(fd)
            fd = self._locked()
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"pid": os.getpid(), "started": started}).encode(), 0)
        self._fd = fd

    def _locked(self) -> int:
        fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
        try:
            if fcntl is not None:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(fd)
            os.close(fd)
            who = f"process {holder['pid']} since {holder['started']}" if holder else "another process"
            raise CodeprobeError(
                "RUN_DIR_IN_USE",
                f"{self._path.parent}: {who} is at work there",
                remediation="Wait until that run is over, or stop it; then resume again.",
                detail={"run_dir": str(self._path.parent), **holder},
            ) from None
        return fd

    def _is_there(self, fd: int) -> bool:
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(fd))
        except FileNotFoundError:
            return False

    def release(self) -> None:
        """Let go; the file goes with it."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                self._path.unlink()
            os.close(self._fd)
            self._fd = None


def _holder(fd: int) -> dict[str, object]:
    try:
        found = json.loads(os.pread(fd, 1000, 0))
        return {"pid": int(found["pid"]), "started": str(found["started"])}
    except (OSError, ValueError, KeyError, TypeError):
        return {}
