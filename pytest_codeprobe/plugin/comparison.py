"""The summary's figures side by side: variants of an experiment, and repeats of a task."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from pytest_codeprobe.amounts import span
from pytest_codeprobe.model.result import VERDICTS
from pytest_codeprobe.plugin.failure import money
from pytest_codeprobe.run.envelope import interval
from pytest_codeprobe.run.envelope import money as run_money
from pytest_codeprobe.run.final import Final
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.run.proportion import gate_of
from pytest_codeprobe.run.suites import group_name

_SHOWN = 10  #: repeated tasks
_HEAD = ("variant", "trials", "passed", "failed", "error", "pass rate", "95 % interval", "score", "cost", "mean time")


def variant_lines(finals: Sequence[Final], variants: Sequence[str]) -> Iterator[str]:
    """A table; nothing where there is only one variant. `variants`: in the order of the experiment."""
    groups = {name: [f for f in finals if f.variant_id == name] for name in variants}
    rows = [_row(name, group) for name, group in groups.items() if group]
    if len(rows) < 2:
        return
    table = [_HEAD, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(_HEAD))]
    for name, *cells in table:
        yield "  ".join([name.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))])


def _row(name: str, finals: Sequence[Final]) -> tuple[str, ...]:
    verdicts = [f.status == "passed" for f in finals if f.status in VERDICTS]
    scores = [f.score for f in finals if f.score is not None]
    times = [f.duration_seconds for f in finals if f.duration_seconds is not None and f.attempts]
    cost, complete = run_money(finals)
    return (
        name,
        str(len(finals)),
        str(sum(verdicts)),
        str(len(verdicts) - sum(verdicts)),
        str(sum(f.status == "error" for f in finals)),
        *((f"{sum(verdicts) / len(verdicts):.0%}", _interval(sum(verdicts), len(verdicts))) if verdicts else ("-", "-")),
        f"{sum(scores) / len(scores):.2f}" if scores else "-",
        "-" if cost is None else money(cost) + ("" if complete else "+"),
        _seconds(sum(times) / len(times)) if times else "-",
    )


def repeat_lines(finals: Sequence[Final], plan: Collection[PlannedTrial], needed: dict[str, int]) -> Iterator[str]:
    """Repeated tasks with a gate, or whose repeats did not end alike: those with a miss or an error first. `needed`: passes, by gate."""
    of = {trial.node_id: trial for trial in plan if trial.repeats > 1 and trial.counts}
    groups: dict[str, list[Final]] = {}
    for final in finals:
        if final.node_id in of:
            groups.setdefault(gate_of(of[final.node_id].folder), []).append(final)
    mixed = {gate: group for gate, group in groups.items() if gate in needed or len({f.status for f in group}) > 1}
    for gate, group in sorted(mixed.items(), key=lambda each: (_is_clean(each[1]), each[0] not in needed))[:_SHOWN]:
        passed, graded = (sum(f.status in kinds for f in group) for kinds in (("passed",), VERDICTS))
        said = f"repeats: {group_name(of[group[0].node_id])}: {passed}/{of[group[0].node_id].repeats} passed"
        said += f", of {graded} graded" if graded != of[group[0].node_id].repeats else ""
        said += f" (95 % interval {_interval(passed, graded)})" if graded else ""
        yield said + (f", {needed[gate]} needed" if gate in needed else "")
    if len(mixed) > _SHOWN:
        yield f"repeats: {len(mixed) - _SHOWN} more tasks with repeats: data.results of envelope.json"


def _is_clean(group: Sequence[Final]) -> bool:
    return {"failed", "error"}.isdisjoint(f.status for f in group)


def _seconds(mean: float) -> str:
    """With one place as long as it is short, so that a column of them is even."""
    return f"{mean:.1f} s" if mean < 60 else span(round(mean))


def _interval(passed: int, graded: int) -> str:
    low, high = interval(passed, graded)
    return f"{low:.0%} to {high:.0%}"
