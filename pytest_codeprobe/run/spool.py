"""What a process says of its trials: lines appended to a file of its own, which the controller follows."""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.context import Clock
from pytest_codeprobe.text import json_line

_EVENTS = frozenset(("trial_started", "trial_retried", "transcript", "call_began", "call_ended"))

_log = logging.getLogger(__name__)
#: a FIFO that somebody put there must not hold up a trial
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class Spool:
    """An EventSink that appends to `spool/<worker>.ndjson`: one write per line, so kill -9 cuts at most the last one."""

    def __init__(self, folder: Path, worker: str, clock: Clock) -> None:
        self._path, self._worker, self._clock = folder / f"{worker}.ndjson", worker, clock

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event. A full disk is logged, not raised: the trial's own record tells the rest."""
        line = json_line({"event": event, "time": stamp(self._clock.now()), "worker": self._worker, **fields}) + "\n"
        try:
            fd = os.open(self._path, _FLAGS, 0o600)
            try:
                os.write(fd, line.encode())
            finally:
                os.close(fd)
        except OSError as error:
            _log.warning("%s: %s", self._path, error)


def spooled(line: bytes) -> dict[str, Any] | None:
    """What one line of a spool says, if it is of the kind that our workers write; None for a cut line or a stranger's."""
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or not isinstance(event := fields.get("event"), str) or event not in _EVENTS:
        return None
    fitting = isinstance(fields.get("node_id"), str) and type(fields.get("attempt", 1)) is int
    if event == "transcript":
        fitting = fitting and type(fields.get("bytes")) is int and fields["bytes"] >= 0
    if not fitting or fields.keys() & {"seq", "run_id", "record_type"}:
        return None
    if not all(value is None or isinstance(value, str | int) for value in fields.values()):  # ours say nothing else
        return None
    return fields
