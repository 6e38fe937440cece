"""sandbox.limits.disk_mb: what a session writes has no more room than that, and who used it up is named."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.model.config import SandboxLimits
from pytest_codeprobe.sandboxes import mounts
from pytest_codeprobe.sandboxes.room import Room, charged
from tests.front_door import Project, scripted
from tests.unprivileged import unprivileged_argv

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
SLEEP = {"sleep": 60}
needs_mounts = pytest.mark.skipif(
    sys.platform != "linux" or mounts.room_unusable(tempfile.gettempdir()) is not None, reason="needs the right to mount, which CI has"
)


def fill(path: str, megabytes: int) -> dict[str, str]:
    return {"run": f"dd if=/dev/zero of={path} bs=1M count={megabytes}; true"}


def limited(project: Project, task_id: str, limits: dict[str, Any], *steps: dict[str, Any], **fields: Any) -> None:
    project.task(task_id, agent=scripted(WRITE, *steps), **{"sandbox": {"limits": limits}, **fields})


@needs_mounts
@pytest.mark.parametrize(("driver", "mode"), [("tempdir", "plain"), ("bubblewrap", "jobs"), ("tempdir", "xdist")])
def test_who_uses_up_the_room_is_ended_and_graded(project: Project, driver: str, mode: str) -> None:
    """Workspace, HOME and TMPDIR together. Graders have room again; what templates bring takes none."""
    (project.path / "tasks/base").mkdir(parents=True)
    (project.path / "tasks/base/large.bin").write_bytes(bytes(8 << 20))
    project.write("tasks/base/kept.txt", "kept\n")
    base = {"template_sources": [{"type": "template_dir", "path": "base"}], "protected": ["kept.txt"]}
    limited(project, "workspace", {"disk_mb": 5}, fill("big", 20), SLEEP)
    limited(project, "home", {"disk_mb": 5}, fill('"$HOME/big"', 20), SLEEP)
    limited(project, "tmp", {"disk_mb": 5}, fill('"$TMPDIR/big"', 4), fill("big", 4), SLEEP)
    many = "import os\nfor n in range(20000): os.close(os.open(f'f{n}', os.O_CREAT))"
    limited(project, "files", {"disk_mb": 5}, {"run": f'python3 -c "{many}"; true'}, SLEEP)
    limited(project, "fail", {"disk_mb": 5}, fill("big", 20), SLEEP, run_limits={"on_limit": "fail"})
    grader = [{"type": "run_command", "command": "dd if=/dev/zero of=more bs=1M count=3 && grep kept kept.txt && test -s large.bin"}]
    limited(project, "graded", {"disk_mb": 5}, {"run": "echo forged >kept.txt"}, fill("big", 20), SLEEP, success_criteria=grader,
            sandbox={**base, "limits": {"disk_mb": 5}})  # fmt: skip
    limited(project, "enough", {"disk_mb": 100, "memory_mb": 60}, fill("big", 80))  # what is in memory of files is no memory of its own
    limited(project, "pre-run", {"disk_mb": 5}, pre_run=[{"command": "dd if=/dev/zero of=big bs=1M count=20"}])
    run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}", mode=mode).assert_consistent()
    hits = {task: e["limit_hit"] and (e["limit_hit"]["name"], e["limit_hit"]["value"]) for task, e in run.finished.items()}
    ended = ("workspace", "home", "tmp", "files", "fail", "graded", "pre-run")
    assert hits == {**dict.fromkeys(ended, ("disk_mb", 5)), "enough": None}
    assert run.statuses == {**dict.fromkeys(hits, "passed"), "fail": "failed", "pre-run": "error"}, run.output
    assert run.result("fail")["reason"] == "limit disk_mb = 5 was hit (on_limit: fail)"
    assert run.result("workspace")["attempts"][0]["exit_cause"] == "disk_mb"
    assert "hit sandbox.limits.disk_mb = 5" in run.result("pre-run")["reason"]
    assert run.result("graded")["changed_files"] == ["A big", "M kept.txt", "A out.txt"]
    assert not run.envelope["warnings"]
    run.assert_nothing_left()
    assert mounts.below(str(project.scratch)) == []
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


@needs_mounts
def test_who_can_not_hold_it_is_told(project: Project) -> None:
    limited(project, "a", {"disk_mb": 5})
    limited(project, "b", {"disk_mb": 6})
    args = ("tasks", "--codeprobe-agent=scripted", "--codeprobe-driver=tempdir")
    run = project.start(*args, prefix=tuple(unprivileged_argv([sys.executable])[:-1])).wait().assert_consistent()
    assert run.statuses == {"a": "passed", "b": "passed"}
    (warning,) = run.envelope["warnings"]
    assert warning.startswith("sandbox.limits.disk_mb can't be held here, it is left out: nothing can be mounted here")


@needs_mounts
def test_a_room_is_as_large_as_it_says(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    room = Room(tmp_path / "room", 2, [home])
    try:
        assert room.hit() is None
        with pytest.raises(OSError, match="No space left"):
            (home / "big").write_bytes(bytes(3 << 20))
        assert room.hit() == "disk_mb"
        room.widen()
        room.widen()  # once
        assert room.hit() is None
        (home / "more").write_bytes(bytes(2 << 20))
        assert room.hit() == "disk_mb"
        with (home / "open").open("w"):
            assert room.release() == room.release() == []
        assert mounts.below(str(tmp_path)) == []
        assert list(home.iterdir()) == []
    finally:
        room.release()
    limits = SandboxLimits(memory_mb=10, disk_mb=2)
    assert (charged(limits, room).memory_mb, charged(limits, None).memory_mb) == (12, 10)
