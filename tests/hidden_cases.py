"""Hidden-test tasks as values: what is in the workspace, what is hidden, and the verdict that must come out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.criteria.hidden import HiddenTests
from pytest_codeprobe.model.criterion import Score
from tests.fake_grading import FakeGrading, write

CALC = "def add(a, b):\n    return a + b\n"
WRONG = "def add(a, b):\n    return a - b\n"
TESTS = """from calc import add

def test_small():
    assert add(1, 2) == 3

def test_big():
    assert add(10**20, 1) == 10**20 + 1
"""
HIDDEN = {"hidden/test_calc.py": TESTS}


@dataclass
class Case:
    """`agent` is what the session leaves on top of the template; `act` does to the workspace what files can't."""

    agent: Mapping[str, str] = field(default_factory=lambda: {"calc.py": CALC})
    template: Mapping[str, str] = field(default_factory=lambda: {"calc.py": "def add(a, b): ...\n"})
    hidden: Mapping[str, str] = field(default_factory=lambda: dict(HIDDEN))
    paths: tuple[str, ...] = ("hidden",)
    score: float = 1.0
    says: str = ""
    act: Callable[[Path], object] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)
    joint: bool = False


#: how a driver may start the tests: as a fork of a process that has pytest loaded, or as a new process
both_ways = pytest.mark.parametrize("warm", [True, False], ids=["forked", "anew"])


def prepare(folder: Path, case: Case, *, warm: bool = True, **more: Any) -> tuple[HiddenTests, FakeGrading]:
    """The criterion, and its grading with everything in place."""
    grading = FakeGrading(folder=folder, warm=warm, **more)
    write(grading.task, case.hidden)
    write(grading.template, case.template)
    write(grading.workspace, {**case.template, **case.agent})
    if case.act is not None:
        case.act(grading.workspace)
    return HiddenTests.model_validate({"type": "pytest", "paths": case.paths, **case.fields}), grading


def grade(folder: Path, case: Case, *, warm: bool = True) -> Score:
    """Its score. Fails if the tests were not started the way that was asked for."""
    criterion, grading = prepare(folder, case, warm=warm)
    score = criterion.evaluate(grading)
    assert forked(grading) == [warm] * len(grading.starts)
    return score


def forked(grading: FakeGrading) -> list[bool]:
    """Of each process that was started, whether it came from one that had its program loaded."""
    return [process.spawner_pid != grading.processes.pid for process in grading.starts]


def table(cases: Mapping[str, Case]) -> pytest.MarkDecorator:
    """Each case a test, by its name."""
    rows = [pytest.param(c, id=name, marks=pytest.mark.joint if c.joint else ()) for name, c in cases.items()]
    return pytest.mark.parametrize("case", rows)


def hidden(source: str, **more: str) -> dict[str, str]:
    return {"hidden/test_calc.py": source, **more}
