"""From what is known of a trial to its one record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_codeprobe.errors import CodeprobeError, Skipped, Stopped
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import (
    FINAL_MESSAGE,
    AgentInfo,
    Attempt,
    CriterionResult,
    DialogResult,
    Fingerprint,
    LimitHit,
    Phase,
    Status,
    TrialResult,
    Usage,
)
from pytest_codeprobe.model.sandbox import Change
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import spelled
from pytest_codeprobe.text import Redactor, shorten
from pytest_codeprobe.trial.fingerprint import fingerprint
from pytest_codeprobe.trial.grade import Verdict
from pytest_codeprobe.trial.session import SessionOutcome

_MAX_CHANGES = 200
_MAX_REASON = 2000  #: characters; cut after redaction, since half a secret is one too
_MAX_TAIL = 4000
_PHASES: Mapping[str, Phase] = {"setup": "prepare", "agent": "session", "grader": "grade", "criterion": "grade", "post_run": "preserve"}
_LETTER = {"added": "A", "modified": "M", "deleted": "D"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """How a trial ended where no verdict says it."""

    status: Status | None = None  #: None: the verdict's
    code: str | None = None
    reason: str | None = None
    remediation: str | None = None
    phase: Phase | None = None
    detail: Mapping[str, Any] = field(default_factory=dict)


def classify(error: BaseException | None, *, ours: bool, phase: Phase) -> Ending:
    """What an exception means for the record. `ours`: raised by a stage of the trial, not by a fixture of the user's."""
    if error is None:
        return Ending()
    if isinstance(error, Stopped):
        return Ending(status="not_run", reason=error.reason)
    if isinstance(error, Skipped):
        return Ending(status="skipped", reason=str(error))
    if isinstance(error, KeyboardInterrupt):
        return Ending(status="not_run", reason="interrupted")
    if isinstance(error, CodeprobeError):
        return Ending(
            status="error", code=error.code, reason=error.message, remediation=error.remediation, phase=phase, detail=error.detail
        )
    what = f"{type(error).__name__}: {error}"
    if ours and isinstance(error, OSError):
        return Ending(status="error", code="SANDBOX_FAILED", reason=what, phase=phase)
    if ours:
        return Ending(status="error", code="INTERNAL_ERROR", reason=what, phase=phase)
    return Ending(status="error", code="FIXTURE_FAILED", reason=what, phase="set-up")


def phase_of_attempt(error: CodeprobeError, otherwise: Phase) -> Phase:
    """Of an OFFLINE_NET_ATTEMPT: what its component works in."""
    return _PHASES.get(error.detail.get("component", ""), otherwise)


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that a record is made from."""

    trial: Trial
    context: Context
    attempts: tuple[Attempt, ...]
    usage: Usage
    cost_usd: float | None  #: of a simulated user, too
    dialog: DialogResult | None
    outcome: SessionOutcome | None
    verdict: Verdict | None
    limit: LimitHit | None
    changes: Sequence[Change]
    kept: Literal["whole", "partial", "none"]
    driver: str | None
    agent: Agent | None
    timings: dict[str, float]
    started_at: str
    duration: float
    began: bool
    redactor: Redactor
    warnings: tuple[str, ...]


def build_record(facts: Facts, ending: Ending, outcome: Literal["passed", "failed"] | None) -> TrialResult:
    """The record; every text in it without secrets. `outcome`: pytest's, of a marked test."""
    trial, session, clean = facts.trial, facts.outcome, facts.redactor
    judged = facts.verdict if facts.verdict is not None and not facts.verdict.skipped else None
    verdict: Literal["passed", "failed"] | None = ("passed" if judged.passed else "failed") if judged else None
    # an error after the verdict takes the verdict with it: there is one record, and it says error
    if ending.status is not None:
        status, verdict = ending.status, None
    else:
        status = outcome or verdict or "error"
    return TrialResult(
        run_id=facts.context.run_id,
        node_id=trial.node_id,
        task_id=trial.task_id,
        variant_id=trial.variant_id,
        row_id=trial.row_id,
        repeat=trial.repeat,
        tags=trial.tags,
        metadata=clean.json(trial.metadata),
        status=status,
        verdict=verdict,
        code=ending.code,
        reason=_reason(facts, ending, failed=verdict == "failed"),
        remediation=_remedy(facts, ending),
        phase=ending.phase,
        detail=clean.json(dict(ending.detail)),
        score=judged.score if judged and ending.status is None else None,
        pass_score=trial.pass_score,
        criteria=tuple(_clean_criterion(c, clean) for c in facts.verdict.criteria) if facts.verdict else (),
        limit_hit=facts.limit,
        expected_turns_overage=_overage(trial, facts.usage),
        agent=_agent(facts),
        driver=facts.driver,
        attempts=tuple(a.model_copy(update={"reason": clean.text(a.reason)}) if a.reason else a for a in facts.attempts),
        usage=facts.usage,
        cost_usd=facts.cost_usd,
        dialog=facts.dialog,
        final_message=shorten(clean.text(session.final_message), FINAL_MESSAGE) if session else "",
        stderr_tail=clean.text(session.stderr_tail)[-_MAX_TAIL:] if session else "",
        changed_files=tuple(clean.text(f"{_LETTER[c.kind]} {c.path}") for c in facts.changes[:_MAX_CHANGES]),
        changed_total=len(facts.changes),
        kept=facts.kept,
        warnings=tuple(clean.text(w) for w in facts.warnings),
        timings=facts.timings,
        fingerprint=fingerprint(trial, facts.context) if facts.began else Fingerprint(),
        worker=facts.context.worker,
        folder=trial.folder if facts.began or status == "error" else None,
        started_at=facts.started_at,
        ended_at=stamp(facts.context.clock.now()),
        duration_seconds=round(facts.duration, 3),
    )


def _remedy(facts: Facts, ending: Ending) -> str | None:
    """In the flags of the front door that was used."""
    if not ending.remediation:
        return None
    return spelled(facts.redactor.text(ending.remediation), console=facts.context.options.console)


def _reason(facts: Facts, ending: Ending, *, failed: bool) -> str | None:
    parts = filter(None, (ending.reason, why_failed(facts) if failed else None))
    return shorten(facts.redactor.text("; ".join(parts)), _MAX_REASON) or None


def why_failed(facts: Facts) -> str | None:
    """One line on what the verdict fail is due to."""
    if facts.verdict is None:
        return None
    missed = [c for c in facts.verdict.criteria if c.gate and c.verdict == "failed"]
    parts = [f"{c.type} {c.score:.2f} < {c.threshold:.2f}" for c in missed[:3] if c.score is not None]
    if len(missed) > 3:
        parts.append(f"and {len(missed) - 3} more")
    pass_score = facts.trial.pass_score
    if not missed and pass_score is not None and facts.verdict.score is not None and facts.verdict.score < pass_score:
        parts.append(f"score {facts.verdict.score:.2f} < pass_score {pass_score:.2f}")
    if facts.limit is not None and not parts:
        parts.append(f"limit {facts.limit.name} = {facts.limit.value:g} was hit (on_limit: fail)")
    return "; ".join(parts) or None


def _overage(trial: Trial, usage: Usage) -> int | None:
    expected = trial.limits.expected_turns
    if expected is None or usage.tool_calls is None:
        return None
    over = usage.tool_calls + 1 - expected
    return over if over > 0 else None


def _agent(facts: Facts) -> AgentInfo | None:
    if facts.outcome is not None:
        return facts.outcome.info
    if facts.agent is not None:
        return AgentInfo(name=facts.agent.name, model=facts.trial.agent.model)
    return None


def _clean_criterion(result: CriterionResult, clean: Redactor) -> CriterionResult:
    if not clean:
        return result
    return result.model_copy(update={"explanation": clean.text(result.explanation), "evidence": clean.json(result.evidence)})


def as_ours(raised: BaseException) -> CodeprobeError:
    """In the place of what an adapter or a criterion must not raise, such as sys.exit(): a fixture that does fails the next item too."""
    error = CodeprobeError("INTERNAL_ERROR", f"{type(raised).__name__}: {raised}")
    error.__cause__ = raised
    return error
