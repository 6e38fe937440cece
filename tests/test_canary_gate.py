"""Tasks tagged `canary`: they go first in every mode, and one whose verdict is not what it declares keeps the rest from starting."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.front_door import Project, Run, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
PASS, FAIL = scripted(WRITE), scripted({"say": "no idea"})
AGENT = "--codeprobe-agent=scripted"
STATUSES = ("passed", "failed", "error", "not_run", "xfailed", "skipped")


def run(project: Project, mode: str, *args: str) -> dict[str, Any]:
    """The envelope of a run of all tasks."""
    done = project.run("tasks", AGENT, "--codeprobe-json-lines", *args, mode=mode, junit=False)
    envelope = done.assert_pure()
    done.assert_consistent()
    done.assert_nothing_left()
    return envelope


def counts(envelope: dict[str, Any]) -> dict[str, int]:
    return {name: n for name in STATUSES if (n := envelope["data"][f"tasks_{name}"])}


def many(project: Project, *, canary: dict[str, Any] = PASS, expect: str | None = None, number: int = 8) -> None:
    """A canary in the last file, ordinary tasks before it."""
    for place in range(number):
        project.task(f"a{place}", agent=PASS)
    project.task("z-canary", agent=canary, tags=["canary"], **({"expect": expect} if expect else {}))


def test_a_canary_that_does_what_it_declares_lets_the_rest_start(project: Project, mode: str) -> None:
    many(project)
    envelope = run(project, mode)
    assert (envelope["exit_code"], envelope["errors"], counts(envelope)) == (0, [], {"passed": 9})


def test_it_begins_and_ends_before_anything_else_begins(project: Project, mode: str) -> None:
    many(project, canary=scripted({"sleep": 0.3}, WRITE))
    project.task("y-canary", agent=scripted({"sleep": 0.3}, WRITE), tags=["canary"])
    envelope = run(project, mode)
    assert envelope["exit_code"] == 0
    events = [json.loads(line) for line in (project.path / envelope["data"]["run_dir"] / "events.ndjson").read_text().splitlines()]
    seen = [(e["event"], e["task_id"]) for e in events if e["event"].startswith("trial_")]
    last = max(n for n, (event, task) in enumerate(seen) if event == "trial_finished" and task.endswith("canary"))
    first = min(n for n, (event, task) in enumerate(seen) if event == "trial_started" and not task.endswith("canary"))
    assert last < first, seen


@pytest.mark.parametrize(("agent", "expect"), [(FAIL, None), (FAIL, "pass"), (PASS, "fail")])
def test_another_verdict_than_declared_stops_the_rest(project: Project, mode: str, agent: dict[str, Any], expect: str | None) -> None:
    many(project, canary=agent, expect=expect)
    envelope = run(project, mode)
    became = "failed" if agent is FAIL else "passed"
    assert (envelope["exit_code"], counts(envelope)) == (6, {became: 1, "not_run": 8})
    assert {r["reason"] for r in envelope["data"]["results"] if r["status"] == "not_run"} == {"canary"}
    (error,) = envelope["errors"]
    assert error["code"] == "CANARY_GATE_FAILED"
    assert error["detail"]["expect"] == (expect or "pass")
    folder = project.path / error["detail"]["folder"]
    assert json.loads((folder / "result.json").read_text())["task_id"] == "z-canary"
    assert error["detail"]["folder"] in error["remediation"]


def test_a_canary_that_must_fail_and_does_is_no_failure(project: Project, mode: str) -> None:
    many(project, canary=FAIL, expect="fail")
    envelope = run(project, mode, "-rxX")
    assert (envelope["exit_code"], envelope["errors"], counts(envelope)) == (0, [], {"passed": 8, "xfailed": 1})
    (line,) = [r for r in envelope["data"]["results"] if r["task_id"] == "z-canary"]
    assert (line["status"], line["expected"]) == ("failed", True)


def test_a_canary_that_can_not_be_judged_stops_the_rest_too(project: Project, mode: str) -> None:
    many(project, canary=scripted({"fail": "AGENT_BLOCKED"}))
    envelope = run(project, mode)
    assert (envelope["exit_code"], counts(envelope)) == (6, {"error": 1, "not_run": 8})
    assert sorted(e["code"] for e in envelope["errors"]) == ["AGENT_BLOCKED", "CANARY_GATE_FAILED"]


def test_without_anything_left_to_stop_it_still_says_so(project: Project, mode: str) -> None:
    project.task("only", agent=FAIL, tags=["canary"])
    envelope = run(project, mode)
    assert (envelope["exit_code"], [e["code"] for e in envelope["errors"]]) == (6, ["CANARY_GATE_FAILED"])


def test_ordinary_tests_and_failures_of_theirs_count_as_ever(project: Project, mode: str) -> None:
    many(project, canary=FAIL, number=2)
    project.write("tests/test_it.py", "def test_good(): pass\ndef test_bad(): assert 0\n")
    done = project.run("tests", "tasks", AGENT, mode=mode, junit=False).assert_consistent()
    assert done.code == 1
    assert done.envelope["data"]["ordinary_tests"] == {"passed": 1, "failed": 1}
    assert counts(done.envelope) == {"failed": 1, "not_run": 2}


def test_a_skipped_or_deselected_canary_is_no_gate(project: Project, mode: str) -> None:
    many(project, number=3)
    project.task("y-canary", agent=FAIL, tags=["canary"], skip="not today")
    envelope = run(project, mode, "-k", "not z-canary")
    assert (envelope["exit_code"], counts(envelope)) == (0, {"passed": 3, "skipped": 1})


@pytest.mark.parametrize("strict", ["true", "false"])
def test_a_strict_ini_makes_nothing_else_of_it(project: Project, mode: str, strict: str) -> None:
    project.write("pytest.ini", f"[pytest]\nxfail_strict = {strict}\n")
    many(project, canary=PASS, expect="fail", number=2)
    envelope = run(project, mode)
    assert (envelope["exit_code"], counts(envelope)) == (6, {"passed": 1, "not_run": 2})


def test_expect_without_the_tag_is_a_fault_of_the_task(project: Project) -> None:
    project.task("t", agent=PASS, expect="fail")
    done = project.run("tasks", AGENT, "--codeprobe-json", junit=False)
    (error,) = done.assert_pure(events=False)["errors"]
    assert error["code"] == "TASK_INVALID"
    assert "canary" in error["message"]


def test_a_marked_test_waits_and_is_a_canary_itself(project: Project, mode: str) -> None:
    project.task("plain", agent=PASS)
    project.task("gate", agent=FAIL, tags=["canary"])
    text = "import pytest\n"
    for name in ("plain", "gate"):
        text += f"@pytest.mark.codeprobe(task='tasks/{name}.yaml')\ndef test_{name}(codeprobe_score): assert codeprobe_score.passed\n"
    project.write("tests/test_marked.py", text)
    done = project.run("tests", AGENT, mode=mode, junit=False).assert_consistent()
    assert {r["node_id"]: r["status"] for r in done.envelope["data"]["results"]} == {
        "tests/test_marked.py::test_plain": "not_run",
        "tests/test_marked.py::test_gate": "failed",
    }
    assert [e["code"] for e in done.envelope["errors"]] == ["CANARY_GATE_FAILED"]
    assert done.code == 6


def test_a_canary_that_runs_inline_under_jobs_still_goes_first(project: Project) -> None:
    many(project, canary=FAIL)
    project.task("z-canary", agent=FAIL, tags=["canary"], fixtures=["database"])
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef database(): pass\n")
    envelope = run(project, "jobs")
    assert (envelope["exit_code"], counts(envelope)) == (6, {"failed": 1, "not_run": 8})


@pytest.mark.joint
@pytest.mark.parametrize("dist", ["loadfile", "loadscope", "loadgroup", "worksteal", "load"])
@pytest.mark.parametrize("agent", [PASS, FAIL], ids=["pass", "fail"])
def test_every_way_of_xdist_to_hand_out_tests(project: Project, dist: str, agent: dict[str, Any]) -> None:
    names = "\n".join(f"- {{task_id: b{n}, initial_prompt: x, success_criteria: [{{type: file_exists, path: out.txt}}]}}" for n in range(9))
    project.write("tasks/b.yaml", names.replace("initial_prompt: x", f"initial_prompt: x, agent: {json.dumps(PASS)}") + "\n")
    many(project, canary=agent, number=3)
    for place in range(4):
        project.task(f"c{place}-canary", agent=PASS, tags=["canary"])
    envelope = run(project, "xdist", f"--dist={dist}")
    if agent is PASS:
        assert (envelope["exit_code"], counts(envelope)) == (0, {"passed": 17})
        assert not [w for w in envelope["warnings"] if "did not wait" in w]
    else:
        assert envelope["exit_code"] == 6
        by_task = {r["task_id"]: r["status"] for r in envelope["data"]["results"]}
        assert {status for task, status in by_task.items() if not task.endswith("canary")} == {"not_run"}


def test_a_rerun_of_a_canary_is_what_counts(project: Project, mode: str) -> None:
    """pytest-rerunfailures: the gate looks at the last try."""
    pytest.importorskip("pytest_rerunfailures")
    marks = project.marks
    script = f"test -e {marks}/second && echo done > out.txt; touch {marks}/second"
    many(project, canary=scripted({"run": script}), number=3)
    envelope = run(project, mode, "--reruns=1")
    assert (envelope["exit_code"], counts(envelope)) == (0, {"passed": 4})


def test_ctrl_c_while_the_canary_runs(project: Project, mode: str) -> None:
    import signal

    many(project, canary=scripted({"sleep": 60}), number=3)
    running: Run = project.start("tasks", AGENT, mode=mode, junit=False)
    running.wait_for_events("trial_started")
    running.signal(signal.SIGINT)
    done = running.wait(30).assert_consistent()
    assert done.code == 2
    assert set(done.statuses.values()) == {"not_run"}
    assert {e["reason"] for e in done.events if e["event"] == "trial_finished"} == {"interrupted"}
    done.assert_nothing_left()


def test_a_worker_that_dies_in_a_canary_stops_the_rest(project: Project) -> None:
    many(project, canary=PASS, number=4)
    project.task("z-canary", agent=PASS, tags=["canary"], fixtures=["die"])
    project.write("conftest.py", "import os, pytest\n@pytest.fixture\ndef die(codeprobe_session): os._exit(9)\n")
    envelope = run(project, "xdist")
    assert (envelope["exit_code"], counts(envelope)) == (6, {"error": 1, "not_run": 4})
    assert sorted(e["code"] for e in envelope["errors"]) == ["CANARY_GATE_FAILED", "WORKER_DIED"]
