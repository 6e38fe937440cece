"""What a record, an event and the exit code say when something beside the agent goes wrong."""

from __future__ import annotations

import json
import os
import signal
from typing import Any
from unittest.mock import ANY

import pytest

from tests.front_door import Project, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
USAGE = {"usage": {"model": "m1", "input_tokens": 100, "output_tokens": 20, "cost_usd": 0.25}}
AGENT = "--codeprobe-agent=scripted"

CRITERION = """
from typing import Literal
from pytest_codeprobe.model.criterion import Criterion, Score

class Odd(Criterion):
    type: Literal["odd"]
    how: str

    def evaluate(self, grading):
        return {
            "none": None,
            "text": Score("1"),
            "why": Score(1.0, None),
            "object": Score(1.0, "", {"x": object()}),
            "nan": Score(float("nan")),
        }[self.how]

def pytest_codeprobe_criteria(config):
    return [Odd]
"""


def test_a_criterion_that_answers_nonsense_is_a_broken_verifier(project: Project) -> None:
    project.write("conftest.py", CRITERION)
    ways = ("none", "text", "why", "object", "nan")
    for how in ways:
        project.task(how, agent=scripted(WRITE, USAGE), success_criteria=[{"type": "odd", "how": how}])
    run = project.run(AGENT)
    run.assert_consistent()
    assert run.code == 6
    for how in ways:
        result = run.result(how)
        assert (result["status"], result["code"], result["phase"]) == ("error", "VERIFIER_FAILED", "grade"), result["reason"]
        assert "criterion 1 (odd)" in result["reason"]
        assert result["cost_usd"] == 0.25


def test_infinite_weight_is_refused(project: Project) -> None:
    project.task("a", agent=scripted(WRITE), success_criteria=[{"type": "file_exists", "path": "out.txt", "weight": float("inf")}])
    run = project.run(AGENT)
    assert "INTERNALERROR" not in run.output
    assert run.code == 4
    assert "tasks/a.yaml:" in run.output


def test_second_attempts_error_is_one_of_the_session(project: Project) -> None:
    project.task("a", agent=scripted({"fail": "LLM_UNAVAILABLE"}))
    run = project.run(AGENT)
    run.assert_consistent()
    result = run.result("a")
    assert (result["code"], len(result["attempts"]), result["phase"]) == ("LLM_UNAVAILABLE", 2, "session")


def test_disabled_criteria_alone_are_an_error_under_any_agent(project: Project) -> None:
    project.task("a", success_criteria=[{"type": "file_exists", "path": "x", "enabled": False}])
    run = project.run("--codeprobe-agent=nop")
    run.assert_consistent()
    assert (run.result("a")["status"], run.result("a")["code"], run.code) == ("error", "VERIFIER_FAILED", 6)


AGENTS = """
from pytest_codeprobe.agents.command import CommandAgent, CommandParser
from pytest_codeprobe.agents.scripted import ScriptedAgent, ScriptedParser
from pytest_codeprobe.model.agent import SessionEnd

class Talker(CommandAgent):
    name = "talker"

    def parser(self, request):
        return TalkerParser(request)

class TalkerParser(CommandParser):
    replied = False
    agent = Talker

    def end(self, exit, *, stopped_for, stderr_tail):
        return SessionEnd(code="AGENT_CRASHED", reason="it says " + stderr_tail)

class Broken(ScriptedAgent):
    def parser(self, request):
        return BrokenParser(request)

class BrokenParser(ScriptedParser):
    def feed(self, line):
        super().feed(line)
        if b"break" in line:
            raise RuntimeError("in feed")

    def end(self, *args, **kw):
        if "in end" in self._last:
            raise RuntimeError("in end")
        return super().end(*args, **kw)

    def transcript(self):
        if "in transcript" in self._last:
            raise RuntimeError("in transcript")
        return super().transcript()

def pytest_codeprobe_agents(config):
    return [Talker(), Broken()]
"""
SECRET = "sk-verysecret-123456"


def test_retry_event_tells_no_secret(project: Project) -> None:
    project.write("conftest.py", AGENTS)
    agent = {"type": "talker", "command": ["/bin/sh", "-c", "echo bad key $MY_API_KEY >&2; exit 1"], "env": {"MY_API_KEY": SECRET}}
    project.task("a", agent=agent)
    run = project.run("--codeprobe-agent=talker", "--codeprobe-json-lines")
    run.assert_pure()
    assert [e["reason"] for e in run.events if e["event"] == "trial_retried"] == ["it says bad key [REDACTED]\n"]
    assert SECRET not in run.stdout
    for file in run.folder.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file


def test_what_a_session_cost_is_known_whatever_breaks_after_it(project: Project) -> None:
    project.write("conftest.py", AGENTS)
    places = ("feed", "end", "transcript")
    for where in places:
        steps: list[dict[str, Any]] = [WRITE, USAGE, {"say": "break" if where == "feed" else f"in {where}"}]
        project.task(where, agent=scripted(*steps))
    run = project.run(AGENT)
    run.assert_consistent()
    for where in places:
        result = run.result(where)
        assert (result["status"], result["cost_usd"], len(result["attempts"])) == ("error", 0.25, 1), result["reason"]
    assert run.envelope["data"]["cost_usd"] == 0.75


def test_ends_of_marked_tests(project: Project, mode: str) -> None:
    """A skip before there is a sandbox; an infrastructure fault in the body, which is no verdict; a plain pass, with its properties."""
    project.task("a", agent=scripted(WRITE, USAGE))
    project.task("locked", agent=scripted({"fail": "AGENT_BLOCKED"}))
    project.write(
        "test_m.py",
        """
import pytest

@pytest.mark.codeprobe(task="tasks/a.yaml")
def test_skips(codeprobe_trial):
    pytest.skip("seen enough")

@pytest.mark.codeprobe(task="tasks/locked.yaml")
def test_lazy(request):
    request.getfixturevalue("codeprobe_session")

@pytest.mark.codeprobe(task="tasks/a.yaml")
def test_it(codeprobe_score):
    assert codeprobe_score.passed
""",
    )
    run = project.run(AGENT, "test_m.py", mode=mode)
    run.assert_consistent()
    assert {r["node_id"].rpartition("::")[2]: (r["status"], r["code"], r["reason"]) for r in run.envelope["data"]["results"]} == {
        "test_skips": ("skipped", None, "seen enough"),
        "test_lazy": ("error", "AGENT_BLOCKED", ANY),
        "test_it": ("passed", None, None),
    }
    assert run.code == 6
    assert run.junit_properties("test_it")["codeprobe_cost_usd"] == "0.25"


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_interrupted_marked_test_is_not_run(project: Project, mode: str) -> None:
    project.task("a")
    project.write(
        "test_m.py",
        f"""
import pytest

@pytest.mark.codeprobe(task="tasks/a.yaml")
def test_long(codeprobe_sandbox):
    codeprobe_sandbox.run("touch {project.marks}/on; exec sleep 60", timeout=60)
""",
    )
    run = project.start(AGENT, "test_m.py", mode=mode)
    run.wait_for("on")
    run.signal(signal.SIGINT)
    run.wait().assert_consistent()
    (line,) = run.envelope["data"]["results"]
    assert (line["status"], line["reason"], run.code) == ("not_run", "interrupted", 2)


def test_cost_of_a_killed_session_is_unknown(project: Project) -> None:
    project.task("a", agent=scripted(WRITE, USAGE, {"run": f"touch {project.marks}/on; exec sleep 60"}))
    project.task("b", agent=scripted(WRITE, USAGE))
    project.write(
        "conftest.py",
        f"""
import os, pytest
def pytest_runtest_logstart(nodeid):
    if "PYTEST_XDIST_WORKER" in os.environ:
        open("{project.marks}/pid-" + nodeid.rpartition("::")[2], "w").write(str(os.getpid()))
""",
    )
    run = project.start(AGENT, mode="xdist")
    run.wait_for("on")
    run.wait_for("pid-a")
    os.kill(int((project.marks / "pid-a").read_text()), signal.SIGKILL)
    run.wait().assert_consistent()
    data = run.envelope["data"]
    assert run.statuses == {"a": "error", "b": "passed"}
    assert (data["cost_usd"], data["cost_complete"], data["agent"]) == (0.25, False, "scripted")


def test_two_runs_at_once_do_not_share_a_run_dir(project: Project) -> None:
    project.task("a", agent=scripted(WRITE))
    project.write(
        "conftest.py",
        f"""
import os, time
def pytest_collection():
    open("{project.marks}/started-" + str(os.getpid()), "w")
    end = time.monotonic() + 20
    while len([n for n in os.listdir("{project.marks}") if n.startswith("started")]) < 2 and time.monotonic() < end:
        time.sleep(0.02)
""",
    )
    first = project.start(AGENT, "--codeprobe-run-dir=R")
    second = project.start(AGENT, "--codeprobe-run-dir=R")
    codes = sorted([first.wait().code, second.wait().code])
    assert codes == [0, 4]
    assert json.loads((project.path / "R/plan.json").read_text())["run_id"] == first.events[0]["run_id"]
    assert len({e["run_id"] for e in first.events}) == 1
    assert sum(e["event"] == "trial_finished" for e in first.events) == 1


def test_run_dir_is_not_made_where_nothing_starts(project: Project) -> None:
    project.task("a")
    run = project.run("--codeprobe-run-dir=R")
    assert run.code == 5
    assert not (project.path / "R").exists()


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_broken_module_counts_without_an_agent(project: Project, mode: str) -> None:
    project.task("a")
    project.write("tests/test_x.py", "import no_such_module\n")
    run = project.run("tests", "tasks", mode=mode)
    assert run.code in (1, 2), run.output


def test_nothing_starts_after_a_collection_error(project: Project, mode: str) -> None:
    project.task("a", agent=scripted({"run": f"touch {project.marks}/ran"}, WRITE))
    project.write("tests/test_x.py", "import no_such_module\n")
    run = project.run("tests", "tasks/a.yaml", mode=mode)
    assert not (project.marks / "ran").exists(), run.output
    assert run.code == 2, run.output


def test_each_worker_running_all_is_refused(project: Project) -> None:
    project.task("a", agent=scripted(WRITE))
    run = project.run(AGENT, "-n2", "--dist=each")
    assert run.code == 4, run.output
    assert "--dist" in run.output


def test_pass_score_without_weights_is_no_verdict(project: Project) -> None:
    project.task(
        "a", agent=scripted(WRITE), pass_score=0.5, success_criteria=[{"type": "file_exists", "path": "out.txt", "weight": 0, "gate": True}]
    )
    run = project.run(AGENT)
    assert run.code != 1, run.result("a")


@pytest.mark.parametrize(("mode", "good"), [("plain", True), ("xdist", True), ("jobs", True), ("plain", False), ("jobs", False)])
def test_items_let_go_of_their_transcripts(project: Project, mode: str, good: bool) -> None:
    """However they ended; Python itself remembers the last exception, and with that its frames."""
    ways: list[list[dict[str, Any]]] = [[WRITE]] if good else [[], [WRITE, {"fail": "AGENT_BLOCKED"}]]
    for n in range(6):
        project.task(f"t{n}", agent=scripted({"say": "hello"}, *ways[n % len(ways)]))
    project.write(
        "conftest.py",
        """
import gc, os, pathlib

def pytest_sessionfinish(session):
    gc.collect()
    for name in ("Transcript", "TrialRun", "SessionOutcome"):
        kept = sum(type(o).__name__ == name for o in gc.get_objects())
        pathlib.Path(f"kept-{name}-{os.getpid()}").write_text(str(kept))
""",
    )
    project.run(AGENT, mode=mode)
    counts = [int(file.read_text()) for file in project.path.glob("kept-*")]
    assert len(counts) == (9 if mode == "xdist" else 3)
    assert max(counts) <= (0 if good else 1)


def test_a_secret_where_a_text_is_cut_leaves_no_half_behind(project: Project) -> None:
    agent = {**scripted({"say": "y" * 1990 + SECRET + "z" * 4000}), "env": {"MY_API_KEY": SECRET}}
    project.task("a", agent=agent)
    run = project.run(AGENT)
    assert run.result("a")["final_message"].startswith("y" * 1990)
    assert SECRET[:7] not in (run.trial("a") / "result.json").read_text()
