"""The keeper ends whole trees and proves it: against hostile commands, and whichever party dies."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import pytest_codeprobe
from pytest_codeprobe.model.sandbox import ProcessExit, ProcessLimits, ProcessStarter, Role
from pytest_codeprobe.sandboxes.keeper import KeptProcess, Spawner

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="keepers need Linux")

HOSTILE = Path(__file__).with_name("hostile.py")
PATH = "/usr/local/bin:/usr/bin:/bin"
TOKENS = count(int(time.time() * 1000) * 1000 + os.getpid() % 1000)
PATIENCE = 20.0  # seconds; a test that needs them has failed


def alive(token: str) -> list[int]:
    """Processes whose command line shows the token; the dead and zombies have none."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has just gone
            if token.encode() in words:
                found.append(int(entry.name))
    return found


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> float:
    """Wait for the condition; seconds it took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < seconds, "waited in vain"
        time.sleep(0.005)
    return time.monotonic() - start


class Bench:
    """One spawner and what a test starts with it."""

    def __init__(self, spawner: Spawner, folder: Path) -> None:
        self.spawner, self.folder = spawner, folder
        self.null = os.open(os.devnull, os.O_RDWR)
        self.tokens: list[str] = []

    def start(self, argv: list[str], *, log: str = "log", flags: int = 0, **kwargs: Any) -> KeptProcess:
        file = os.open(self.folder / log, os.O_RDWR | os.O_CREAT | flags, 0o600)
        given: dict[str, Any] = {"env": {"PATH": PATH}, "cwd": str(self.folder), "limits": ProcessLimits(output_bytes=1 << 20), **kwargs}
        try:
            return self.spawner.start(argv, stdin=self.null, stdout=file, stderr=file, **given)
        finally:
            os.close(file)

    def hostile(self, kind: str, *, ready: bool = True, **kwargs: Any) -> tuple[KeptProcess, str, Path]:
        """The process, its token and its file, once it says that its tree stands."""
        token = str(next(TOKENS))
        self.tokens.append(token)
        file = self.folder / token
        process = self.start([sys.executable, "-I", "-S", str(HOSTILE), kind, token, str(file)], log=f"log-{token}", **kwargs)
        if ready:
            until(lambda: file.exists() and file.read_text().endswith("\n"))
            assert file.read_text() == "ready\n"
        return process, token, file

    def text(self, log: str = "log") -> str:
        return (self.folder / log).read_text()

    def close(self) -> None:
        self.spawner.close()
        os.close(self.null)
        for token in self.tokens:  # of a test that failed, or of the one that shows what can't be held
            for pid in alive(token):
                os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["namespaces", "subreaper"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(Spawner(namespaces=request.param == "namespaces"), tmp_path)
    if request.param == "namespaces" and bench.spawner.mode == "subreaper":
        bench.close()
        pytest.skip("no pid namespaces here")
    yield bench
    bench.close()


def ended(process: KeptProcess) -> ProcessExit:
    result = process.wait(PATIENCE)
    assert result is not None
    assert result.proved
    return result


# --- endings


@pytest.mark.joint
@pytest.mark.parametrize("kind", ["stubborn", "bomb", "frozen"])
def test_kill_leaves_nothing(bench: Bench, kind: str) -> None:
    process, token, _ = bench.hostile(kind)
    until(lambda: len(alive(token)) > 1)  # a process that becomes another program has no command line for a moment
    assert process.status is None
    process.kill()
    result = ended(process)
    assert alive(token) == []
    assert (result.cause, result.status) == ("stopped", -signal.SIGKILL)
    assert process.wait(0) == result


@pytest.mark.joint
def test_what_outlives_the_command_is_ended(bench: Bench) -> None:
    process, token, _ = bench.hostile("holder", ready=False)
    result = ended(process)
    assert (result.cause, result.status, process.status) == ("exit", 7, 7)
    assert result.left == 1
    assert alive(token) == []
    assert bench.text(f"log-{token}") == "done\n"


def test_orphans_are_reaped(bench: Bench) -> None:
    process, token, _ = bench.hostile("orphans", ready=False)
    result = ended(process)
    assert (result.cause, result.status) == ("exit", 0)
    assert alive(token) == []


@pytest.mark.joint
@pytest.mark.parametrize(("kind", "status"), [("saver", 4), ("slow_child", -signal.SIGTERM)])
def test_a_stop_waits_for_the_whole_tree(bench: Bench, kind: str, status: int) -> None:
    process, _, file = bench.hostile(kind)
    process.stop(10)
    result = ended(process)
    assert file.read_text() == "ready\nsaved\n"
    assert (result.cause, result.status) == ("stopped", status)


def test_the_grace_is_bounded(bench: Bench) -> None:
    process, token, _ = bench.hostile("stubborn")
    start = time.monotonic()
    process.stop(0.4)
    process.stop(30)  # can't make it longer
    assert ended(process).cause == "stopped"
    assert 0.4 <= time.monotonic() - start < 5
    assert alive(token) == []


def test_a_stop_reaches_the_command_but_not_its_wrapper(bench: Bench) -> None:
    wrapper = bench.folder / "enclosure"
    shutil.copy("/bin/sh", wrapper)
    file = bench.folder / "saved"
    saver = shlex.join([sys.executable, "-I", "-S", str(HOSTILE), "saver", str(next(TOKENS)), str(file)])
    process = bench.start([str(wrapper), "-c", f"{saver}; exit $(($? + 1))"], limits=ProcessLimits(wrapper="enclosure"))
    until(lambda: file.exists() and "ready" in file.read_text())
    process.stop(10)
    assert ended(process).status == 5


@pytest.mark.joint
def test_the_deadline_is_held(bench: Bench) -> None:
    start = time.monotonic()
    process, token, _ = bench.hostile("stubborn", limits=ProcessLimits(timeout=0.8, grace=0.2))
    result = ended(process)
    assert result.cause == "timeout"
    assert 1.0 <= time.monotonic() - start < 10
    assert alive(token) == []


def test_dropping_the_handle_ends_the_tree(bench: Bench) -> None:
    process, token, _ = bench.hostile("stubborn")
    del process
    until(lambda: not alive(token))


def test_close_ends_what_runs(bench: Bench) -> None:
    process, token, _ = bench.hostile("stubborn")
    bench.spawner.close()
    assert alive(token) == []
    assert ended(process).cause == "owner"


def test_64_at_once(bench: Bench) -> None:
    """A cold start from 64 threads; each gets its own answer."""
    bench.spawner.close()

    def one(number: int) -> int | None:
        return ended(bench.start(["sh", "-c", f"exit {number}"], log=f"log{number}")).status

    with ThreadPoolExecutor(64) as pool:
        assert list(pool.map(one, range(64))) == list(range(64))


# --- output and limits


@pytest.mark.joint
def test_output_is_cut_at_the_byte(bench: Bench) -> None:
    process, token, _ = bench.hostile("flood", ready=False, limits=ProcessLimits(output_bytes=1_234_567, grace=0.1))
    result = ended(process)
    assert (result.cause, result.output_bytes) == ("output", 1_234_567)
    assert (bench.folder / f"log-{token}").stat().st_size == 1_234_567
    assert alive(token) == []


def test_output_up_to_the_limit_is_whole(bench: Bench) -> None:
    result = ended(bench.start(["sh", "-c", "head -c 5000 /dev/zero"], limits=ProcessLimits(output_bytes=5000)))
    assert (result.cause, result.status, result.output_bytes) == ("exit", 0, 5000)


def test_a_log_that_was_cut_after_the_end_says_so(bench: Bench) -> None:
    """The command ends by itself before the keeper has read what it left in the pipe."""
    result = ended(bench.start(["sh", "-c", "printf 123456"], limits=ProcessLimits(output_bytes=5)))
    assert (result.cause, result.status, result.output_bytes, bench.text()) == ("output", 0, 5, "12345")


@pytest.mark.parametrize("flags", [0, os.O_APPEND], ids=["splice", "copy"])
def test_output_keeps_its_order(bench: Bench, flags: int) -> None:
    """splice refuses logs opened with O_APPEND."""
    process = bench.start(["sh", "-c", "for i in $(seq 500); do echo $i; echo $i >&2; done"], flags=flags)
    assert ended(process).cause == "exit"
    assert bench.text().split() == [str(i) for i in range(1, 501) for _ in range(2)]


def test_a_log_can_not_be_reopened(bench: Bench) -> None:
    """What was said stays said: the command holds a pipe, not the file."""
    process = bench.start(["sh", "-c", "echo first; : > /proc/self/fd/1; echo second"])
    assert ended(process).status == 0
    assert bench.text() == "first\nsecond\n"


def test_a_full_disk_ends_the_command(tmp_path: Path) -> None:
    script = """
import os, sys
from pytest_codeprobe.model.sandbox import ProcessLimits
from pytest_codeprobe.sandboxes.keeper import Spawner
log, null = os.open(sys.argv[1] + "/log", os.O_RDWR | os.O_CREAT), os.open(os.devnull, os.O_RDWR)
spawner = Spawner()
process = spawner.start(["yes"], env={}, cwd="/", stdin=null, stdout=log, stderr=log, limits=ProcessLimits(output_bytes=1 << 30))
print(process.wait(20))
spawner.close()
"""
    mount = ["unshare", *([] if os.getuid() == 0 else ["--user", "--map-root-user"]), "--mount", "--propagation", "private", "sh", "-c"]
    full = [*mount, 'mount -t tmpfs -o size=128k none "$1" && exec "$2" -c "$3" "$1"', "sh", str(tmp_path), sys.executable, script]
    if subprocess.run([*mount, 'mount -t tmpfs none "$1"', "sh", str(tmp_path)], check=False, stderr=subprocess.DEVNULL).returncode:
        pytest.skip("no mount namespaces here")
    done = subprocess.run(full, check=True, capture_output=True, text=True, env=owner_environment(), timeout=60)
    assert f"cause='log: {os.strerror(errno.ENOSPC)}'" in done.stdout
    assert "output_bytes=131072, proved=True" in done.stdout


def test_pipes_are_handed_over(bench: Bench) -> None:
    read, write = os.pipe()
    process = bench.spawner.start(
        ["sh", "-c", "echo out; exec >/dev/null 2>&1; sleep 60"],
        env={"PATH": PATH},
        cwd="/",
        stdin=bench.null,
        stdout=write,
        stderr=write,
        limits=ProcessLimits(),
    )
    os.close(write)
    assert os.read(read, 10) == b"out\n"
    assert os.read(read, 10) == b""  # its end shows while the command goes on: the keeper holds none
    os.close(read)
    process.kill()
    assert ended(process).cause == "stopped"


def test_rlimits_bind_the_command_and_not_its_log(bench: Bench) -> None:
    limits = ProcessLimits(output_bytes=1 << 20, rlimits={"NOFILE": (70, 80), "FSIZE": (4096, 4096), "CORE": (0, 0)})
    script = "ulimit -n; ulimit -Hn; ulimit -Hc; head -c 50000 /dev/zero > big; head -c 50000 /dev/zero"
    assert ended(bench.start(["bash", "-c", script], limits=limits)).cause == "exit"
    lines = (bench.folder / "log").read_bytes().split(b"\n", 4)
    assert lines[:3] == [b"70", b"80", b"0"]
    assert (bench.folder / "big").stat().st_size == 4096
    assert (bench.folder / "log").stat().st_size > 50_000


def test_hard_limits_come_too_where_the_keeper_must_stay_free(bench: Bench) -> None:
    limits = ProcessLimits(rlimits={"NOFILE": (5, 6), "FSIZE": (8192, 8192)})
    script = "for i in $(seq 300); do [ $(ulimit -Hn) = 6 ] && [ $(ulimit -Hf) = 8 ] && echo both && exit; done"
    process = bench.start(["bash", "-c", script], limits=limits)
    assert ended(process).status == 0
    assert bench.text() == "both\n"
    process, token, _ = bench.hostile("stubborn", limits=limits)
    process.kill()
    ended(process)
    assert alive(token) == []


@pytest.mark.joint
def test_the_command_gets_nothing_that_was_not_given(bench: Bench) -> None:
    files = [(bench.folder / f"own{number}").open("w") for number in range(3)]
    for file in files:
        os.set_inheritable(file.fileno(), True)
    other, _, _ = bench.hostile("stubborn")
    code = "import json, os; print(json.dumps([sorted(os.listdir('/proc/self/fd')), dict(os.environ), os.getcwd()]))"
    ended(bench.start([sys.executable, "-I", "-S", "-c", code], env={"A": "1", "LC_CTYPE": "C.UTF-8"}))
    assert json.loads(bench.text()) == [["0", "1", "2", "3"], {"A": "1", "LC_CTYPE": "C.UTF-8"}, str(bench.folder)]  # 3 is the listing
    if os.getuid() == 0:  # else it is not dumpable, and shows nothing at all
        given = Path(f"/proc/{bench.spawner.pid}/environ").read_bytes().split(b"\0")
        assert [item for item in given if item and not item.startswith((b"LD_LIBRARY_PATH=", b"LD_BIND_NOW="))] == []
    other.kill()
    ended(other)
    for file in files:
        file.close()


@pytest.mark.parametrize(
    ("argv", "kwargs", "number"),
    [
        (["no-such-program"], {}, errno.ENOENT),
        (["./no-such-program"], {}, errno.ENOENT),
        (["/dev/null"], {}, errno.EACCES),
        (["true"], {"cwd": "/no/such/folder"}, errno.ENOENT),
        (["true", "a\0b"], {}, errno.EINVAL),
        (["true", "\ud800"], {}, errno.EINVAL),
        (["true"], {"env": {"PATH": PATH, "A=B": "1"}}, errno.EINVAL),
        (["true", "x" * 3_000_000], {}, errno.E2BIG),
        (["./text"], {}, errno.ENOEXEC),
        (["true"], {"limits": ProcessLimits(rlimits={"NONSENSE": (1, 1)})}, errno.EINVAL),
    ],
)
def test_what_can_not_start_says_why(bench: Bench, argv: list[str], kwargs: dict[str, Any], number: int) -> None:
    (bench.folder / "text").write_text("no program")
    (bench.folder / "text").chmod(0o755)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - the number is looked at below
        bench.start(argv, **kwargs)
    assert caught.value.errno == number
    assert ended(bench.start(["true"])).status == 0


def test_a_spawner_that_can_not_start_says_why(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    bench = Bench(Spawner(watch=[gone.pid]), tmp_path)
    with pytest.raises(ChildProcessError, match="No such process"):
        bench.start(["true"])
    bench.close()


def test_it_is_what_sandboxes_ask_for(bench: Bench) -> None:
    starter: ProcessStarter = bench.spawner
    bench.spawner.close()  # before the first start, and after a close, there is no process
    assert bench.spawner.pid is None
    argv = ["true"]
    process = starter.start(
        argv, env={"PATH": PATH}, cwd="/", stdin=bench.null, stdout=bench.null, stderr=bench.null, limits=ProcessLimits(), role="setup"
    )
    assert process.destroy().proved


# --- a stop of the run


def flag(folder: Path, name: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).touch()


@pytest.mark.joint
def test_flags_end_what_their_reason_is_for(bench: Bench) -> None:
    stop = bench.folder / "stop"
    roles: tuple[Role, ...] = ("session", "grader", "setup", "post_run")
    processes = {role: bench.hostile("saver", role=role, stop_dir=str(stop), agent="codex")[0] for role in roles}
    marker = bench.hostile("saver", stop_dir=str(stop), agent="claude")[0]
    flag(stop, "auth")
    flag(stop, "canary")
    flag(stop, "budget@claude")
    assert ended(marker).cause == "stopped:budget"
    assert [role for role in roles if processes[role].wait(0.1)] == []  # they have looked at the same time
    flag(stop, "trace")
    result = ended(processes["session"])
    assert (result.cause, result.status) == ("stopped:trace", 4)
    assert [role for role in roles if processes[role].wait(0.1)] == ["session"]
    start = time.monotonic()
    flag(stop, "interrupt")
    assert ended(processes["grader"]).cause == "stopped:interrupt"
    assert ended(processes["setup"]).cause == "stopped:interrupt"
    assert time.monotonic() - start < 5
    assert processes["post_run"].wait(0.1) is None
    processes["post_run"].kill()
    assert ended(processes["post_run"]).cause == "stopped"


def test_now_ends_the_grace_and_bounds_post_run(bench: Bench) -> None:
    stop = bench.folder / "stop"
    limits = ProcessLimits(grace=60)
    session, token, _ = bench.hostile("stubborn", stop_dir=str(stop), limits=limits)
    last, _, file = bench.hostile("saver", role="post_run", stop_dir=str(stop))
    flag(stop, "interrupt")
    assert session.wait(0.6) is None
    flag(stop, "now")
    start = time.monotonic()
    assert ended(session).cause == "stopped:interrupt"
    assert time.monotonic() - start < 3
    assert alive(token) == []
    if bench.spawner.mode == "subreaper":
        assert ended(last).cause == "stopped:now"
        assert 4 < time.monotonic() - start < 9
        assert file.read_text() == "ready\n"


def test_nothing_starts_in_a_stopped_run(bench: Bench) -> None:
    flag(bench.folder / "stop", "maxfail")
    process = bench.start(["touch", "started"], role="grader", stop_dir=str(bench.folder / "stop"))
    result = ended(process)
    assert (result.cause, result.status) == ("stopped:maxfail", None)
    assert not (bench.folder / "started").exists()
    ended(bench.start(["touch", "started"], role="post_run", stop_dir=str(bench.folder / "stop")))
    assert (bench.folder / "started").exists()


# --- death of a party


OWNER = """
import json, os, signal, sys, time
from pytest_codeprobe.model.sandbox import ProcessLimits
from pytest_codeprobe.sandboxes.keeper import Spawner
config = json.loads(sys.argv[1])
null = os.open(os.devnull, os.O_RDWR)
spawner = Spawner(namespaces=config["namespaces"], watch=config["watch"])
held = [
    spawner.start(argv, env={}, cwd="/", stdin=null, stdout=null, stderr=null, limits=ProcessLimits(**config["limits"]))
    for argv in config["commands"]
]
if os.fork() == 0:
    print(os.getpid(), spawner.pid, flush=True)
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def owner_environment() -> dict[str, str]:
    root = str(Path(pytest_codeprobe.__file__).resolve().parent.parent)
    return {"PATH": PATH, "PYTHONPATH": os.pathsep.join([root, *filter(None, sys.path)]), "PYTHONDONTWRITEBYTECODE": "1"}


class Owner:
    """Another process with a spawner, three stubborn trees, and a forked copy of itself that holds all its sockets."""

    def __init__(self, bench: Bench, watch: tuple[int, ...] = (), timeout: float = 60.0, grace: float = 60.0) -> None:
        self.tokens = [str(next(TOKENS)) for _ in range(3)]
        bench.tokens += self.tokens
        files = [bench.folder / token for token in self.tokens]
        config = {
            "namespaces": bench.spawner.mode != "subreaper",
            "watch": watch,
            "limits": {"timeout": timeout, "grace": grace},
            "commands": [
                [sys.executable, "-I", "-S", str(HOSTILE), "stubborn", token, str(file)]
                for token, file in zip(self.tokens, files, strict=True)
            ],
        }
        self.process = subprocess.Popen([sys.executable, "-c", OWNER, json.dumps(config)], stdout=subprocess.PIPE, env=owner_environment())
        assert self.process.stdout is not None
        self.copy, self.spawner = map(int, self.process.stdout.readline().split())
        until(lambda: all(file.exists() for file in files))
        until(lambda: len(self.left()) >= 12)  # the last of them may be between fork and exec

    def left(self) -> list[int]:
        return [pid for token in self.tokens for pid in alive(token)]

    def close(self) -> None:
        os.kill(self.copy, signal.SIGKILL)
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def controller() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


@pytest.mark.joint
@pytest.mark.parametrize("victim", ["owner", "controller"])
def test_no_tree_outlives_its_owner(bench: Bench, controller: subprocess.Popen[bytes], victim: str) -> None:
    owner = Owner(bench, watch=(controller.pid,))
    (owner.process if victim == "owner" else controller).kill()
    assert until(lambda: not owner.left()) < 3  # there is no grace
    until(lambda: not Path(f"/proc/{owner.spawner}/cmdline").exists() or not Path(f"/proc/{owner.spawner}/cmdline").read_bytes())
    assert Path(f"/proc/{owner.copy}").exists()
    owner.close()


def test_the_deadline_holds_while_the_owner_is_stopped(bench: Bench) -> None:
    owner = Owner(bench, timeout=2.0, grace=0.1)
    owner.process.send_signal(signal.SIGSTOP)
    assert owner.left()
    until(lambda: not owner.left())
    assert owner.process.poll() is None
    owner.close()


@pytest.mark.joint
def test_a_dead_spawner_is_replaced_and_its_sessions_go_on(bench: Bench) -> None:
    first, token, _ = bench.hostile("stubborn")
    before = bench.spawner.pid
    assert before is not None
    os.kill(before, signal.SIGKILL)
    second, token2, _ = bench.hostile("stubborn")
    assert bench.spawner.pid != before
    until(lambda: len(alive(token)) > 1)
    for process in (first, second):
        process.kill()
        assert ended(process).cause == "stopped"
    assert alive(token) + alive(token2) == []


def test_signals_for_the_whole_job_are_left_to_the_owner(bench: Bench) -> None:
    """^C, a closed terminal or a service manager's TERM: the owner decides, and until then sessions go on."""
    process, _, _ = bench.hostile("stubborn")
    assert bench.spawner.pid is not None
    assert os.getsid(bench.spawner.pid) != os.getsid(0)
    for pid in (bench.spawner.pid, process.keeper_pid):
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
            os.kill(pid, number)
    assert ended(bench.start(["true"])).status == 0
    assert bench.spawner.pid == process.spawner_pid
    assert process.wait(0.1) is None
    process.kill()
    assert ended(process).cause == "stopped"


@pytest.mark.joint
def test_a_killed_keeper_takes_its_tree_along(bench: Bench) -> None:
    process, token, _ = bench.hostile("stubborn")
    os.kill(process.keeper_pid, signal.SIGKILL)
    result = ended(process)
    assert (result.cause, result.status) == ("lost", None)
    assert alive(token) == []


def test_a_killed_keeper_without_its_spawner(bench: Bench) -> None:
    process, token, _ = bench.hostile("stubborn")
    assert bench.spawner.pid is not None
    os.kill(bench.spawner.pid, signal.SIGKILL)
    os.kill(process.keeper_pid, signal.SIGKILL)
    result = process.wait(PATIENCE)
    assert result is not None
    assert result.cause == "lost"
    assert result.proved == (bench.spawner.mode != "subreaper")  # only the kernel could know
    assert not result.proved or not alive(token)


def test_a_command_that_kills_its_keeper(bench: Bench) -> None:
    process, token, _ = bench.hostile("kill_keeper")
    if bench.spawner.mode == "subreaper":
        assert ended(process).cause == "lost"
    else:
        process.stop(0.1)  # PID 1 does not see a KILL from within
        assert ended(process).cause == "stopped"
    assert alive(token) == []


def test_a_command_that_stops_its_keeper_gains_nothing(bench: Bench) -> None:
    process, token, _ = bench.hostile("freeze_keeper", limits=ProcessLimits(timeout=0.8, grace=0.1))
    assert ended(process).cause == "timeout"
    assert alive(token) == []


def test_a_keeper_that_stays_stopped_is_killed(bench: Bench) -> None:
    process, token, _ = bench.hostile("stubborn")
    assert bench.spawner.pid is not None
    os.kill(bench.spawner.pid, signal.SIGSTOP)  # so that it can't wake the keeper
    os.kill(process.keeper_pid, signal.SIGSTOP)
    result = process.destroy(0.3)
    assert bench.spawner.pid == process.spawner_pid
    assert (result.cause, result.proved) == ("lost", True)
    assert alive(token) == []


def test_a_command_that_kills_keeper_and_spawner_is_no_proof(tmp_path: Path) -> None:
    bench = Bench(Spawner(namespaces=False), tmp_path)
    process, token, _ = bench.hostile("kill_both")
    result = process.wait(PATIENCE)
    assert result is not None
    assert (result.cause, result.proved) == ("lost", False)
    assert alive(token)  # which is why
    assert ended(bench.start(["true"])).status == 0
    bench.close()


def test_kill_minus_one_reaches_its_own_tree_alone(tmp_path: Path) -> None:
    bench = Bench(Spawner(), tmp_path)
    if bench.spawner.mode == "subreaper":
        bench.close()
        pytest.skip("no pid namespaces here")
    other, token2, _ = bench.hostile("stubborn")
    process, token, _ = bench.hostile("kill_all")
    assert process.status is None  # kill(-1) spares the caller
    until(lambda: len(alive(token)) == 1)
    until(lambda: len(alive(token2)) > 1)
    for each in (process, other):
        each.kill()
        assert ended(each).cause == "stopped"
    bench.close()
