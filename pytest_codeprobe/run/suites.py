"""What a run comes to over many trials: figures of each task's rows, and the gates that thresholds and options set."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_codeprobe.model import metrics
from pytest_codeprobe.model.result import VERDICTS
from pytest_codeprobe.run.final import Final
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.run.proportion import Proportion

_DIGITS = 6


@dataclass(frozen=True, slots=True)
class GateResult:
    """One bound on a figure. `held` is None where it can't be judged."""

    name: str
    value: float | None
    threshold: float
    held: bool | None
    why: str = ""  #: it is not judged, as the end of a sentence

    def as_json(self) -> dict[str, Any]:
        """As data.gates has it."""
        return {"name": self.name, "value": self.value, "threshold": self.threshold, "held": self.held}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunGate:
    """A bound that an option or an experiment sets."""

    metric: str
    min: float | None = None
    max: float | None = None
    variant: str | None = None
    baseline: str | None = None
    standing: bool = False  #: an experiment's: meant for all trials, and not for those that a command line selects

    def lacks(self, plan: Iterable[PlannedTrial], variants: Sequence[str]) -> str:
        """Which trials of those that it is about are not in the run, as the end of a sentence; empty where none is known to be missing.

        `variants`: those that the experiment compares.
        """
        if not self.standing:
            return ""
        wanted = [name for name in (self.variant, self.baseline) if name is not None] or variants
        rows: dict[str, set[tuple[str, str | None]]] = {name: set() for name in wanted}
        groups: dict[tuple[str, str | None], list[PlannedTrial]] = {}
        for trial in plan:
            if trial.variant_id in rows or not wanted:
                groups.setdefault((trial.task_id, trial.variant_id), []).append(trial)
            if trial.variant_id in rows:
                rows[trial.variant_id].add((trial.task_id, trial.row_id))
        if any(len(group) != group[0].rows * group[0].repeats for group in groups.values()):
            return "not all of its trials were in the run"
        return "its variants were not run on the same tasks" if len(set(map(frozenset, rows.values()))) > 1 else ""


@dataclass(frozen=True, slots=True)
class Suite:
    """The trials of one task under one variant."""

    task_id: str
    variant_id: str | None
    planned: Sequence[PlannedTrial]
    finals: Sequence[Final]

    @property
    def test(self) -> str | None:
        """The marked test, without what stands in brackets; None for the task's own items."""
        return self.planned[0].node_id.partition("[")[0] if self.planned[0].marked else None

    @property
    def is_whole(self) -> bool:
        """Whether all its trials are in the run, and none was left out of it on the way."""
        first = self.planned[0]
        return len(self.planned) == first.rows * first.repeats and not any(f.status == "not_run" for f in self.finals)

    def criteria(self) -> Iterator[tuple[int, str, dict[str, float], dict[str, dict[str, int]]]]:
        """Number and type of each criterion, its figures, and its confusion matrix if it classifies."""
        marks: dict[tuple[int, str], list[Any]] = {}
        for final in self.finals:
            for mark in final.marks:
                marks.setdefault((mark.number, mark.type), []).append(mark)
        for number, kind, _ in self.planned[0].thresholds:
            marks.setdefault((number, kind), [])  # of which no trial has a score
        for (number, kind), found in sorted(marks.items()):
            pairs = [mark.labels for mark in found if mark.labels is not None]
            scores = [mark.score for mark in found if mark.score is not None]
            figures = {**metrics.of_scores(scores, len(self.planned)), **metrics.of_labels(pairs)}
            yield number, kind, figures, metrics.confusion(pairs)

    def as_json(self) -> dict[str, Any]:
        """As data.suites has it."""
        statuses = dict.fromkeys(("passed", "failed", "error", "skipped", "not_run"), 0)
        for final in self.finals:
            statuses[final.status] += 1
        listed = [
            {
                "criterion": number,
                "type": kind,
                "metrics": {name: round(value, _DIGITS) for name, value in figures.items()},
                "confusion": table or None,
            }
            for number, kind, figures, table in self.criteria()
        ]
        of_test = {} if self.test is None else {"test": self.test}
        return {
            **of_test,
            "task_id": self.task_id,
            "variant_id": self.variant_id,
            "rows": self.planned[0].rows,
            **statuses,
            "criteria": listed,
        }

    def gates(self) -> Iterator[GateResult]:
        """Its thresholds, each a minimum."""
        thresholds = {number: wanted for number, _, wanted in self.planned[0].thresholds}
        for number, kind, figures, _ in self.criteria() if thresholds else ():
            for metric, least in thresholds.get(number, {}).items():
                name = f"{self.test or self.task_id}{f' [{self.variant_id}]' if self.variant_id else ''}: {kind}[{number}] {metric}"
                yield _judged(
                    name, metrics.figure(figures, metric), least, None, "" if self.is_whole else "not all of its trials were in the run"
                )


def suites(plan: Mapping[str, PlannedTrial], finals: Mapping[str, Final]) -> list[Suite]:
    """Tasks with rows or thresholds, in the plan's order."""
    grouped: dict[tuple[str, str | None, str], list[PlannedTrial]] = {}
    for trial in plan.values():
        if trial.is_of_suite:
            # the second part of its folder tells a task and the tests of it apart
            grouped.setdefault((trial.task_id, trial.variant_id, trial.folder.split("/")[1]), []).append(trial)
    return [
        Suite(task_id, variant_id, planned, [finals[t.node_id] for t in planned if t.node_id in finals])
        for (task_id, variant_id, _), planned in grouped.items()
    ]


def proportion_gates(proportions: Iterable[tuple[PlannedTrial, Proportion]]) -> Iterator[GateResult]:
    """Over the repeats of a task, row and variant."""
    for trial, proportion in proportions:
        why = "" if proportion.held is not None else "too many of its repeats ended without a verdict"
        yield GateResult(f"{group_name(trial)}: passes of {proportion.repeats}", proportion.passes, proportion.needed, proportion.held, why)


def group_name(trial: PlannedTrial) -> str:
    """Of all repeats of a task, row and variant: the item's name without the number."""
    name = trial.node_id.partition("::")[2] or trial.node_id
    head, bracket, inner = name.removesuffix("]").partition("[")
    parts = inner.rpartition("-")[0] if bracket else ""
    return f"{head}[{parts}]" if parts else head


def run_gates(
    wanted: Iterable[RunGate], finals: Sequence[Final], plan: Collection[PlannedTrial] = (), variants: Sequence[str] = ()
) -> Iterator[GateResult]:
    """Bounds on the whole run, on a variant, or on the difference of two variants (the variant's figure minus the baseline's).

    `plan`: task items; `variants`: see RunGate.lacks.
    """
    for gate in wanted:
        mine = _figure(gate.metric, [f for f in finals if gate.variant in (None, f.variant_id)])
        whole = not any(f.status == "not_run" for f in finals)
        name = gate.metric + (f" [{gate.variant}]" if gate.variant else "")
        if gate.baseline is not None:
            other = _figure(gate.metric, [f for f in finals if f.variant_id == gate.baseline])
            mine = None if mine is None or other is None else mine - other
            name += f" - [{gate.baseline}]"
        why = gate.lacks(plan, variants) if whole else "not all trials were run"
        if gate.min is not None:
            yield _judged(f"{name} >= {gate.min:g}", mine, gate.min, None, why)
        if gate.max is not None:
            yield _judged(f"{name} <= {gate.max:g}", mine, None, gate.max, why)


def _judged(name: str, value: float | None, least: float | None, most: float | None, why: str) -> GateResult:
    bound = least if least is not None else most or 0.0
    if value is None:
        return GateResult(name, None, bound, None, why or "nothing is known of it")
    value = round(value, _DIGITS)
    held = value >= bound if least is not None else value <= bound
    return GateResult(name, value, bound, None if why else held, why)


def _figure(metric: str, finals: Sequence[Final]) -> float | None:
    verdicts = [f.status == "passed" for f in finals if f.status in VERDICTS]
    began = [f for f in finals if f.attempts]
    if metric == "pass_rate":
        return sum(verdicts) / len(verdicts) if verdicts else None
    if metric == "error_rate":
        errors = sum(f.status == "error" for f in finals)
        return errors / (errors + len(verdicts)) if errors or verdicts else None
    if metric == "score_mean":
        return _mean([f.score for f in finals if f.status in VERDICTS])
    if metric in ("cost_usd", "cost_usd_per_trial"):
        total = _sum([f.cost_usd for f in began])
        return total if metric == "cost_usd" or total is None else total / len(began)
    if metric == "total_tokens":
        return _sum([f.usage.total_tokens for f in began])
    if metric == "duration_seconds_mean":
        return _mean([f.duration_seconds for f in began])
    return None


def _sum(values: Sequence[float | None]) -> float | None:
    """None where one of them is not known: a bound on the rest would hold for nothing."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
