"""--codeprobe-resume and `codeprobe regrade` time and again, from elsewhere, after failures: nothing is paid twice, nothing forgotten."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.model.result import Attempt, TrialResult, Usage
from pytest_codeprobe.run.resume import Earlier
from tests.front_door import Project, clean_environment, scripted
from tests.test_resume import AGENT, DIR, RESUME, counted, sessions, whole
from tests.test_resume_kills import PAID, edit, numbers

#: the criterion can't be evaluated while there is a sign
_BROKEN = """
import os
from pytest_codeprobe.criteria.files import FileExists
real = FileExists.evaluate
def evaluate(self, grading):
    if os.path.exists({sign!r}):
        raise RuntimeError("no verdict today")
    return real(self, grading)
FileExists.evaluate = evaluate
"""


@pytest.mark.parametrize("mode", ["plain", "xdist", "jobs"])
def test_a_kept_miss_is_one_of_the_gate_that_is_judged_now(project: Project, mode: str) -> None:
    """Not of one that was judged before, or of none: what pytest shows and the exit code say the same."""
    passes = {"run": f"[ ! -e {project.marks}/good ] || touch out.txt"}
    project.task("t", agent=scripted(passes), repeats=4, min_passes=2)
    first = project.run("tasks", AGENT, DIR, "-k", "r1 or r2", mode=mode)  # each stands for itself
    assert (first.code, set(first.junit().values())) == (1, {"failure"})
    (project.marks / "good").touch()
    held = project.run("tasks", AGENT, DIR, RESUME, mode=mode)
    assert (held.code, held.envelope["data"]["gates"][0]["held"]) == (0, True), held.output
    assert held.junit() == {"t[r1]": "skipped", "t[r2]": "skipped", "t[r3]": "passed", "t[r4]": "passed"}
    alone = project.run("tasks", AGENT, DIR, RESUME, "-k", "r1", mode=mode)
    assert (alone.code, alone.envelope["data"]["gates"], alone.junit()) == (1, [], {"t[r1]": "failure"})


def test_grading_again_that_failed_is_not_paid_again(project: Project) -> None:
    """Nor is what is known of the session lost by it."""
    project.write("conftest.py", _BROKEN.format(sign=str(project.marks / "broken")))
    spent = {"usage": {"input_tokens": 1, "cost_usd": 1.0}}
    project.task("t", agent=counted(project, "t", spent, {"say": "here"}))
    first = project.run("tasks", AGENT, DIR).result("t")
    edit(project, "t", "initial_prompt", "pass_score: 0.5\ninitial_prompt")
    (project.marks / "broken").touch()
    failed = project.run("tasks", AGENT, DIR, RESUME)
    assert (failed.code, failed.statuses, failed.result("t")["code"]) == (6, {"t": "error"}, "VERIFIER_FAILED")
    same = ("final_message", "agent", "attempts", "cost_usd", "kept", "changed_files")
    assert [failed.result("t")[name] for name in same] == [first[name] for name in same]
    kept = project.run("tasks", AGENT, DIR, RESUME, "--codeprobe-rerun=none")
    assert (kept.code, kept.statuses) == (6, {"t": "error"})
    (project.marks / "broken").unlink()
    done = project.run("tasks", AGENT, DIR, RESUME)
    whole(done)
    assert "1 graded again: it ended error when it was graded again: tasks/t.yaml::t" in done.output
    assert (done.code, done.statuses, sessions(project, "t")) == (0, {"t": "passed"}, 1)
    again = project.run("tasks", AGENT, DIR, RESUME, "--codeprobe-rerun=all")
    assert (again.code, sessions(project, "t"), numbers(again.result("t"))) == (0, 2, [1, 2])


def test_regrade_grades_what_only_grading_had_failed_on(project: Project) -> None:
    project.write("conftest.py", _BROKEN.format(sign=str(project.marks / "broken")))
    project.task("t", agent=counted(project, "t", PAID))
    (project.marks / "broken").touch()
    assert project.run("tasks", AGENT, DIR).statuses == {"t": "error"}
    (project.marks / "broken").unlink()
    run = project.codeprobe("regrade", "run")
    assert (run.code, sessions(project, "t")) == (0, 1)
    assert "regraded: tasks/t.yaml::t: error -> passed 1.00" in run.output


def test_what_is_graded_again_does_not_pass_for_what_the_task_asks_now(project: Project) -> None:
    project.task("t", agent=counted(project, "t", PAID))
    project.run("tasks", AGENT, DIR)
    edit(project, "t", "do it", "do it well")
    assert project.codeprobe("regrade", "run", "--run-dir=graded").code == 0
    again = project.run("tasks", AGENT, "--codeprobe-run-dir=graded", RESUME)
    assert "1 run again: changed: prompt: tasks/t.yaml::t" in again.output
    assert (again.code, sessions(project, "t"), numbers(again.result("t"))) == (0, 2, [1, 2])


@pytest.mark.parametrize("mode", ["plain", "jobs"])
def test_what_is_graded_again_is_not_run_again_for_a_miss(project: Project, mode: str) -> None:
    """Whatever addopts say: neither by --reruns, nor since they name a test with the marker."""
    project.task("t", agent=counted(project, "t", PAID))
    marked = "import pytest\n\n@pytest.mark.codeprobe(task='tasks/t.yaml')\ndef test_m(codeprobe_score):\n    pass\n"
    project.write("marked/test_m.py", marked)
    project.run("tasks", AGENT, DIR)
    edit(project, "t", "file_exists\n  path: out.txt", "file_exists\n  path: gone.txt")
    project.write("pytest.ini", "[pytest]\naddopts = --reruns=2 marked\n")
    run = project.codeprobe("regrade", "run", *(("-j", "2") if mode == "jobs" else ()))
    assert (run.code, sessions(project, "t")) == (1, 1), run.output
    project.write("pytest.ini", "[pytest]\naddopts = --reruns=2\n")
    again = project.run("tasks", AGENT, DIR, RESUME, mode=mode)
    assert (again.code, sessions(project, "t")) == (1, 1), again.output


def test_regrade_names_what_is_gone_and_takes_no_folder_that_holds_something(project: Project) -> None:
    for name in ("stays", "goes"):
        project.task(name, agent=counted(project, name))
    project.run("tasks", AGENT, DIR)
    left = project.write("mine/a.txt", "mine")
    for target in ("mine", "run"):
        before = sorted(project.path.glob(f"{target}/*"))
        run = project.codeprobe("regrade", "run", f"--run-dir={target}", "--json")
        (error,) = run.assert_pure(events=False)["errors"]
        assert (error["code"], run.code, sorted(project.path.glob(f"{target}/*"))) == ("USAGE_ERROR", 4, before)
    assert left.read_text() == "mine"
    text = (project.path / "tasks/goes.yaml").read_text()
    project.write("tasks/goes.yaml", text.replace("task_id: goes", "task_id: came"))
    run = project.codeprobe("regrade", "run")
    assert "not graded again, since no task file asks for it now: tasks/goes.yaml::goes" in run.output
    chosen = project.codeprobe("regrade", "run", "-k", "stays")
    assert "no task file asks" not in chosen.output


def test_regrade_from_another_folder_means_the_same_files(project: Project) -> None:
    """Paths in flags are relative to where the run was started."""
    project.write("sub/laid/a.txt", "a")
    project.write("sub/mine.yaml", "experiment_id: mine\nvariants: [{variant_id: one}]\n")
    project.task("t", success_criteria=[{"type": "file_exists", "path": "a.txt"}])
    environment = clean_environment(**project.environment)
    flags = ("--codeprobe-set=sandbox.template_sources=[{type: template_dir, path: laid}]", "--codeprobe-experiment=mine.yaml")

    def called(folder: Path, *args: str) -> int:
        return subprocess.run([sys.executable, *args], cwd=folder, env=environment, capture_output=True, timeout=60, check=False).returncode

    assert called(project.path / "sub", "-m", "pytest", "../tasks", AGENT, "--codeprobe-run-dir=../run", *flags) == 0
    command = ("-c", "from pytest_codeprobe.cli import main; main()", "regrade")
    for number, folder in enumerate((project.path / "sub", project.path, Path("/"))):
        run_dir, target = (os.path.relpath(project.path / name, folder) for name in ("run", f"graded{number}"))
        assert called(folder, *command, run_dir, f"--run-dir={target}") == 0, folder
    # and what was graded again there can be graded once more
    assert called(project.path, *command, "graded2", "--run-dir=graded3") == 0


def test_an_attempt_that_was_killed_is_not_forgotten(project: Project) -> None:
    """Neither where the trial was not run in between, nor where it has become one of several repeats."""
    project.task("t", agent=counted(project, "t", {"run": f"test -e {project.marks}/good || sleep 60"}, PAID), run_limits={"max_usd": 1})
    run = project.start("tasks", AGENT, DIR)
    run.wait_for("t.*")
    run.wait_for_events("trial_started")
    run.signal(signal.SIGKILL)
    run.process.wait()
    run.assert_nothing_left(10)
    (project.marks / "good").touch()
    poor = project.run("tasks", AGENT, DIR, RESUME, "--codeprobe-max-cost-usd=1.5")
    assert (poor.code, poor.statuses) == (6, {"t": "not_run"})  # the killed one counts as the most that it may have cost
    edit(project, "t", "initial_prompt", "repeats: 2\ninitial_prompt")
    done = project.run("tasks", AGENT, DIR, RESUME)
    found: dict[str, Any] = {t["node_id"]: done.folder / "trials" / t["folder"] / "result.json" for t in done.plan}
    attempts = {node.partition("::")[2]: numbers(json.loads(file.read_text())) for node, file in found.items()}
    assert (done.code, attempts, sessions(project, "t")) == (0, {"t[r1]": [1, 2], "t[r2]": [1]}, 3)
    assert (done.envelope["data"]["cost_complete"], done.envelope["data"]["cost_usd"]) == (False, 2.0)


def test_what_is_known_of_a_trials_cost_counts_where_an_attempt_was_killed(project: Project) -> None:
    """Also of one that a test calls."""
    project.task("t", agent=counted(project, "t", PAID, {"run": f"test -e {project.marks}/good || sleep 60"}))
    project.write("tests/test_c.py", "def test_c(codeprobe_run):\n    assert codeprobe_run(task='tasks/t.yaml').passed\n")
    paths = ("tasks", "tests", AGENT, DIR)
    run = project.start(*paths)
    run.wait_for("t.*")
    run.wait_for_events("trial_started")
    run.signal(signal.SIGKILL)
    run.process.wait()
    run.assert_nothing_left(10)
    (project.marks / "good").touch()
    done = project.run(*paths, RESUME)
    data = done.envelope["data"]
    assert (data["results"][0]["cost_usd"], data["cost_usd"], data["cost_complete"]) == (None, 2.0, False)
    (project.marks / "good").unlink()
    killed = project.start(*paths, RESUME)
    killed.wait_for("t.*", 4)
    killed.wait_for_events("trial_started", 4)
    killed.signal(signal.SIGKILL)
    killed.process.wait()
    killed.assert_nothing_left(10)
    (project.marks / "good").touch()
    last = project.run(*paths, RESUME).envelope["data"]
    assert ([call["cost_usd"] for call in last["calls"]], last["cost_usd"], last["cost_complete"]) == ([None], 3.0, False)


def test_a_ledger_takes_over_a_simulated_users_part() -> None:
    attempt = Attempt(number=1, started_at="", duration_seconds=0.0, usage=Usage(cost_usd=1.0), user_usage=Usage(cost_usd=0.5))
    result = TrialResult(
        run_id="r", node_id="n", task_id="t", variant_id=None, row_id=None, repeat=1, status="passed", attempts=(attempt,),
        started_at="", ended_at="", duration_seconds=0.0,
    )  # fmt: skip
    assert Earlier(results={"f": result}).spent([]) == 1.5
