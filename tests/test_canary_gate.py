"""Tasks tagged `canary`: they go first in every mode, and one whose verdict is not what it declares keeps the rest from starting.

Who gets what from xdist's schedulers, and when: test_gate_schedule.py.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from tests.front_door import Project, scripted

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


def reasons(envelope: dict[str, Any]) -> set[str]:
    """Of the trials that were not run."""
    return {r["reason"] for r in envelope["data"]["results"] if r["status"] == "not_run"}


def codes(envelope: dict[str, Any]) -> list[str]:
    return sorted(e["code"] for e in envelope["errors"])


def many(project: Project, *, canary: dict[str, Any] = PASS, number: int = 3, **fields: Any) -> None:
    """A canary in the last file, ordinary tasks before it."""
    for place in range(number):
        project.task(f"a{place}", agent=PASS)
    project.task("z-canary", agent=canary, tags=["canary"], **fields)


def test_they_begin_and_end_before_anything_else_begins(project: Project, mode: str) -> None:
    """One that must fail and does is no failure; one that is skipped, or deselected, is no gate."""
    many(project, canary=scripted({"sleep": 0.3}, WRITE))
    project.task("y-canary", agent=scripted({"sleep": 0.3}), tags=["canary"], expect="fail")
    project.task("w-canary", agent=FAIL, tags=["canary"], skip="not today")
    project.task("v-canary", agent=FAIL, tags=["canary"])
    envelope = run(project, mode, "-k", "not v-canary", "-rxX")
    assert (envelope["exit_code"], envelope["errors"], counts(envelope)) == (0, [], {"passed": 4, "xfailed": 1, "skipped": 1})
    (line,) = [r for r in envelope["data"]["results"] if r["task_id"] == "y-canary"]
    assert (line["status"], line["expected"]) == ("failed", True)
    events = [json.loads(text) for text in (project.path / envelope["data"]["run_dir"] / "events.ndjson").read_text().splitlines()]
    seen = [(e["event"], e["task_id"]) for e in events if e["event"].startswith("trial_") and e["status"] != "skipped"]
    last = max(n for n, (event, task) in enumerate(seen) if event == "trial_finished" and task.endswith("canary"))
    first = min(n for n, (event, task) in enumerate(seen) if event == "trial_started" and not task.endswith("canary"))
    assert last < first, seen


def test_another_verdict_than_declared_stops_the_rest(project: Project, mode: str) -> None:
    many(project, canary=FAIL)
    project.write("tests/test_it.py", "def test_good(): pass\n")
    done = project.run("tests", "tasks", AGENT, "-rs", mode=mode, junit=False).assert_consistent()
    assert (done.code, counts(done.envelope), reasons(done.envelope)) == (6, {"failed": 1, "not_run": 3}, {"canary"})
    assert done.envelope["data"]["ordinary_tests"] == {"passed": 1}
    (error,) = done.envelope["errors"]
    assert (error["code"], error["detail"]["expect"]) == ("CANARY_GATE_FAILED", "pass")
    folder = project.path / error["detail"]["folder"]
    assert json.loads((folder / "result.json").read_text())["task_id"] == "z-canary"
    assert error["detail"]["folder"] in error["remediation"]
    assert "tasks/a0.yaml:1: not run: canary: tasks/z-canary.yaml::z-canary has failed, expect: pass" in done.output


@pytest.mark.parametrize(
    ("agent", "fields", "canary", "others"),
    [
        (PASS, {"expect": "fail"}, {"passed": 1}, []),  # which the strict ini does not make a failure of pytest's
        (scripted({"fail": "AGENT_BLOCKED"}), {}, {"error": 1}, ["AGENT_BLOCKED"]),
        (scripted({"fail": "AUTH_FAILED"}), {}, {"error": 1}, ["AUTH_FAILED"]),
    ],
    ids=["passes", "blocked", "refused"],
)
def test_whatever_else_it_comes_to(
    project: Project, agent: dict[str, Any], fields: dict[str, Any], canary: dict[str, int], others: list[str]
) -> None:
    project.write("pytest.ini", "[pytest]\nxfail_strict = true\n")
    many(project, canary=agent, number=2, **fields)
    envelope = run(project, "plain")
    assert (envelope["exit_code"], counts(envelope), reasons(envelope)) == (6, {**canary, "not_run": 2}, {"canary"})
    assert codes(envelope) == sorted(["CANARY_GATE_FAILED", *others])


def test_failures_of_ordinary_tests_count_as_ever(project: Project) -> None:
    many(project, canary=FAIL, number=1)
    project.write("tests/test_it.py", "def test_bad(): assert 0\n")
    done = project.run("tests", "tasks", AGENT, junit=False).assert_consistent()
    assert (done.code, counts(done.envelope)) == (1, {"failed": 1, "not_run": 1})


@pytest.mark.parametrize("parallel", ["-n1", "--codeprobe-jobs=4"])
def test_a_marked_test_waits_and_is_a_canary_itself(project: Project, parallel: str) -> None:
    """Under jobs they run in their own set-up, in the order of the items. A worker's last test before the canary is in its module."""
    project.task("plain", agent=PASS)
    project.task("gate", agent=FAIL, tags=["canary"])
    for name, file, first in (("gate", "marked", "def test_first(): pass\n"), ("plain", "other", "")):
        marked = f"@pytest.mark.codeprobe(task='tasks/{name}.yaml')\ndef test_{name}(codeprobe_score): assert codeprobe_score.passed\n"
        project.write(f"tests/test_{file}.py", f"import pytest\n{first}{marked}")
    done = project.run("tests", AGENT, parallel, junit=False).assert_consistent()
    assert {r["node_id"]: r["status"] for r in done.envelope["data"]["results"]} == {
        "tests/test_marked.py::test_gate": "failed",
        "tests/test_other.py::test_plain": "not_run",
    }
    assert done.envelope["data"]["ordinary_tests"] == {"passed": 1}
    assert (done.code, codes(done.envelope)) == (6, ["CANARY_GATE_FAILED"])


@pytest.mark.joint
@pytest.mark.parametrize("dist", ["loadfile", "loadgroup", "worksteal"])
def test_every_way_of_xdist_to_hand_out_tests(project: Project, dist: str) -> None:
    """A task that kills its worker is begun once, and the rest of its file is run all the same."""
    task = f"initial_prompt: x, agent: {json.dumps(PASS)}, success_criteria: [{{type: file_exists, path: out.txt}}]"
    project.write("tasks/b.yaml", "".join(f"- {{task_id: b{n}, {task}{', fixtures: [die]' * (n == 0)}}}\n" for n in range(3)))
    project.write(
        "conftest.py",
        "import os, pytest\n"
        "def pytest_collection_modifyitems(items):\n"
        "    for item in items[::2]: item.add_marker(pytest.mark.xdist_group('one'))\n"
        "@pytest.fixture\n"
        "def die(codeprobe_session):\n"
        f"    open({str(project.marks / 'died')!r}, 'a').write('x')\n"
        "    os._exit(9)\n",
    )
    many(project, number=1)
    for place in range(3):
        project.task(f"c{place}-canary", agent=PASS, tags=["canary"])
    envelope = run(project, "xdist", f"--dist={dist}")
    assert (envelope["exit_code"], counts(envelope), codes(envelope)) == (6, {"passed": 7, "error": 1}, ["WORKER_DIED"])
    assert (project.marks / "died").read_text() == "x"


@pytest.mark.parametrize("mode", ["xdist", "jobs"])
def test_a_rerun_of_a_canary_is_what_counts(project: Project, mode: str) -> None:
    """pytest-rerunfailures: the gate looks at the last try."""
    marks = project.marks
    script = f"test -e {marks}/second && echo done > out.txt; touch {marks}/second"
    many(project, canary=scripted({"run": script}), number=1)
    envelope = run(project, mode, "--reruns=1")
    assert (envelope["exit_code"], counts(envelope)) == (0, {"passed": 2})


def test_ctrl_c_while_the_rest_waits(project: Project, mode: str) -> None:
    many(project, canary=scripted({"sleep": 60}))
    running = project.start("tasks", AGENT, mode=mode, junit=False)
    running.wait_for_events("trial_started")
    running.signal(signal.SIGINT)
    done = running.wait(30).assert_consistent()
    assert done.code == 2
    assert set(done.statuses.values()) == {"not_run"}
    assert {e["reason"] for e in done.events if e["event"] == "trial_finished"} == {"interrupted"}
    done.assert_nothing_left()


def test_a_worker_that_dies_in_a_canary_stops_the_rest(project: Project) -> None:
    many(project, fixtures=["die"])
    project.write("conftest.py", "import os, pytest\n@pytest.fixture\ndef die(codeprobe_session): os._exit(9)\n")
    envelope = run(project, "xdist")
    assert (envelope["exit_code"], counts(envelope), reasons(envelope)) == (6, {"error": 1, "not_run": 3}, {"canary"})
    assert codes(envelope) == ["CANARY_GATE_FAILED", "WORKER_DIED"]


def test_a_worker_that_dies_while_it_waits_takes_nothing_with_it(project: Project) -> None:
    """The canary runs on, nothing begins before it is over, and all is run."""
    marks = project.marks
    text = "import os, pathlib\ndef pytest_sessionstart(session):\n    name = os.environ.get('PYTEST_XDIST_WORKER')\n"
    project.write("conftest.py", f"{text}    if name: pathlib.Path({str(marks)!r}, name).write_text(str(os.getpid()))\n")
    many(project, canary=scripted({"run": f"until test -e {marks}/go; do sleep 0.05; done; echo done > out.txt"}))
    running = project.start("tasks", AGENT, mode="xdist", junit=False)
    running.wait_for_events("trial_started")
    (start,) = [e for e in running.events if e["event"] == "trial_started"]
    other = {"gw0": "gw1", "gw1": "gw0"}[start["worker"]]
    os.kill(int((marks / other).read_text()), signal.SIGKILL)
    running.wait_for("gw2")
    (marks / "go").touch()
    done = running.wait().assert_consistent()
    assert (done.code, counts(done.envelope), done.envelope["errors"]) == (0, {"passed": 4}, [])
    starts = [e["task_id"] for e in done.events if e["event"] in ("trial_started", "trial_finished")]
    assert starts[:2] == ["z-canary", "z-canary"]


@pytest.mark.parametrize(
    ("canary", "flag", "kind", "statuses"),
    [
        (scripted({"usage": {"cost_usd": 2.0}}, {"sleep": 60}), "--codeprobe-max-cost-usd=1", "budget", {"not_run": 3}),
        (scripted({"usage": {"cost_usd": 1.0}}, WRITE), "--codeprobe-max-cost-usd=1", "budget", {"passed": 1, "not_run": 2}),
        (scripted({"sleep": 60}), "--codeprobe-max-duration=3", "time", {"not_run": 3}),
    ],
    ids=["too-dear", "all-of-it", "too-long"],
)
def test_a_canary_that_uses_up_what_the_run_may_take(
    project: Project, canary: dict[str, Any], flag: str, kind: str, statuses: dict[str, int]
) -> None:
    """It has no verdict, or a good one: what stops the rest is the limit."""
    many(project, canary=canary, number=2)
    envelope = run(project, "xdist", flag)
    assert (envelope["exit_code"], codes(envelope), counts(envelope)) == (6, ["BUDGET_EXCEEDED"], statuses)
    assert reasons(envelope) == {kind}


def test_the_last_failure_that_is_allowed(project: Project) -> None:
    many(project, canary=FAIL)
    envelope = run(project, "xdist", "-x")
    assert (envelope["exit_code"], codes(envelope)) == (6, ["CANARY_GATE_FAILED"])
    assert (counts(envelope), reasons(envelope)) == ({"failed": 1, "not_run": 3}, {"maxfail"})
