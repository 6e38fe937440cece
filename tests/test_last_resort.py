"""Stop flags that can't be written: nobody goes on as if nothing had been said."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_codeprobe.plugin.last_resort import LastResort
from pytest_codeprobe.run.stops import StopFolder
from tests.front_door import Project, Run, scripted

AGENT = "--codeprobe-agent=scripted"
WRITE = {"write": {"path": "out.txt", "content": "done\n"}}


def run_dir(tmp_path: Path) -> Path:
    (tmp_path / "stop").mkdir()
    (tmp_path / "plan.json").write_text("{}")
    return tmp_path


# ---- the folder of flags


def test_without_room_for_a_file_there_is_room_for_a_second_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stops = StopFolder(run_dir(tmp_path) / "stop")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        stops.raise_flag("budget")
        stops.raise_flag("budget")
    assert StopFolder(stops.folder).forbids_start("scripted") == "budget"
    assert not stops.unwritten


def test_what_could_not_be_written_is_known_until_it_can(tmp_path: Path) -> None:
    stops = StopFolder(run_dir(tmp_path) / "stop")
    stops.folder.rmdir()
    stops.folder.touch()
    with pytest.raises(NotADirectoryError):
        stops.raise_flag("auth", "claude")
    assert (stops.forbids_start("claude"), list(stops.unwritten)) == ("auth", ["auth@claude"])
    stops.folder.unlink()
    stops.raise_flag("auth", "claude")
    assert ([p.name for p in stops.folder.iterdir()], stops.unwritten) == (["auth@claude"], {})


# ---- what the controller makes of it


def live_with(tmp_path: Path, *, xdist: bool, gateways: list[Any]) -> Any:
    controller = SimpleNamespace(nodemanager=SimpleNamespace(group=gateways))
    return SimpleNamespace(
        state=SimpleNamespace(xdist=xdist),
        stops=StopFolder(tmp_path / "stop"),
        interrupts=SimpleNamespace(),
        config=SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda _: controller)),
        warnings=[],
    )


class Process:
    """A worker's, as execnet has it."""

    def __init__(self, code: int | None) -> None:
        self.code, self.signals = code, list[int]()

    def poll(self) -> int | None:
        return self.code

    def send_signal(self, number: int) -> None:
        self.signals.append(number)


def resort(live: Any, monkeypatch: pytest.MonkeyPatch) -> tuple[LastResort, list[str], list[int]]:
    """With what it notes in the run's book, and the signals that it sends to its own process."""
    notes, own = list[str](), list[int]()
    live.warn = live.warnings.append
    monkeypatch.setattr(os, "kill", lambda _, number: own.append(number))
    book: Any = SimpleNamespace(note=lambda what, _: notes.append(what), open={"a": "main"})
    return LastResort(live, book), notes, own


def test_workers_are_ended_once_whichever_flag_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alive, dead = Process(None), Process(0)
    gateways: list[Any] = [SimpleNamespace(_io=SimpleNamespace(popen=p)) for p in (alive, dead)]
    live = live_with(tmp_path, xdist=True, gateways=[*gateways, SimpleNamespace()])
    ends, notes, own = resort(live, monkeypatch)
    ends.look()
    assert not ends.ended_workers
    for name in ("budget", "maxfail"):
        live.stops.unwritten[name] = OSError(errno.EROFS, "Read-only file system")
        ends.look()
        ends.look()
    assert (alive.signals, dead.signals, own) == ([signal.SIGTERM], [], [])
    assert notes == ["stop/budget", "stop/maxfail"]
    assert "stop/budget could not be written: Read-only file system" in live.warnings[0]
    assert live.interrupts.untold()  # a signal from outside has nobody else to tell


@pytest.mark.parametrize(
    ("xdist", "name", "signals"), [(True, "canary", 0), (True, "truncate", 0), (False, "maxfail", 0), (False, "time", 1)]
)
def test_what_hears_of_it_otherwise_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, xdist: bool, name: str, signals: int
) -> None:
    process = Process(None)
    live = live_with(tmp_path, xdist=xdist, gateways=[SimpleNamespace(_io=SimpleNamespace(popen=process))])
    ends, notes, own = resort(live, monkeypatch)
    live.stops.unwritten[name] = OSError(errno.ENOSPC, "No space left on device")
    ends.look()
    assert (notes, process.signals, len(own)) == ([f"stop/{name}"], [], signals)


def test_a_refused_login_is_told_by_the_controller_where_its_worker_could_not(tmp_path: Path) -> None:
    live = live_with(run_dir(tmp_path), xdist=True, gateways=[])
    ends = LastResort(live, SimpleNamespace())  # type: ignore[arg-type]  # it asks for none
    record: Any = SimpleNamespace(code="AUTH_FAILED", agent=SimpleNamespace(name="claude"))
    ends.finished(record)
    assert [p.name for p in (tmp_path / "stop").iterdir()] == ["auth@claude"]


# ---- real runs: something has put a file in the place of the folder


def break_flags(run: Run) -> None:
    folder = run.folder / "stop"
    shutil.rmtree(folder)
    folder.touch()


NAMES = ("a", "a2", "b", "b2")  #: in the order of the items; of two workers the second begins with `b`


def four(project: Project, first: dict[str, Any]) -> None:
    """A task that is over first, and three that would sleep; each says when it begins."""
    project.task("a", agent=first)
    for name in NAMES[1:]:
        project.task(name, agent=scripted({"run": f"touch {project.marks}/{name}"}, {"sleep": 60}))


def assert_ended(run: Run, statuses: dict[str, str], codes: set[str]) -> None:
    run.assert_consistent().assert_nothing_left()
    assert run.statuses == statuses
    assert {e["code"] for e in run.envelope["errors"]} == codes
    assert any("could not be written" in w for w in run.envelope["warnings"]), run.envelope["warnings"]


@pytest.mark.parametrize("flag", ["maxfail", "interrupt"])
def test_workers_that_can_not_be_told(project: Project, flag: str) -> None:
    """What is over stays as it was, what runs is ended, nothing else starts."""
    marks = project.marks
    wait = f"touch {marks}/a; until test -e {marks}/go; do sleep 0.05; done"
    four(project, scripted({"run": wait}, *([WRITE] if flag == "interrupt" else [])))
    running = project.start("tasks", AGENT, "-x", mode="xdist", junit=False)
    running.wait_for("[ab]", 2)
    break_flags(running)
    if flag == "interrupt":
        running.signal(signal.SIGINT)
    else:
        (marks / "go").touch()
    done = running.wait(40)
    if flag == "interrupt":
        assert_ended(done, dict.fromkeys(NAMES, "not_run"), {"INTERRUPTED", "SANDBOX_FAILED"})
        assert done.code == 2
    else:
        assert_ended(done, {"a": "failed", **dict.fromkeys(NAMES[1:], "not_run")}, {"SANDBOX_FAILED"})
        assert done.code == 1


def test_sessions_of_the_own_process_that_can_not_be_told(project: Project) -> None:
    marks = project.marks
    wait = {"run": f"until test -e {marks}/go; do sleep 0.05; done"}
    four(project, scripted({"say": "x" * 3000}, wait, WRITE))
    limits = ("--codeprobe-trace-overflow=fail", "--codeprobe-trace-max-bytes=1MB", "--codeprobe-trace-budget=1KB", "--codeprobe-jobs=2")
    running = project.start("tasks", AGENT, *limits, junit=False)
    running.wait_for("a2")
    break_flags(running)
    (marks / "go").touch()
    done = running.wait(40)
    assert_ended(done, {"a": "passed", **dict.fromkeys(NAMES[1:], "not_run")}, {"INTERRUPTED", "SANDBOX_FAILED", "TRACE_BUDGET_EXCEEDED"})
    assert done.code == 2
