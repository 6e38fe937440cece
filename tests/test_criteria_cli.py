"""Criterion cli_called: calls in the harness's log of recorded programs, or in one that programs of the task write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_codeprobe.criteria.cli import CliCalled
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.criterion import Score
from pytest_codeprobe.model.invocations import CALLS_FILE
from tests.fake_grading import FakeGrading


def line(*argv: str, tool: str = "gh", **more: Any) -> str:
    return json.dumps({"argv": argv, "tool": tool, **more})


def score(folder: Path, lines: list[str] | None, **fields: Any) -> Score:
    content = None if lines is None else "\n".join(lines).encode()
    return CliCalled.model_validate({"type": "cli_called", **fields}).evaluate(FakeGrading(folder=folder, cli_calls=content))


def test_calls_are_counted(tmp_path: Path) -> None:
    log = [line("pr", "create", "--title", "x"), line("pr", "list"), line("pr", "create", tool="glab"), ""]
    assert score(tmp_path, log, tool="gh", verb="pr create", flags={"title": "x"}).value == 1
    assert score(tmp_path, log, verb="pr create", min_count=2, max_count=2).value == 1
    assert score(tmp_path, log, verb="pr create", max_count=1).value == 0
    assert score(tmp_path, log, tool="gh", verb="pr merge", min_count=0, max_count=0).value == 1
    missed = score(tmp_path, log, tool="gh", verb="pr merge")
    assert (missed.value, missed.evidence["recorded"]) == (0, 3)
    assert "gh pr create --title x" in missed.explanation
    assert score(tmp_path, []).value == 0
    assert score(tmp_path, log, min_count=3).value == 1


def test_a_log_that_can_not_be_read_whole_proves_no_absence(tmp_path: Path) -> None:
    for junk in ("{", "[]", '{"argv": "x"}', '{"argv": [1]}', "[" * 100_000, line("x", truncated=True), '{"lost": 3}'):
        log = [line("pr"), junk]
        assert score(tmp_path, log, verb="issue", min_count=0, max_count=0).value == 0
        assert score(tmp_path, log, verb="pr").value == 1


def test_an_expression_that_takes_for_ever_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_codeprobe.criteria.cli.criterion._SECONDS", 0.1)
    flags = {"x": {"matches_regex": "(a|aa)+$"}}
    for bounds in ({}, {"min_count": 0, "max_count": 0}):
        found = score(tmp_path, [line("--x", "a" * 300 + "!")] * 100, flags=flags, **bounds)
        assert (found.value, "too long" in found.explanation) == (0, True)


def test_a_log_of_the_tasks_own_programs(tmp_path: Path) -> None:
    grading = FakeGrading(folder=tmp_path, cli_calls=line("pr").encode())
    own = CliCalled.model_validate({"type": "cli_called", "log": "mocks/log", "verb": "x"})
    assert "no log" in own.evaluate(grading).explanation
    (grading.workspace / "mocks").mkdir()
    (grading.workspace / "mocks" / "log").write_text(line("x"))
    assert own.evaluate(grading).value == 1
    (grading.workspace / "cli_mocks").mkdir()
    (grading.workspace / CALLS_FILE).write_text(line("forged"))
    assert CliCalled.model_validate({"type": "cli_called", "verb": "forged"}).evaluate(grading).value == 0


def test_bounds_and_what_nothing_records(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="say min_count: 0 as well"):
        CliCalled.model_validate({"type": "cli_called", "max_count": 0})
    with pytest.raises(CodeprobeError, match=r"nothing writes cli_mocks/calls\.jsonl"):
        CliCalled.model_validate({"type": "cli_called"}).preflight(FakeGrading(folder=tmp_path))
