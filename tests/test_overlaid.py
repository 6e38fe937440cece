"""Trials whose workspaces are mounted layers: the same records as with copies, whoever runs them, and nothing left of the mounts."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.sandboxes import mounts
from tests.front_door import Project, Run, scripted
from tests.unprivileged import unprivileged_argv

FILES = 80  # more than are copied one by one
needs_mounts = pytest.mark.skipif(
    sys.platform != "linux" or mounts.layers_unusable(tempfile.gettempdir()) is not None, reason="needs the right to mount, which CI has"
)

PRE_RUN = "echo made >made.txt; rm pkg/f1.py; mv sub/deep moved; echo more >>pkg/f2.py"
RENAME = "import os; os.rename('lib', 'renamed'); os.rename('moved', 'pkg/moved')"
WORK = (
    'grep -c " $PWD .* - overlay " /proc/self/mountinfo >layers; grep -c template- /proc/self/mountinfo >shown; set -e; '
    f'python3 -c "{RENAME}"; echo two >>pkg/f3.py; rm pkg/f4.py made.txt; chmod 755 pkg/f5.py; touch pkg/f6.py; '
    "cat pkg/f7.py >x; cat x >pkg/f7.py; rm x; rm -r other; mkdir other; echo new >other/new; echo forged >tests/kept.py; "
    "mkfifo pipe; ln -s /etc/hostname out; exec 3>>pkg/f8.py; sleep 60 & "  # somebody has a file open, until all is stopped
)
CHANGED = {
    "layers": "added", "shown": "added", "pkg/f3.py": "modified", "pkg/f4.py": "deleted", "made.txt": "deleted", "pkg/f5.py": "modified",
    "other/new": "added", "tests/kept.py": "modified", "pipe": "added", "out": "added", "pkg/moved/d.py": "added", "moved/d.py": "deleted",
    **{f"lib/f{n}.py": "deleted" for n in range(3)}, **{f"renamed/f{n}.py": "added" for n in range(3)},
    **{f"other/f{n}.py": "deleted" for n in range(3)},
}  # fmt: skip
GRADER = (
    "test ! -e lib -a ! -e moved -a -f renamed/f1.py -a ! -e pkg/f1.py && grep -q kept tests/kept.py && tail -n 1 pkg/f2.py | grep -q more"
)


def big_task(project: Project, task_id: str = "t", *, agent: Any = None, sandbox: Any = None, **fields: Any) -> None:
    top = "tasks/base"
    for number in range(FILES):
        project.write(f"{top}/pkg/f{number}.py", f"number = {number}\n")
    for folder in ("lib", "other"):
        for number in range(3):
            project.write(f"{top}/{folder}/f{number}.py", f"{folder} = {number}\n")
    project.write(f"{top}/sub/deep/d.py", "deep\n")
    project.write(f"{top}/tests/kept.py", "kept\n")
    config = {"template_sources": [{"type": "template_dir", "path": "base"}], "protected": ["tests/**"], **(sandbox or {})}
    criteria = [{"type": "run_command", "command": GRADER}]
    project.task(task_id, agent=agent or scripted({"run": WORK}), sandbox=config, **{"success_criteria": criteria, **fields})


def nothing_left(run: Run) -> None:
    run.assert_nothing_left()
    assert mounts.below(str(run.project.scratch)) == []
    assert not list(Path(run.project.environment["TMPDIR"]).glob("codeprobe-*"))


def changed(run: Run, task_id: str = "t") -> dict[str, str]:
    kinds = {"A": "added", "M": "modified", "D": "deleted"}
    return {line[2:]: kinds[line[0]] for line in run.result(task_id)["changed_files"]}


def patch(run: Run, task_id: str = "t") -> bytes:
    """Without what the agent said of the mounts."""
    parts = (run.trial(task_id) / "diff.patch").read_bytes().split(b"diff --git ")
    return b"diff --git ".join(part for part in parts if not part.startswith((b"a/layers", b"a/shown")))


@needs_mounts
@pytest.mark.parametrize(("driver", "mode"), [("tempdir", "plain"), ("bubblewrap", "jobs"), ("tempdir", "xdist")])
def test_the_same_record_as_with_a_copy(project: Project, driver: str, mode: str) -> None:
    """A folder can be renamed, pre_run's work is in the baseline, what is protected comes back; by whom nothing can be mounted, copies."""
    tasks = [f"t{number}" for number in range(8 if mode == "jobs" else 2)]
    for task_id in tasks:
        big_task(project, task_id, pre_run=[{"command": PRE_RUN}])
    args = ("tasks", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}", "--codeprobe-preserve=move")
    run = project.run(*args, mode=mode).assert_consistent()
    assert run.statuses == dict.fromkeys(tasks, "passed"), run.output
    assert not run.envelope["warnings"]
    nothing_left(run)
    for task_id in tasks:
        assert changed(run, task_id) == CHANGED
        kept = run.trial(task_id) / "artifacts"
        assert (int((kept / "layers").read_text()) > 0, (kept / "shown").read_text()) == (True, "0\n")
        assert (kept / "renamed/f2.py").read_text() == "lib = 2\n"
        assert (kept / "tests/kept.py").read_text() == "forged\n"
    if mode != "plain":
        return
    copied = project.start(*args, prefix=tuple(unprivileged_argv([sys.executable])[:-1])).wait().assert_consistent()
    assert copied.statuses == run.statuses
    assert not copied.envelope["warnings"]  # a copy is no loss
    assert (copied.trial("t0") / "artifacts/layers").read_text() == "0\n"
    assert changed(copied, "t0") == CHANGED
    assert patch(copied, "t0") == patch(run, "t0")
    nothing_left(copied)


@needs_mounts
def test_kept_as_it_was_left_and_graded_again(project: Project) -> None:
    big_task(project, pre_run=[{"command": PRE_RUN}])
    run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-preserve=direct").assert_consistent()
    assert run.statuses == {"t": "passed"}, run.output
    assert changed(run) == CHANGED
    kept = run.trial("t") / "artifacts"
    assert (kept / "tests/kept.py").read_text() == "forged\n"
    assert not (kept / "other/f1.py").exists()
    nothing_left(run)
    again = project.codeprobe("regrade", str(run.folder))
    assert again.statuses == {"t": "passed"}, again.output
    nothing_left(again)


@needs_mounts
def test_a_second_attempt_has_a_fresh_workspace_and_fixtures_may_hold_files_open(project: Project) -> None:
    """What a fixture has open keeps nothing from being compared, mounted or deleted."""
    project.write("conftest.py", """
import pytest
opened = []
@pytest.fixture
def codeprobe_sandbox(codeprobe_sandbox):
    def lay(sandbox):
        opened.append((sandbox.path / "pkg/f9.py").open("a+"))
        (sandbox.path / "by-fixture").write_text("x")
    codeprobe_sandbox.on_prepare(lay)
    yield codeprobe_sandbox
""")  # fmt: skip
    first = f"echo first >>first.txt; cp first.txt {project.marks}/"
    big_task(project, agent=scripted({"run": first}, {"run": WORK}, {"fail": "LLM_UNAVAILABLE"}), pre_run=[{"command": PRE_RUN}])
    run = project.run("tasks", "--codeprobe-agent=scripted").assert_consistent()
    assert run.finished["t"]["code"] == "LLM_UNAVAILABLE"
    assert len(run.result("t")["attempts"]) == 2
    assert (project.marks / "first.txt").read_text() == "first\n"
    assert changed(run) == {**CHANGED, "first.txt": "added"}
    nothing_left(run)


@needs_mounts
@pytest.mark.parametrize("preserve", ["move", "direct"])
def test_a_session_that_takes_its_mount_off_has_changed_nothing(project: Project, preserve: str) -> None:
    """Under tempdir, as root: in its own namespace, and what it puts in the mount's place is no work of anybody's."""
    work = f"echo seen >seen; W=$PWD; cd /; umount -l $W && echo forged >$W/planted && touch {project.marks}/off"
    big_task(project, agent=scripted({"run": work}), success_criteria=[{"type": "run_command", "command": "test -f pkg/f1.py -a -f seen"}])
    run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-preserve={preserve}").assert_consistent()
    assert (project.marks / "off").exists()
    assert run.statuses == {"t": "passed"}, run.output
    assert changed(run) == {"seen": "added"}
    assert not run.envelope["warnings"]
    nothing_left(run)


@needs_mounts
def test_what_a_killed_run_left_mounted_is_taken_off_by_the_next(project: Project) -> None:
    """With the folders, by a run, and by `codeprobe clean`; what a living run has mounted is left alone."""
    hold = scripted({"run": f"echo x >>pkg/f1.py; touch {project.marks}/on-$(basename $(dirname $PWD)); sleep 60"})
    big_task(project, agent=hold, pre_run=[{"command": PRE_RUN}], sandbox={"limits": {"disk_mb": 50}})
    alive = project.start("tasks", "--codeprobe-agent=scripted", "--codeprobe-run-dir=alive")
    alive.wait_for("on-*")
    living = mounts.below(str(project.scratch))
    assert living
    for number, ending in enumerate(("run", "clean")):
        run = project.start("tasks", "--codeprobe-agent=scripted", f"--codeprobe-run-dir=killed-{number}")
        run.wait_for("on-*", number + 2)
        run.signal(signal.SIGKILL)
        run.wait()
        assert len(mounts.below(str(project.scratch))) == 2 * len(living)
        if ending == "run":
            project.task("next", file="next/next.yaml", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
            assert project.run("next", "--codeprobe-agent=scripted").statuses == {"next": "passed"}
        else:
            cleaned = project.codeprobe("clean", "--json")
            assert [folder["removed"] for folder in json.loads(cleaned.stdout)["data"]["folders"]] == [True, True]
        assert sorted(mounts.below(str(project.scratch))) == sorted(living)
    alive.signal(signal.SIGINT)
    alive.wait()
    nothing_left(alive)
