"""The fixture codeprobe_run: trials that tests call, recorded and paid for, and in no rate."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.front_door import MODES, Project, Run, comparable, scripted
from tests.schemas import check

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
USAGE = {"usage": {"model": "m1", "input_tokens": 100, "output_tokens": 20, "cost_usd": 0.25}}
AGENT = "--codeprobe-agent=scripted"

TESTS = """
import pytest

AGENT = {"scripted": {"steps": [
    {"write": {"path": "out.txt", "content": "done"}}, {"say": "all done"},
    {"usage": {"model": "m1", "input_tokens": 100, "output_tokens": 20, "cost_usd": 0.25}},
]}}

def test_prompt(codeprobe_run):
    result = codeprobe_run("Write out.txt.", agent=AGENT)
    assert result.passed is None and result.score is None and result.criteria == ()
    assert result.final_message == "all done"
    assert result.usage.cost_usd == 0.25
    assert result.changed_files == ("out.txt",)
    assert (result.path / "out.txt").read_text() == "done"
    assert result.exit_status == 0 and result.limit_hit is None
    assert result.node_id.endswith("::test_prompt#1")

def test_graded(codeprobe_run):
    wanted = [{"type": "file_exists", "path": "out.txt"}]
    assert codeprobe_run("Write out.txt.", agent=AGENT, success_criteria=wanted).passed
    second = codeprobe_run("Write nothing.", success_criteria=wanted)
    assert second.passed is False and second.score == 0.0 and len(second.criteria) == 1
    assert second.node_id.endswith("::test_graded#2")

def test_task_file(codeprobe_run):
    assert codeprobe_run(task="tasks/good.yaml").passed

@pytest.fixture(scope="module")
def done(codeprobe_run):
    return codeprobe_run(task="tasks/good.yaml")

def test_shared_a(done):
    assert done.passed

def test_shared_b(done):
    assert done.changed_files == ("out.txt",)

def test_error(codeprobe_run):
    codeprobe_run("x", agent={"scripted": {"steps": [{"fail": "AUTH_FAILED"}]}})

@pytest.mark.codeprobe(task="tasks/good.yaml")
def test_marked(codeprobe_score, codeprobe_run):
    assert codeprobe_score.passed and codeprobe_run("Write out.txt.", agent=AGENT).changed_files
"""


def finished(run: Run) -> dict[str, dict[str, Any]]:
    """trial_finished of the called, by what follows the file's name."""
    return {e["node_id"].partition("::")[2]: e for e in run.events if e["event"] == "trial_finished" and e.get("counted") is False}


@pytest.mark.joint
def test_calls_are_recorded_and_booked_and_count_in_no_rate(project: Project) -> None:
    """In every mode, and the same in all."""
    project.task("good", agent=scripted(WRITE, USAGE))
    project.task("bad", agent=scripted({"say": "no"}))
    project.write("tests/test_it.py", TESTS.replace("AUTH_FAILED", "AGENT_CRASHED"))
    seen = []
    for mode in MODES:
        args = ("--dist=loadfile",) if mode == "xdist" else ()
        run = project.run("tests", "tasks/good.yaml", AGENT, f"--codeprobe-run-dir=run-{mode}", *args, mode=mode)
        look(run.assert_consistent())
        seen.append({k: comparable({n: v for n, v in e.items() if n not in ("seq", "time")}) for k, e in finished(run).items()})
    assert seen == [seen[0]] * len(MODES)


def look(run: Run) -> None:
    called = finished(run)
    assert {name: e["status"] for name, e in called.items()} == {
        "test_prompt#1": "passed",
        "test_graded#1": "passed",
        "test_graded#2": "failed",
        "test_task_file#1": "passed",
        "test_shared_a#1": "passed",
        "test_error#1": "error",
        "test_marked#1": "passed",
    }, run.output
    data = run.envelope["data"]
    assert (data["tasks_total"], data["tasks_passed"], data["pass_rate"]) == (2, 2, 1.0)
    assert data["ordinary_tests"] == {"passed": 5, "failed": 1}
    assert run.code == 1  # by the test
    assert data["cost_usd"] == 0.25 * 7  # two trials of the plan, and five that were called
    assert {line["node_id"].partition("::")[2] for line in data["calls"]} == set(called)
    assert run.envelope["errors"] == []
    assert "7 called by tests: " in run.stdout
    assert "tests/test_it.py::test_error#1" in run.stdout
    log = (run.folder / "run.log").read_text()
    for line in data["calls"]:
        assert f"INFO {line['node_id']}: {line['status']}" in log
        folder = next(e["folder"] for e in run.events if e["event"] == "trial_finished" and e["node_id"] == line["node_id"])
        record = json.loads((run.folder / "trials" / folder / "result.json").read_text())
        check("result", record)
        assert record["status"] == line["status"]
        assert (run.folder / "trials" / folder / "attempt-1" / "transcript.json").exists()
    assert called["test_prompt#1"]["folder"].startswith("default/prompt@")
    assert called["test_task_file#1"]["folder"].startswith("default/good@")
    run.assert_nothing_left()


CASES = """
def test_both(codeprobe_run): codeprobe_run("x", task="tasks/good.yaml")
def test_neither(codeprobe_run): codeprobe_run()
def test_fields(codeprobe_run): codeprobe_run(task="tasks/good.yaml", pass_score=0.5)
def test_unknown(codeprobe_run): codeprobe_run(task="tasks/nowhere.yaml")
def test_wrong_field(codeprobe_run): codeprobe_run("x", run_limit={})
def test_object(codeprobe_run): codeprobe_run("x", metadata={"a": object()})
def test_variant(codeprobe_run): codeprobe_run("x", variant="fast")
def test_late(request): request.getfixturevalue("codeprobe_run")("x")
def test_skipped(codeprobe_run): codeprobe_run(task="tasks/off.yaml")
"""


def test_wrong_calls_say_what_is_wrong(project: Project) -> None:
    project.task("good")
    project.task("off", skip="not today")
    project.write("tests/test_it.py", CASES)
    run = project.run("tests", AGENT, "-rs")
    others = {"test_late": "passed", "test_skipped": "skipped"}  # where others name the fixture, it is there for all
    assert run.junit() == {**dict.fromkeys(run.junit(), "failure"), **others}
    for said in (
        "both a prompt and a task file were given",
        "neither a prompt nor a task file was given",
        "'pass_score' was given beside a task file",
        "names the task file 'tasks/nowhere.yaml', which is neither below rootdir nor beside the test",
        "test_wrong_field: codeprobe_run: unknown field 'run_limit' (did you mean 'run_limits'?)",
        "a field holds what no task file can",
        "the call of codeprobe_run fits no trial of its task",
        "not today",
        "what to do: Give one of them",
    ):
        assert said in run.stdout, said
    assert [said for said in ("cases.py", "problems.py", "test_it.py:6:1") if said in run.stdout] == []  # nor our own code, nor its lines
    assert [line["node_id"] for line in run.assert_consistent().envelope["data"]["calls"]] == ["tests/test_it.py::test_late#1"]
    late = project.run("tests", AGENT, "-k", "late")
    assert "codeprobe_run was asked for by request.getfixturevalue()" in late.stdout
    assert len(project.run_dirs()) == 1


@pytest.mark.parametrize("args", [(), (AGENT, "--codeprobe-dry-run"), (AGENT, "--collect-only"), (AGENT, "--setup-only")])
def test_nothing_is_started(project: Project, args: tuple[str, ...]) -> None:
    """Without an agent, and where nothing is to run."""
    project.task("good", agent=scripted({"run": f"touch {project.marks}/began"}))
    project.write(
        "tests/test_it.py",
        "import pytest\n@pytest.fixture\ndef done(codeprobe_run): return codeprobe_run(task='tasks/good.yaml')\n"
        "def test_it(done): raise AssertionError\n",
    )
    for mode in ("plain", "xdist"):
        run = project.run("tests", *args, "-rs", mode=mode)
        assert not list(project.marks.glob("*"))
        assert not run.wrote
        if not args:
            assert (run.code, run.junit()) == (0, {"test_it": "skipped"}), run.output
            assert "no agent chosen: pass --codeprobe-agent" in run.stdout
            assert "called.py" not in run.stdout


@pytest.mark.parametrize("mode", list(MODES))
def test_a_signal_ends_the_session_and_the_run(project: Project, mode: str) -> None:
    project.task("slow", agent=scripted({"run": f"touch {project.marks}/began"}, {"sleep": 60}))
    project.write("tests/test_it.py", "def test_it(codeprobe_run):\n    codeprobe_run(task='tasks/slow.yaml')\n    raise AssertionError\n")
    run = project.start("tests", AGENT, mode=mode)
    run.wait_for("began")
    run.signal(signal.SIGINT)
    run.wait()
    assert run.code == 2, run.output
    assert [(e["status"], e["reason"]) for e in finished(run.assert_consistent()).values()] == [("not_run", "interrupted")]
    run.assert_nothing_left()


@pytest.mark.parametrize("mode", list(MODES))
def test_a_budget_that_is_gone_skips_the_test(project: Project, mode: str) -> None:
    project.task("dear", agent=scripted(WRITE, USAGE), run_limits={"max_usd": 0.25})
    project.write(
        "tests/test_it.py",
        "def test_it(codeprobe_run):\n    assert codeprobe_run(task='tasks/dear.yaml').passed\n    codeprobe_run(task='tasks/dear.yaml')\n"
        "    raise AssertionError\n",
    )
    run = project.run("tests", AGENT, "--codeprobe-max-cost-usd=0.4", mode=mode).assert_consistent()
    assert {n: (e["status"], e["reason"]) for n, e in finished(run).items()} == {
        "test_it#1": ("passed", None),
        "test_it#2": ("not_run", "budget"),
    }
    assert run.junit() == {"test_it": "skipped"}
    assert run.envelope["data"]["cost_usd"] == 0.25


def test_a_worker_that_dies_in_a_call_leaves_a_record(project: Project) -> None:
    project.task("slow", agent=scripted({"run": f"touch {project.marks}/began"}, {"sleep": 60}))
    project.write(
        "tests/test_it.py",
        f"import os, pathlib\ndef test_it(codeprobe_run):\n    pathlib.Path({str(project.marks / 'pid')!r}).write_text(str(os.getpid()))\n"
        "    codeprobe_run(task='tasks/slow.yaml')\n",
    )
    run = project.start("tests", AGENT, mode="xdist")
    run.wait_for("began")
    os.kill(int((project.marks / "pid").read_text()), signal.SIGKILL)
    run.wait().assert_consistent()
    ((name, event),) = finished(run).items()
    assert (name, event["status"], event["code"]) == ("test_it#1", "error", "WORKER_DIED"), run.output
    assert run.code == 1
    run.assert_nothing_left()


def test_a_second_run_in_the_run_dir_calls_again_and_keeps_what_was_paid(project: Project) -> None:
    project.task("good", agent=scripted(WRITE, USAGE))
    project.write("tests/test_it.py", "def test_it(codeprobe_run): assert codeprobe_run(task='tasks/good.yaml').passed\n")
    project.run("tests", AGENT, "--codeprobe-run-dir=run").assert_consistent()
    run = project.run("tests", AGENT, "--codeprobe-run-dir=run", "--codeprobe-resume")
    (line,) = run.envelope["data"]["calls"]
    assert (line["attempts"], line["cost_usd"]) == (2, 0.5), run.output
    assert run.code == 0
    (folder,) = (run.folder / "trials/default").glob("good@*/r001")
    assert {p.name for p in folder.glob("attempt-*")} == {"attempt-1", "attempt-2"}


def test_json_lines_tell_of_calls_and_no_secret_leaves(project: Project) -> None:
    project.task("leaks", agent=scripted({"say": "key-4711-of-the-tests"}))
    project.write("tests/test_it.py", "def test_it(codeprobe_run): assert codeprobe_run(task='tasks/leaks.yaml').final_message == 'x'\n")
    run = project.run("tests", AGENT, "--codeprobe-json-lines", env={"MY_API_KEY": "key-4711-of-the-tests"})
    data = run.assert_pure()["data"]
    assert [line["node_id"] for line in data["calls"]] == ["tests/test_it.py::test_it#1"]
    assert (data["tasks_total"], data["ordinary_tests"]) == (0, {"failed": 1})
    assert "key-4711" not in run.output
