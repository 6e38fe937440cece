"""The controller's book of a run: plan, open trials, final records, events. Every trial of the plan gets exactly one final record.

Knows nothing of pytest: the plugin tells it what arrived, from whom. Usable from the main thread and the follower.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.context import Clock
from pytest_codeprobe.model.result import VERDICTS, AgentInfo, Attempt, TrialResult, Usage
from pytest_codeprobe.run.folder import RunFolder
from pytest_codeprobe.run.plan import Gate, PlannedTrial
from pytest_codeprobe.run.spool import spooled
from pytest_codeprobe.text import json_line

#: fields of an event that says something about one trial; always present, null where unknown
_TRIAL_FIELDS = ("node_id", "task_id", "variant_id", "row_id", "repeat", "attempt", "status", "score", "cost_usd", "worker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Final:
    """What the envelope and the summary need of a final record."""

    node_id: str
    task_id: str
    variant_id: str | None
    row_id: str | None
    repeat: int
    status: str
    expected: bool
    reason: str | None
    code: str | None
    remediation: str | None
    detail: Mapping[str, Any]
    score: float | None
    cost_usd: float | None
    usage: Usage
    duration_seconds: float | None
    attempts: int
    limit_hit: dict[str, Any] | None
    agent: str | None
    agent_version: str | None
    model: str | None
    worker: str
    folder: str | None
    warnings: tuple[str, ...]
    at: str
    gate: Gate | None = None  #: of a task tagged `canary`; None for all others, and where it was not run


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `running` counts open trials, `done` final records of any status."""

    total: int
    running: int
    done: int
    graded: int
    passed: int
    errors: int
    cost_usd: float | None  #: of what is done; None while nothing is known


class EventLog:
    """events.ndjson and the stdout of the JSON-lines mode: numbered lines, each written at once."""

    def __init__(self, path: Path, run_id: str, clock: Clock, out: Callable[[str], None]) -> None:
        self._path, self._run_id, self._clock, self._out = path, run_id, clock, out
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._seq = 0
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


class RunBook:
    """See the module."""

    def __init__(self, folder: RunFolder, run_id: str, clock: Clock, out: Callable[[str], None]) -> None:
        self.folder, self.run_id, self.clock = folder, run_id, clock
        self.plan: dict[str, PlannedTrial] = {}
        self.final: dict[str, Final] = {}
        self.open: dict[str, str] = {}  #: node id -> worker, from the start of its protocol to its final record
        self.started: dict[str, int] = {}  #: node id -> number of the attempt whose agent was about to start, says the spool
        self.transcript_bytes = 0  #: of all attempts so far
        self.trouble: CodeprobeError | None = None  #: what of the run dir could not be written
        self._statuses: Counter[str] = Counter()  #: of final records
        self._cost: float | None = None  #: theirs, as far as it is known
        self._out = out
        self._events: EventLog | None = None
        self._offsets: dict[str, int] = {}
        self._usages: dict[Usage, Usage] = {}  #: one of each that is equal
        self._lock = threading.RLock()

    # ---- the plan
    def take_plan(self) -> bool:
        """Read plan.json and say run_started, once; True if there is a plan."""
        with self._lock:
            if self.plan:
                return True
            plan = self.folder.read_plan()
            if plan is None or plan["run_id"] != self.run_id:
                return False  # of another run: its files are not ours to write
            self._events = EventLog(self.folder.events_file, self.run_id, self.clock, self._out)
            self.plan = {t["node_id"]: PlannedTrial.model_validate(t) for t in plan["trials"]}
            self._events.write("run_started", trials=len(self.plan), plugin_version=plan["plugin_version"])
            return True

    # ---- what workers say
    def named(self, node_id: str) -> str:
        """What the plan calls a trial: under `--dist loadgroup` xdist adds its group."""
        return node_id if node_id in self.plan or "@" not in node_id else node_id.rpartition("@")[0]

    def opened(self, node_id: str) -> None:
        """pytest has begun with an item."""
        with self._lock:
            if node_id in self.plan and node_id not in self.final:
                self.open.setdefault(node_id, "?")

    def drain_all(self) -> None:
        """Number what every worker has spooled."""
        for path in sorted(self.folder.spool.glob("*.ndjson")):
            self.drain(path.stem)

    def drain(self, worker: str) -> None:
        """Number what one worker has spooled; a cut last line waits for its rest."""
        with self._lock:
            for raw in self._new_lines(worker):
                if (fields := spooled(raw)) is not None:
                    self._take(worker, fields)
                self._offsets[worker] = self._offsets.get(worker, 0) + len(raw) + 1

    def _new_lines(self, worker: str) -> Iterator[bytes]:
        path = self.folder.spool / f"{worker}.ndjson"
        try:
            # whatever lies here, reading it must neither block nor end the run
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return
                file.seek(self._offsets.get(worker, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
        except OSError:  # not there yet, or no file any more; what a trial said counts less than its record
            return
        if newline:
            yield from whole.split(b"\n")

    def _take(self, worker: str, fields: dict[str, Any]) -> None:
        event, node_id = fields.pop("event"), fields["node_id"]
        if node_id in self.final or node_id not in self.plan:
            return
        if event == "transcript":
            self.transcript_bytes += fields["bytes"]
            return
        if event == "trial_started":
            self.started[node_id] = fields.get("attempt", 1)
            self.open[node_id] = worker
        self._write_trial(event, fields)

    def _write_trial(self, event: str, fields: dict[str, Any]) -> None:
        assert self._events is not None
        trial = self.plan[fields["node_id"]]
        base: dict[str, Any] = dict.fromkeys(_TRIAL_FIELDS)
        base.update(node_id=trial.node_id, task_id=trial.task_id, variant_id=trial.variant_id, row_id=trial.row_id, repeat=trial.repeat)
        base["attempt"] = 1
        self._events.write(event, **{**base, **fields})

    def event(self, event: str, **fields: Any) -> None:
        """Publish an event of the run itself."""
        with self._lock:
            if self._events is not None:
                self._events.write(event, **fields)

    # ---- final records
    def finish(self, result: TrialResult, *, expected: bool = False) -> None:
        """The one place where a trial becomes final; the first record stands.

        Its worker's file is read first, so that trial_started has the lower seq.
        """
        self.drain(result.worker)
        with self._lock:
            if result.node_id in self.final or result.node_id not in self.plan:
                return
            final = self._slim(final_of(result, expected, self.plan[result.node_id].gate(result.status)))
            self.final[final.node_id] = final
            self.open.pop(result.node_id, None)
            self._statuses[final.status] += 1
            self.paid(final.cost_usd)
            self._write_trial(
                "trial_finished",
                {
                    "node_id": final.node_id,
                    "attempt": max(1, final.attempts),
                    "status": final.status,
                    "score": final.score,
                    "cost_usd": final.cost_usd,
                    "worker": final.worker,
                    "expected": final.expected,
                    "code": final.code,
                    "reason": final.reason,
                    "limit_hit": final.limit_hit,
                    "duration_seconds": final.duration_seconds,
                    "folder": final.folder,
                },
            )

    def _slim(self, final: Final) -> Final:
        """The same without second copies of what the plan, or another record, holds already: there may be thousands."""
        trial = self.plan[final.node_id]
        same = {name: getattr(trial, name) for name in ("node_id", "task_id", "variant_id", "row_id") if getattr(trial, name) is not None}
        if final.folder is not None:
            same["folder"] = trial.folder
        for name in ("status", "worker", "agent", "agent_version", "model", "code", "reason", "remediation"):
            if (text := getattr(final, name)) is not None:
                same[name] = sys.intern(text)
        return dataclasses.replace(final, **same, usage=self._usages.setdefault(final.usage, final.usage))

    def paid(self, cost_usd: float | None) -> None:
        """What a trial, or something beside the trials, has cost."""
        with self._lock:
            self._cost = self._cost if cost_usd is None else (self._cost or 0.0) + cost_usd

    def progress(self) -> Progress:
        """The figures of this moment; costs the same however many trials there are."""
        with self._lock:
            return Progress(
                total=len(self.plan),
                running=len(self.open),
                done=len(self.final),
                graded=sum(self._statuses[s] for s in VERDICTS),
                passed=self._statuses["passed"],
                errors=self._statuses["error"],
                cost_usd=self._cost,
            )

    def lost(
        self, node_id: str, worker: str, status: str, reason: str, *, code: str | None = None, remediation: str | None = None
    ) -> TrialResult:
        """The record of a trial whose process made none; on disk where it had started, and only there."""
        trial = self.plan[node_id]
        began = node_id in self.started
        now = stamp(self.clock.now())
        number = self.started.get(node_id, 1)
        written = self._written(node_id) if began else None
        earlier = [a for a in written.attempts if a.number < number] if written is not None else []
        # it spent something, and nobody knows how much
        attempt = Attempt(number=number, code=code, reason=reason, started_at=now, duration_seconds=0.0)
        result = TrialResult(
            run_id=self.run_id,
            node_id=node_id,
            task_id=trial.task_id,
            variant_id=trial.variant_id,
            row_id=trial.row_id,
            repeat=trial.repeat,
            status=status,  # type: ignore[arg-type]  # pydantic checks it
            code=code,
            reason=reason,
            remediation=remediation,
            phase="session" if began and code else None,
            agent=AgentInfo(name=trial.agent, model=trial.model) if began and trial.agent else None,
            attempts=(*earlier, attempt) if began else (),
            worker=worker,
            folder=trial.folder if began else None,
            started_at=now,
            ended_at=now,
            duration_seconds=0.0,
        )
        if began:
            try:
                self.folder.write_result(trial.folder, result)
            except OSError as error:
                self.note(trial.folder, error)
        return result

    def note(self, what: str, error: OSError) -> None:
        """Something of the run dir could not be written: said once, at the end."""
        if self.trouble is None:
            self.trouble = CodeprobeError(
                "SANDBOX_FAILED",
                f"run directory {self.folder.path}: {what}: {error.strerror}",
                remediation="Free disk space, or choose another place with --codeprobe-run-dir.",
            )

    def recovered(self, node_id: str) -> TrialResult | None:
        """What the trial's own process had written before it was gone; not what an earlier try had, before a rerun began."""
        written = self._written(node_id)
        if written is None or (written.attempts and written.attempts[-1].number < self.started.get(node_id, 0)):
            return None
        return written

    def _written(self, node_id: str) -> TrialResult | None:
        return self.folder.read_result(self.plan[node_id].folder) if node_id in self.plan else None

    def close(self, reason: str) -> None:
        """The run is over: each trial without a record gets the one it wrote itself, or error if it had started, else not_run."""
        self.drain_all()
        for node_id in list(self.plan):
            if node_id in self.final:
                continue
            worker = self.open.get(node_id, "main")
            # only where somebody saw it begin: a session may write what it likes into the folders of others
            result = self.recovered(node_id) if node_id in self.started or node_id in self.open else None
            if result is None and node_id in self.started and reason not in ("interrupted", "maxfail", "refused"):
                result = self.lost(node_id, worker, "error", f"the process of worker {worker} died in this trial", code="WORKER_DIED")
            self.finish(result or self.lost(node_id, worker, "not_run", reason))
        with self._lock:
            if self._events is not None:
                if not self._events.is_there():
                    self.note("events.ndjson", OSError(errno.ESTALE, "was deleted or replaced while the run went on"))
                self._events.close()
                if self._events.trouble is not None:
                    self.note("events.ndjson", self._events.trouble)
                self._events = None
        for path in self.folder.spool.glob("*"):
            with contextlib.suppress(OSError):  # a folder: not ours
                path.unlink(missing_ok=True)
        for folder in (self.folder.spool, self.folder.stop):
            with contextlib.suppress(OSError):  # a flag that stands says why the run ended
                folder.rmdir()


def final_of(result: TrialResult, expected: bool = False, gate: Gate | None = None) -> Final:
    """The slim form of a record that the controller keeps."""
    agent = result.agent
    return Final(
        node_id=result.node_id,
        task_id=result.task_id,
        variant_id=result.variant_id,
        row_id=result.row_id,
        repeat=result.repeat,
        status=result.status,
        expected=expected or (gate == "held" and result.status == "failed"),
        reason=result.reason,
        code=result.code,
        remediation=result.remediation,
        detail=result.detail,
        score=result.score,
        cost_usd=result.cost_usd,
        usage=result.usage,
        duration_seconds=result.duration_seconds,
        attempts=len(result.attempts),
        limit_hit=result.limit_hit.model_dump() if result.limit_hit else None,
        agent=agent.name if agent else None,
        agent_version=agent.version if agent else None,
        model=agent.model if agent else None,
        worker=result.worker,
        folder=result.folder,
        warnings=result.warnings,
        at=result.ended_at,
        gate=gate,
    )
