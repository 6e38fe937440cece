"""Nothing but JSON on stdout, on every surface: each way that a run can end, in both JSON modes, through both front doors."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from tests.doors import DOORS, through
from tests.front_door import Project, Run, scripted
from tests.schemas import check
from tests.test_stdout import NOISE

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"
FLAGS = ("--codeprobe-json", "--codeprobe-json-lines")
#: prints when its process ends, from a thread too, past Python's buffers
LOUD_PLUGIN = """\
import atexit, os, threading, time
def shout():
    for _ in range(3):
        os.write(1, b"shout\\n")
        print("shout", flush=True)
atexit.register(shout)
def begin(): threading.Thread(target=lambda: [time.sleep(0.05) or os.write(1, b"thread\\n") for _ in range(200)], daemon=True).start()
def pytest_configure(): begin()
def pytest_unconfigure(): print("unconfigured")
"""
EARLY_PLUGIN = LOUD_PLUGIN + "begin(); shout()\n"
KILLER = "import os, pytest, signal\n@pytest.fixture\ndef die(codeprobe_session): os.kill(os.getpid(), signal.SIGKILL)\n"
KILLED = """\
task_id: k
initial_prompt: do it
agent: {type: scripted, scripted: {steps: []}}
fixtures: [die]
success_criteria: [{type: file_exists, path: out.txt}]
"""
LOUD_SESSION = scripted({"run": "echo session; echo more >&2"}, WRITE, {"say": "done"})

Case = Callable[[Project, str], Run]


def given(*args: str, mode: str = "plain", **files: str) -> Case:
    """A run with these arguments; `files`: name with `__` for `/` and `_dot_` for `.` -> content."""

    def start(project: Project, json_flag: str) -> Run:
        for name, text in files.items():
            project.write(name.replace("__", "/").replace("_dot_", "."), text)
        return project.run("tasks", *args, json_flag, mode=mode, junit=False)

    return start


def doctor(project: Project, json_flag: str) -> Run:
    return project.run("--codeprobe-doctor", AGENT, json_flag, junit=False)


#: surface -> the run, and codes of its errors (None: any)
SURFACES: dict[str, tuple[Case, list[str] | None]] = {
    "usage-error": (given(AGENT, "--codeprobe-timeout=soon"), ["USAGE_ERROR"]),
    "conflict": (given(AGENT, "--codeprobe-jobs=2", "-n2"), ["USAGE_ERROR"]),
    "unknown-flag": (given(AGENT, "--nosuch"), ["USAGE_ERROR"]),
    "unknown-agent": (given("--codeprobe-agent=scriptd"), ["UNKNOWN_BACKEND"]),
    "broken-experiment": (given(AGENT, experiments__default_dot_yaml="defaults: [\n"), None),
    "broken-task": (given(AGENT, tasks__broken_dot_yaml="task_id: broken\n"), ["TASK_INVALID"]),
    "broken-module": (given("tests", AGENT, tests__test_broken_dot_py="print('loud')\nimport nosuch\n"), []),
    "broken-conftest": (given("tests", AGENT, tests__conftest_dot_py="print('loud')\n1 / 0\n"), ["USAGE_ERROR"]),
    "no-tasks": (given(AGENT, "-k", "nosuch"), ["NO_TASKS"]),
    "s": (given(AGENT, "-s"), []),
    "n4": (given(AGENT, "-n", "4"), []),
    "jobs": (given(AGENT, "--codeprobe-jobs=8"), []),
    "warnings-as-errors": (given(AGENT, "-W", "error"), []),
    "killed-worker": (given(AGENT, mode="xdist", tasks__conftest_dot_py=KILLER, tasks__k_dot_yaml=KILLED), ["WORKER_DIED"]),
    "plugin-at-exit": (given(AGENT, "-p", "loud", loud_dot_py=LOUD_PLUGIN), []),
    "plugin-at-import": (given(AGENT, "-p", "loud", loud_dot_py=EARLY_PLUGIN), []),
    "early-refusal": (given(AGENT, "--maxfail=x", "-p", "loud", loud_dot_py=EARLY_PLUGIN), ["USAGE_ERROR"]),
    "doctor": (doctor, []),
    "dry-run": (given(AGENT, "--codeprobe-dry-run"), []),
    "help": (given(AGENT, "--help"), ["USAGE_ERROR"]),
    "version": (given(AGENT, "--version"), ["USAGE_ERROR"]),
    "markers": (given(AGENT, "--markers"), ["USAGE_ERROR"]),
    "fixtures": (given(AGENT, "--fixtures"), []),
}


@pytest.fixture
def loud(project: Project) -> Project:
    """Three tasks, and a conftest.py that prints whenever it can."""
    for name in ("a", "b", "c"):
        project.task(name, agent=LOUD_SESSION)
    project.write("conftest.py", NOISE)
    project.environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(project.path), os.environ.get("PYTHONPATH"))))
    return project


def pure(run: Run, json_flag: str) -> dict[str, Any]:
    """The envelope; before it events alone, and these only where they are wanted."""
    if run.lines[-1]["command"] == "run":
        return run.assert_pure(events=json_flag == "--codeprobe-json-lines")
    (line,) = run.lines
    check("envelope", line)
    assert line["exit_code"] == run.code
    return line


def beyond_us(surface: str, json_flag: str, door: str) -> bool:
    """`codeprobe doctor` has no events; pytest loads a plugin that is named before ours, and refuses some command lines before any."""
    if surface == "doctor":
        return door == "codeprobe" and json_flag == "--codeprobe-json-lines"
    return surface in ("plugin-at-import", "early-refusal", "version") and door == "pytest"


#: the flag decides whether events are told, the door who takes stdout away from all others: each surface sees both of either
_PAIRS = {"pytest": "--codeprobe-json-lines", "codeprobe": "--codeprobe-json"}
#: where events and the end of the run come together
_WHOLE = ("usage-error", "n4", "killed-worker", "plugin-at-exit")
CASES = [(s, f, d) for s in SURFACES for f in FLAGS for d in DOORS if not beyond_us(s, f, d) and (_PAIRS[d] == f or s in _WHOLE)]


@pytest.mark.parametrize(("surface", "json_flag", "door"), CASES)
def test_only_json(loud: Project, surface: str, json_flag: str, door: str) -> None:
    case, codes = SURFACES[surface]
    envelope = pure(case(through(door, loud), json_flag), json_flag)
    if codes is not None:
        assert [error["code"] for error in envelope["errors"]] == codes
    else:
        assert envelope["errors"]


@pytest.mark.parametrize(("number", "json_flag"), [(signal.SIGINT, FLAGS[0]), (signal.SIGTERM, FLAGS[1])], ids=["int", "term"])
def test_only_json_after_a_signal(loud: Project, mode: str, number: signal.Signals, json_flag: str) -> None:
    loud.task("d", agent=scripted({"run": f"echo loud; touch {loud.marks}/on; sleep 60"}))
    run = loud.start("tasks", AGENT, json_flag, mode=mode, junit=False)
    run.wait_for("on")
    run.signal(number)
    envelope = pure(run.wait(), json_flag)
    assert [error["code"] for error in envelope["errors"]] == ["INTERRUPTED"]
    assert run.code == 2


@pytest.mark.joint
def test_other_commands(loud: Project) -> None:
    for args in (("clean",), ("schema",)):
        run = loud.codeprobe(*args, "--json")
        assert run.code == 0
        assert isinstance(json.loads(run.stdout), dict)
