"""Sessions that do all they can against the harness: the right record for each, nothing alive or on disk afterwards, flat memory."""

from __future__ import annotations

import ast
import functools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.sandboxes.keeper import Spawner
from tests.front_door import MODES, Project, Run, make_project

PROGRAM = Path(__file__).with_name("hostile_agent.py")
#: how a kind ends under agent `command`: status, code, limit_hit
ENDS: dict[str, tuple[str, str | None, str | None]] = {
    "daemon": ("passed", None, None),
    "stubborn": ("passed", None, "task_timeout"),
    "nasty": ("failed", None, None),
    "nasty_crash": ("error", "AGENT_CRASHED", None),
    "nothing": ("failed", None, None),
    "closed": ("passed", None, None),
    "frozen": ("passed", None, "task_timeout"),
    "parricide": ("passed", None, None),
    "no_home": ("passed", None, None),
    "no_tmp": ("passed", None, None),
    "no_workspace": ("failed", None, None),
    "linked": ("failed", None, None),
    "unreadable": ("passed", None, None),
    "read_only": ("passed", None, None),
    "deep": ("passed", None, None),
    "special": ("passed", None, None),
    "names": ("passed", None, None),
    "wiped": ("error", "SANDBOX_FAILED", None),  # its logs too are gone, and who took them is not known
    "out_is_fifo": ("failed", None, None),
    "bomb": ("passed", None, None),
    "killer": ("passed", None, None),
}
#: the same by a `run` step of agent `scripted`, where it ends otherwise: a step that fails is no end of the session
SCRIPTED = {
    **{kind: end for kind, end in ENDS.items() if kind not in ("stubborn", "bomb")},
    "nasty_crash": ("failed", None, None),
}
_MEMORY = """
import os, pathlib
def _status(name):
    return next(l.split()[1] for l in open("/proc/self/status") if l.startswith(name))
def pytest_collection_finish(session):
    open("/proc/self/clear_refs", "w").write("5")  # the peak starts anew
    (pathlib.Path(os.environ["MARKS"]) / f"memory-{os.getpid()}").write_text(_status("VmRSS:"))
def pytest_unconfigure(config):
    file = pathlib.Path(os.environ["MARKS"]) / f"memory-{os.getpid()}"
    if file.exists():
        file.write_text(file.read_text() + " " + _status("VmHWM:"))
"""


def add_task(project: Project, task_id: str, kind: str, agent: str, **fields: Any) -> None:
    """A task whose session is of this kind; it is worth a pass if out.txt is there."""
    argv = [sys.executable, "-I", "-S", str(PROGRAM), kind, project.mark_text]
    if agent == "command":
        config: dict[str, Any] = {"type": "command", "command": argv}
    else:
        config = {"type": "scripted", "scripted": {"steps": [{"run": shlex.join(argv)}, {"say": "done"}]}}
    criteria = [{"type": "file_contains", "path": "out.txt", "includes": ["done"]}]
    timeout = 2 if ENDS.get(kind, ("", None, None))[2] else 60
    sandbox = {"env": {"ELSEWHERE": str(elsewhere(project))}, **fields.pop("sandbox", {})}
    project.task(task_id, agent=config, sandbox=sandbox, success_criteria=criteria, run_limits={"task_timeout": timeout}, **fields)


def nasty_bytes() -> Iterator[bytes]:
    """What the kind `nasty` prints, read from the program, which can't be imported."""
    tree = ast.parse(PROGRAM.read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NASTY":
            yield ast.literal_eval(node.value)


def no_json(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


def elsewhere(project: Project) -> Path:
    """A folder that is none of the trial's."""
    folder = project.scratch / "elsewhere"
    folder.mkdir(exist_ok=True)
    return folder


def peaks(project: Project) -> dict[str, int]:
    """MiB that each pytest process was above its start at most."""
    found = {}
    for file in project.marks.glob("memory-*"):
        start, peak = file.read_text().split()
        found[file.name] = (int(peak) - int(start)) // 1024
    assert found
    return found


@dataclass
class Hostile:
    """One run of all kinds."""

    run: Run
    left: list[str]


#: every mode of parallelism, and with them the ways to keep a workspace
RUNS = {mode: "--codeprobe-preserve=" + ("move", "direct")[number % 2] for number, mode in enumerate(MODES)}


@pytest.fixture(scope="module", params=list(RUNS))
def hostile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hostile]:
    """All kinds in one run: a bad one must not disturb the others either."""
    making = make_project(tmp_path_factory.mktemp(f"hostile-{request.param}"))
    project = next(making)
    project.write("conftest.py", _MEMORY)
    project.environment["MARKS"] = str(project.marks)
    for kind in ENDS:
        add_task(project, f"command-{kind}", kind, "command")
    for kind in SCRIPTED:
        add_task(project, f"scripted-{kind}", kind, "scripted")
    run = project.run("tasks/*.yaml", RUNS[request.param], mode=request.param, seconds=180)
    left = [str(p) for p in Path(project.environment["TMPDIR"]).glob("codeprobe-*")]
    yield Hostile(run, left)
    next(making, None)
    subprocess.run(["rm", "-rf", str(run.folder.resolve())], check=True)  # what is kept of some is too deep for pytest's own clearing up


@pytest.mark.parametrize("kind", ENDS)
def test_command(hostile: Hostile, kind: str) -> None:
    check(hostile.run, f"command-{kind}", ENDS[kind])


@pytest.mark.parametrize("kind", SCRIPTED)
def test_scripted(hostile: Hostile, kind: str) -> None:
    check(hostile.run, f"scripted-{kind}", SCRIPTED[kind])


@functools.cache
def isolated() -> bool:
    """Whether a session can't see the keeper's own parents here."""
    spawner = Spawner()
    try:
        return spawner.mode != "subreaper"
    finally:
        spawner.close()


def check(run: Run, task_id: str, end: tuple[str, str | None, str | None]) -> None:
    if task_id.endswith(("-killer", "-parricide")) and not isolated():
        pytest.skip("without pid namespaces a session can kill its keeper")
    event = run.finished[task_id]
    limit = event["limit_hit"] and event["limit_hit"]["name"]
    assert (event["status"], event["code"], limit) == end, event
    record = run.result(task_id)
    assert record["status"] == end[0]
    assert record["folder"]


def test_the_run_is_whole(hostile: Hostile) -> None:
    run = hostile.run
    run.assert_consistent()
    run.assert_nothing_left()
    assert hostile.left == []
    assert run.code == 1  # an error beside misses
    assert not any("could not be deleted" in w for w in run.envelope["warnings"])
    cases = run.junit()  # is XML at all
    assert len(cases) == len(ENDS) + len(SCRIPTED)
    for trial in run.plan:
        folder = run.folder / "trials" / trial["folder"]
        assert (folder / "result.json").exists()
        for path in (folder / "result.json", *folder.glob("attempt-1/transcript.json")):
            json.loads(path.read_text(encoding="utf-8", errors="strict"), parse_constant=no_json)


def test_the_terminal_is_safe(hostile: Hostile) -> None:
    """A session's output stands in failure texts, without what a terminal would obey."""
    shown = hostile.run.output
    assert "owned" not in shown.replace("title owned", "")
    for bad in ("\x1b", "\x07", "\x00", "\x9b", "\udced"):
        assert bad not in shown
    assert "red X c1" in shown


def test_memory_is_flat(hostile: Hostile) -> None:
    assert max(peaks(hostile.run.project).values()) < 100


def test_evidence_is_data(hostile: Hostile) -> None:
    """What a session printed is kept byte by byte."""
    log = hostile.run.trial("command-nasty") / "attempt-1" / "agent.stdout"
    assert log.read_bytes() == b"".join(nasty_bytes())


def test_kept_trees(hostile: Hostile) -> None:
    """Links are kept as links, what is no file is left out, a workspace that is a link is not followed."""
    run = hostile.run
    special = run.trial("command-special") / "artifacts"
    assert (special / "out.txt").read_text() == "done\n"
    assert (special / "outside").is_symlink()
    assert not any((special / name).exists() for name in ("fifo", "socket", "device", "zero"))
    assert run.result("command-special")["kept"] == "partial"
    linked = run.trial("command-linked") / "artifacts"
    assert not (linked / "out.txt").exists()
    assert (elsewhere(run.project) / "out.txt").exists()  # nor was it deleted through the link
    names = run.trial("command-names") / "artifacts"
    assert len(list(names.iterdir())) >= 10


def test_two_gigabytes(project: Project, mode: str) -> None:
    """More than output_mb allows ends the session; what is there is graded, and the raw log is kept up to the limit."""
    project.write("conftest.py", _MEMORY)
    project.environment["MARKS"] = str(project.marks)
    add_task(project, "flood", "flood", "command")
    run = project.run("tasks/flood.yaml", mode=mode, seconds=120).assert_consistent()
    run.assert_nothing_left()
    event = run.finished["flood"]
    assert (event["status"], event["limit_hit"]) == ("passed", {"name": "output_mb", "value": 256.0})
    assert (run.trial("flood") / "attempt-1" / "agent.stdout").stat().st_size == 256 << 20
    assert max(peaks(project).values()) < 100
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


def test_line_of_100_megabytes(project: Project, mode: str) -> None:
    project.write("conftest.py", _MEMORY)
    project.environment["MARKS"] = str(project.marks)
    add_task(project, "long", "long_line", "command")
    run = project.run("tasks/long.yaml", mode=mode).assert_consistent()
    assert run.statuses == {"long": "passed"}
    assert any("too long to be read" in w for w in run.result("long")["warnings"])
    assert run.result("long")["final_message"].endswith("last words")
    steps = json.loads((run.trial("long") / "attempt-1" / "transcript.json").read_text())["steps"]
    assert str(100 << 20) in json.dumps(steps)
    assert max(peaks(project).values()) < 100
