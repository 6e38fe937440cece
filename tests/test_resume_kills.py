"""--codeprobe-resume after deaths at the worst moments: whatever was paid is known, and no old verdict passes for a new one."""

from __future__ import annotations

import fcntl
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import Attempt, TrialResult, Usage
from pytest_codeprobe.run.ledger import LedgerFile
from pytest_codeprobe.run.lock import RunLock
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.run.resume import Earlier
from tests.front_door import Project, Run
from tests.test_resume import AGENT, DIR, RESUME, counted, last, sessions, whole

PAID = {"usage": {"input_tokens": 1, "cost_usd": 1.0}}
#: kills the process that lays out a workspace, while there is a sign for it
_DEADLY = """
import os, signal

def pytest_codeprobe_make_sandbox(trial, context):
    if os.path.exists({sign!r}):
        os.kill(os.getpid(), signal.SIGKILL)
"""

#: notes in which order the run dir is locked and read
_ORDER = """
import pytest_codeprobe.plugin.resume as resume
from pytest_codeprobe.run.lock import RunLock

def note(owner, name):
    real = getattr(owner, name)
    def noted(*given):
        with open({file!r}, "a") as file:
            file.write(name + " ")
        return real(*given)
    setattr(owner, name, noted)

note(RunLock, "take")
note(resume, "read_earlier")
"""


def numbers(record: dict[str, Any]) -> list[int]:
    return [attempt["number"] for attempt in record["attempts"]]


def edit(project: Project, name: str, old: str, new: str) -> None:
    file = project.path / f"tasks/{name}.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


def slow_grading(project: Project) -> list[dict[str, Any]]:
    """A criterion that wants the sign `good`, and takes its time while there is one called `slow`."""
    marks = project.marks
    command = f"touch {marks}/grading; test ! -e {marks}/slow || sleep 60; test -e {marks}/good"
    return [{"type": "run_command", "command": command, "timeout": 90}]


def stopped_while_grading(project: Project, number: signal.Signals, *more: str) -> Run:
    """Resume, and send a signal to pytest while it grades."""
    (project.marks / "grading").unlink(missing_ok=True)
    (project.marks / "slow").touch()
    run = project.start("tasks", AGENT, DIR, RESUME, *more)
    run.wait_for("grading")
    run.signal(number)
    run.wait()
    run.assert_nothing_left(10)
    (project.marks / "slow").unlink()
    return run


def test_a_worker_that_dies_before_the_session_leaves_no_old_verdict(project: Project) -> None:
    for name in ("grade", "again"):
        project.task(name, agent=counted(project, name, PAID))
    project.write("conftest.py", _DEADLY.format(sign=str(project.marks / "die")))
    assert project.run("tasks", AGENT, DIR).code == 0
    edit(project, "grade", "file_exists\n  path: out.txt", "file_exists\n  path: gone.txt")
    edit(project, "again", "do it", "do it well")
    (project.marks / "die").touch()
    died = project.run("tasks", AGENT, DIR, RESUME, "-n1")
    assert (died.code, {e["code"] for e in last(died).values()}) == (6, {"WORKER_DIED"}), died.output
    data = died.envelope["data"]
    assert {r["task_id"]: (r["attempts"], r["cost_usd"]) for r in data["results"]} == {"grade": (1, 1.0), "again": (2, None)}
    (project.marks / "die").unlink()
    done = project.run("tasks", AGENT, DIR, RESUME)
    whole(done)
    assert (done.code, done.statuses) == (1, {"grade": "failed", "again": "passed"})
    assert [numbers(done.result(name)) for name in ("grade", "again")] == [[1], [1, 2, 3]]
    assert [sessions(project, name) for name in ("grade", "again")] == [1, 2]


def test_killed_reruns_are_run_again_and_numbered_through(project: Project) -> None:
    project.task("t", agent=counted(project, "t", PAID), success_criteria=slow_grading(project))
    assert project.run("tasks", AGENT, DIR).code == 1
    stopped_while_grading(project, signal.SIGKILL, "--codeprobe-rerun=failed")
    stopped_while_grading(project, signal.SIGKILL)
    (project.marks / "good").touch()
    done = project.run("tasks", AGENT, DIR, RESUME)
    whole(done)
    assert "1 run again: the run was killed in a later attempt" in done.output
    assert (done.code, sessions(project, "t"), numbers(done.result("t"))) == (0, 4, [1, 2, 3, 4])
    assert [a["usage"]["cost_usd"] for a in done.result("t")["attempts"]] == [1.0, None, None, 1.0]
    assert done.envelope["data"]["cost_complete"] is False


def test_grading_again_that_was_stopped_is_not_paid_again(project: Project) -> None:
    project.task("t", agent=counted(project, "t", PAID), success_criteria=slow_grading(project))
    assert project.run("tasks", AGENT, DIR).code == 1
    (project.marks / "good").touch()
    edit(project, "t", "test -e", "true; test -e")
    stopped = stopped_while_grading(project, signal.SIGINT)
    assert (stopped.statuses, stopped.result("t")["status"]) == ({"t": "not_run"}, "failed")
    done = project.run("tasks", AGENT, DIR, RESUME)
    assert (done.code, done.statuses, sessions(project, "t")) == (0, {"t": "passed"}, 1)
    assert done.envelope["data"]["cost_usd"] == 1.0


def test_a_marked_test_that_is_run_again_keeps_its_attempts(project: Project) -> None:
    project.task("t", agent=counted(project, "t", PAID))
    project.write(
        "test_m.py",
        "import pytest\n\n@pytest.mark.codeprobe(task='tasks/t.yaml')\ndef test_m(codeprobe_score):\n    assert codeprobe_score.passed\n",
    )
    assert project.run("test_m.py", AGENT, DIR).code == 0
    again = project.run("test_m.py", AGENT, DIR, RESUME)
    whole(again)
    (trial,) = again.plan
    folder = again.folder / "trials" / trial["folder"]
    assert sorted(path.name for path in folder.glob("attempt-*")) == ["attempt-1", "attempt-2"]
    assert (again.envelope["data"]["cost_usd"], again.envelope["data"]["results"][0]["attempts"]) == (2.0, 2)


def test_what_nobody_had_published_is_published_under_the_lock(project: Project) -> None:
    """A run that was killed between a session's start and the moment in which the controller numbers it."""
    project.task("t", agent=counted(project, "t", PAID))
    first = project.run("tasks", AGENT, DIR)
    node = first.plan[0]["node_id"]
    (spool := first.folder / "spool").mkdir()
    said = {"event": "trial_started", "time": "2030-01-01T00:00:00.000Z", "worker": "main", "node_id": node}
    lines = [{**said, "attempt": number} for number in (1, 2)]
    (spool / "main.ndjson").write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"event": "trial_st')
    project.write("conftest.py", _ORDER.format(file=str(project.marks / "order")))
    done = project.run("tasks", AGENT, DIR, RESUME)
    whole(done)
    assert (project.marks / "order").read_text() == "take read_earlier "
    assert [e["attempt"] for e in done.events if e["event"] == "trial_started"] == [1, 2, 3]
    assert (done.code, sessions(project, "t"), numbers(done.result("t"))) == (0, 2, [1, 2, 3])
    assert done.envelope["data"]["cost_complete"] is False


def test_a_kept_canary_holds_nothing_up_and_latest_is_one_run(project: Project) -> None:
    """In workers, and where `latest` is made to point to another run meanwhile."""
    runs = project.path / ".codeprobe/runs"
    project.task("can", agent=counted(project, "can"), tags=["canary"])
    for name in ("x", "y"):
        project.task(name, agent=counted(project, name, {"run": f"ln -sfn elsewhere {runs}/latest"}))
    assert project.run("tasks", AGENT, "-k", "can").code == 0
    (folder,) = project.run_dirs()
    again = project.run("tasks", AGENT, "--codeprobe-run-dir=.codeprobe/runs/latest", RESUME, "-n2")
    assert again.code == 0, again.output
    again.run_dir = folder
    whole(again)
    assert again.statuses == {"can": "passed", "x": "passed", "y": "passed"}
    assert sorted(path.name for path in runs.iterdir() if not path.name.startswith(".")) == sorted([folder.name, "latest"])


def test_a_lock_that_its_holder_takes_away_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, third = (RunLock(tmp_path) for _ in range(3))
    first.take("")
    real = fcntl.flock

    def between(fd: int, operation: int) -> None:
        monkeypatch.setattr(fcntl, "flock", real)
        first.release()
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", between)
    second.take("")
    with pytest.raises(CodeprobeError, match=f"process {os.getpid()}"):
        third.take("")
    second.release()
    third.take("")
    third.release()
    assert not list(tmp_path.iterdir())


def test_a_limit_of_pytest_timeout_and_what_it_means_for_the_verdict(project: Project) -> None:
    project.task("t", agent=counted(project, "t", {"write": {"path": "out.txt", "content": "x"}}, {"sleep": 60}))
    slow = (AGENT, DIR, "--timeout=3")
    assert project.run("tasks", *slow).finished["t"]["limit_hit"] == {"name": "timeout", "value": 3.0}
    kept = project.run("tasks", *slow, RESUME)
    assert "1 kept, 0 to run" in kept.output
    was = kept.result("t")["status"]
    edit(project, "t", "initial_prompt", "run_limits: {on_limit: fail}\ninitial_prompt")
    failed = project.run("tasks", *slow, RESUME)
    assert "1 graded again: changed: on_limit" in failed.output
    assert (was, failed.statuses["t"], sessions(project, "t")) == ("passed", "failed", 1)


def _earlier(*costs: float | None) -> Earlier:
    attempts = tuple(Attempt(number=n, started_at="", duration_seconds=0.0, usage=Usage(cost_usd=cost)) for n, cost in enumerate(costs, 1))
    result = TrialResult(
        run_id="r", node_id="n", task_id="t", variant_id=None, row_id=None, repeat=1, status="passed", attempts=attempts,
        started_at="", ended_at="", duration_seconds=0.0,
    )  # fmt: skip
    return Earlier(results={"f": result}, began={"f": len(costs) + 1, "g": 1})


def test_what_a_ledger_takes_over_is_never_less_than_what_was_spent(tmp_path: Path) -> None:
    """Also where a budget was given to some of the runs alone, and of attempts that nobody could write a record of."""

    def line(node_id: str, folder: str, **limits: float) -> PlannedTrial:
        return PlannedTrial(
            node_id=node_id, task_id="t", variant_id=None, row_id=None, repeat=1, folder=folder, task_file="t.yaml", agent="scripted",
            model=None, driver="auto", limits=limits,
        )  # fmt: skip

    assert _earlier(2.0, None).spent([]) == 2.0 + 2.0 + 2.0 + 2.0  # as the dearest one
    assert _earlier(2.0, None).spent([line("n", "f", max_usd=5.0)]) == 2.0 + 5.0 + 5.0 + 2.0
    assert _earlier(2.0).spent([line("n", "f"), line("m", "g", max_usd=3.0)]) == 2.0 + 2.0 + 3.0
    ledger = LedgerFile(tmp_path / "ledger.sqlite", 10.0)
    for told, spent in ((2.0, 2.0), (6.0, 6.0), (3.0, 6.0)):
        ledger.take_over(told)
        assert ledger.balance().spent == spent
    ledger.close()
