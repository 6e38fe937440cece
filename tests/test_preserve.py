"""What is kept of a workspace: none, move, direct; links, ignored paths, and that grading can't change it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.front_door import Project, Run, clean_environment, scripted

BEFORE = {
    "README.md": "read me\n",
    "src/app.py": "print('one')\n",
    "src/old.py": "old = 1\n",
    "run.sh": "#!/bin/sh\necho hi\n",
    "node_modules/.keep": "",
}
WORK = (
    "echo two >>src/app.py; rm src/old.py; printf '\\000\\377\\001' >blob.bin; chmod 755 run.sh; echo new >'new file.txt'; "
    "ln -s /etc/hostname outside; ln -s README.md inside; mkdir -p node_modules/dep build; echo x >node_modules/dep/index.js; "
    "echo y >build/out.o; echo log >debug.log; mkfifo pipe; touch empty; printf 'no newline' >last"
)
#: a grader that changes what is there, and fails unless it finds what the agent left
GRADER = (
    "test -f 'new file.txt' && test -f last && test -f build/out.o && echo graded >>README.md && rm -f last && echo more >by-grader.txt"
)


def task(project: Project, task_id: str = "t", **fields: Any) -> None:
    for name, content in BEFORE.items():
        project.write(f"tasks/templates/base/{name}", content)
    project.task(
        task_id,
        agent=scripted({"run": WORK}),
        success_criteria=[{"type": "run_command", "command": GRADER}],
        sandbox={"template_sources": [{"type": "template_dir", "path": "templates/base"}], **fields},
    )


def listed(folder: Path) -> set[str]:
    """Paths below that are no folders, without the repository."""
    names = {p.relative_to(folder) for p in folder.rglob("*") if p.is_symlink() or not p.is_dir()}
    return {str(n) for n in names if ".git" not in n.parts}


WHOLE = {
    "README.md", "src/app.py", "blob.bin", "run.sh", "new file.txt", "outside", "inside", "node_modules/.keep", "node_modules/dep/index.js",
    "build/out.o", "debug.log", "empty", "last",
}  # fmt: skip


def preserved(project: Project, how: str, **fields: Any) -> Run:
    task(project, **fields)
    args = [] if how == "default" else [f"--codeprobe-preserve={how}"]
    run = project.run("tasks/t.yaml", *args).assert_consistent()
    assert run.statuses == {"t": "passed"}, run.output
    run.assert_nothing_left()
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))
    return run


@pytest.mark.parametrize("how", ["default", "move", "direct"])
def test_kept(project: Project, how: str) -> None:
    """As the agent left it, without what is no file; grading works on something else."""
    run = preserved(project, how)
    kept = run.trial("t") / "artifacts"
    assert listed(kept) == WHOLE
    assert (kept / "README.md").read_text() == "read me\n"
    assert (kept / "last").read_text() == "no newline"
    assert (kept / "outside").readlink() == Path("/etc/hostname")
    assert (kept / "inside").readlink() == Path("README.md")
    assert (kept / "run.sh").stat().st_mode & 0o777 == 0o755
    assert run.result("t")["kept"] == "partial"  # the FIFO


def test_none(project: Project) -> None:
    run = preserved(project, "none")
    assert not (run.trial("t") / "artifacts").exists()
    assert run.result("t")["kept"] == "none"
    assert (run.trial("t") / "diff.patch").exists()
    assert (run.trial("t") / "attempt-1" / "agent.stdout").exists()


@pytest.mark.parametrize("how", ["move", "direct"])
def test_ignore_patterns(project: Project, how: str) -> None:
    """They bind what is kept, neither the diff nor the graders."""
    run = preserved(project, how, ignore_patterns=["node_modules/", "*.log", "build/**"])
    assert listed(run.trial("t") / "artifacts") == WHOLE - {"node_modules/.keep", "node_modules/dep/index.js", "debug.log", "build/out.o"}
    assert run.result("t")["kept"] == "partial"
    assert "debug.log" in (run.trial("t") / "diff.patch").read_text(errors="replace")


def test_whole(project: Project) -> None:
    project.task("t", agent=scripted({"run": "mkdir a; echo x >a/out.txt; ln -s a/out.txt out.txt"}))
    run = project.run("tasks/t.yaml").assert_consistent()
    assert run.result("t")["kept"] == "whole"
    assert listed(run.trial("t") / "artifacts") == {"a/out.txt", "out.txt"}


def test_the_patch_applies(project: Project, tmp_path: Path) -> None:
    """diff.patch on the template gives the agent's tree, contents and modes and links."""
    run = preserved(project, "move")
    tree = tmp_path / "again"
    subprocess.run(["cp", "-a", str(project.path / "tasks/templates/base"), str(tree)], check=True)
    env = clean_environment(GIT_CONFIG_GLOBAL=os.devnull, GIT_CONFIG_NOSYSTEM="1")
    subprocess.run(["git", "init", "-q"], cwd=tree, env=env, check=True)
    subprocess.run(["git", "apply", str(run.trial("t") / "diff.patch")], cwd=tree, env=env, check=True)
    kept = run.trial("t") / "artifacts"
    assert listed(tree) == listed(kept)
    for name in sorted(listed(kept)):
        assert (tree / name).is_symlink() == (kept / name).is_symlink(), name
        if (kept / name).is_symlink():
            assert (tree / name).readlink() == (kept / name).readlink()
        else:
            assert (tree / name).read_bytes() == (kept / name).read_bytes(), name
            assert (tree / name).stat().st_mode & 0o111 == (kept / name).stat().st_mode & 0o111, name
    assert run.result("t")["changed_total"] == len(run.result("t")["changed_files"])
    assert {"A new file.txt", "M src/app.py", "D src/old.py", "A blob.bin"} <= set(run.result("t")["changed_files"])


def test_direct_moves(project: Project) -> None:
    """On one file system the workspace itself is what is kept: not a byte is copied into the run dir."""
    inode = project.marks / "inode"
    (project.path / ".tmp").mkdir()
    project.environment["TMPDIR"] = str(project.path / ".tmp")
    project.task("t", agent=scripted({"run": f"echo x >out.txt; stat -c %i out.txt >{inode}"}))
    run = project.run("tasks/t.yaml", "--codeprobe-preserve=direct").assert_consistent()
    assert run.statuses == {"t": "passed"}
    assert (run.trial("t") / "artifacts" / "out.txt").stat().st_ino == int(inode.read_text())


@pytest.mark.parametrize("how", ["none", "move", "direct"])
def test_what_is_lost_of_a_trial_that_errs(project: Project, how: str) -> None:
    """An agent's crash keeps evidence as a pass does; an error before the session has no workspace to keep."""
    project.task("crash", agent=scripted({"write": {"path": "out.txt", "content": "x"}}, {"fail": "AGENT_BLOCKED"}))
    project.task("setup", agent=scripted(), pre_run=[{"command": "exit 1"}])
    run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-preserve={how}").assert_consistent()
    assert run.statuses == {"crash": "error", "setup": "error"}
    assert (run.trial("crash") / "artifacts" / "out.txt").exists() == (how != "none")
    assert "out.txt" in (run.trial("crash") / "diff.patch").read_text()
    assert not (run.trial("setup") / "artifacts").exists()
    assert (run.trial("setup") / "attempt-1" / "trial.log").exists()
