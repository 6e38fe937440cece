"""The envelope: the last word of a run, for a program that decides by it. Schema: schemas/envelope.json."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.model.result import VERDICTS, Usage
from pytest_codeprobe.run.final import Final
from pytest_codeprobe.run.suites import GateResult, Suite

_LISTED = 20  #: of each list in a detail


@dataclass(slots=True)
class ErrorEntry:
    """One line of errors[]: the same code and message counts once."""

    code: str
    message: str
    remediation: str
    command: tuple[str, ...] | None = None
    count: int = 1
    detail: dict[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As the envelope shows it."""
        row = error_codes()[self.code]
        return {
            "code": self.code,
            "kind": row.kind,
            "retryable": row.retryable,
            "terminal": row.terminal,
            "message": self.message,
            "remediation": self.remediation,
            "command": list(self.command) if self.command else None,
            "count": self.count,
            "detail": self.detail,
        }


def entry(error: CodeprobeError) -> ErrorEntry:
    """An exception as a line of errors[]."""
    return ErrorEntry(error.code, error.message, error.remediation, error.command, detail=dict(error.detail))


def trial_errors(finals: Iterable[Final]) -> list[ErrorEntry]:
    """One line for each code, over the trials that ended with it; its message is that of the first."""
    found: dict[str, ErrorEntry] = {}
    for final in finals:
        if final.status != "error" or final.code is None:
            continue
        line = found.get(final.code)
        if line is None:
            remedy = final.remediation or error_codes()[final.code].remediation
            line = found[final.code] = ErrorEntry(final.code, f"{final.node_id}: {final.reason}", remedy, count=0, detail={"trials": []})
        line.count += 1
        if len(line.detail["trials"]) < _LISTED:
            line.detail["trials"].append(final.node_id)
        for name, value in final.detail.items():  # the first trial's word stands, and lists are put together
            if isinstance(value, list):
                known = line.detail.setdefault(name, [])
                known.extend([v for v in value if v not in known][: max(0, _LISTED - len(known))])
            else:
                line.detail.setdefault(name, value)
    return list(found.values())


def ordered(errors: Sequence[ErrorEntry]) -> list[ErrorEntry]:
    """Terminal first, then by the exit code's rank, then by time."""
    rank = {code: n for n, code in enumerate((3, 2, 4, 1, 6, 5, 0))}
    table = error_codes()
    return sorted(errors, key=lambda e: (not table[e.code].terminal, rank[table[e.code].exit_code]))


def counts(finals: Iterable[Final]) -> dict[str, int]:
    """Trials by what became of them. passed + failed + … = total, in any case."""
    tally = Counter("missed" if f.missed else "xfailed" if f.expected and f.status == "failed" else f.status for f in finals)
    names = ("passed", "failed", "error", "skipped", "not_run", "missed", "xfailed")
    return {"tasks_total": sum(tally.values()), **{f"tasks_{name}": tally[name] for name in names}}


def pass_rate(finals: Iterable[Final]) -> float | None:
    """Verdicts pass / all verdicts; None without one."""
    verdicts = [f.status == "passed" for f in finals if f.status in VERDICTS]
    return sum(verdicts) / len(verdicts) if verdicts else None


def money(finals: Iterable[Final], beside: Sequence[Usage] = ()) -> tuple[float | None, bool]:
    """The sum of known costs (None if nothing is known), and whether every trial that began has a known cost.

    Of a trial of which one attempt's cost is not known, since it was killed, the others count all the same.

    `beside`: of what was run beside the trials.
    """
    began = [f for f in finals if f.attempts]
    known = [cost for cost in (*(f.known_usd for f in began), *(u.cost_usd for u in beside)) if cost is not None]
    complete = all(f.cost_usd is not None for f in began) and all(u.cost_usd is not None for u in beside)
    return (round(sum(known), 6) if known else None), complete


def tokens(finals: Iterable[Final], beside: Sequence[Usage] = ()) -> dict[str, int | None]:
    """Sums of known tokens by kind; None for a kind that no trial knows."""
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    out: dict[str, int | None] = {}
    used = [*(f.usage for f in finals if f.attempts), *beside]
    for name in names:
        known = [n for usage in used if (n := getattr(usage, name)) is not None]
        out[name] = sum(known) if known else None
    return out


def _one(values: Iterable[str | None]) -> str | None:
    found = set(values)
    return found.pop() if len(found) == 1 else None


def agents(finals: Iterable[Final]) -> list[dict[str, Any]]:
    """Agents that were used, with the versions and models they reported."""
    found: dict[str, tuple[set[str], set[str]]] = {}
    for final in finals:
        if final.agent:
            versions, models = found.setdefault(final.agent, (set(), set()))
            versions.update(v for v in (final.agent_version,) if v)
            models.update(m for m in (final.model,) if m)
    return [{"name": n, "version": _one(v), "models": sorted(m)} for n, (v, m) in sorted(found.items())]


def result_line(final: Final) -> dict[str, Any]:
    """A trial in data.results."""
    return {
        "task_id": final.task_id,
        "variant_id": final.variant_id,
        "row_id": final.row_id,
        "repeat": final.repeat,
        "node_id": final.node_id,
        "status": final.status,
        "expected": final.expected,
        "reason": final.reason,
        "code": final.code,
        "score": final.score,
        "cost_usd": final.cost_usd,
        "duration_seconds": final.duration_seconds,
        "attempts": final.attempts,
        "limit_hit": final.limit_hit,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What the envelope says of the run as a whole."""

    run_id: str | None
    run_dir: str | None
    exit_code: int
    started_at: str
    ended_at: str
    duration_seconds: float
    experiment: str | None
    ordinary: Mapping[str, int]
    warnings: Sequence[str]
    next_steps: Sequence[Mapping[str, Any]]
    estimate: Mapping[str, Any] | None = None  #: of a dry run
    canary: Mapping[str, Any] | None = None
    beside: Sequence[Usage] = ()  #: what was used beside the trials
    calls: Sequence[Final] = ()  #: trials that tests have called; their usage is part of `beside`
    suites: Sequence[Suite] = ()
    gates: Sequence[GateResult] = ()


def envelope(finals: Sequence[Final], errors: Sequence[ErrorEntry], facts: RunFacts) -> dict[str, Any]:
    """The envelope of a run."""
    cost, complete = money(finals, facts.beside)
    used = agents([*finals, *facts.calls])
    variants = sorted({f.variant_id or "default" for f in finals})
    data = {
        "run_id": facts.run_id,
        "run_dir": facts.run_dir,
        "agent": _one(f.agent for f in finals if f.attempts),
        "model": _one(f.model for f in finals if f.attempts),
        "agents": used,
        "experiment": facts.experiment,
        **counts(finals),
        "pass_rate": pass_rate(finals),
        "cost_usd": cost,
        "cost_complete": complete,
        "tokens": tokens(finals, facts.beside),
        "duration_seconds": facts.duration_seconds,
        "started_at": facts.started_at,
        "ended_at": facts.ended_at,
        "results": [result_line(f) for f in finals],
        "variants": [_variant(v, [f for f in finals if (f.variant_id or "default") == v]) for v in variants],
        "suites": [suite.as_json() for suite in facts.suites],
        "canary": dict(facts.canary) if facts.canary is not None else None,
        "gates": [gate.as_json() for gate in facts.gates],
        "calls": [result_line(f) for f in facts.calls],
        "ordinary_tests": dict(facts.ordinary),
        **({"estimate": dict(facts.estimate)} if facts.estimate is not None else {}),
    }
    return answer("run", data, facts.exit_code, errors=errors, warnings=facts.warnings, next_steps=facts.next_steps)


def answer(
    command: str | None,
    data: Mapping[str, Any],
    exit_code: int,
    *,
    errors: Sequence[ErrorEntry] = (),
    warnings: Sequence[str] = (),
    next_steps: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """The envelope of any command of `codeprobe`; None where the command itself is unknown."""
    return {
        "record_type": "envelope",
        "schema_version": "1",
        "command": command,
        "status": "error" if errors else "ok",
        "exit_code": exit_code,
        "data": dict(data),
        "errors": [e.as_json() for e in ordered(errors)],
        "warnings": list(warnings),
        "next_steps": [dict(s) for s in next_steps],
    }


def _variant(name: str, finals: Sequence[Final]) -> dict[str, Any]:
    scores = [f.score for f in finals if f.score is not None]
    return {
        "variant_id": name,
        "agent": _one(f.agent for f in finals if f.attempts),
        "model": _one(f.model for f in finals if f.attempts),
        **counts(finals),
        "pass_rate": pass_rate(finals),
        "pass_rate_interval": wilson(finals),
        "score_mean": sum(scores) / len(scores) if scores else None,
        "cost_usd": money(finals)[0],
        "tokens": tokens(finals),
        "duration_seconds": round(sum(f.duration_seconds or 0.0 for f in finals), 3),
    }


def wilson(finals: Iterable[Final]) -> list[float] | None:
    """The 95 % interval of the pass rate; None without a verdict."""
    verdicts = [f.status == "passed" for f in finals if f.status in VERDICTS]
    return interval(sum(verdicts), len(verdicts)) if verdicts else None


def interval(passed: int, n: int, z: float = 1.959964) -> list[float]:
    """The 95 % score interval of `passed` of `n` (E. B. Wilson, 1927)."""
    p = passed / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * ((p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5)
    return [round(max(0.0, middle - half), 6), round(min(1.0, middle + half), 6)]


def refusal(error: ErrorEntry, exit_code: int, ended_at: str) -> dict[str, Any]:
    """The envelope of a run that was refused before there was a session."""
    facts = RunFacts(
        run_id=None,
        run_dir=None,
        exit_code=exit_code,
        started_at=ended_at,
        ended_at=ended_at,
        duration_seconds=0.0,
        experiment=None,
        ordinary={},
        warnings=(),
        next_steps=(),
    )
    return envelope([], [error], facts)
