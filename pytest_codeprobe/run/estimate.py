"""What a run will take, told by earlier runs of the same tasks with the same agents, and by limits where there are none.

Reads run directories that anybody may have changed, or that a kill left half written: whatever is not as it should be is left out.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import math
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from pytest_codeprobe.run.known_task import TIMEOUT
from pytest_codeprobe.run.plan import PlannedTrial

RUNS = 20  #: the newest runs that count
_RUN_ID = re.compile(r"\d{8}T\d{9}Z-[a-z0-9]{4}")
_MAX_RECORD = 4 << 20  #: bytes; what is larger is none of ours
_MAX_RUN_FILE = 64 << 20
_TOKENS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
_CANARY_SECONDS = 600.0 + TIMEOUT + 300.0  #: to lay out, work and grade
_DEFAULT_GRADING = 300.0  #: seconds, where a task sets no grading_timeout


@dataclass(frozen=True, slots=True)
class Range:
    """Of one quantity: expected is None where no earlier run tells it, high where no limit bounds it either."""

    low: float
    expected: float | None
    high: float | None

    @classmethod
    def of(cls, measured: Sequence[float], limit: float | None) -> Range:
        """Half of the least, the median, twice the most; without any measurement nothing up to the limit."""
        if measured:
            return cls(min(measured) / 2, median(measured), max(measured) * 2)
        return cls(0.0, None, limit)

    def as_json(self, digits: int, unknown: int) -> dict[str, Any]:
        """As the envelope shows it; `unknown`: trials of which no earlier run knows it."""

        def rounded(value: float | None) -> float | int | None:
            return None if value is None else round(value, digits) if digits else round(value)

        return {"low": rounded(self.low), "expected": rounded(self.expected), "high": rounded(self.high), "unknown_trials": unknown}


@dataclass(slots=True)
class _Measured:
    """What earlier runs tell of one task with one agent."""

    tokens: list[float] = field(default_factory=list)
    cost_usd: list[float] = field(default_factory=list)
    duration_seconds: list[float] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """The newest runs below a folder of run directories."""

    tasks: dict[tuple[str, str], _Measured] = field(default_factory=dict)  #: (folder of the task, agent) ->
    overheads: list[float] = field(default_factory=list)  #: seconds that runs took beside their trials
    runs: int = 0  #: that tell something of these trials

    @classmethod
    def read(cls, runs_dir: Path, trials: Iterable[PlannedTrial], *, but: str) -> History:
        """Of these trials, from all runs but the one of that id."""
        found = cls()
        wanted = sorted({(_task_folder(trial), trial.agent) for trial in trials if trial.agent is not None})
        for run in _newest(runs_dir, but):
            known = [record for task, agent in wanted for record in found._take(run, task, agent)]
            if known:
                found.runs += 1
                if (overhead := _overhead(run, known)) is not None:
                    found.overheads.append(overhead)
        return found

    def _take(self, run: Path, task: str, agent: str) -> Iterator[Mapping[str, Any]]:
        for file in _result_files(run, task):
            record = _object(file, _MAX_RECORD)
            if record.get("status") not in ("passed", "failed") or not record.get("attempts") or _name_of(record) != agent:
                continue  # what ended in an error, or was stopped, says little of what a whole one takes
            measured = self.tasks.setdefault((task, agent), _Measured())
            for name, value in (
                ("tokens", _total_tokens(record.get("usage"))),
                ("cost_usd", _amount(record.get("cost_usd"))),
                ("duration_seconds", _amount(record.get("duration_seconds"))),
            ):
                if value is not None:
                    getattr(measured, name).append(value)
            yield record


def estimate(
    trials: Sequence[PlannedTrial],
    history: History,
    *,
    parallel: int,
    is_free: Callable[[str], bool],
    may_cache: Callable[[str], bool] = lambda _: True,
    canaries: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """`data.estimate` of the envelope: trials that would start, `parallel` at a time.

    `is_free`: whether an agent of that name uses no model at all, so that its cost is known to be 0; `may_cache`: whether its model
    may read from a cache. `canaries`: what each that would run before the first trial took the last time, as far as that is known.
    """
    measured = [history.tasks.get((_task_folder(t), t.agent or ""), _Measured()) for t in trials]
    free = [t.agent is not None and is_free(t.agent) for t in trials]
    nothing, all_of = Range(0.0, 0.0, 0.0), list(zip(trials, measured, free, strict=True))
    tokens = [nothing if f else Range.of(m.tokens, _most_tokens(t, may_cache)) for t, m, f in all_of]
    cost = [nothing if f else Range.of(m.cost_usd, t.limits.get("max_usd")) for t, m, f in all_of]
    times = [Range.of(m.duration_seconds, _longest(t)) for t, m in zip(trials, measured, strict=True)]
    beside = Range.of(history.overheads, 0.0) if history.overheads else nothing
    first = {name: [_of_canary(canary, name) for canary in canaries] for name in ("tokens", "cost_usd", "duration_seconds")}
    return {
        "trials": len(trials),
        "measured_trials": sum(bool(m.duration_seconds) for m in measured),
        "runs": history.runs,
        "parallel": parallel,
        "canaries": len(canaries),
        "tokens": _sum([*tokens, *first["tokens"]]).as_json(0, _unknown(tokens)),
        "cost_usd": _sum([*cost, *first["cost_usd"]]).as_json(6, _unknown(cost)),
        "duration_seconds": _sum([_wall(times, beside, parallel), *first["duration_seconds"]]).as_json(3, _unknown(times)),
    }


def _of_canary(canary: Mapping[str, Any], name: str) -> Range:
    """They run one after the other. No limit of money or tokens is theirs; each has one of time."""
    value = canary.get(name)
    return Range.of([float(value)] if value is not None else [], _CANARY_SECONDS if name == "duration_seconds" else None)


def makespan(durations: Iterable[float], parallel: int) -> float:
    """Seconds until all is done, where each takes the first place that becomes free."""
    free = [0.0] * max(1, parallel)
    end = 0.0
    for duration in durations:
        done = heapq.heappop(free) + duration
        heapq.heappush(free, done)
        end = max(end, done)
    return end


def _sum(ranges: Sequence[Range]) -> Range:
    expected, high = [r.expected for r in ranges], [r.high for r in ranges]
    return Range(
        math.fsum(r.low for r in ranges),
        None if None in expected else math.fsum(v for v in expected if v is not None),
        None if None in high else math.fsum(v for v in high if v is not None),
    )


def _unknown(ranges: Sequence[Range]) -> int:
    return sum(r.expected is None for r in ranges)


def _wall(times: Sequence[Range], beside: Range, parallel: int) -> Range:
    expected = [r.expected for r in times if r.expected is not None]
    return Range(
        beside.low + makespan((r.low for r in times), parallel),
        None if len(expected) < len(times) else (beside.expected or 0.0) + makespan(expected, parallel),
        (beside.high or 0.0) + makespan((r.high or 0.0 for r in times), parallel),  # each has a limit
    )


def _most_tokens(trial: PlannedTrial, may_cache: Callable[[str], bool]) -> float | None:
    """The tokens that its limit allows; None where what is read from a cache does not count in that, and is a token all the same."""
    counts_all = trial.limits.get("count_cached_input") or not may_cache(trial.agent or "")
    limit = trial.limits.get("max_total_tokens") if counts_all else None
    return None if limit is None else float(limit)


def _longest(trial: PlannedTrial) -> float:
    """Seconds that the time limits of a trial allow together."""
    limits = trial.limits
    return float(sum(limits.get(n) or 0.0 for n in ("setup_timeout", "task_timeout")) + (limits.get("grading_timeout") or _DEFAULT_GRADING))


def _task_folder(trial: PlannedTrial) -> str:
    """The name that all trials of a task have in their folder, whatever the variant."""
    return trial.folder.split("/")[1]


# ---- what lies below the runs dir


def _newest(runs_dir: Path, but: str) -> Iterator[Path]:
    """Run directories that hold trials, the newest first: run ids sort by time. A dry run holds none."""
    try:
        found = sorted((p for p in runs_dir.iterdir() if _RUN_ID.fullmatch(p.name) and p.name != but), reverse=True)
    except OSError:
        return
    count = 0
    for run in found:
        if (run / "trials").is_dir():
            yield run
            count += 1
            if count == RUNS:
                return


def _result_files(run: Path, task: str) -> Iterator[Path]:
    """The records of a task in a run: of each variant, row and repeat."""
    try:
        variants = sorted((run / "trials").iterdir())
    except OSError:
        return
    for variant in variants:
        folder = variant / task
        if folder.is_dir():
            with contextlib.suppress(OSError):  # somebody removes the run
                yield from sorted((*folder.glob("r[0-9]*/result.json"), *folder.glob("row-*/r[0-9]*/result.json")))


def _object(file: Path, limit: int) -> Mapping[str, Any]:
    """The JSON object in a file; an empty one where there is something else. Neither blocks nor raises."""
    try:
        fd = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
                return {}
            value = json.loads(stream.read(limit))
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _name_of(record: Mapping[str, Any]) -> object:
    agent = record.get("agent")
    return agent.get("name") if isinstance(agent, dict) else None


def _amount(value: object) -> float | None:
    """A number that can be one of seconds, dollars or tokens."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e15:  # not a NaN either
        return None
    return float(value)


def _total_tokens(usage: object) -> float | None:
    known = [n for name in _TOKENS if isinstance(usage, dict) and (n := _amount(usage.get(name))) is not None]
    return math.fsum(known) if known else None


def _overhead(run: Path, records: Sequence[Mapping[str, Any]]) -> float | None:
    """Seconds that a run took beside its trials: start, collection, what is between them, reports. None where it did not end."""
    data = _object(run / "envelope.json", _MAX_RUN_FILE).get("data")
    whole = _amount(data.get("duration_seconds")) if isinstance(data, dict) else None
    results = data.get("results") if isinstance(data, dict) else None
    if whole is None or not isinstance(results, list):
        return None
    durations = [d for r in results if isinstance(r, dict) and (d := _amount(r.get("duration_seconds"))) is not None]
    return max(0.0, whole - makespan(durations, _parallel(run, records)))


def _parallel(run: Path, records: Sequence[Mapping[str, Any]]) -> int:
    """How many trials ran at once: the workers that ran some, else the jobs."""
    workers = {str(r.get("worker")) for r in records} - {"main"}
    if workers:
        return len(workers)
    options = _object(run / "plan.json", _MAX_RUN_FILE).get("options")
    jobs = options.get("jobs") if isinstance(options, dict) else None
    return jobs if isinstance(jobs, int) and jobs > 0 else 1
