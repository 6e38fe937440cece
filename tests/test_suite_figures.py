"""Thresholds on figures of labels, and bounds that a run can't judge."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_codeprobe.model import metrics
from pytest_codeprobe.plugin.terminal import _gates
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.run.suites import GateResult, RunGate
from tests.task_files import load_one, refused

LABELLED = """\
task_id: t
initial_prompt: do it
success_criteria:
  - {{type: classification_match, path: a, expected_label: "${{row.l}}", allowed_labels: {allowed}, suite_thresholds: {{{metric}: 0.5}}}}
dataset: {{rows: [{{id: a, l: spam}}]}}
"""


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        ("recall.spamm", "is of no label that there is (did you mean 'recall.spam'?): those are spam, ham"),
        ("f1.(none)", "'(none)' in 'success_criteria[0].suite_thresholds' is no class"),
    ],
)
def test_a_label_that_can_not_be_is_refused(tmp_path: Path, metric: str, said: str) -> None:
    assert said in refused(load_one, tmp_path, LABELLED.format(allowed="[spam, ham]", metric=metric))


@pytest.mark.parametrize(("allowed", "metric"), [("[spam, ham]", "recall.ham"), ("null", "recall.spamm"), ('["${row.l}"]', "f1.spam")])
def test_a_label_that_can_be_is_none(tmp_path: Path, allowed: str, metric: str) -> None:
    load_one(tmp_path, LABELLED.format(allowed=allowed, metric=metric))


def test_a_label_that_nobody_expected_or_gave_is_zero() -> None:
    figures = metrics.of_labels([("a", "a"), ("b", "a")])
    assert (metrics.figure(figures, "recall.c"), metrics.figure(figures, "recall.a")) == (0.0, 1.0)
    assert (metrics.figure({}, "recall.c"), metrics.figure(figures, "median")) == (None, None)


def trial(variant: str, row: str, repeat: int = 1, repeats: int = 1) -> PlannedTrial:
    return PlannedTrial(
        node_id=f"t[{row}-{variant}-{repeat}]", task_id="t", variant_id=variant, row_id=row, repeat=repeat, repeats=repeats, rows=2,
        folder="f", task_file="t.yaml", agent="nop", model=None, driver="tempdir", limits={},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ([trial(v, r) for v in "xy" for r in "ab"], ""),
        ([*(trial("x", r) for r in "ab"), *(trial("y", r, n, 2) for r in "ab" for n in (1, 2))], ""),  # a variant may have more repeats
        ([*(trial(v, r) for v in "xy" for r in "ab"), trial("z", "a")], ""),  # of a variant that it does not name
        ([*(trial("x", r) for r in "ab"), trial("y", "a")], "not all of its trials were in the run"),
        ([trial("x", r) for r in "ab"], "its variants were not run on the same tasks"),
    ],
)
def test_a_gate_of_an_experiment_needs_all_its_trials(plan: list[PlannedTrial], why: str) -> None:
    gate = RunGate(metric="pass_rate", min=0.5, variant="x", baseline="y", standing=True)
    assert gate.lacks(plan, ("x", "y", "z")) == why
    assert RunGate(metric="pass_rate", min=0.5).lacks(plan, ("x", "y", "z")) == ""


def test_many_gates_take_few_lines() -> None:
    """Of the summary; all of them are in the envelope."""
    fallen = [GateResult(f"f{n}", 0.5, 1, held=False) for n in range(12)]
    unjudged = [GateResult(f"u{n}", None, 1, held=None, why="not all") for n in range(5)]
    lines = list(_gates([*fallen, *unjudged, GateResult("one", 0.25, 1, held=None), GateResult("good", 1, 1, held=True)]))
    assert lines[:10] == [f"gate fell: f{n}: needs 1, is 0.5" for n in range(10)]
    assert lines[10:] == [
        "gates fell: 2 more: data.gates of envelope.json",
        "5 gates not judged: u0, u1, u2 and 2 more (not all)",
        "gate not judged: one: needs 1, is 0.25",
    ]
