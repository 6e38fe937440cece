"""run.log and pytest's --log-file: every trial's own log, in order, without secrets, written by the controller alone."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from pytest_codeprobe.run.log import RunLog
from pytest_codeprobe.text import Redactor
from tests.front_door import Project, Run, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"
LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (DEBUG|INFO|WARNING|ERROR) .*")
KEY = "sk-a-very-secret-value"


def fill(project: Project) -> None:
    project.task("a-good", agent=scripted(WRITE))
    project.task("b-bad", agent=scripted({"say": "no"}))
    project.task("c-crash", agent=scripted({"fail": "AGENT_CRASHED"}))
    project.task("d-skip", agent=scripted(WRITE), skip="not today")
    project.task("e-setup", agent=scripted(WRITE), pre_run=[{"command": "exit 3"}])


def run_log(run: Run) -> list[str]:
    lines = (run.folder / "run.log").read_text().splitlines()
    assert all(LINE.fullmatch(line) for line in lines), [line for line in lines if not LINE.fullmatch(line)]
    return lines


def ends(lines: list[str]) -> list[str]:
    """Task ids in the order in which their last entries come."""
    found = (re.search(r"::([a-z-]+): (?:passed|failed|error|skipped|not_run)\b", line) for line in lines)
    return [match[1] for match in found if match]


@pytest.mark.joint
def test_every_trial_in_the_order_of_the_ends(project: Project, mode: str) -> None:
    fill(project)
    project.write("tests/test_own.py", "import logging\ndef test_own(): logging.warning('of an ordinary test')\n")
    to_file = ("--log-file=all.log", "--log-file-format=%(levelname)s %(message)s")
    run = project.run("tasks", "tests", AGENT, *to_file, mode=mode).assert_consistent()
    assert_log_file_has_the_same(run)
    assert mode == "xdist" or "WARNING of an ordinary test" in (project.path / "all.log").read_text().splitlines()
    lines = run_log(run)
    finished = [e["task_id"] for e in run.events if e["event"] == "trial_finished"]
    assert ends(lines) == finished
    assert sorted(finished) == ["a-good", "b-bad", "c-crash", "d-skip", "e-setup"]
    text = "\n".join(lines)
    for task in ("a-good", "b-bad", "c-crash", "e-setup"):  # all that its own log says, in one piece
        number = len(run.result(task)["attempts"]) if task == "c-crash" else 1
        for attempt in range(1, number + 1):
            own = (run.trial(task) / f"attempt-{attempt}" / "trial.log").read_text().splitlines()
            name = f"tasks/{task}.yaml::{task}" + (f" #{attempt}" if number > 1 else "")
            at = [n for n, line in enumerate(lines) if f" {name}: attempt {attempt} of " in line]
            assert len(at) == 1, (name, text)
            block = lines[at[0] : at[0] + len(own)]
            assert [line.replace(f" {name}: ", " ", 1) for line in block] == own
    assert f"run {run.envelope['data']['run_id']}: 5 trials" in lines[0]
    assert lines[-1].endswith(f"ended with exit code {run.code}")
    assert [line for line in lines if " ERROR " in line and "AGENT_CRASHED: " in line]


def assert_log_file_has_the_same(run: Run) -> None:
    """pytest's own, whose format here is the level and the text."""
    lines = (run.project.path / "all.log").read_text().splitlines()
    ours = [line.split(" ", 2)[2] for line in run_log(run)]
    assert [line for line in lines if line in ours] == ours
    assert ends(lines) == ends(ours)


@pytest.mark.parametrize("mode", ["xdist"])
def test_log_file_keeps_to_the_level(project: Project, mode: str) -> None:
    project.task("a-good", agent=scripted(WRITE))
    project.task("e-setup", agent=scripted(WRITE), pre_run=[{"command": "exit 3"}])
    project.run("tasks", AGENT, "--log-file=all.log", "--log-level=ERROR", mode=mode)
    lines = (project.path / "all.log").read_text().splitlines()
    assert lines
    assert all(line.startswith("ERROR") for line in lines)


def test_log_file_of_the_ini(project: Project) -> None:
    project.task("a-good", agent=scripted(WRITE))
    project.write("pytest.ini", "[pytest]\nlog_file = ini.log\nlog_file_level = debug\n")
    project.run("tasks", AGENT)
    assert "a-good: session starts" in (project.path / "ini.log").read_text()


@pytest.mark.joint
@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_without_pytests_logging(project: Project, mode: str) -> None:
    project.task("a-good", agent=scripted(WRITE))
    project.task("b-bad", agent=scripted({"say": "no"}))
    run = project.run("tasks", AGENT, "-p", "no:logging", mode=mode).assert_consistent()
    assert sorted(ends(run_log(run))) == ["a-good", "b-bad"]


def test_of_a_plain_run_the_file_is_pytests_own(project: Project) -> None:
    project.write("tests/test_own.py", "import logging\ndef test_own(): logging.warning('mine')\n")
    project.run("tests", "--log-file=all.log", mode="xdist")
    assert "mine" in (project.path / "all.log").read_text()


def test_the_console_script_has_it_too(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    run = project.codeprobe("run", "--log-file", "all.log", "-v", "--json")
    run.assert_pure(events=False)
    assert "::t: session starts" in (project.path / "all.log").read_text()


def test_no_secret_gets_there(project: Project) -> None:
    project.task("t", agent=scripted({"run": "echo $MY_TOKEN"}, WRITE), sandbox={"env_passthrough": ["MY_TOKEN"]},
                 pre_run=[{"command": f"echo {KEY}; exit 3"}])  # fmt: skip
    project.write(
        "conftest.py", f"import logging\ndef pytest_runtest_logfinish(): logging.getLogger('codeprobe').warning('{KEY} of a hook')\n"
    )
    run = project.run("tasks", AGENT, "--log-file=all.log", env={"MY_TOKEN": KEY}).assert_consistent()
    assert KEY not in (run.folder / "run.log").read_text()
    assert "[REDACTED] of a hook" in (run.folder / "run.log").read_text()


def test_an_interrupt_and_a_killed_worker_are_told(project: Project) -> None:
    project.task("t", agent=scripted({"run": f"touch '{project.marks}/there'"}, {"sleep": 60}))
    run = project.start("tasks", AGENT)
    run.wait_for("there")
    run.signal(15)
    run.wait().assert_consistent()
    lines = run_log(run)
    assert [line for line in lines if "WARNING interrupted: SIGTERM" in line]
    assert ends(lines) == ["t"]
    project.write("conftest.py", "import os, pytest\n@pytest.fixture\ndef die(codeprobe_session): os._exit(9)\n")
    project.task("d", agent=scripted(WRITE), fixtures=["die"])
    died = project.run("tasks/d.yaml", AGENT, mode="xdist").assert_consistent()
    assert [line for line in run_log(died) if "::d: error, WORKER_DIED" in line]


def test_what_lies_in_its_place_spoils_nothing(project: Project) -> None:
    """A session may write into the run directory, as tempdir does not isolate."""
    logs = "$RUN/trials/default/other/r001/attempt-1"
    spoil = f"mkdir -p {logs}; mkfifo {logs}/trial.log; rm -f $RUN/run.log; ln -s /nowhere $RUN/run.log"
    project.task("a", agent=scripted({"run": spoil}, WRITE), sandbox={"env_passthrough": ["RUN"]})
    project.task("b", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, "--codeprobe-run-dir=out", env={"RUN": str(project.path / "out")}).assert_consistent()
    assert run.statuses == {"a": "passed", "b": "passed"}
    assert (run.code, [e["code"] for e in run.envelope["errors"]]) == (6, ["SANDBOX_FAILED"])
    assert "run.log" in run.envelope["errors"][0]["message"]


def test_entries_of_more_than_one_line_and_hostile_ones(tmp_path: Path) -> None:
    log = tmp_path / "trial.log"
    log.write_bytes(b"no time\n2026-01-02 03:04:05,678 WARNING first\nsecond\n2026-99-02 03:04:05,678 NOPE \x1b[31mthird\xff\n")
    told: list[str] = []
    run = RunLog(tmp_path / "run.log", Redactor(["topsecret1"]), also=lambda e: told.append(e.text), failed=lambda e: pytest.fail(str(e)))
    run.trial("t", [log, tmp_path / "nowhere"], "passed topsecret1")
    text = (tmp_path / "run.log").read_text()
    assert told == ["t #1: no time", "t #1: first\n  second", "t #1: third\ufffd", "t: passed [REDACTED]"]
    assert "2026-01-02 03:04:05,678 WARNING t #1: first\n  second\n" in text
    assert "\x1b" not in text
    os.mkfifo(tmp_path / "fifo")
    run.trial("u", [tmp_path / "fifo"], "passed")
    assert told[-1] == "u: passed"
    log.write_bytes(b"2026-01-02 03:04:05,678 INFO many\n" + b"x\n" * (9 << 20))
    run.trial("v", [log], "failed")
    many = told[-2].splitlines()
    assert (many[0], many[1], many[-1]) == ("v: many", "  x", "  [… the rest is in trial.log …]")
    assert (tmp_path / "run.log").stat().st_size < 4 << 20
