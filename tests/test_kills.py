"""kill -9 of a worker, of the controller, of pytest, in every stage: nothing lives on, nothing stays on disk after the next run."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.front_door import Project, scripted
from tests.process_watch import (
    harness_processes,
    none_within,
    private_folders,
    spawners_of,
    trial_processes,
    until,
    whole_lines,
    workers_of,
)
from tests.stages import STAGES, WRITE, held_task, owner_of, quick_task


def assert_swept_by_the_next_run(project: Project) -> None:
    """What a killed process left is there, and the next run takes it away and says so."""
    left = private_folders(project)
    assert left
    quick_task(project, "next", file="next/next.yaml")
    run = project.run("next/next.yaml", "--codeprobe-run-dir=next-run")
    assert run.statuses == {"next": "passed"}
    swept = [w for w in run.envelope["warnings"] if w.startswith("swept: ")]
    assert len(swept) == len(left)
    assert private_folders(project) == []


@pytest.mark.parametrize("stage", [pytest.param(stage, marks=[pytest.mark.joint] * (stage == "session")) for stage in STAGES])
def test_killed_worker(project: Project, stage: str) -> None:
    """It costs one trial; the other worker's session goes on unharmed."""
    held_task(project, "a-victim", stage)
    other = f"touch {project.marks}/other; while [ ! -e {project.marks}/go ]; do sleep 0.05; done"
    quick_task(project, "b-later")  # xdist's first worker gets the first two
    project.task("c-other", agent=scripted({"run": other}, WRITE))
    for name in ("d-later", "e-later"):
        quick_task(project, name)
    run = project.start("tasks", "--codeprobe-agent=scripted", mode="xdist")
    run.wait_for("a-victim")
    run.wait_for("other")
    worker = owner_of(project, "a-victim")
    assert worker in workers_of(run)
    os.kill(worker, signal.SIGKILL)
    none_within(lambda: [p for p in trial_processes(project) if f"codeprobe-{worker}-" in p or "sleep 600" in p], 2)
    none_within(lambda: [str(p) for p in spawners_of(worker)], 10)
    assert [p for p in trial_processes(project) if "other" in p]  # c-other's session
    (project.marks / "go").touch()
    run.wait(60).assert_consistent()
    assert run.statuses == {"a-victim": "error", "b-later": "passed", "c-other": "passed", "d-later": "passed", "e-later": "passed"}
    assert run.finished["a-victim"]["code"] == "WORKER_DIED"
    assert run.result("a-victim")["status"] == "error"
    assert run.code == 6
    assert [e["code"] for e in run.envelope["errors"]] == ["WORKER_DIED"]
    assert run.junit()["a-victim"] == "error"
    whole_lines(run)
    none_within(lambda: trial_processes(project) + harness_processes(run), 2)
    assert_swept_by_the_next_run(project)


@pytest.mark.parametrize("stage", STAGES)
def test_killed_pytest(project: Project, stage: str) -> None:
    quick_task(project, "a-done")
    held_task(project, "b-victim", stage)
    run = project.start("tasks", "--codeprobe-agent=scripted")
    run.wait_for("b-victim")
    run.wait_for_events("trial_finished")
    assert spawners_of(run.process.pid)
    run.signal(signal.SIGKILL)
    none_within(lambda: trial_processes(project), 2)
    none_within(lambda: harness_processes(run), 10)
    run.wait()
    events = whole_lines(run)
    assert [e["task_id"] for e in events if e["event"] == "trial_finished"] == ["a-done"]
    assert run.result("a-done")["status"] == "passed"
    assert not (run.folder / "envelope.json").exists()
    assert_swept_by_the_next_run(project)


@pytest.mark.joint
def test_killed_controller(project: Project) -> None:
    """Its workers' trials end at once, the workers themselves soon after."""
    quick_task(project, "a-done")
    for name in ("b-victim", "c-victim"):
        held_task(project, name, "session")
    quick_task(project, "d-later")
    run = project.start("tasks", "--codeprobe-agent=scripted", mode="xdist")
    run.wait_for("*-victim", 2)
    run.wait_for_events("trial_finished")
    assert len(workers_of(run)) == 2
    began = time.monotonic()
    run.signal(signal.SIGKILL)
    none_within(lambda: trial_processes(project), 2)
    none_within(lambda: harness_processes(run), 10 - (time.monotonic() - began))
    run.wait()
    events = whole_lines(run)
    assert [e["task_id"] for e in events if e["event"] == "trial_finished"] == ["a-done"]
    quick_task(project, "next", file="next/next.yaml")
    again = project.run("next/next.yaml", "--codeprobe-run-dir=next-run")
    assert again.statuses == {"next": "passed"}
    assert private_folders(project) == []


def test_killed_spawner(project: Project, mode: str) -> None:
    """The session that runs goes on under its keeper; an interrupt still reaches it, and later trials get a new spawner."""
    held_task(project, "a-held", "session")
    run = project.start("tasks", "--codeprobe-agent=scripted", mode=mode)
    run.wait_for("a-held")
    owner = owner_of(project, "a-held")
    (spawner,) = [p for p in spawners_of(owner) if parent_of(p) == owner]
    os.kill(spawner, signal.SIGKILL)
    until(lambda: spawner in spawners_of(owner), lambda alive: not alive, 5)
    assert [p for p in trial_processes(project) if "sleep" in p]
    run.signal(signal.SIGINT)
    none_within(lambda: trial_processes(project), 6)
    run.wait(20).assert_consistent()
    assert run.code == 2
    assert (run.statuses, run.finished["a-held"]["reason"]) == ({"a-held": "not_run"}, "interrupted")
    none_within(lambda: harness_processes(run), 10)
    assert private_folders(project) == []


def test_killed_spawner_between_trials(project: Project) -> None:
    """Costs nothing: the next start makes a new one."""
    project.write(
        "conftest.py",
        "import os, pathlib, pytest\n"
        "@pytest.hookimpl(tryfirst=True)\n"
        "def pytest_runtest_logfinish(nodeid):\n"
        "    for child in pathlib.Path(f'/proc/{os.getpid()}/task/{os.getpid()}/children').read_text().split():\n"
        "        if b'/children/spawner.py' in pathlib.Path(f'/proc/{child}/cmdline').read_bytes():\n"
        "            os.kill(int(child), 9)\n",
    )
    for name in ("a", "b", "c"):
        quick_task(project, name)
    run = project.run("tasks", "--codeprobe-agent=scripted").assert_consistent()
    assert run.statuses == dict.fromkeys("abc", "passed")
    none_within(lambda: harness_processes(run), 10)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
