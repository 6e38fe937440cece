"""A trial's final record as the controller keeps it: thousands of them wait for the end of a run."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pytest_codeprobe.model.result import TrialResult, Usage
from pytest_codeprobe.run.plan import Gate, PlannedTrial


@dataclass(frozen=True, slots=True)
class Mark:
    """What one criterion made of one trial of a suite."""

    number: int  #: of the criterion in its task
    type: str
    score: float | None
    labels: tuple[str, str] | None  #: expected and observed, of a classification


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
    known_usd: float | None = None  #: the same, or where that is not known the cost of those attempts whose cost is
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
    missed: bool = False  #: `expected`, because the gate over its repeats has not fallen
    marks: tuple[Mark, ...] = ()  #: of its criteria, where they count for a suite


def final_of(result: TrialResult, expected: bool = False, planned: PlannedTrial | None = None) -> Final:
    """The slim form of a record that the controller keeps."""
    agent = result.agent
    paid = [cost for attempt in result.attempts if (cost := attempt.bill.cost_usd) is not None]
    gate = planned.gate(result.status) if planned is not None else None
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
        known_usd=result.cost_usd if result.cost_usd is not None or not paid else sum(paid),
        usage=result.usage if result.dialog is None else result.usage.plus(result.dialog.usage),
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
        marks=tuple(_marks(result)) if planned is not None and planned.is_of_suite else (),
    )


def _marks(result: TrialResult) -> Iterator[Mark]:
    for number, criterion in enumerate(result.criteria):
        expected, observed = (criterion.evidence.get(name) for name in ("expected_label", "observed_label"))
        labels = (sys.intern(expected), sys.intern(observed)) if isinstance(expected, str) and isinstance(observed, str) else None
        yield Mark(number, sys.intern(criterion.type), criterion.score, labels)
