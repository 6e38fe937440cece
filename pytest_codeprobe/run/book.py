"""The controller's book of a run: plan, open trials, final records, events. Every trial of the plan gets exactly one final record.

Knows nothing of pytest: the plugin tells it what arrived, from whom. Usable from the main thread and the follower.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import stat
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.context import Clock
from pytest_codeprobe.model.result import VERDICTS, AgentInfo, Attempt, TrialResult, Usage
from pytest_codeprobe.run.calls import BEGAN, ENDED, Calls, began_in, ended_in
from pytest_codeprobe.run.event_log import EventLog
from pytest_codeprobe.run.final import Final, final_of
from pytest_codeprobe.run.folder import RunFolder
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.run.proportion import Proportion, complete_gates, gate_of
from pytest_codeprobe.run.resume import Earlier, following, killed
from pytest_codeprobe.run.spool import spooled

#: fields of an event that says something about one trial; always present, null where unknown
_TRIAL_FIELDS = ("node_id", "task_id", "variant_id", "row_id", "repeat", "attempt", "status", "score", "cost_usd", "worker")


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


class RunBook:
    """See the module."""

    def __init__(self, folder: RunFolder, run_id: str, clock: Clock, out: Callable[[str], None]) -> None:
        self.folder, self.run_id, self.clock = folder, run_id, clock
        self.plan: dict[str, PlannedTrial] = {}
        self.final: dict[str, Final] = {}
        self.earlier = Earlier()  #: what the run dir held before
        self.calls = Calls()  #: of tests
        self.taken = False  #: there is a plan, which is empty where tests alone call trials
        self.may_call = False  #: tests of the run may do so
        self.open: dict[str, str] = {}  #: node id -> worker, from the start of its protocol to its final record
        self.started: dict[str, int] = {}  #: node id -> number of the attempt whose agent was about to start, says the spool
        self.closed = False  #: each trial has its record
        self.transcript_bytes = 0  #: of all attempts so far
        self.trouble: CodeprobeError | None = None  #: what of the run dir could not be written
        self._statuses: Counter[str] = Counter()  #: of final records
        self._gates: dict[str, tuple[int, int]] = {}  #: over repeats: passes and misses so far
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
            if self.taken:
                return True
            plan = self.folder.read_plan()
            if plan is None or plan["run_id"] != self.run_id:
                return False  # of another run: its files are not ours to write
            self._events = EventLog(self.folder.events_file, self.run_id, self.clock, self._out)
            self.plan = {t["node_id"]: PlannedTrial.model_validate(t) for t in plan["trials"]}
            self._gates = dict.fromkeys(complete_gates(self.plan.values()), (0, 0))
            self.taken, self.may_call = True, bool(plan.get("calls"))
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
        if event in (BEGAN, ENDED):
            self._take_call(worker, fields)
            return
        if node_id in self.final or node_id in self.calls.final or self._known(node_id) is None:
            return
        if event == "transcript":
            self.transcript_bytes += fields["bytes"]
            return
        if event == "trial_started":
            self.started[node_id] = fields.get("attempt", 1)
            self.open[node_id] = worker
        self._write_trial(event, fields)

    def _take_call(self, worker: str, fields: dict[str, Any]) -> None:
        if (trial := began_in(fields)) is not None and trial.node_id not in self.plan:
            self.calls.began[trial.node_id] = trial
            self.open[trial.node_id] = worker
        elif (record := ended_in(fields)) is not None:
            self._finish_call(record)

    def _finish_call(self, result: TrialResult) -> None:
        if result.node_id in self.calls.final or result.node_id not in self.calls.began:
            return
        final = self.calls.final[result.node_id] = final_of(result)
        self.open.pop(result.node_id, None)
        self.paid(final.known_usd)
        self._write_finished(final)

    def _known(self, node_id: str) -> PlannedTrial | None:
        return self.plan.get(node_id) or self.calls.began.get(node_id)

    def _write_trial(self, event: str, fields: dict[str, Any]) -> None:
        assert self._events is not None
        trial = self._known(fields["node_id"])
        assert trial is not None
        base: dict[str, Any] = dict.fromkeys(_TRIAL_FIELDS)
        base.update(node_id=trial.node_id, task_id=trial.task_id, variant_id=trial.variant_id, row_id=trial.row_id, repeat=trial.repeat)
        base["attempt"] = 1
        if event == "trial_started":
            base["folder"] = trial.folder
        if trial.node_id in self.calls.began:
            base["counted"] = False
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
            final = self._slim(final_of(result, expected, self.plan[result.node_id]))
            self.final[final.node_id] = final
            decided = self._tally(final)
            self.open.pop(result.node_id, None)
            self._statuses[final.status] += 1
            self.paid(final.known_usd)
            self._write_finished(final, decided=decided, cached=result.cached)

    def _write_finished(self, final: Final, *, decided: bool = True, cached: bool = False) -> None:
        fields = {
            "node_id": final.node_id,
            "attempt": max(1, final.attempts),
            "status": final.status,
            "score": final.score,
            "cost_usd": final.cost_usd,
            "worker": final.worker,
            "expected": final.expected if decided else None,
            "code": final.code,
            "reason": final.reason,
            "limit_hit": final.limit_hit,
            "duration_seconds": final.duration_seconds,
            "folder": final.folder,
        }
        self._write_trial("trial_finished", {**fields, **({"cached": True} if cached else {})})

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

    def _tally(self, final: Final) -> bool:
        """Count a verdict in the gate over its repeats; whether it is known if the verdict counts."""
        trial = self.plan[final.node_id]
        gate = gate_of(trial.folder)
        if trial.min_passes is None or gate not in self._gates or final.status not in VERDICTS:
            return True
        passes, misses = self._gates[gate]
        self._gates[gate] = passes, misses = (passes + 1, misses) if final.status == "passed" else (passes, misses + 1)
        return final.status == "passed" or Proportion(trial.repeats, trial.min_passes, passes, misses).held is not None

    @property
    def gates(self) -> frozenset[str]:
        """Those over repeats that this run judges."""
        return frozenset(self._gates)

    def proportions(self) -> dict[str, tuple[PlannedTrial, Proportion]]:
        """The gates over repeats that this run judges: one of the repeats, and how the gate stands."""
        found: dict[str, tuple[PlannedTrial, Proportion]] = {}
        for trial in self.plan.values():
            gate = gate_of(trial.folder)
            if gate in self._gates and gate not in found:
                found[gate] = trial, Proportion(trial.repeats, trial.min_passes or 0, *self._gates[gate])
        return found

    def settle(self) -> None:
        """All is over: a miss is expected where the gate over its repeats has not fallen."""
        standing = {gate: proportion.held for gate, (_, proportion) in self.proportions().items()}
        for node_id, final in self.final.items():
            if final.status == "failed" and not final.expected and standing.get(gate_of(self.plan[node_id].folder), False) is not False:
                self.final[node_id] = dataclasses.replace(final, expected=True, missed=True)

    def paid(self, cost_usd: float | None) -> None:
        """What a trial, or something beside the trials, has cost."""
        with self._lock:
            self._cost = self._cost if cost_usd is None else (self._cost or 0.0) + cost_usd

    def progress(self) -> Progress:
        """The figures of this moment; costs the same however many trials there are."""
        with self._lock:
            return Progress(
                total=len(self.plan),
                running=sum(node_id in self.plan for node_id in self.open),
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
        trial = self._known(node_id)
        assert trial is not None
        began = node_id in self.started
        now = stamp(self.clock.now())
        attempts = self.earlier.attempts(trial.folder)
        if began:
            number = self.started[node_id]
            written = self._written(node_id)
            if written is not None and following(written.attempts) > following(attempts):
                attempts = written.attempts
            attempts = tuple(a for a in attempts if a.number < number)
            # it spent something, and nobody knows how much
            attempt = Attempt(number=number, code=code, reason=reason, started_at=now, duration_seconds=0.0)
            attempts = (*attempts, *killed(attempts, number - 1, reason), attempt)
        usage = functools.reduce(Usage.plus, (a.usage for a in attempts)) if attempts else Usage()
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
            phase="session" if began and code else "grade" if trial.resumed == "grade" and code else None,
            agent=AgentInfo(name=trial.agent, model=trial.model) if began and trial.agent else None,
            attempts=attempts,
            usage=usage,
            cost_usd=usage.cost_usd,
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
        """What the trial's own process had written before it was gone; not what an earlier try had, before a rerun or a resume."""
        trial, written = self._known(node_id), self._written(node_id)
        if trial is None or written is None:
            return None
        if written.attempts and written.attempts[-1].number < self.started.get(node_id, 0):
            return None
        if written != self.earlier.results.get(trial.folder):
            return written
        return written.model_copy(update={"cached": True}) if trial.resumed == "keep" else None

    def presume_started(self, node_id: str) -> None:
        """Its process died in it, and may have had no time to say that the agent starts. None does where an earlier result counts."""
        trial = self.plan[node_id]
        if trial.resumed is None:
            self.started.setdefault(node_id, following(self.earlier.attempts(trial.folder)))

    def _written(self, node_id: str) -> TrialResult | None:
        trial = self._known(node_id)
        return self.folder.read_result(trial.folder) if trial is not None else None

    def _last_word(self, node_id: str, reason: str) -> TrialResult:
        """Of a trial that nobody has told the end of."""
        worker = self.open.get(node_id, "main")
        # only where somebody saw it begin: a session may write what it likes into the folders of others
        result = self.recovered(node_id) if node_id in self.started or node_id in self.open else None
        if result is None and node_id in self.started and reason not in ("interrupted", "maxfail", "refused"):
            result = self.lost(node_id, worker, "error", f"the process of worker {worker} died in this trial", code="WORKER_DIED")
        return result or self.lost(node_id, worker, "not_run", reason)

    def close(self, reason: str) -> None:
        """The run is over: each trial without a record gets the one it wrote itself, or error if it had started, else not_run."""
        self.drain_all()
        for node_id in list(self.plan):
            if node_id not in self.final:
                self.finish(self._last_word(node_id, reason))
        for node_id in self.calls.unended():
            self._finish_call(self._last_word(node_id, reason))
        self.settle()
        self.closed = True
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
