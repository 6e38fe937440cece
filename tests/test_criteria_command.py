from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_codeprobe.criteria.command import RunCommand
from pytest_codeprobe.criteria.command.criterion import printed_score
from pytest_codeprobe.criteria.command.reports import BadReport, read_junit, read_tap
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import PreRunCommand
from pytest_codeprobe.model.criterion import Score
from tests.fake_grading import FakeGrading, write


@pytest.fixture
def grading(tmp_path: Path) -> FakeGrading:
    return FakeGrading(folder=tmp_path)


def run(grading: FakeGrading, command: str, **fields: Any) -> Score:
    return RunCommand.model_validate({"type": "run_command", "command": command, **fields}).evaluate(grading)


@pytest.mark.parametrize(
    ("command", "fields", "score"),
    [
        ("true", {}, 1),
        ("exit 3", {}, 0),
        ("exit 3", {"expected_exit_code": 3}, 1),
        ("kill -9 $$", {}, 0),
        ("no-such-program", {}, 0),
        ("echo hello", {"expected_stdout": "hello"}, 1),
        ("printf 'a\\r\\nb'", {"expected_stdout": "a\nb\n"}, 1),
        ("echo hello", {"expected_stdout": "hell"}, 0),
        ("echo hello", {"expected_stdout": "hell", "stdout_match": "contains"}, 1),
        ("echo hello", {"expected_stdout": "^h.*o$", "stdout_match": "regex"}, 1),
        ("echo hello", {"expected_stdout": "^x", "stdout_match": "regex"}, 0),
        ("echo working; echo 0.75; echo", {"score_from_stdout": True}, 0.75),
        ("echo 1; exit 1", {"score_from_stdout": True}, 0),
        ('test "$PWD" = "$WORKSPACE" && test -d "$TASK_DIR"', {}, 1),
    ],
)
def test_run_command(grading: FakeGrading, command: str, fields: dict[str, Any], score: float) -> None:
    assert run(grading, command, **fields).value == score


@pytest.mark.parametrize(
    ("output", "value"),
    [("1", 1), ("x\n .5 \n\n", 0.5), ("0", 0), ("1e-3", 0.001)]
    + [(text, None) for text in ("nan", "inf", "1.01", "-0.1", "", "done", "0.5 ok")],
)
def test_a_score_is_a_number_from_0_to_1_on_the_last_line(output: str, value: float | None) -> None:
    assert printed_score(output) == value


def test_no_number_is_a_zero_with_the_reason(grading: FakeGrading) -> None:
    score = run(grading, "echo NaN", score_from_stdout=True)
    assert score.value == 0
    assert "no number from 0 to 1: 'NaN'" in score.explanation


def test_a_time_out_is_zero_and_ends_the_whole_tree(grading: FakeGrading) -> None:
    begun = time.monotonic()
    score = run(grading, "setsid sh -c 'sleep 60; touch later' & echo $! >pid; sleep 60", timeout=0.5)
    assert score.value == 0
    assert score.explanation == "it took longer than 0.5 s"
    assert time.monotonic() - begun < 20


def test_what_is_left_of_the_grading_time_bounds_it_too(grading: FakeGrading) -> None:
    grading.seconds = 0.3
    assert "longer than 0.3 s" in run(grading, "sleep 60").explanation


def test_a_background_process_does_not_outlive_it(grading: FakeGrading) -> None:
    score = run(grading, "(while :; do echo x >>log; sleep 0.02; done) & while ! test -s log; do sleep 0.01; done")
    assert score.value == 1
    size = (grading.workspace / "log").stat().st_size
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        assert (grading.workspace / "log").stat().st_size == size


def test_too_much_output_is_zero(grading: FakeGrading) -> None:
    assert "more output" in run(grading, "head -c 5000000 /dev/zero").explanation


def test_a_command_that_cannot_be_started_is_an_error(grading: FakeGrading, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError(11, os.strerror(11))

    monkeypatch.setattr(FakeGrading, "run", refuse)
    with pytest.raises(CodeprobeError) as caught:
        run(grading, "true")
    assert caught.value.code == "VERIFIER_FAILED"


def test_a_deleted_workspace_is_the_agents_doing(grading: FakeGrading) -> None:
    grading.workspace.rmdir()
    assert run(grading, "true").value == 0


@pytest.mark.parametrize(
    "fields",
    [
        {"command": ""},
        {"min_tests": 1},
        {"expected_tests": ["a"]},
        {"stdout_match": "contains"},
        {"score_from_stdout": True, "expected_stdout": "x"},
        {"expected_stdout": "(", "stdout_match": "regex"},
        {"timeout": 0},
        {"report": {"path": "../x", "format": "tap"}},
        {"report": {"path": "x", "format": "xml"}},
    ],
)
def test_what_makes_no_sense_is_refused_at_load(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RunCommand.model_validate({"type": "run_command", "command": "true", **fields})


JUNIT = """<?xml version="1.0"?><testsuites><testsuite name="s">
<testcase classname="pkg.TestA" name="one"/><testcase classname="pkg.TestA" name="two"><system-out>x</system-out></testcase>
{}</testsuite></testsuites>"""


@pytest.mark.parametrize(
    ("more", "fields", "score"),
    [
        ("", {}, 1),
        ("", {"min_tests": 2}, 1),
        ("", {"min_tests": 3}, 0),
        ("", {"expected_tests": ["one", "pkg.TestA.two", "pkg.TestA::one"]}, 1),
        ("", {"expected_tests": ["three"]}, 0),
        ('<testcase name="three"><failure/></testcase>', {}, 0),
        ('<testcase name="three"><error/></testcase>', {}, 0),
        ('<testcase name="three"><skipped/></testcase>', {}, 1),
        ('<testcase name="three"><skipped/></testcase>', {"min_tests": 3}, 0),
        ('<testcase name="three"><skipped/></testcase>', {"expected_tests": ["three"]}, 0),
    ],
)
def test_a_junit_report_holds_a_command_to_its_tests(grading: FakeGrading, more: str, fields: dict[str, Any], score: float) -> None:
    write(grading.task, {"report.xml": JUNIT.format(more)})
    got = run(grading, 'cp "$TASK_DIR/report.xml" r.xml', report={"path": "r.xml", "format": "junit"}, **fields)
    assert got.value == score, got.explanation


def test_a_report_that_was_there_before_does_not_count(grading: FakeGrading) -> None:
    write(grading.workspace, {"r.xml": JUNIT.format("")})
    score = run(grading, "true", report={"path": "r.xml", "format": "junit"})
    assert score.value == 0
    assert "r.xml does not exist" in score.explanation


def test_a_report_is_not_read_through_a_link_that_leaves(grading: FakeGrading) -> None:
    write(grading.folder, {"elsewhere/r.xml": JUNIT.format("")})
    (grading.workspace / "out").symlink_to(grading.folder / "elsewhere")
    assert run(grading, "true", report={"path": "out/r.xml", "format": "junit"}).value == 0
    assert (grading.folder / "elsewhere" / "r.xml").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"<html/>", b"<testsuite>", b'<!DOCTYPE x [<!ENTITY a "b">]><testsuite/>', b"\0\xff", b'<testsuite><testcase name="a"/>'],
)
def test_what_is_no_junit_report_is_refused(data: bytes) -> None:
    with pytest.raises(BadReport):
        read_junit(data)


NODE = """TAP version 13
# Subtest: adds
    # Subtest: small
    ok 1 - small
      ---
      duration_ms: 1
      text: |
        ok 99 - not a test
      ...
    # Subtest: big
    ok 2 - big
    1..2
ok 1 - adds
# Subtest: alone
ok 2 - alone
1..2
"""


def test_tap_with_subtests() -> None:
    report = read_tap(NODE)
    assert [t.names for t in report.tests] == [("small", "adds > small"), ("big", "adds > big"), ("alone",)]
    assert not report.problems
    assert not report.not_passed("adds > big")
    assert report.not_passed("adds")


@pytest.mark.parametrize(
    ("text", "passed", "failed", "skipped", "problems"),
    [
        ("1..2\nok 1 - a\nok 2 - b\n", 2, 0, 0, 0),
        ("1..3\nok 1 - a\n", 1, 0, 0, 1),
        ("ok 1 - a # SKIP no net\nnot ok 2 - b # TODO later\n1..2\n", 0, 0, 2, 0),
        ("ok 1 - issue \\#5\nnot ok 2\n1..2\n", 1, 1, 0, 0),
        ("1..2\nok 1 - a\nBail out! no disk\n", 1, 0, 0, 2),
        ("    not ok 1 - x\nnot ok 1 - suite\n1..1\n", 0, 1, 0, 0),
        ("    ok 1 - x\nnot ok 1 - suite\n1..1\n", 1, 0, 0, 1),
    ],
)
def test_tap(text: str, passed: int, failed: int, skipped: int, problems: int) -> None:
    report = read_tap(text)
    counts = report.count("passed"), report.count("failed"), report.count("skipped"), len(report.problems)
    assert counts == (passed, failed, skipped, problems)


@pytest.mark.parametrize("text", ["", "hello\n", "# only a comment\n"])
def test_what_is_no_tap_report_is_refused(text: str) -> None:
    with pytest.raises(BadReport):
        read_tap(text)


def test_a_process_that_leaves_early_reports_too_few(grading: FakeGrading) -> None:
    score = run(
        grading,
        "printf 'TAP version 13\\nok 1 - file\\n1..1\\n' >r.tap",
        report={"path": "r.tap", "format": "tap"},
        expected_tests=["adds"],
    )
    assert score.value == 0
    assert "not passed: 'adds'" in score.explanation


@pytest.mark.parametrize(
    ("command", "env", "told"),
    [
        ("python3 -m pytest -q", {}, "`python3 -m pytest` can't run: `python` in a grader is the interpreter that runs pytest"),
        ("cd sub && X=1 Y=2 python3 -B -m pytest", {}, "`python3 -m pytest` can't run"),
        ("make test", {"PATH": "/nowhere"}, "the command starts make, which graders don't find on PATH"),
        ("\n  pytest tests", {"PATH": "/nowhere"}, "the command starts pytest"),
        ("python3 -m pytest", {"PATH": "/nowhere"}, "can't run"),
        ("python3 -m pytest_own", {}, ""),
        ("python3 -m own", {}, ""),
        ("python3 check.py; python3 -m pytest", {}, ""),  # only what it starts with is looked at
        ("./pytest", {"PATH": "/nowhere"}, ""),
        ("PATH=.venv/bin:/bin pytest tests", {"PATH": "/nowhere"}, ""),  # where it is found is not known yet
        ("X=1 PATH=.venv/bin make", {"PATH": "/nowhere"}, ""),
        ("PYTHONPATH=vendor python3 -m pytest", {}, ""),
        ("PYTHONPATH=. python3 -m pytest", {}, "`python3 -m pytest` can't run"),
        ("makeshift", {"PATH": "/nowhere"}, ""),
    ],
)
def test_a_runner_that_graders_do_not_have_is_told_before_the_session(
    grading: FakeGrading, command: str, env: dict[str, str], told: str
) -> None:
    grading.env = {**grading.env, **env}
    if not env:  # a python without packages, as graders find it
        plain = grading.folder / "bin"
        plain.mkdir()
        (plain / "python3").write_text(f'#!/bin/sh\nexec {sys.executable} -S -E "$@"\n')
        (plain / "python3").chmod(0o755)
        grading.env = {"PATH": f"{plain}:/usr/bin:/bin"}
    criterion = RunCommand.model_validate({"type": "run_command", "command": command})
    if told:
        with pytest.raises(CodeprobeError) as caught:
            criterion.preflight(grading)
        assert caught.value.code == "VERIFIER_FAILED"
        assert told in caught.value.message
        assert caught.value.remediation
    else:
        criterion.preflight(grading)
        assert not grading.starts
        grading.pre_run = (PreRunCommand(command="make ready"),)  # it may bring the runner
        criterion.preflight(grading)
        grading.pre_run = ()
    if command == "python3 -m pytest -q":
        (grading.workspace / "pytest.py").write_text("print('the workspace has its own')")
        criterion.preflight(grading)
        assert criterion.evaluate(grading).value == 1


def test_a_module_that_is_missing_comes_with_a_hint(grading: FakeGrading) -> None:
    score = run(grading, "python3 -c 'import no_such_thing.of_it'")
    assert "No module named" in score.explanation
    assert score.explanation.endswith(
        "(`python` in a grader is the interpreter that runs pytest, without its packages; it has no no_such_thing)"
    )
