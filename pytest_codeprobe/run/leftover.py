"""What the processes of a run that was killed had said of their trials, and nobody had published: it tells of sessions that were paid."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_codeprobe.model.context import Clock
from pytest_codeprobe.run.book import RunBook
from pytest_codeprobe.run.event_log import EventLog
from pytest_codeprobe.run.folder import RunFolder
from pytest_codeprobe.run.plan import PlannedTrial


def publish_left(folder: RunFolder, plan: Mapping[str, Any], clock: Clock) -> None:
    """Number the whole lines of spool files that events.ndjson does not have. `plan`: of the run that was killed. OSError."""
    if any(folder.spool.glob("*.ndjson")):
        book = _LeftBook(folder, plan, clock)
        try:
            book.drain_all()
        finally:
            book.end()
        if book.log.trouble is not None:
            raise book.log.trouble


class _LeftBook(RunBook):
    """Writes only what is new."""

    def __init__(self, folder: RunFolder, plan: Mapping[str, Any], clock: Clock) -> None:
        super().__init__(folder, str(plan["run_id"]), clock, _nowhere)
        for trial in plan.get("trials", ()):
            with contextlib.suppress(ValidationError):  # of another version: what is told of it is of no use
                known = PlannedTrial.model_validate(trial)
                self.plan[known.node_id] = known
        self._told = frozenset(_told(folder.events_file))
        self.log = self._events = EventLog(folder.events_file, self.run_id, clock, _nowhere)

    def _write_trial(self, event: str, fields: dict[str, Any]) -> None:
        if _key(event, fields) not in self._told:
            super()._write_trial(event, fields)

    def end(self) -> None:
        """No further line."""
        self.log.close()


def _nowhere(line: str) -> None:
    """Of stdout: this run's events come later."""


def _told(events: Path) -> Iterator[tuple[object, ...]]:
    with contextlib.suppress(FileNotFoundError), events.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                event = json.loads(line)
                yield _key(event["event"], event)


def _key(event: str, fields: Mapping[str, Any]) -> tuple[object, ...]:
    """What makes an event of a trial one of its kind."""
    return event, fields.get("node_id"), fields.get("attempt", 1), fields.get("worker")
