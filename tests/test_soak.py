"""Hundreds of trials in one process, many at once: threads, open files and processes are as before. benchmarks/soak.py does it for long."""

from __future__ import annotations

import json
from typing import Any

from tests.front_door import Project

LOOKS = """
import json, os, pathlib, threading, time
import pytest
seen = []
def children(task):
    try:
        return (task / "children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return []  # a thread or a process that ends at this moment
def below():
    ours = [pid for task in pathlib.Path("/proc/self/task").iterdir() for pid in children(task)]
    return len(ours), sum(len(children(pathlib.Path(f"/proc/{pid}/task/{pid}"))) for pid in ours)
def look():
    files = []
    for entry in os.scandir("/proc/self/fd"):
        try:
            files.append(os.readlink(entry.path).partition("[")[0])
        except OSError:
            pass  # that of the listing itself
    seen.append({"threads": sorted(t.name for t in threading.enumerate()), "files": sorted(files), "processes": below()})
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop():
    look()
    return (yield)
@pytest.hookimpl(trylast=True)
def pytest_sessionfinish():
    until = time.monotonic() + 10
    while below()[1] and time.monotonic() < until:  # the last keeper has said that it is done and is about to end
        time.sleep(0.02)
    look()
    pathlib.Path(os.environ["SEEN"]).write_text(json.dumps(seen))
"""


def shell(command: str) -> dict[str, Any]:
    return {"type": "command", "command": ["sh", "-c", command]}


def test_nothing_is_left_in_the_process(project: Project) -> None:
    project.write("conftest.py", LOOKS)
    project.write("tasks/hidden/test_hidden.py", "import pathlib\ndef test_it():\n    assert pathlib.Path('out.txt').exists()\n")
    kinds: tuple[dict[str, Any], ...] = (
        {"agent": shell("echo x >out.txt")},
        {"agent": shell("echo x >out.txt; sleep 600 &")},
        {"agent": shell("true")},
        {"agent": shell("kill -9 $$")},
        {"agent": shell("echo x >out.txt; exit 127"), "pre_run": [{"command": "true"}], "post_run": [{"command": "false"}]},
        {"agent": shell("echo x >out.txt"), "success_criteria": [{"type": "run_command", "command": "test -e out.txt"}]},
        {"agent": shell("echo x >out.txt; sleep 600"), "run_limits": {"task_timeout": 0.2}},
        {"agent": shell("echo x >out.txt"), "success_criteria": [{"type": "pytest", "paths": ["hidden"]}]},
    )
    for number in range(160):
        project.task(f"t{number:03}", **kinds[number % len(kinds)])
    seen = project.scratch / "seen"
    run = project.run("tasks", "--codeprobe-agent=command", "--codeprobe-jobs=16", env={"SEEN": str(seen)}).assert_consistent()
    assert (len(run.statuses), run.code) == (160, 1)
    before, after = json.loads(seen.read_text())
    assert after["threads"] == before["threads"]
    assert before["processes"] == [0, 0]
    assert after["processes"] == [2, 0]  # the spawner, and the one with pytest loaded; no keeper
    assert after["files"] == sorted([*before["files"], "socket:", "socket:"])
