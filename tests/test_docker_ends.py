"""Driver docker, with real podman: whose end an end is, and that nothing is left, whoever is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from pytest_codeprobe.model.sandbox import ProcessExit
from pytest_codeprobe.sandboxes import engines
from pytest_codeprobe.sandboxes.containers import Evidence, Report, WatchedContainer
from tests import containers
from tests.containers import BARE, use
from tests.front_door import Project, scripted

WRITE = {"write": {"path": "out.txt", "content": "x"}}
OUT = [{"type": "file_exists", "path": "out.txt"}]
AGENT = "--codeprobe-agent=scripted"


class Over:
    """A process that has ended by itself."""

    def __init__(self, status: int) -> None:
        self._end = ProcessExit(status=status, cause="exit")

    def wait(self, timeout: float | None = None) -> ProcessExit:
        return self._end

    def stop(self, grace: float) -> None:
        pass

    def destroy(self, timeout: float = 2.0) -> ProcessExit:
        return self._end


def test_what_is_believed_of_a_container(tmp_path: Path) -> None:
    """Where nothing has run it is no end of the command's, whatever status the shell gave; what ran there may write in the report."""
    complaints = tmp_path / "stderr"
    complaints.write_text("/bin/sh: 1: .: cannot open /run/codeprobe/environment: Permission denied\n")
    report, told = Report(tmp_path / "report"), tmp_path / "told"

    def cause(status: int, *, lacks: bool | None = False, inspected: str = "") -> str:
        told.write_text(inspected)
        asked = None if lacks is None else lambda: bool(lacks)
        ended = WatchedContainer(Over(status), Evidence(report, told), complaints, "x", "podman run", asked).wait()
        assert ended is not None
        return ended.cause

    nothing = "/bin/sh: 1: .: cannot open /run/codeprobe/environment: Permission denied"
    assert {cause(2), cause(125, inspected="exited 125")} == {f"enclosure: {nothing} (by hand, without mounts and limits: podman run)"}
    report.path.write_text("ran\nno-python\nended\n")
    assert (cause(2), cause(127), cause(137)) == ("exit", "exit", "exit")
    assert "has no python3" in cause(127, lacks=True)
    assert cause(127, lacks=None) == "exit"  # none was wanted
    for forged in ("ran\n", "ran\nended", "ran\nended\nand more\n", "x" * (3 << 16)):
        report.path.write_text(forged)
        assert (cause(1, inspected="exited 1\n"), cause(125, inspected="exited 125\n")) == ("exit", "exit")
        others = {(1, ""), (125, "running 0\n"), (137, "exited 137\n"), (1, "exited 137\n"), (-9, "running 0\n")}
        assert {cause(status, inspected=said) for status, said in others} == {f"taken: {nothing}"}


def test_counters_are_found_in_a_report_of_any_length(tmp_path: Path) -> None:
    report = Report(tmp_path / "report")
    report.path.write_text("ran\n" + "forged 1\n" * 100_000 + "memory_mb 1\nended\n")
    assert {"ran", "forged", "memory_mb", "ended"} <= report.read().keys()
    assert report.ended


def test_an_engine_that_ends_a_session_is_no_failure_of_the_session(project: Project) -> None:
    """Whoever takes its container away, from outside, and whatever status the engine's client has then; a command's own is its own."""
    engine = use(project)
    kinds: Mapping[str, Callable[[str], object]] = {
        "kill": lambda name: containers.podman(engine, "kill", "--signal", "KILL", name),
        "remove": lambda name: containers.podman(engine, "rm", "-f", "-t", "0", name),
        "monitor": lambda name: os.kill(_monitor(engine, name), signal.SIGKILL),
    }
    own = {
        "status": "exit 125",
        "signal": "kill -9 $$",
        "flood": "(while :; do echo flood >&2; done) & sleep 0.2; exit 1",
    }
    for task, command in {**dict.fromkeys(kinds, "touch on.txt; sleep 600"), **own}.items():
        shell = {"type": "command", "command": ["sh", "-c", f"touch out.txt; echo said >&2; {command}"]}
        project.task(task, agent=shell, success_criteria=OUT)
    run = project.start("tasks", "--codeprobe-agent=command", "--codeprobe-jobs=6")
    home = Path(project.environment["TMPDIR"])
    run.poll(lambda: len(list(home.glob("codeprobe-*/workspace/on.txt"))) == len(kinds), 60)
    for kind, end in kinds.items():
        trial = f"label=codeprobe.trial=tasks/{kind}.yaml::{kind}"
        (name,) = containers.podman(engine, "ps", "--filter", trial, "--format", "{{.Names}}").split()
        end(name)
    run.wait(60)
    run.assert_consistent()
    assert {task: run.finished[task]["code"] for task in kinds} == dict.fromkeys(kinds, "SANDBOX_FAILED"), run.output
    assert all("its sandbox was ended from outside" in run.result(task)["reason"] for task in kinds)
    assert {task: run.statuses[task] for task in own} == dict.fromkeys(own, "passed")
    run.assert_nothing_left()
    assert not containers.of(engine, run)


#: what a command may do to the first process of its container, and to what that says, before it fails
_TO_THE_FIRST = {
    "files": "python3 -c 'import resource; resource.prlimit(1, resource.RLIMIT_NOFILE, (0, 0))'",
    "memory": "python3 -c 'import resource; resource.prlimit(1, resource.RLIMIT_AS, (0, 0))'",
    "report": 'python3 -c \'open("/run/codeprobe/report", "w").write("x" * 3000000)\'',
    "sparse": "truncate -s 3G /run/codeprobe/report",
    "ended": "echo ended > /run/codeprobe/report",
    "eraser": "(setsid sh -c 'while :; do : > /run/codeprobe/report; done' &)",
    "signals": "kill -TERM 1; kill -INT 1; kill -KILL 1",
    "closed": "exec 2>&- >&-",
}


def test_no_command_makes_its_own_end_the_engine_s(project: Project) -> None:
    """Whatever it does: what fails has failed, by a grader and by a session, and nothing waits for ever."""
    engine = use(project)
    for name, does in _TO_THE_FIRST.items():
        fails = {"type": "run_command", "command": f"{does}; exit 1"}
        project.task(name, agent=scripted(WRITE, {"run": f"{does}; true"}), success_criteria=[*OUT, fails])
    run = project.run("tasks", AGENT, "--codeprobe-jobs=4").assert_consistent()
    assert run.statuses == dict.fromkeys(_TO_THE_FIRST, "failed"), run.output
    forged = {"type": "run_command", "command": "echo no-python >> /run/codeprobe/report; exit 127"}
    project.task("no-python", file="none/t.yaml", sandbox={"docker": {"image": BARE}}, success_criteria=[forged])
    none = project.run("none", "--codeprobe-agent=none").assert_consistent()
    assert none.statuses == {"no-python": "failed"}, none.output
    run.assert_nothing_left()
    assert not containers.of(engine, run)


def _monitor(engine: Mapping[str, str], name: str) -> int:
    """The process that podman leaves with each container."""
    file = Path(containers.podman(engine, "inspect", "--format", "{{.ConmonPidFile}}", name).strip())
    return int(file.read_text())


@pytest.mark.parametrize("who", ["keeper", "spawner", "pytest"])
def test_whoever_is_killed_no_container_is_left(project: Project, who: str) -> None:
    engine = use(project)
    project.task("t", agent=scripted(WRITE, {"run": "touch on.txt; trap '' TERM; sleep 600 & sleep 600"}), success_criteria=OUT)
    run = project.start("tasks", AGENT)
    home = Path(project.environment["TMPDIR"])
    run.poll(lambda: bool(list(home.glob("codeprobe-*/workspace/on.txt"))), 60)
    assert len(containers.of(engine, run)) == 1
    pids = {"pytest": [run.process.pid]} if who == "pytest" else {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (comm := _comm(entry)).startswith("codeprobe-") and _is_below(int(entry.name), run.process.pid):
            pids.setdefault({"codeprobe-keep": "keeper", "codeprobe-spawn": "spawner"}.get(comm, ""), []).append(int(entry.name))
    for pid in pids[who]:
        os.kill(pid, signal.SIGKILL)
    if who == "spawner":  # the session goes on; then it is stopped
        run.signal(signal.SIGINT)
    run.wait(60)
    containers.wait_until_gone(engine, run)
    if who == "keeper":
        assert run.finished["t"]["code"] == "SANDBOX_FAILED"
    run.assert_nothing_left(10)


def test_what_a_killed_run_left_is_swept(project: Project) -> None:
    """All who would have ended it are killed: the next run, or `codeprobe clean`, finds it. Of the living it takes none."""
    engine = containers.apart(project)
    project.task("t", agent=scripted(WRITE, {"run": "touch on.txt; sleep 600"}), success_criteria=OUT)
    run = project.start("tasks", AGENT)
    home = Path(project.environment["TMPDIR"])
    run.poll(lambda: bool(list(home.glob("codeprobe-*/workspace/on.txt"))), 60)
    living = project.codeprobe("clean", "--json").lines[0]["data"]["containers"]
    assert run.process.pid not in [found["pid"] for found in living]
    below = [int(e.name) for e in Path("/proc").iterdir() if e.name.isdigit() and _comm(e).startswith("codeprobe-")]
    below = [pid for pid in below if _is_below(pid, run.process.pid)]
    for pid in (run.process.pid, *below):
        os.kill(pid, signal.SIGSTOP)
    for pid in (*below, run.process.pid):
        os.kill(pid, signal.SIGKILL)
    run.wait(60)
    (left,) = containers.of(engine, run)
    swept = project.codeprobe("clean", "--json").lines[0]["data"]["containers"]
    assert {"name": left, "pid": run.process.pid, "removed": True} in swept
    assert not containers.of(engine, run)


@contextlib.contextmanager
def on(machine: str, boot: str = "b1", host: str = "ci", pid: int | None = None) -> Iterator[None]:
    """As a process of that machine."""
    number = pid or os.getpid()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "_machine", lambda: machine)
        patch.setattr(engines, "_boot", lambda: boot)
        patch.setattr(socket, "gethostname", lambda: host)
        patch.setattr(os, "getpid", lambda: number)
        engines._here.cache_clear()
        yield
    engines._here.cache_clear()


def test_whose_containers_are_swept() -> None:
    """Those of the dead of this machine. An engine may serve machines that have one name, and some have no number."""
    dead = 2**22 + 1
    names: dict[str, str] = {}
    for kind, place in {
        "alive": on("m1"),
        "dead": on("m1", pid=dead),
        "before this machine was started": on("m1", "b0", pid=dead),
        "another number": on("m2", pid=dead),
        "another name": on("m1", host="other", pid=dead),
        "no number": on("", pid=dead),
        "no number, and another start": on("", "b0", pid=dead),
    }.items():
        with place:
            names[kind] = engines.new_name()

    def swept() -> set[str]:
        return {kind for kind, name in names.items() if engines._is_abandoned(name)}

    with on("m1"):
        assert swept() == {"dead", "before this machine was started"}
    with on(""):
        assert swept() == {"no number"}  # the other may be of a machine that lives
    assert not any(map(engines._is_abandoned, ("codeprobe-x", "codeprobe-1-2-3-4-5", "other-1-2-3-4-5-6", "codeprobe-a-2-3-4-5-6")))


def _comm(entry: Path) -> str:
    try:
        return (entry / "comm").read_text().strip()
    except OSError:
        return ""


def _is_below(pid: int, top: int) -> bool:
    while pid > 1:
        if pid == top:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            return False
    return False
