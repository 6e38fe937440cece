"""One after another, whichever process or thread they belong to: whoever makes what several processes of a machine share."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from pytest_codeprobe.errors import Stopped

try:
    import fcntl
except ImportError:  # where no run can start anyway
    fcntl = None  # type: ignore[assignment]

_WAIT = 0.1


@contextlib.contextmanager
def turn(path: Path, stopped: Callable[[], str | None], seconds: float) -> Iterator[bool]:
    """Hold the file at `path`, as one process, and one thread of it, can at a time; False where another holds it for longer than `seconds`.

    OSError, Stopped.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        until, held = time.monotonic() + seconds, fcntl is None
        while not held and time.monotonic() < until:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                held = True
            except BlockingIOError:
                if (reason := stopped()) is not None:
                    raise Stopped(reason) from None
                time.sleep(_WAIT)
        yield held
    finally:
        os.close(fd)
