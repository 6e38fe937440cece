"""events.ndjson: what the controller publishes, numbered."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.context import Clock
from pytest_codeprobe.text import json_line


class EventLog:
    """events.ndjson and the stdout of the JSON-lines mode: numbered lines, each written at once."""

    def __init__(self, path: Path, run_id: str, clock: Clock, out: Callable[[str], None]) -> None:
        self._path, self._run_id, self._clock, self._out = path, run_id, clock, out
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._seq = _next_seq(self._fd, path)
        self.trouble: OSError | None = None  #: why the file ends early

    def write(self, event: str, **fields: Any) -> None:
        """Number an event and publish it."""
        time = fields.pop("time", None) or stamp(self._clock.now())
        line = json_line({"record_type": "event", "event": event, "seq": self._seq, "time": time, "run_id": self._run_id, **fields})
        self._seq += 1
        self._append((line + "\n").encode())
        self._out(line)

    def _append(self, data: bytes) -> None:
        """After a line that did not fit nothing follows: the file is whole up to there."""
        written = 0
        try:
            while written < len(data) and self.trouble is None:
                written += os.write(self._fd, data[written:])
        except OSError as error:
            self.trouble = error
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, os.fstat(self._fd).st_size - written)

    def is_there(self) -> bool:
        """Whether the file still is the one that was begun."""
        try:
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        except OSError:
            return False

    def close(self) -> None:
        """No further event."""
        os.close(self._fd)


def _next_seq(fd: int, path: Path) -> int:
    """Where an earlier run's file goes on; a cut last line of it goes. 0 for a new one."""
    size = os.fstat(fd).st_size
    if not size:
        return 0
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    os.ftruncate(fd, len(whole))
    for line in reversed(whole.splitlines()):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return int(json.loads(line)["seq"]) + 1
    return 0
