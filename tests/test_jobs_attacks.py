"""What a project's own code can do to a process that it shares with many trials: the outcome is the same as without jobs."""

from __future__ import annotations

import json
import shutil
import signal
import time
from typing import Any

import pytest

from tests.front_door import Project, Run, scripted
from tests.process_watch import harness_processes, none_within, private_folders, trial_processes, whole_lines

AGENT = "--codeprobe-agent=scripted"
WRITE = {"write": {"path": "out.txt", "content": "x"}}
#: what own code may raise -> status and code of its trial
RAISED = {
    "raise RuntimeError('own')": ("error", "INTERNAL_ERROR"),
    "sys.exit(3)": ("error", "INTERNAL_ERROR"),
    "raise BaseException('own')": ("error", "INTERNAL_ERROR"),
    "raise GeneratorExit": ("error", "INTERNAL_ERROR"),
    "pytest.fail('own')": ("error", "INTERNAL_ERROR"),
    "pytest.skip('own')": ("skipped", None),
    "pytest.xfail('own')": ("skipped", None),
}
PLACES = ("sandbox", "feed", "end", "transcript", "criterion")
#: in the criterion's place it is one that can't be evaluated, in that of the hook no sandbox
CODES = {
    ("sandbox", "raise RuntimeError('own')"): "SANDBOX_FAILED",
    ("criterion", "raise RuntimeError('own')"): "VERIFIER_FAILED",
    ("criterion", "sys.exit(3)"): "VERIFIER_FAILED",
    ("criterion", "raise GeneratorExit"): "VERIFIER_FAILED",
}
OWN = """
import sys
from typing import Literal
import pytest
from pytest_codeprobe.agents.scripted import ScriptedAgent, ScriptedParser
from pytest_codeprobe.model.criterion import Criterion, Score

def act(trial, place):
    if trial.task_id.startswith("x-" + place):
        # compiled, as a module is: CPython ends by a signal where a text that it runs was interrupted
        exec(compile(trial.metadata["does"], "own", "exec"))

class Own(Criterion):
    type: Literal["own"]
    def evaluate(self, grading):
        act(grading.trial, "criterion")
        return Score(1.0, "fine")

class Parser(ScriptedParser):
    def __init__(self, request):
        super().__init__(request)
        self.trial = request.trial
    def feed(self, line):
        act(self.trial, "feed")
        super().feed(line)
    def end(self, *args, **kw):
        act(self.trial, "end")
        return super().end(*args, **kw)
    def transcript(self):
        act(self.trial, "transcript")
        return super().transcript()

class Agent(ScriptedAgent):
    def parser(self, request):
        return Parser(request)

def pytest_codeprobe_agents(config):
    return [Agent()]
def pytest_codeprobe_criteria(config):
    return [Own]
def pytest_codeprobe_make_sandbox(trial):
    act(trial, "sandbox")
"""


def fill(project: Project, *does: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """A task for each (place, statement), one that passes after each; task id -> what it does."""
    project.write("conftest.py", OWN)
    made = {}
    for number, (place, statement) in enumerate(does):
        name = f"x-{place}-{number:02}"
        made[name] = (place, statement)
        both = [{"type": "own"}, {"type": "file_exists", "path": "out.txt"}]
        project.task(name, file=f"tasks/{number:02}-a.yaml", agent=scripted(WRITE), success_criteria=both, metadata={"does": statement})
        project.task(f"fine-{number:02}", file=f"tasks/{number:02}-b.yaml", agent=scripted(WRITE), success_criteria=both)
    return made


def assert_left_clean(run: Run) -> None:
    none_within(lambda: trial_processes(run.project) + harness_processes(run), 5)
    assert private_folders(run.project) == []


def test_what_own_code_raises(project: Project, mode: str) -> None:
    """It costs its own trial, and none beside it."""
    made = fill(project, *((place, statement) for place in PLACES for statement in RAISED))
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    found: dict[object, tuple[str, str | None]] = {made.get(task, "fine"): (e["status"], e["code"]) for task, e in run.finished.items()}
    wanted: dict[object, tuple[str, str | None]] = {"fine": ("passed", None)}
    for place, statement in made.values():
        status, code = RAISED[statement]
        wanted[place, statement] = (status, CODES.get((place, statement), code))
    assert found == wanted
    assert_left_clean(run)


@pytest.mark.parametrize(("place", "statement"), [("feed", "pytest.exit('own')"), ("criterion", "raise KeyboardInterrupt")])
def test_what_ends_the_run(project: Project, mode: str, place: str, statement: str) -> None:
    fill(project, (place, statement))
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert run.code == 2
    record = run.finished[f"x-{place}-00"]
    assert (record["status"], record["reason"]) == ("not_run", "interrupted")
    assert run.finished["fine-00"]["reason"] in (None, "interrupted")  # beside it, with two at once
    assert_left_clean(run)


# ---- what ordinary tests do to the process

#: what a test does while trials are in their stages
DEEDS = {
    "folder is gone": "os.chdir(tmp_path.joinpath('x')) if tmp_path.joinpath('x').mkdir() is None else 0; tmp_path.joinpath('x').rmdir()",
    "environment is empty": "[monkeypatch.delenv(name) for name in list(os.environ)]; monkeypatch.setattr(os, 'environ', {})",
    "path is wrong": "[monkeypatch.setenv(name, '/nowhere') for name in ('PATH', 'TMPDIR', 'HOME', 'PYTHONPATH', 'LD_LIBRARY_PATH')]",
    "clock stands": "[monkeypatch.setattr(time, name, lambda *_: 0.0) for name in ('monotonic', 'time', 'sleep', 'perf_counter')]",
    "no subprocess": "[monkeypatch.setattr(subprocess, name, None) for name in ('run', 'Popen', 'check_call', 'check_output')]",
}
DOING = """
import os, pathlib, subprocess, tempfile, time
def test_it(tmp_path, monkeypatch, sleep=time.sleep, now=time.monotonic):
    marks = pathlib.Path({marks!r})
    until = now() + 30
    while len(list(marks.glob("held-*"))) < {held} and now() < until:
        sleep(0.02)
    before = os.getcwd()
    {deed}
    marks.joinpath("go").touch()
    while len(list(pathlib.Path({runs!r}).glob("*/trials/*/*/*/result.json"))) < {all} and now() < until:
        sleep(0.02)
    os.chdir(before)
"""


def held(project: Project, stages: int, later: int) -> None:
    """Trials that are held in different stages until marks/go is there, and some that come after them."""
    project.write("tasks/base/in/file.txt", "x")
    for number in range(stages):
        wait = f"touch {project.marks}/held-{number}; until [ -e {project.marks}/go ]; do sleep 0.02; done"
        fields: dict[str, Any] = {"agent": scripted(WRITE), "sandbox": {"template_sources": [{"type": "template_dir", "path": "base"}]}}
        if number == 0:
            fields["pre_run"] = [{"command": wait, "timeout": 60}]
        elif number == 1:
            fields["agent"] = scripted({"run": wait}, WRITE)
        else:
            fields["success_criteria"] = [{"type": "run_command", "command": f"{wait}; test -e out.txt", "timeout": 60}]
        project.task(f"a-{number}", **fields)
    for number in range(later):
        command = "head -c 3000000 /dev/zero > zero; echo x > out.txt"  # too much for what is compared in this process
        project.task(
            f"b-{number}",
            file=f"more/tasks/{number}.yaml",
            agent=scripted({"run": command}),
            success_criteria=[{"type": "run_command", "command": "test -e out.txt"}],
        )


@pytest.mark.parametrize("deed", DEEDS)
def test_an_ordinary_test_that_changes_the_process(project: Project, deed: str) -> None:
    held(project, 3, 3)
    test = DOING.format(marks=str(project.marks), held=3, all=6, runs=str(project.path / ".codeprobe/runs"), deed=DEEDS[deed])
    project.write("ztests/test_it.py", test)
    run = project.run("tasks", "ztests", "more", AGENT, "--codeprobe-jobs=3", env={"MY_API_KEY": "sk-verysecret-123456"})
    run.assert_consistent()
    assert (set(run.statuses.values()), run.code) == ({"passed"}, 0), run.output
    assert_left_clean(run)


def test_an_ordinary_test_that_leaves(project: Project) -> None:
    """os._exit() in the middle of everything: as kill -9, nothing lives on, and the next run takes away what is left."""
    held(project, 3, 0)
    test = DOING.format(marks=str(project.marks), held=3, all=0, runs="", deed="os._exit(7)")
    project.write("ztests/test_it.py", test)
    run = project.start("tasks", "ztests", AGENT, "--codeprobe-jobs=3")
    run.wait()
    assert run.code == 7
    none_within(lambda: trial_processes(project) + harness_processes(run), 10)
    assert not [e for e in whole_lines(run) if e["event"] == "trial_finished"]
    assert not list(run.folder.glob("trials/*/*/*/result.json"))
    (project.marks / "go").touch()
    again = project.run("tasks", AGENT, "--codeprobe-jobs=3").assert_consistent()
    assert set(again.statuses.values()) == {"passed"}
    assert private_folders(project) == []


@pytest.mark.parametrize("mode", ["plain", "jobs"])
def test_a_run_dir_that_is_deleted_can_still_be_interrupted(project: Project, mode: str) -> None:
    """The stop flag makes its place anew; what is lost is said."""
    wait = f"trap '' TERM; touch {project.marks}/held-$0; sleep 600; : {project.mark_text}"
    for name in ("a", "b"):
        project.task(name, agent=scripted({"run": wait.replace("$0", name)}))
    run = project.start("tasks", AGENT, "--codeprobe-json", f"--codeprobe-run-dir={project.scratch}/run", mode=mode)
    run.wait_for("held-*", 1 if mode == "plain" else 2)
    shutil.rmtree(project.scratch / "run")
    run.signal(signal.SIGINT)
    none_within(lambda: trial_processes(project), 8)
    run.wait(12)
    (envelope,) = run.lines
    assert (run.code, envelope["exit_code"]) == (2, 2)
    assert {(r["status"], r["reason"]) for r in envelope["data"]["results"]} == {("not_run", "interrupted")}
    assert "events.ndjson: was deleted" in json.dumps(envelope["errors"])
    assert_left_clean(run)


# ---- too little of something


def files(limit: str) -> tuple[str, ...]:
    """A prefix for a command line that may have 200 files open: with `-Sn` until it asks for more, with `-n` for good."""
    return ("sh", "-c", 'ulimit "$0" 200; exec "$@"', limit)


def test_files_are_made_room_for(project: Project) -> None:
    """In pytest's own process; a session has the limit that pytest had."""
    for number in range(20):
        project.task(f"t{number}", agent=scripted({"run": f"ulimit -n >out.txt; sleep 0.5; : {number}"}))
    run = project.start("tasks", AGENT, "--codeprobe-jobs=20", prefix=files("-Sn")).wait()
    run.assert_consistent()
    assert (set(run.statuses.values()), run.code) == ({"passed"}, 0)
    assert {p.read_text() for p in run.folder.glob("trials/*/*/*/artifacts/out.txt")} == {"200\n"}


def test_more_jobs_than_may_have_files_open_are_refused(project: Project) -> None:
    """Before anything is paid; as many as there are trials are needed, not as many as were asked for."""
    for number in range(20):
        project.task(f"t{number}", agent=scripted(WRITE))
    run = project.start("tasks", AGENT, "--codeprobe-jobs=64", "--codeprobe-json", prefix=files("-n")).wait()
    (error,) = run.assert_pure(events=False)["errors"]
    assert (run.code, error["code"]) == (4, "USAGE_ERROR")
    assert "20 trials at once need 340 open files" in error["message"]
    assert "--codeprobe-jobs 8" in error["remediation"]
    assert not run.wrote
    listed = project.start("tasks", AGENT, "--codeprobe-jobs=64", "--collect-only", prefix=files("-n")).wait()
    assert listed.code == 0
    as_told = project.start("tasks", AGENT, "--codeprobe-jobs=8", prefix=files("-n")).wait()
    assert (set(as_told.statuses.values()), as_told.code) == ({"passed"}, 0)


FEW_THREADS = """
import threading
start = threading.Thread.start
def few(self):
    if self.name.startswith("codeprobe-") and self.name != "codeprobe-follower":
        if sum(t.name.startswith("codeprobe-trial") for t in threading.enumerate()) >= {number}:
            raise RuntimeError("can't start new thread")
    start(self)
threading.Thread.start = few
"""


@pytest.mark.parametrize("number", [0, 2])
def test_fewer_threads_than_jobs(project: Project, number: int) -> None:
    """A limit on processes counts threads too: it goes on with those that there are, without any in pytest's own."""
    project.write("conftest.py", FEW_THREADS.format(number=number))
    project.write("ztests/test_it.py", "def test_it(): pass\n")
    for name in "abcdefgh":
        project.task(name, agent=scripted(WRITE))
    run = project.run("tasks", "ztests", AGENT, "--codeprobe-jobs=3").assert_consistent()
    assert (run.statuses, run.code) == (dict.fromkeys("abcdefgh", "passed"), 0)
    assert (f"only {number} of 3 jobs ran at once" in str(run.envelope["warnings"])) == (number > 0)
    assert_left_clean(run)


# ---- code that hangs


@pytest.mark.parametrize("mode", ["plain", "jobs"])
def test_a_third_signal_waits_for_nothing(project: Project, mode: str) -> None:
    """No signal ends Python code in a thread, or a trial in its stages: the first two are in vain where own code hangs."""
    fill(project, ("criterion", f"import pathlib, time; pathlib.Path({str(project.marks / 'hangs')!r}).touch(); time.sleep(600)"))
    run = project.start("tasks", AGENT, mode=mode)
    run.wait_for("hangs")
    for _ in range(3):
        run.signal(signal.SIGINT)
        time.sleep(0.3)  # a person's presses
    run.wait(20).assert_consistent()
    assert run.code == 2
    record = run.finished["x-criterion-00"]
    assert (record["status"], record["reason"]) == ("not_run", "interrupted")
    none_within(lambda: trial_processes(project) + harness_processes(run), 10)
