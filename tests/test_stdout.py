"""stdout in the JSON modes: every line is JSON, the last one the envelope, whatever a project does and however the run ends."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.front_door import MODES, Project, clean_environment, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"
LINES = "--codeprobe-json-lines"

#: prints at every moment that a project has, past Python's own buffers too
NOISE = """\
import atexit, os, sys, subprocess

def noise(where):
    print("noise:", where)
    os.write(1, b"raw noise\\n")
    sys.__stdout__.write("saved stdout\\n")
    subprocess.run(["echo", "noise of a child"])

noise("import")
atexit.register(noise, "exit")
def pytest_configure(): noise("configure")
def pytest_sessionstart(): noise("start")
def pytest_collection_modifyitems(): noise("collected")
def pytest_runtest_logreport(report): noise("report")
def pytest_sessionfinish(): noise("finish")
def pytest_terminal_summary(): noise("summary")
def pytest_unconfigure(): noise("unconfigure")
"""
LOUD_TEST = """\
import os, subprocess, sys, warnings

def test_loud(capfd):
    with capfd.disabled():
        print("noise of a test")
        os.write(1, b"raw\\n")
        subprocess.run(["echo", "child"])
    warnings.warn("a warning")

def test_plain():
    print("noise")
    sys.__stdout__.write("more noise\\n")
    sys.__stdout__.flush()
"""


def fill(project: Project, *, noise: str = NOISE) -> None:
    """A task that passes, one that fails, one that errors, ordinary tests that print, a plugin that prints all the time."""
    project.task("a-pass", agent=scripted(WRITE))
    project.task("b-fail", agent=scripted({"say": "no idea \u2713"}))
    project.task("c-error", agent=scripted(WRITE), pre_run=[{"command": "exit 3"}])
    project.write("yours/test_yours.py", LOUD_TEST)
    project.write("conftest.py", noise)


def broken(project: Project) -> None:
    project.write("tasks/broken.yaml", "task_id: broken\ninital_prompt: x\nsuccess_criteria: []\n")


@pytest.mark.joint
@pytest.mark.parametrize(
    ("mode", "flags"),
    [
        ("plain", ("-s",)),
        ("plain", ("-p", "no:terminal")),
        ("xdist", ("-s",)),
        ("xdist", ("-v", "--capture=sys", "--durations=3")),
        ("jobs", ("-p", "no:terminal")),
    ],
)
def test_noise_of_a_project_never_reaches_stdout(project: Project, mode: str, flags: tuple[str, ...]) -> None:
    fill(project)
    broken(project)
    run = project.run("tasks", "yours", AGENT, LINES, "--continue-on-collection-errors", *flags, mode=mode, junit=False)
    envelope = run.assert_pure()
    run.assert_consistent()
    assert run.code == 1
    assert [(e["code"], e["count"]) for e in envelope["errors"]] == [("TASK_INVALID", 1), ("SANDBOX_FAILED", 1)]
    data = envelope["data"]
    assert (data["tasks_passed"], data["tasks_failed"], data["tasks_error"]) == (1, 1, 1)
    # test_loud's warning must not fail it, nor ours
    assert data["ordinary_tests"] == {"passed": 2}
    assert "noise: exit" in run.stderr  # it did print, after the envelope was written
    assert "noise: unconfigure" in run.stderr


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_warnings_as_errors_fail_only_what_warns(project: Project, mode: str) -> None:
    fill(project)
    run = project.run("tasks", "yours", AGENT, LINES, "-W", "error", mode=mode, junit=False)
    data = run.assert_pure()["data"]
    assert run.code == 1
    assert (data["tasks_passed"], data["tasks_failed"], data["tasks_error"]) == (1, 1, 1)
    assert data["ordinary_tests"] == {"failed": 1, "passed": 1}


def test_json_is_exactly_one_line(project: Project, mode: str) -> None:
    fill(project)
    run = project.run("tasks", "yours", AGENT, "--codeprobe-json", "-s", mode=mode, junit=False)
    run.assert_pure(events=False)
    assert run.stdout.count("\n") == 1
    assert run.code == 1
    assert len([e for e in run.events if e["event"] == "trial_finished"]) == 3  # the run dir has them all the same


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_without_the_flags_stdout_is_pytests_own(project: Project, mode: str) -> None:
    """CODEPROBE_JSON is for `codeprobe` alone."""
    fill(project)
    run = project.run("tasks", AGENT, mode=mode, env={"CODEPROBE_JSON": "1"})
    assert "test session starts" in run.stdout
    assert "record_type" not in run.stdout
    run.assert_consistent()


def test_lone_surrogates_and_controls_in_names_and_words(project: Project) -> None:
    project.task("a", agent=scripted({"say": "x\ud800y\x00z\u2028 \x1b[31m"}), description="\u2028")
    run = project.run("tasks", AGENT, LINES, junit=False)
    run.assert_pure()


# ---------------------------------------------------------------- readers


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_a_closed_stdout_ends_the_writing_and_not_the_run(project: Project, mode: str) -> None:
    fill(project)
    argv = [sys.executable, "-m", "pytest", *MODES[mode], "tasks", "yours", AGENT, LINES, "--codeprobe-run-dir=run"]
    with (project.scratch / "stderr").open("wb") as err:
        process = subprocess.Popen(
            argv, cwd=project.path, env=_environment(project), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err
        )
    assert process.stdout is not None
    first = json.loads(process.stdout.readline())
    process.stdout.close()
    assert first["event"] == "run_started"
    assert process.wait(60) == 1
    folder = project.path / "run"
    envelope = json.loads((folder / "envelope.json").read_text())
    assert (envelope["exit_code"], envelope["data"]["tasks_total"], envelope["data"]["tasks_not_run"]) == (1, 3, 0)
    finished = [json.loads(line) for line in (folder / "events.ndjson").read_text().splitlines()]
    assert sum(e["event"] == "trial_finished" for e in finished) == 3
    assert "INTERNALERROR" not in (project.scratch / "stderr").read_text()
    assert "Traceback" not in (project.scratch / "stderr").read_text()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_stdout_ends_the_writing_and_not_the_run(project: Project) -> None:
    fill(project, noise="")
    argv = [sys.executable, "-m", "pytest", "tasks", AGENT, LINES, "--codeprobe-run-dir=run"]
    with Path("/dev/full").open("wb") as full:
        process = subprocess.run(
            argv, cwd=project.path, env=_environment(project), stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, timeout=60
        )
    assert process.returncode == 1, process.stderr.decode()
    assert json.loads((project.path / "run/envelope.json").read_text())["data"]["tasks_total"] == 3


@pytest.mark.skipif(not hasattr(fcntl, "F_SETPIPE_SZ"), reason="needs a small pipe")
@pytest.mark.parametrize("blocking", [True, False])
def test_a_slow_reader_gets_every_line(project: Project, blocking: bool) -> None:
    """The reader begins once the pipe is full. A stdout set to non-blocking loses nothing either."""
    count = 20
    for number in range(count):
        project.task(f"t{number:03}", agent={"type": "scripted"}, skip="x" * 100)
    project.task("z-last", agent=scripted(WRITE))
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(writer, blocking)
    argv = [sys.executable, "-m", "pytest", "tasks", AGENT, LINES, "--codeprobe-run-dir=run", "-p", "no:cacheprovider"]
    with (project.scratch / "stderr").open("wb") as err:
        process = subprocess.Popen(argv, cwd=project.path, env=_environment(project), stdin=subprocess.DEVNULL, stdout=writer, stderr=err)
    os.close(writer)
    _wait_until_full(project.path / "run/events.ndjson", process)
    with os.fdopen(reader, "rb") as file:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        data = file.read()
        watchdog.cancel()
    assert process.wait(60) == 0, (project.scratch / "stderr").read_text()
    lines = data.decode().splitlines()
    assert len(data) > 8192
    assert json.loads(lines[-1])["data"]["tasks_total"] == count + 1
    assert lines[:-1] == (project.path / "run/events.ndjson").read_text().splitlines()
    assert lines[-1] + "\n" == (project.path / "run/envelope.json").read_text()


def _wait_until_full(events: Path, process: subprocess.Popen[bytes]) -> None:
    """The process has said as much as the pipe takes."""
    until = time.monotonic() + 30
    while not events.exists() or events.stat().st_size < 4096:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)


def _environment(project: Project) -> dict[str, str]:
    return clean_environment(CP_TEST_MARK=project.mark_text, **project.environment)
