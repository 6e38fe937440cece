"""Sessions that do all they can against the harness: the right record for each, nothing alive or on disk afterwards, flat memory."""

from __future__ import annotations

import ast
import functools
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.sandboxes.keeper import Spawner
from tests.front_door import MODES, Project, Run

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
#: the same where files are held too
ENCLOSED = {"wiped": ("failed", None, None)}
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


@pytest.mark.parametrize(("mode", "driver"), [*((mode, "tempdir") for mode in MODES), ("jobs", "bubblewrap")])
def test_all_kinds_in_one_run(project: Project, mode: str, driver: str) -> None:
    """A bad one must not disturb the others either. With the modes the ways to keep a workspace take turns."""
    project.write("conftest.py", _MEMORY)
    project.write("pytest.ini", f"[pytest]\ncodeprobe_bind = {PROGRAM}\n")
    project.environment["MARKS"] = str(project.marks)
    changed = ENCLOSED if driver == "bubblewrap" else {}
    ends = {f"command-{kind}": end for kind, end in (ENDS | changed).items()}
    ends |= {f"scripted-{kind}": end for kind, end in (SCRIPTED | changed).items()}
    for task_id in ends:
        agent, _, kind = task_id.partition("-")
        add_task(project, task_id, kind, agent)
    keep = ("move", "direct")[list(MODES).index(mode) % 2]
    run = project.run("tasks/*.yaml", f"--codeprobe-preserve={keep}", f"--codeprobe-driver={driver}", mode=mode, seconds=180)
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))
    try:
        the_run_is_whole(run, ends)
        each_ended_as_it_should(run, ends)
        the_terminal_is_safe(run)
        evidence_is_data(run)
        kept_trees(run)
        if driver == "tempdir":
            assert (elsewhere(project) / "out.txt").exists()  # nor was it deleted through the link
        assert max(peaks(project).values()) < 100
    finally:  # what is kept of some is too deep for pytest's own clearing up
        subprocess.run(["rm", "-rf", str(run.folder.resolve())], check=True)


@functools.cache
def isolated() -> bool:
    """Whether a session can't see the keeper's own parents here."""
    spawner = Spawner()
    try:
        return spawner.mode != "subreaper"
    finally:
        spawner.close()


def each_ended_as_it_should(run: Run, ends: Mapping[str, tuple[str, str | None, str | None]]) -> None:
    told = {}
    for task_id in ends:
        event, record = run.finished[task_id], run.result(task_id)
        told[task_id] = event["status"], event["code"], event["limit_hit"] and event["limit_hit"]["name"]
        assert record["status"] == event["status"]
        assert record["folder"]
    if not isolated():  # without pid namespaces a session can kill its keeper
        told |= {task_id: end for task_id, end in ends.items() if task_id.endswith(("-killer", "-parricide"))}
    assert told == ends


def the_run_is_whole(run: Run, ends: Mapping[str, object]) -> None:
    run.assert_consistent()
    run.assert_nothing_left()
    assert run.code == 1  # an error beside misses
    assert not any("could not be deleted" in w for w in run.envelope["warnings"])
    assert run.junit().keys() == ends.keys()  # is XML at all
    for trial in run.plan:
        folder = run.folder / "trials" / trial["folder"]
        assert (folder / "result.json").exists()
        for path in (folder / "result.json", *folder.glob("attempt-1/transcript.json")):
            json.loads(path.read_text(encoding="utf-8", errors="strict"), parse_constant=no_json)


def the_terminal_is_safe(run: Run) -> None:
    """A session's output stands in failure texts, without what a terminal would obey."""
    shown = run.output
    assert "owned" not in shown.replace("title owned", "")
    for bad in ("\x1b", "\x07", "\x00", "\x9b", "\udced"):
        assert bad not in shown
    assert "red X c1" in shown


def evidence_is_data(run: Run) -> None:
    """What a session printed is kept byte by byte."""
    log = run.trial("command-nasty") / "attempt-1" / "agent.stdout"
    assert log.read_bytes() == b"".join(nasty_bytes())


def kept_trees(run: Run) -> None:
    """Links are kept as links, what is no file is left out, a workspace that is a link is not followed."""
    special = run.trial("command-special") / "artifacts"
    assert (special / "out.txt").read_text() == "done\n"
    assert (special / "outside").is_symlink()
    assert not any((special / name).exists() for name in ("fifo", "socket", "device", "zero"))
    assert run.result("command-special")["kept"] == "partial"
    linked = run.trial("command-linked") / "artifacts"
    assert not (linked / "out.txt").exists()
    names = run.trial("command-names") / "artifacts"
    assert len(list(names.iterdir())) >= 10


def test_two_gigabytes(project: Project) -> None:
    """More than output_mb allows ends the session; what is there is graded, and the raw log is kept up to the limit."""
    project.write("conftest.py", _MEMORY)
    project.environment["MARKS"] = str(project.marks)
    add_task(project, "flood", "flood", "command")
    run = project.run("tasks/flood.yaml", seconds=120).assert_consistent()
    run.assert_nothing_left()
    event = run.finished["flood"]
    assert (event["status"], event["limit_hit"]) == ("passed", {"name": "output_mb", "value": 256.0})
    assert (run.trial("flood") / "attempt-1" / "agent.stdout").stat().st_size == 256 << 20
    assert max(peaks(project).values()) < 100
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


def test_line_of_100_megabytes(project: Project) -> None:
    """Nor does a worker's report carry it to the controller."""
    project.write("conftest.py", _MEMORY)
    project.environment["MARKS"] = str(project.marks)
    add_task(project, "long", "long_line", "command")
    run = project.run("tasks/long.yaml", mode="xdist").assert_consistent()
    assert run.statuses == {"long": "passed"}
    assert any("too long to be read" in w for w in run.result("long")["warnings"])
    assert run.result("long")["final_message"].endswith("last words")
    steps = json.loads((run.trial("long") / "attempt-1" / "transcript.json").read_text())["steps"]
    assert str(100 << 20) in json.dumps(steps)
    assert max(peaks(project).values()) < 100
