"""Driver tempdir: its folders, commands in it under real keepers, what it can't hold; and the sweep of dead owners' folders."""

from __future__ import annotations

import json
import os
import random
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.model.context import Context, Registry
from pytest_codeprobe.model.sandbox import Command, CommandResult, Driver, ProcessLimits, Sandbox
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.run.stops import StopFolder
from pytest_codeprobe.sandboxes import BUILTIN, choose, sweep
from pytest_codeprobe.sandboxes.keeper import Spawner
from pytest_codeprobe.sandboxes.sweep import MARK, new_folder, start_time
from pytest_codeprobe.sandboxes.tempdir import TempdirDriver
from pytest_codeprobe.text import Redactor
from tests.unprivileged import unprivileged_argv

needs_keepers = pytest.mark.skipif(sys.platform != "linux", reason="keepers need Linux")
PATH = {"PATH": "/usr/local/bin:/usr/bin:/bin"}


class NoEvents:
    """Nobody listens."""

    def emit(self, event: str, **fields: Any) -> None: ...


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


@pytest.fixture
def context(tmp_path: Path, spawner: Spawner) -> Context:
    return Context(
        run_id="run",
        run_dir=tmp_path / "run",
        rootdir=tmp_path,
        options=RunOptions(),
        registry=Registry(agents={}, drivers={driver.name: driver for driver in BUILTIN}, criteria={}),
        environ={},
        clock=time,  # type: ignore[arg-type]  # now() is not asked for
        events=NoEvents(),
        stops=StopFolder(tmp_path / "stop"),
        processes=spawner,
        redactor=Redactor(),
        python=sys.executable,
        scratch=tmp_path / "scratch",
        random=random.Random(0),
    )


def trial(**sandbox: Any) -> Trial:
    files = [{"path": "a.txt", "content": "one\n"}]
    config = {"template_sources": [{"type": "starter_files", "files": files}], **sandbox}
    return Trial(
        node_id="task.yaml::t",
        task_id="t",
        folder="trials/t",
        task_file="/task.yaml",
        prompt=None,
        agent=AgentConfig(type="scripted"),
        sandbox=SandboxConfig.model_validate(config),
        limits=RunLimits(),
        criteria=(),
    )


@pytest.fixture
def sandbox(context: Context) -> Iterator[Sandbox]:
    made = TempdirDriver().create(trial(), context)
    made.prepare()
    yield made
    assert made.delete() == []


def shell(sandbox: Sandbox, line: str, timeout: float = 30, **options: Any) -> CommandResult:
    return sandbox.run(Command(argv=["sh", "-c", line], env=PATH, **options), role="setup", timeout=timeout)


# ---- the folder


def test_the_folder_is_private_outside_the_repository_and_goes_away(context: Context) -> None:
    sandbox = TempdirDriver().create(trial(), context)
    assert not (context.scratch or Path()).exists()
    with pytest.raises(CodeprobeError, match="not prepared"):
        _ = sandbox.root
    sandbox.prepare()
    root = sandbox.root
    assert root.parent == context.scratch
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    for part in (sandbox.workspace, sandbox.home, sandbox.tmp, sandbox.logs):
        assert part.parent == root
        assert stat.S_IMODE(part.stat().st_mode) == 0o700
    assert json.loads((root / MARK).read_text())["pid"] == os.getpid()
    assert (sandbox.template / "a.txt").read_text() == (sandbox.workspace / "a.txt").read_text() == "one\n"
    assert sandbox.driver == "tempdir"
    with pytest.raises(CodeprobeError, match="prepared already"):
        sandbox.prepare()
    assert sandbox.delete() == []
    assert sandbox.delete() == []
    assert not root.exists()


def test_a_failed_layout_leaves_nothing(context: Context) -> None:
    driver = TempdirDriver()
    sandbox = driver.create(trial(template_sources=[{"type": "template_dir", "path": "/nonexistent"}]), context)
    with pytest.raises(CodeprobeError, match="/nonexistent"):
        sandbox.prepare()
    del driver, sandbox
    assert list((context.scratch or Path()).iterdir()) == []


def test_a_scratch_that_is_a_file_is_named(context: Context) -> None:
    assert context.scratch is not None
    context.scratch.write_text("")
    with pytest.raises(CodeprobeError, match=r"SANDBOX_FAILED.*scratch.*(File exists|Not a directory)"):
        TempdirDriver().create(trial(), context).prepare()


def test_one_template_for_a_run_and_none_after_it(context: Context) -> None:
    driver = TempdirDriver()
    first, second = (driver.create(trial(), context) for _ in range(2))
    first.prepare()
    second.prepare()
    assert first.template == second.template
    (first.workspace / "a.txt").write_text("mine")
    assert (second.workspace / "a.txt").read_text() == "one\n"
    first.delete()
    second.delete()
    del driver, first, second
    assert list((context.scratch or Path()).iterdir()) == []


# ---- commands


@needs_keepers
def test_a_command_sees_its_input_folder_environment_and_nothing_else(sandbox: Sandbox) -> None:
    line = "cat; echo; pwd; env | sort; ls /proc/self/fd | wc -w; ulimit -c; echo complaint >&2; exit 3"
    result = shell(sandbox, line, stdin=b"given \xff")
    lines = result.stdout.splitlines()
    assert lines[:2] == ["given \ufffd", str(sandbox.workspace)]
    assert {line.partition("=")[0] for line in lines[2:-2]} <= {"PATH", "PWD", "OLDPWD", "SHLVL", "_"}
    assert lines[-2:] == ["4", "0"]  # the three, and the one that ls reads
    assert (result.exit.status, result.exit.cause, result.stderr) == (3, "exit", "complaint\n")
    assert 0 < result.duration < 30
    assert list(sandbox.logs.iterdir()) == []


@needs_keepers
def test_without_input_a_command_reads_the_end(sandbox: Sandbox) -> None:
    assert shell(sandbox, "cat; readlink /proc/self/fd/0").stdout == "/dev/null\n"


@needs_keepers
def test_a_descriptor_is_handed_over_and_stays_the_callers(sandbox: Sandbox) -> None:
    reader, writer = os.pipe()
    os.write(writer, b"through a pipe")
    os.close(writer)
    assert shell(sandbox, "cat", stdin_fd=reader).stdout == "through a pipe"
    os.close(reader)


@needs_keepers
def test_long_output_keeps_head_and_tail(sandbox: Sandbox) -> None:
    command = Command(argv=["sh", "-c", "seq 100000"], env=PATH)
    result = sandbox.run(command, role="setup", timeout=30, output_bytes=100)
    assert result.stdout.startswith("1\n2\n3\n")
    assert result.stdout.endswith("99999\n100000\n")
    assert "bytes left out" in result.stdout
    assert len(result.stdout) < 200


@needs_keepers
def test_time_and_output_are_limited(context: Context, sandbox: Sandbox) -> None:
    assert shell(sandbox, "sleep 100", timeout=0.3).exit.cause == "timeout"
    small = TempdirDriver().create(trial(limits={"output_mb": 0.01}), context)
    small.prepare()
    assert shell(small, "yes").exit.cause == "output"
    assert small.delete() == []


@needs_keepers
def test_logs_are_new_private_files_and_no_descriptor_is_left(sandbox: Sandbox) -> None:
    shell(sandbox, "true")  # the first command of a process starts what all others are forked from
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    log = sandbox.logs / "both"
    command = Command(argv=["sh", "-c", "echo 1; echo 2 >&2; echo 3"], env=PATH, cwd=sandbox.home)
    process = sandbox.start(command, role="session", stdout=log, stderr=log, limits=ProcessLimits(timeout=30))
    ended = process.wait(30)
    assert ended is not None
    assert ended.status == 0
    assert log.read_text() == "1\n2\n3\n"
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    with pytest.raises(FileExistsError):
        sandbox.start(command, role="session", stdout=log, stderr=sandbox.logs / "err", limits=ProcessLimits())
    (sandbox.logs / "trap").symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="trap"):
        sandbox.start(command, role="session", stdout=sandbox.logs / "trap", stderr=log, limits=ProcessLimits())
    with pytest.raises(FileNotFoundError):
        sandbox.run(Command(argv=["no-such-program"], env=PATH), role="setup", timeout=5)
    del process
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    log.unlink()


@needs_keepers
def test_a_stop_of_the_run_reaches_the_command(context: Context, sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(shell, sandbox, "touch started; sleep 100")
        deadline = time.monotonic() + 20
        while not (sandbox.workspace / "started").exists():
            assert time.monotonic() < deadline
            time.sleep(0.005)
        context.stops.raise_flag("interrupt")
        assert running.result(30).exit.cause == "stopped:interrupt"


@needs_keepers
def test_a_whole_trial(context: Context, sandbox: Sandbox, tmp_path: Path) -> None:
    assert shell(sandbox, "echo pre > made").exit.status == 0
    sandbox.snapshot()
    assert sandbox.changes() == []
    shell(sandbox, "echo two >> a.txt; rm made; mkdir -p d; printf 'x\\n' > d/new; git commit -qam done 2>/dev/null || :; touch .git/x")
    assert [(change.path, change.kind) for change in sandbox.changes()] == [("a.txt", "modified"), ("d/new", "added"), ("made", "deleted")]
    sandbox.write_diff(tmp_path / "diff.patch")
    assert (tmp_path / "diff.patch").read_text().count("diff --git ") == 3
    assert sandbox.keep(tmp_path / "kept", ()) == "whole"
    sandbox.restore(["a.txt"])
    assert (sandbox.workspace / "a.txt").read_text() == "one\n"
    assert (tmp_path / "kept" / "a.txt").read_text() == "one\ntwo\n"
    assert sandbox.move(tmp_path / "moved", ["d/"]) == "partial"
    assert not (tmp_path / "moved" / "d").exists()
    assert not sandbox.workspace.exists()


# ---- the driver


def test_what_can_not_be_held_is_named() -> None:
    driver: Driver = TempdirDriver()
    assert not driver.isolates
    assert driver.unsupported(trial(limits={"output_mb": 1})) == []
    asked = trial(
        network="off",
        limits={"memory_mb": 1, "cpus": 1, "pids": 1, "disk_mb": 1},
        docker={"image": "x"},
        template_sources=[{"type": "template_dir", "path": "/x"}],
    )
    isolating = "driver bubblewrap or docker"
    assert dict(driver.unsupported(asked)) == {
        "sandbox.network": isolating,
        "sandbox.docker": "driver docker",
    }


def test_drivers_are_chosen_by_name_without_a_fallback(context: Context) -> None:
    assert choose("tempdir", context.registry, context) is BUILTIN[0]
    assert choose("auto", context.registry, context).name in ("bubblewrap", "tempdir")  # what works here
    for name in ("kvm", "tempdri"):
        with pytest.raises(CodeprobeError) as caught:
            choose(name, context.registry, context)
        assert caught.value.code == "SANDBOX_UNAVAILABLE"
        assert name in caught.value.message
        assert "tempdir" in caught.value.remediation
    assert "did you mean 'tempdir'" in caught.value.message


# ---- the sweep


def dead_owner(root: Path) -> Path:
    """A folder whose owner was killed."""
    program = (
        "import os, signal, sys; from pathlib import Path\n"
        "from pytest_codeprobe.sandboxes.sweep import new_folder\n"
        "folder = new_folder(Path(sys.argv[1])); (folder / 'workspace').mkdir(); (folder / 'workspace' / 'f').write_text('x')\n"
        "print(folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=False, timeout=60)
    return Path(done.stdout.strip())


def test_only_what_a_dead_process_left_is_swept(tmp_path: Path) -> None:
    dead, mine = dead_owner(tmp_path), new_folder(tmp_path)
    foreign = dead_owner(tmp_path)
    mark = json.loads((foreign / MARK).read_text())
    (foreign / MARK).write_text(json.dumps({**mark, "host": "elsewhere"}))
    container = dead_owner(tmp_path)
    (container / MARK).write_text(json.dumps({**mark, "pids": "pid:[1]"}))
    broken = dead_owner(tmp_path)
    (broken / MARK).write_text("{")
    unmarked = dead_owner(tmp_path)
    (unmarked / MARK).unlink()
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "f").write_text("precious")
    (tmp_path / f"{dead.name[:-4]}abcd").symlink_to(victim)
    (dead / "workspace" / "out").symlink_to(victim)
    (tmp_path / "codeprobe-notes").mkdir()
    before_boot = dead_owner(tmp_path)
    (before_boot / MARK).write_text(json.dumps({**mark, "boot": "another"}))
    half_made = tmp_path / dead_owner(tmp_path / "aside").name
    half_made.mkdir()
    assert sorted(sweep(tmp_path)) == sorted([dead.name, before_boot.name])
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {path.name for path in (mine, foreign, container, broken, unmarked, victim)} | {
        f"{dead.name[:-4]}abcd",
        "codeprobe-notes",
        "aside",
    }
    assert (victim / "f").read_text() == "precious"
    assert sweep(tmp_path) == []
    assert sweep(tmp_path / "missing") == []


def test_another_process_with_the_owners_number_is_not_the_owner(tmp_path: Path) -> None:
    mine = new_folder(tmp_path)
    started = start_time(os.getpid())
    assert started is not None
    reused = mine.rename(tmp_path / f"codeprobe-{os.getpid()}-{started - 1}-0123456789ab")
    (reused / MARK).write_text(json.dumps({**json.loads((reused / MARK).read_text()), "start": started - 1}))
    assert sweep(tmp_path) == [reused.name]


def test_sweeps_at_the_same_time_share_the_work(tmp_path: Path) -> None:
    dead = dead_owner(tmp_path)
    text = (dead / MARK).read_text()
    names = {dead.name}
    for number in range(40):
        more = tmp_path / f"{dead.name[:-3]}{number:03d}"
        more.mkdir(0o700)
        (more / MARK).write_text(text)
        names.add(more.name)
    with ThreadPoolExecutor(8) as pool:
        removed = [name for found in pool.map(lambda _: sweep(tmp_path), range(8)) for name in found]
    assert sorted(removed) == sorted(names)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_was_killed_is_taken_up_again(tmp_path: Path) -> None:
    dead = dead_owner(tmp_path)
    sweeper = dead_owner(tmp_path / "aside")  # its number and start time are those of a dead process too
    dead.rename(tmp_path / sweeper.name)
    assert sweep(tmp_path) == [sweeper.name]


def test_a_folder_that_nobody_may_read_is_swept_all_the_same(tmp_path: Path) -> None:
    """Under tempdir a session can do that to its own."""
    dead = dead_owner(tmp_path)
    dead.chmod(0o300)
    program = "import sys; from pathlib import Path; from pytest_codeprobe.sandboxes import sweep; print(sweep(Path(sys.argv[1])))"
    argv = unprivileged_argv([sys.executable, "-c", program, str(tmp_path)])
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout, done.stderr) == (f"{[dead.name]}\n", "")
    assert not list(tmp_path.iterdir())
