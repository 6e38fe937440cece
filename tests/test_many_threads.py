"""What 64 trials in one process must not do to each other: hold the lane, wake up for nothing, read what a test has changed meanwhile."""

from __future__ import annotations

import functools
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_codeprobe.agents.command import CommandAgent
from pytest_codeprobe.model.agent import SessionCommand, SessionRequest
from pytest_codeprobe.model.clock import SystemClock
from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.sandboxes import changes, flags, workspace
from pytest_codeprobe.sandboxes.flags import FlagWatch, StopFolders
from pytest_codeprobe.sandboxes.lane import FEW, LANE, Lane
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, TemplateStore
from pytest_codeprobe.trial.preserve import TrialLog
from pytest_codeprobe.trial.session import Session
from tests.agent_sessions import ended, make_trial
from tests.front_door import clean_environment


def until(condition: Callable[[], object]) -> None:
    """Wait for it; fails after a minute."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.001)


# ---- the lane


def test_the_lane_is_handed_on_in_the_order_of_asking() -> None:
    lane, order = Lane(), list[int]()

    def ask(number: int) -> None:
        with lane:
            order.append(number)

    def waiting(number: int) -> bool:
        return len(lane._waiting) == number

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(5)]
    with lane:
        for number, thread in enumerate(threads):
            thread.start()
            until(functools.partial(waiting, number + 1))
        assert order == []
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]


def test_a_long_loop_lets_others_go_first() -> None:
    lane, order = Lane(), list[str]()

    def other() -> None:
        with lane:
            order.append("other")

    thread = threading.Thread(target=other)

    def tree() -> Iterator[int]:
        for number in range(4):
            if number == 1:
                thread.start()
                until(lambda: lane._waiting)
            if number % 2 == 0:
                order.append(f"piece {number // 2}")
            yield number

    assert list(lane.pieces(tree(), 2)) == [[0, 1], [2, 3]]
    thread.join()
    assert order == ["piece 0", "other", "piece 1"]


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals go to the main thread")
def test_who_is_interrupted_while_waiting_does_not_get_the_lane() -> None:
    lane = Lane()

    def hold() -> None:
        with lane:
            begun.set()
            until(lambda: lane._waiting)
            os.kill(os.getpid(), signal.SIGUSR1)
            until(lambda: not lane._waiting)

    def interrupt(*_: Any) -> None:
        raise InterruptedError("now")

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        begun = threading.Event()
        thread = threading.Thread(target=hold)
        thread.start()
        begun.wait(60)
        with pytest.raises(InterruptedError, match="now"), lane:
            pytest.fail("it is held")
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    with lane:
        assert lane._taken
    assert not lane._taken


# ---- workspaces


class Bench:
    """Workspaces with as many files as one wants."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store, self._numbers = folder, TemplateStore(folder / "templates"), itertools.count()

    def config(self, text: str) -> SandboxConfig:
        files = [{"path": f"d{number % 7}/f{number}", "content": text} for number in range(FEW * 3)]
        return SandboxConfig.model_validate({"template_sources": [{"type": "starter_files", "files": files}]})

    def laid(self, config: SandboxConfig) -> tuple[CopiedWorkspace, Path]:
        place = self.folder / str(next(self._numbers))
        (place / "workspace").mkdir(parents=True)
        space = CopiedWorkspace(self.store.get(config), place / "workspace", place / "baseline")
        space.lay_out()
        return space, place / "workspace"


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_the_lane_is_free_while_contents_are_compared_and_copied(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: dict[str, list[bool]] = {}
    for name in ("_same_content", "copy_paths"):
        real = getattr(changes, name)

        def watched(*args: Any, real: Any = real, name: str = name) -> Any:
            taken.setdefault(name, []).append(LANE._taken)
            return real(*args)

        monkeypatch.setattr(changes, name, watched)
    space, folder = bench.laid(bench.config("1\n"))
    for path in sorted(folder.glob("d*/*")):  # as an installation does it in pre_run
        path.write_text("22\n", encoding="utf-8")
    space.snapshot()
    for path in sorted(folder.glob("d*/*")):  # as a formatter does it
        path.write_text("22\n", encoding="utf-8")
    (folder / "d0" / "f0").write_text("23\n", encoding="utf-8")
    assert [change.path for change in space.changes()] == ["d0/f0"]
    assert {name: set(seen) for name, seen in taken.items()} == {"_same_content": {False}, "copy_paths": {False}}
    assert len(taken["_same_content"]) == FEW * 3


def test_templates_that_nobody_uses_are_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "KEPT", 2)
    space, folder = bench.laid(bench.config("0\n"))
    trees = [bench.store.get(bench.config(f"{number}\n")).tree for number in range(5)]
    assert [tree.is_dir() for tree in trees] == [True, False, False, True, True]
    space.snapshot()
    (folder / "d0" / "f0").unlink()
    space.restore(["d0/f0"])  # from the template that is still in use
    assert (folder / "d0" / "f0").read_text(encoding="utf-8") == "0\n"
    del space
    assert bench.store.get(bench.config("1\n")).tree.is_dir()  # made anew
    assert not trees[0].exists()


def test_large_templates_are_not_hoarded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace, "KEPT_BYTES", 1)
    trees = [bench.store.get(bench.config(f"{number}\n")).tree for number in range(3)]
    assert [tree.is_dir() for tree in trees] == [False, False, True]


def test_nothing_is_read_from_what_a_test_may_have_changed(tmp_path: Path) -> None:
    """The environment, the current folder: all of it is as of the start."""
    program = """
import os, sys
from pathlib import Path
from pytest_codeprobe.sandboxes.keeper import Spawner
from tests.test_many_threads import Bench

top = Path(sys.argv[1])
bench, spawner = Bench(top), Spawner()
gone = top / "gone"
gone.mkdir()
os.chdir(gone)
gone.rmdir()
os.environ.clear()
space, folder = bench.laid(bench.config("1\\n"))
space.snapshot()
(folder / "d0/f0").write_bytes(b"\\0")
print([change.path for change in space.changes()], space.keep(top / "kept", ["f7"]))
space.write_diff(top / "patch", max_file_bytes=100)
print(b"GIT binary patch" in (top / "patch").read_bytes(), spawner.mode in ("pidns", "userns", "subreaper"))
spawner.close()
"""
    root = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=clean_environment(PYTHONPATH=str(root)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout == "['d0/f0'] partial\nTrue True\n"


# ---- waiting


class SilentProcess:
    """A process that says something before some of the looks, and ends."""

    def __init__(self, log: Path, speaks: set[int], ends: int) -> None:
        self._log, self._speaks, self._ends = log, speaks, ends
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> Any:
        assert timeout is not None
        self.waits.append(timeout)
        if len(self.waits) in self._speaks:
            with self._log.open("ab") as log:
                log.write(b"words\n")
        return ended() if len(self.waits) == self._ends else None


def test_a_silent_session_is_looked_at_less_often(tmp_path: Path) -> None:
    for name in ("workspace", "home", "tmp", "logs"):
        (tmp_path / name).mkdir()
    log = tmp_path / "logs" / "agent.stdout"
    log.touch()
    process = SilentProcess(log, speaks={20}, ends=40)
    places = {name: tmp_path / name for name in ("workspace", "home", "tmp", "logs")}
    sandbox = SimpleNamespace(**places, root=tmp_path, start=lambda *_, **__: process, changes=tuple)
    stops = SimpleNamespace(is_raised=lambda _: False)
    context = SimpleNamespace(run_id="r", environ={}, clock=SystemClock(), options=RunOptions(), stops=stops)
    trial = make_trial(tmp_path, {"type": "command", "command": ["x"]})
    request = SessionRequest(
        trial=trial, context=cast(Context, context), prompt="p", sandbox=cast(Sandbox, sandbox), isolates=False, executable=""
    )
    agent, trial_log = CommandAgent(), TrialLog(tmp_path / "trial.log")
    session = Session(agent, request, {"task_timeout": (60.0, 60.0)}, trial_log.logger)
    outcome = session.run(SessionCommand(argv=("x",)), agent.parser(request), lambda: None)
    trial_log.close()
    assert outcome.final_message == "words"
    assert process.waits[0] == pytest.approx(0.0625)
    assert process.waits[18] == 0.25  # four times a second
    assert process.waits[20] == 0.05  # it has said something
    assert process.waits[-1] == 0.25
    assert process.waits == [min(wait, 0.25) for wait in process.waits]


def test_one_look_at_the_stop_flags_serves_all_who_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[str] = []
    now = itertools.count(0.0, 0.001)  # time stands nearly still
    monkeypatch.setattr(flags, "monotonic", lambda: next(now))
    real = os.listdir

    def listdir(folder: str) -> list[str]:
        looks.append(folder)
        return real(folder)

    monkeypatch.setattr(os, "listdir", listdir)
    folders = StopFolders()
    watches = [FlagWatch(folders, str(tmp_path)) for _ in range(20)]
    assert not any(watch.news() for watch in watches)
    assert len(looks) == 1
    (tmp_path / "interrupt").touch()
    assert not any(watch.news() for watch in watches)
    now = itertools.count(1.0, 0.001)
    assert all(watch.news() for watch in watches)
    assert not any(watch.news() for watch in watches)
    assert len(looks) == 2
    assert not FlagWatch(folders, "").news()
