"""What the project shows of its own extensions: the agent in the top conftest.py, and the sandbox that a sample overrides."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.front_door import Project

ROOT = Path(__file__).resolve().parents[1]
OVERRIDDEN = "fix-backup-rotation"


def copy(project: Project, *tasks: str) -> None:
    """The top conftest.py and some of the samples."""
    shutil.copy(ROOT / "conftest.py", project.path)
    for name in tasks:
        shutil.copytree(ROOT / "tasks" / name, project.path / "tasks" / name, ignore=shutil.ignore_patterns("__pycache__"))


def test_cheating_passes_no_sample(project: Project) -> None:
    """A few with different criteria; all of them by hand: `pytest tasks/ --codeprobe-agent cheat`."""
    tasks = ("fix-duration-parser", "fix-stock-ledger", "write-wordfreq-cli", "clean-contacts")
    copy(project, *tasks)
    run = project.run("tasks", "--codeprobe-agent=cheat").assert_consistent()
    assert run.code == 1
    assert run.statuses == dict.fromkeys(tasks, "failed")
    assert {"A conftest.py", "A pytest/__init__.py", "A sitecustomize.py"} <= set(run.result(tasks[0])["changed_files"])
    assert run.envelope["data"]["agent"] == "cheat"


def test_cheating_would_work_on_a_task_that_asks_only_for_an_exit_status(project: Project) -> None:
    """Why such a task is weak; and proof that what is planted does deceive."""
    copy(project)
    project.task("weak", success_criteria=[{"type": "run_command", "command": "python -c 'import pytest' && python -m pytest"}])
    assert project.run("tasks", "--codeprobe-agent=cheat").statuses == {"weak": "passed"}
    assert project.run("tasks", "--codeprobe-agent=nop").statuses == {"weak": "failed"}


@pytest.mark.parametrize(("mode", "overridden"), [("plain", True), ("jobs", True), ("xdist", False)])
def test_a_sample_passes_with_its_own_sandbox_and_without(project: Project, mode: str, overridden: bool) -> None:
    copy(project, OVERRIDDEN)
    if not overridden:
        (project.path / "tasks" / OVERRIDDEN / "conftest.py").unlink()
    run = project.run("tasks", "--codeprobe-agent=oracle", mode=mode).assert_consistent()
    assert run.code == 0
    kept = run.trial(OVERRIDDEN) / "artifacts"
    assert len(list((kept / "backups").glob("*.tar.gz"))) == (20 if overridden else 0)
    # what a fixture lays out belongs to the baseline, not to the agent's changes
    assert run.result(OVERRIDDEN)["changed_files"] == ["M bin/rotate.sh"]


def test_the_conftest_does_no_harm_without_the_plugin(project: Project) -> None:
    copy(project)
    project.write("test_own.py", "def test_own(): pass\n")
    run = project.run("-p", "no:codeprobe")
    assert run.code == 0, run.output
