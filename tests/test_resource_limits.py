"""sandbox.limits of memory, processors and processes: held by control groups, shown by their counters, told where they can't be."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_codeprobe.model.config import SandboxLimits
from pytest_codeprobe.sandboxes import hierarchies
from pytest_codeprobe.sandboxes.cgroups import Group
from pytest_codeprobe.sandboxes.hierarchies import CONTROLLERS, Place, owner_of, places
from tests.front_door import Project, scripted
from tests.schemas import check

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
SLEEP = {"sleep": 60}
HOG = "python3 -c 'len(bytes([1]) * (300 << 20))'"
BOMB = "for i in $(seq 40); do sleep 60 & done; sleep 60"
BUSY = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="control groups are root's")


def groups(name: str) -> list[str]:
    """Control groups of that name, a glob, that are there."""
    return subprocess.run(
        ["find", "/sys/fs/cgroup", "-type", "d", "-name", name], capture_output=True, text=True, check=False
    ).stdout.split()


def groups_of(pid: int) -> list[str]:
    """Control groups that a process made and that are there still."""
    return groups(f"codeprobe-{pid}-*")


def limited(project: Project, task_id: str, limits: dict[str, Any], *steps: dict[str, Any], **fields: Any) -> None:
    project.task(task_id, agent=scripted(WRITE, *steps), sandbox={"limits": limits}, **fields)


@needs_root
@pytest.mark.parametrize(("driver", "mode"), [("tempdir", "plain"), ("bubblewrap", "jobs"), ("tempdir", "xdist")])
def test_limits_end_a_session_and_are_named(project: Project, driver: str, mode: str) -> None:
    """By the kernel's counters: what the agent makes of a killed child, and how it exits, is no matter. Others go on."""
    limited(project, "memory", {"memory_mb": 100}, {"run": f"{HOG}; true"}, SLEEP)
    limited(project, "pids", {"pids": 20}, {"run": BOMB}, SLEEP)
    limited(project, "fail", {"memory_mb": 100}, {"run": HOG}, SLEEP, run_limits={"on_limit": "fail"})
    limited(project, "cpus", {"cpus": 0.1}, {"run": BUSY})
    own = f"cat /proc/self/cgroup > {project.marks}/own; sleep 0.2 & sleep 0.2 & wait"
    limited(project, "enough", {"memory_mb": 1000, "cpus": 1.5, "pids": 100}, {"run": HOG}, {"run": own})
    limited(project, "without", {}, {"run": HOG})
    limited(project, "least", {"pids": 1}, SLEEP, run_limits={"task_timeout": 1})
    run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}", mode=mode).assert_consistent()
    hits = {task: e["limit_hit"] and (e["limit_hit"]["name"], e["limit_hit"]["value"]) for task, e in run.finished.items()}
    assert hits == {
        "memory": ("memory_mb", 100), "fail": ("memory_mb", 100), "pids": ("pids", 20), "least": ("task_timeout", 1),
        "cpus": None, "enough": None, "without": None,
    }  # fmt: skip
    assert run.statuses == {**dict.fromkeys(hits, "passed"), "fail": "failed"}
    assert "4 trials hit a limit: memory_mb 2, " in run.output
    assert run.result("fail")["reason"] == "limit memory_mb = 100 was hit (on_limit: fail)"
    assert run.result("memory")["attempts"][0]["exit_cause"] == "memory_mb"
    log = (run.trial("cpus") / "attempt-1" / "trial.log").read_text()
    assert (used := re.search(r"sandbox.limits.cpus = 0.1: used up in ([0-9]+) of [0-9]+ periods", log)), log
    assert int(used[1]) > 0
    assert not run.envelope["warnings"]
    run.assert_nothing_left()
    assert not groups_of(run.process.pid)
    if driver == "tempdir":  # in the other it can be seen by nobody
        names = set(re.findall(r"codeprobe-[-0-9a-f]+", (project.marks / "own").read_text()))
        assert len(names) == 1
        assert not groups(*names)


@needs_root
@pytest.mark.parametrize("driver", ["tempdir", "bubblewrap"])
def test_limits_while_preparing_and_grading(project: Project, driver: str) -> None:
    """The code under test has the agent's limits; where it hits one that is its own failure. In pre_run it is nobody's."""
    hidden = "import calc\ndef test_a(): assert calc.right()\ndef test_hog(): assert calc.hog()\ndef test_z(): assert calc.right()\n"
    project.write("tasks/hidden/test_it.py", hidden)
    calc = {"own": "len(bytes([1]) * (300 << 20))", "child": f'os.system("{HOG}") or 1'}
    for name, work in calc.items():
        code = f"import os\ndef right(): return True\ndef hog(): return {work}\n"
        limited(project, name, {"memory_mb": 100}, {"write": {"path": "calc.py", "content": code}},
                success_criteria=[{"type": "pytest", "paths": ["hidden"]}])  # fmt: skip
    limited(project, "command", {"memory_mb": 100}, success_criteria=[{"type": "run_command", "command": f"{HOG}; true"}])
    limited(project, "fork", {"pids": 20}, success_criteria=[{"type": "run_command", "command": BOMB, "timeout": 60}])
    limited(project, "pre-run", {"memory_mb": 100}, pre_run=[{"command": f"{HOG}; true"}])
    limited(project, "lenient", {"memory_mb": 100}, pre_run=[{"command": f"{HOG}; true", "fail_on_error": False}])
    limited(project, "no-room", {"memory_mb": 3}, success_criteria=[{"type": "pytest", "paths": ["hidden"]}])
    run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}", "--codeprobe-jobs=2").assert_consistent()
    graders = ("own", "child", "command", "fork")
    assert run.statuses == {**dict.fromkeys(graders, "failed"), "pre-run": "error", "lenient": "passed", "no-room": "error"}
    why = {name: run.result(name)["criteria"][0]["explanation"] for name in graders}
    assert why["command"] == "it hit sandbox.limits.memory_mb = 100"
    assert why["fork"] == "it hit sandbox.limits.pids = 20"
    assert "2 of 3 hidden tests passed" in why["own"]
    assert "test_hog: died (sandbox.limits.memory_mb = 100)" in why["own"]
    assert "sandbox.limits.memory_mb = 100" in why["child"]
    assert {run.result(name)["limit_hit"] for name in graders} == {None}  # no session's
    assert run.finished["pre-run"]["limit_hit"] == {"name": "memory_mb", "value": 100.0}
    assert "hit sandbox.limits.memory_mb = 100" in run.result("pre-run")["reason"]
    assert run.result("no-room")["code"] == "VERIFIER_FAILED"
    assert "sandbox.limits.memory_mb = 3" in run.result("no-room")["reason"]
    run.assert_nothing_left()
    assert not groups_of(run.process.pid)


@pytest.fixture
def apart(project: Project) -> Iterator[tuple[str, ...]]:
    """A prefix of command lines: a pid namespace in which no other test sweeps."""
    with subprocess.Popen(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", "sleep", "600"]) as holder:
        try:
            file = Path(f"/proc/{holder.pid}/task/{holder.pid}/children")
            until = time.monotonic() + 20
            while not (first := file.read_text().split()) or not Path(f"/proc/{first[0]}/comm").read_text().startswith("sleep"):
                assert time.monotonic() < until
                time.sleep(0.02)
            yield ("nsenter", "--target", first[0], "--pid", "--mount", f"--wd={project.path}")
        finally:
            holder.kill()


@needs_root
def test_what_a_killed_run_left_is_removed(project: Project, apart: tuple[str, ...]) -> None:
    """With whoever is in it: a session's own keeper has killed all that was the session's."""
    limited(project, "t", {"memory_mb": 100, "pids": 20}, {"run": f"touch {project.marks}/on; sleep 60"})
    run = project.start("tasks", "--codeprobe-agent=scripted", prefix=apart)
    run.wait_for("on")
    left = groups(f"codeprobe-*-*-{Path('/proc', apart[2], 'ns/pid').stat().st_ino}-*")
    (pid,) = {owner_of(group) for group in left}
    subprocess.run([*apart, "kill", "-KILL", str(pid)], check=True)
    run.wait()
    run.assert_nothing_left(10)
    program = ("-c", "from pytest_codeprobe.cli import main; main()")
    clean = project.start("clean", "--dry-run", "--json", program=program, junit=False, prefix=apart).wait()
    (envelope,) = clean.lines
    check("envelope", envelope)
    told = envelope["data"]["groups"]
    assert sorted(told, key=lambda each: each["path"]) == [{"path": group, "pid": pid, "removed": False} for group in sorted(left)]
    join = "for group; do echo 0 > $group/cgroup.procs || exit; done; exec sleep 60"
    with subprocess.Popen([*apart, "sh", "-c", join, "sh", *left]) as straggler:
        until = time.monotonic() + 20
        while not all(Path(group, "cgroup.procs").read_text() for group in left):
            assert time.monotonic() < until
            time.sleep(0.02)
        Path(left[0], "made-by-the-session").mkdir()
        project.task("t", agent=scripted(WRITE))
        again = project.start("tasks", "--codeprobe-agent=scripted", prefix=apart).wait()
        assert straggler.wait(10) == -signal.SIGKILL
    assert again.statuses == {"t": "passed"}
    (swept,) = [warning for warning in again.envelope["warnings"] if "control group" in warning]
    number = f"{len(left)} control groups, " if len(left) > 1 else "control group "
    assert swept.startswith(f"swept: {number}")
    assert any(group in swept for group in left)
    assert not [group for group in left if Path(group).exists()]


@needs_root
def test_who_can_not_hold_them_is_told(project: Project) -> None:
    """Once for each limit and run; the tasks run. Here nobody may add to control groups, as most users may not."""
    limited(project, "a", {"memory_mb": 100, "pids": 20})
    limited(project, "b", {"memory_mb": 200})
    hidden = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs none /sys/fs/cgroup; exec "$@"', "sh")
    run = project.start("tasks", "--codeprobe-agent=scripted", "--codeprobe-jobs=2", prefix=hidden).wait().assert_consistent()
    assert run.statuses == {"a": "passed", "b": "passed"}
    why = "can't be held here, it is left out: there is no control group with the controller"
    told = [f"sandbox.limits.{name} {why} {c!r} that this user may add to" for name, c in (("memory_mb", "memory"), ("pids", "pids"))]
    assert sorted(run.envelope["warnings"]) == told
    assert run.output.count("can't be held here") == 2
    dry = project.start("tasks", "--codeprobe-agent=scripted", "--codeprobe-dry-run", prefix=hidden).wait()
    assert dry.output.count("can't be held here") == 2
    program = ("-c", "from pytest_codeprobe.cli import main; main()")
    doctor = project.start("doctor", "--agent=oracle", "--json", program=program, junit=False, prefix=hidden).wait()
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["data"]["checks"] if check["name"].startswith("limits")}
    missing = ("limits.memory_mb", "limits.cpus", "limits.pids")
    assert {name: check["status"] for name, check in checks.items()} == {**dict.fromkeys(missing, "info"), "limits": "pass"}
    assert checks["limits"]["message"] == "by a mount of that size: disk_mb"


# ---- which hierarchy


def lay(root: Path, groups: dict[str, str]) -> None:
    """Groups of v2: what each gives to its members."""
    for name, given in groups.items():
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(given)


def v2(point: Path, root: str = "/", options: str = "rw") -> str:
    return f"30 20 0:26 {root} {point} {options},nosuid - cgroup2 cgroup rw\n"


def v1(point: Path, controllers: str, root: str = "/") -> str:
    return f"31 20 0:27 {root} {str(point).replace(' ', chr(92) + '040')} rw,nosuid shared:9 - cgroup cgroup rw,{controllers}\n"


def test_v2_is_the_nearest_group_whose_members_get_most(tmp_path: Path) -> None:
    lay(tmp_path, {"": "cpu memory pids", "user.slice": "memory pids", "user.slice/s1": ""})
    own = "0::/user.slice/s1\n"
    home = str(tmp_path / "user.slice/s1")
    assert set(places(v2(tmp_path), own).values()) == {Place(2, str(tmp_path), home)}
    lay(tmp_path, {"": "memory pids"})
    found = places(v2(tmp_path), own)
    assert found == dict.fromkeys(("memory_mb", "pids"), Place(2, str(tmp_path / "user.slice"), home))
    assert places(v2(tmp_path, options="ro"), own) == {}
    lay(tmp_path, {"": "", "user.slice": ""})
    assert places(v2(tmp_path), own) == {}


def test_v1_where_v2_has_no_such_controller(tmp_path: Path) -> None:
    unified, memory, cpu = (tmp_path / name for name in ("unified", "me mory", "cpu"))
    lay(unified, {"": "pids", "own": ""})
    for folder in (memory / "box", cpu):
        folder.mkdir(parents=True)
    own = "9:memory:/docker/x/box\n4:cpu,cpuacct:/elsewhere\n0::/own\n"
    mounts = v1(memory, "memory", "/docker/x") + v1(cpu, "cpu,cpuacct", "/docker/x") + v2(unified)
    assert places(mounts, own) == {
        "pids": Place(2, str(unified), str(unified / "own")),
        "memory_mb": Place(1, str(memory / "box"), str(memory / "box")),
        "cpus": Place(1, str(cpu), str(cpu)),  # its own group can't be seen from here
    }
    assert places("25 1 0:5 / / rw - ext4 /dev/vda rw\n", own) == {}


# ---- what is written and read, of v2 as of v1


V2 = ("memory.max", "memory.swap.max", "memory.events", "cpu.max", "cpu.stat", "pids.max", "pids.events")
V1 = (
    *("memory.limit_in_bytes", "memory.swappiness", "memory.oom_control", "memory.failcnt"),
    *("cpu.cfs_period_us", "cpu.cfs_quota_us", "cpu.stat", "pids.max", "pids.events"),
)


Make = Callable[[Literal[1, 2], SandboxLimits], tuple[Group, Path]]


@pytest.fixture
def grouped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A group in a folder whose members have the files of one version, as the kernel makes them."""

    make_plain = os.mkdir

    def make_folder(folder: str, mode: int = 0o777) -> None:
        make_plain(folder, mode)
        for name in V2 if "/v2/" in folder else V1:
            Path(folder, name).write_text("0\n" if name == "memory.failcnt" else "")

    def make(version: Literal[1, 2], limits: SandboxLimits) -> tuple[Group, Path]:
        parent = tmp_path / f"v{version}"
        group = Group(dict.fromkeys(CONTROLLERS, Place(version, str(parent), "/home")), limits, beside=2)
        (folder,) = parent.iterdir()
        assert group.doors == [(str(folder), "/home")]
        return group, folder

    for name in ("v1", "v2"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr("os.mkdir", make_folder)
    return make


def test_what_v2_is_told_and_asked(grouped: Make) -> None:
    group, folder = grouped(2, SandboxLimits(memory_mb=64, cpus=0.25, pids=10))
    written = {name: (folder / name).read_text() for name in V2 if name.endswith("max")}
    assert written == {"memory.max": str(64 << 20), "memory.swap.max": "0", "cpu.max": "25000 100000", "pids.max": "13"}
    (folder / "pids.max").write_text("")
    group.settle()
    assert (folder / "pids.max").read_text() == "12"
    assert (group.hit(), group.throttled()) == (None, (0, 0))
    (folder / "memory.events").write_text("low 0\nmax 9\noom 0\noom_kill 1\n")  # the whole machine had none left
    assert group.hit() is None
    (folder / "memory.events").write_text("low 0\nmax 9\noom 2\noom_kill 1\n")
    assert group.hit() == "memory_mb"
    (folder / "memory.events").write_text("max 9\noom 2\noom_kill 0\n")
    (folder / "pids.events").write_text("max 3\n")
    assert group.hit() == "pids"
    (folder / "cpu.stat").write_text("usage_usec 5\nnr_periods 9\nnr_throttled 3\n")
    assert group.throttled() == (3, 9)


def test_what_v1_is_told_and_asked(grouped: Make) -> None:
    group, folder = grouped(1, SandboxLimits(memory_mb=64, cpus=0.001, pids=1 << 30))
    names = ("memory.limit_in_bytes", "memory.swappiness", "cpu.cfs_period_us", "cpu.cfs_quota_us", "pids.max")
    assert [(folder / name).read_text() for name in names] == [str(64 << 20), "0", "1000000", "1000", "max"]
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert group.hit() is None
    (folder / "memory.failcnt").write_text("70\n")
    assert group.hit() == "memory_mb"


def test_groups_of_others_come_and_go_while_the_abandoned_ones_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run looks, at its start, through what any container, service or login of the machine has."""
    left = tmp_path / "slice" / f"{hierarchies.prefix(2**22 + 1)}-0123abcd"
    for folder in (left, tmp_path / "scope/of/another"):
        folder.mkdir(parents=True)
    listed = os.scandir

    @contextlib.contextmanager
    def and_gone(folder: str) -> Iterator[Iterator[os.DirEntry[str]]]:
        with listed(folder) as entries:
            found = list(entries)
        with contextlib.suppress(FileNotFoundError):
            (tmp_path / "scope").rename(tmp_path.with_name("gone"))
        yield iter(found)

    monkeypatch.setattr("os.scandir", and_gone)
    assert list(hierarchies._ours_below(str(tmp_path))) == [str(left)]
    assert not (tmp_path / "scope").exists()
