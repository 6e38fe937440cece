"""The attacks on hidden tests in a real run, where they are graded in an enclosure: by a new process that sees less."""

from __future__ import annotations

import os
from pathlib import Path

from tests.attack_cases import name_of
from tests.fake_grading import write
from tests.front_door import Project
from tests.hidden_cases import Case
from tests.test_hidden_attacks import ATTACKS

#: those in which the place matters where tests run; CP_ALL_ATTACKS: all of them
MATTERS = ("runner's folder", "was given", "FIFO", "workspace is gone", "cached", "link in the way", "sys.modules", "forked copy", "fake")
CHOSEN = {
    name: case for name, case in ATTACKS.items() if case.joint or any(word in name for word in MATTERS) or os.environ.get("CP_ALL_ATTACKS")
}


def lay(project: Project, name: str, case: Case, prepared: Path) -> None:
    """Its task, and the tree that its agent leaves."""
    write(prepared, {**case.template, **case.agent})
    if case.act is not None:
        case.act(prepared)
    task_id = name_of(name)
    for path, text in case.hidden.items():
        project.write(f"tasks/{task_id}/{path}", text)
    project.task(
        task_id,
        file=f"tasks/{task_id}/{task_id}.yaml",
        agent={"type": "command", "command": ["sh", "-c", f"find . -mindepth 1 -delete; cp -a {prepared}/. . || :"]},
        sandbox={"template_sources": [{"type": "starter_files", "files": [{"path": p, "content": c} for p, c in case.template.items()]}]},
        success_criteria=[{"type": "pytest", "paths": list(case.paths), **case.fields}],
    )


def test_attacks(project: Project, tmp_path: Path) -> None:
    trees = tmp_path / "trees"
    trees.mkdir()
    project.write("pytest.ini", f"[pytest]\ncodeprobe_bind = {trees}\n")
    for number, (name, case) in enumerate(CHOSEN.items()):
        lay(project, name, case, trees / str(number))
    flags = ("--codeprobe-agent=command", "--codeprobe-driver=bubblewrap", "--codeprobe-jobs=4")
    run = project.run("tasks", *flags, seconds=200).assert_consistent()
    for name, case in CHOSEN.items():
        record = run.result(name_of(name))
        assert record["status"] == "failed", (name, record["reason"])
        (criterion,) = record["criteria"]
        says = case.says.replace("SIGSEGV", "exit status 139").replace("SIGKILL", "exit status 137")  # as bwrap tells a signal
        assert case.act is not None or says in criterion["explanation"], (name, criterion["explanation"])
    run.assert_nothing_left()


def test_tests_that_lie_elsewhere(project: Project) -> None:
    """Where several tasks share them: what asks them for their imports sees them as well."""
    project.write("shared/test_it.py", "import answer\ndef test_it(): assert answer.N == 1\n")
    agent = {"type": "command", "command": ["sh", "-c", "echo N = 1 > answer.py"]}
    for number, path in enumerate(("../../shared", "../../shared/test_it.py")):
        criteria = [{"type": "pytest", "paths": [path], "at": f"tests{number}"}]
        project.task(f"t{number}", file=f"tasks/t/{number}.task.yaml", agent=agent, success_criteria=criteria)
    run = project.run("tasks", "--codeprobe-agent=command", "--codeprobe-driver=bubblewrap", mode="jobs").assert_consistent()
    assert run.statuses == {"t0": "passed", "t1": "passed"}, run.output
