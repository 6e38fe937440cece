"""Ctrl-C and its kin, in every stage: exit 2, an envelope, finished trials kept, the running one with its evidence, nothing left."""

from __future__ import annotations

import json
import os
import shlex
import signal
import time
from pathlib import Path

import pytest

from tests.front_door import MODES, Project, Run, scripted
from tests.process_watch import harness_processes, none_within, private_folders, trial_processes
from tests.stages import STAGES, USAGE, held_task, holding, quick_task

WITHIN = 6.0  #: seconds from the signal until nothing of a trial is alive or on disk
MANY_WITHIN = 8.0  #: the same for 32 trials at once


#: two trials at once, as xdist's two workers have them
TWO = {"jobs": ("--codeprobe-jobs=2",)}


def fill(project: Project, stage: str) -> None:
    """One task that is done before the signal, one for each of two workers that is held in the stage, two that never start."""
    quick_task(project, "a-done")
    held_task(project, "b-held", stage)
    held_task(project, "c-held", stage)
    quick_task(project, "d-later")
    quick_task(project, "e-later")


def started(project: Project, mode: str, *args: str) -> Run:
    """Run them until the stage is reached everywhere."""
    run = project.start("tasks", "--codeprobe-agent=scripted", *TWO.get(mode, ()), *args, mode=mode)
    run.wait_for("[bc]-held", 1 if mode == "plain" else 2)
    run.wait_for_events("trial_finished")
    return run


def to_group(run: Run, number: int) -> None:
    """As a terminal does it: to pytest, its workers, and all that did not leave the group."""
    os.killpg(run.process.pid, number)


def ends_clean(run: Run, *, within: float = WITHIN) -> Run:
    """Call right after the signal."""
    none_within(lambda: trial_processes(run.project), within)
    run.wait(12)
    none_within(lambda: harness_processes(run), 2)
    assert private_folders(run.project) == []
    return run


def assert_interrupted(run: Run) -> None:
    """Exit 2, INTERRUPTED, every trial in its place."""
    run.assert_consistent()
    assert run.code == 2
    assert [e["code"] for e in run.envelope["errors"]] == ["INTERRUPTED"]
    (told,) = [e for e in run.events if e["event"] == "run_interrupted"]
    assert told["reason"] in ("SIGINT", "SIGTERM", "SIGHUP")
    assert run.statuses == {"a-done": "passed", "b-held": "not_run", "c-held": "not_run", "d-later": "not_run", "e-later": "not_run"}
    assert {e["reason"] for e in run.finished.values() if e["status"] == "not_run"} == {"interrupted"}
    assert run.result("a-done")["status"] == "passed"
    assert not (run.trial("d-later")).exists()
    assert not (run.trial("e-later")).exists()


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c(project: Project, mode: str, stage: str) -> None:
    fill(project, stage)
    run = started(project, mode)
    to_group(run, signal.SIGINT)
    assert_interrupted(ends_clean(run))
    held = ("b-held",) if mode == "plain" else ("b-held", "c-held")
    for task in held:
        record = run.result(task)
        assert (record["status"], record["reason"]) == ("not_run", "interrupted")
        assert (project.marks / f"post-{task}").exists()
        if stage != "prepare":
            assert record["cost_usd"] == run.finished[task]["cost_usd"] == 0.25
            transcript = json.loads((run.trial(task) / "attempt-1" / "transcript.json").read_text())
            assert any(s["message"] == "I begin" for s in transcript["steps"])
            assert (run.trial(task) / "artifacts" / "out.txt").read_text() == "done\n"
    assert sorted(p.name for p in project.marks.glob("post-*")) == [f"post-{t}" for t in held]
    assert run.envelope["data"]["cost_usd"] == 0.25 * (1 + (len(held) if stage != "prepare" else 0))


@pytest.mark.parametrize(
    ("mode", "number"),
    [
        *(pytest.param(mode, signal.SIGTERM, marks=pytest.mark.joint) for mode in MODES),
        ("plain", signal.SIGHUP),
        ("xdist", signal.SIGHUP),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_signal_to_pytest_alone(project: Project, mode: str, number: signal.Signals) -> None:
    """SIGINT alone is that of test_sigint_ignored_by_the_shell, which sends no other."""
    fill(project, "session")
    run = started(project, mode)
    run.signal(number)
    assert_interrupted(ends_clean(run))
    rest = "to run the rest: the same call with --codeprobe-resume --codeprobe-run-dir=.codeprobe/runs/"
    assert f"\n{rest}{run.folder.resolve().name}\n" in run.stdout


def test_terminal_is_closed(project: Project) -> None:
    """SIGHUP and SIGTERM reach all, one after the other, as a service manager or a closed terminal does it."""
    fill(project, "session")
    run = started(project, "xdist")
    to_group(run, signal.SIGHUP)
    to_group(run, signal.SIGTERM)
    assert_interrupted(ends_clean(run))


def test_deaf_session_has_its_grace(project: Project, mode: str) -> None:
    """TERM is ignored: KILL comes after 5 s, counted from the signal."""
    fill(project, "session")
    agent = Path(__file__).with_name("hostile_agent.py")
    for task in ("b-held", "c-held"):
        command = shlex.join(["exec", "python3", "-I", "-S", str(agent), "stubborn", project.mark_text, str(project.marks / task)])
        project.task(task, agent=scripted({"run": command}))
    run = started(project, mode)
    began = time.monotonic()
    to_group(run, signal.SIGINT)
    none_within(lambda: trial_processes(project), WITHIN)
    took = time.monotonic() - began
    ends_clean(run, within=WITHIN)
    assert_interrupted(run)
    assert took > 4  # there was a grace


def test_second_signal_skips_the_grace(project: Project, mode: str) -> None:
    """And holds post_run to 5 s."""
    fill(project, "session")
    agent = Path(__file__).with_name("hostile_agent.py")
    for task in ("b-held", "c-held"):
        command = shlex.join(["exec", "python3", "-I", "-S", str(agent), "stubborn", project.mark_text, str(project.marks / task)])
        post_run = f"touch {project.marks}/post-{task}; sleep 600; : {project.mark_text}"
        project.task(task, agent=scripted({"run": command}), post_run=[{"command": post_run, "timeout": 600}])
    run = started(project, mode)
    to_group(run, signal.SIGINT)
    time.sleep(0.3)  # a person's second press
    began = time.monotonic()
    to_group(run, signal.SIGINT)
    run.wait_for("post-b-held")
    assert time.monotonic() - began < 4.5  # the session was killed, not waited for
    assert_interrupted(ends_clean(run, within=10.0))


def many_deaf(project: Project) -> Run:
    """32 sessions at once that ignore every signal they can, one trial that is over, and two that will not start."""
    quick_task(project, "a-done")
    for number in range(32):
        name = f"b-held-{number:02}"
        command = f"trap '' TERM INT HUP; : {project.mark_text}; echo x >out.txt; touch {project.marks}/{name}; sleep 600; sleep 600"
        project.task(name, agent=scripted(USAGE, {"run": command}))
    quick_task(project, "d-later")
    quick_task(project, "e-later")
    run = project.start("tasks", "--codeprobe-agent=scripted", "--codeprobe-jobs=32")
    run.wait_for("b-held-*", 32)
    run.wait_for_events("trial_finished")
    return run


def assert_all_told(run: Run) -> None:
    """What had started is in events, envelope, result.json, and in pytest's own reports; what had not, in the first two."""
    assert_left_clean(run)
    run.assert_consistent()
    assert run.code == 2
    held = [f"b-held-{number:02}" for number in range(32)]
    assert run.statuses == {"a-done": "passed", **dict.fromkeys([*held, "d-later", "e-later"], "not_run")}
    assert {e["reason"] for e in run.finished.values() if e["status"] == "not_run"} == {"interrupted"}
    assert run.junit() == {"a-done": "passed", **dict.fromkeys(held, "skipped")}
    assert "1 passed, 32 skipped" in run.output
    for name in held:
        record = run.result(name)
        assert (record["status"], record["reason"], record["cost_usd"]) == ("not_run", "interrupted", 0.25)
        assert (run.trial(name) / "artifacts" / "out.txt").exists()
    assert not run.trial("d-later").exists()
    assert run.envelope["data"]["cost_usd"] == 33 * 0.25


def assert_left_clean(run: Run) -> None:
    none_within(lambda: harness_processes(run), 2)
    assert private_folders(run.project) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_many_deaf_sessions(project: Project, number: signal.Signals) -> None:
    """Their grace is one and the same, not one after the other."""
    run = many_deaf(project)
    if number == signal.SIGINT:
        to_group(run, number)
    else:
        run.signal(number)
    none_within(lambda: trial_processes(project), MANY_WITHIN)
    assert_all_told(run.wait(12))


def test_second_signal_to_many_deaf_sessions(project: Project) -> None:
    run = many_deaf(project)
    to_group(run, signal.SIGINT)
    time.sleep(0.3)  # a person's second press
    to_group(run, signal.SIGINT)
    none_within(lambda: trial_processes(project), 4)  # less than a grace
    assert_all_told(run.wait(12))


def test_a_failure_ends_many_deaf_sessions(project: Project) -> None:
    """-x: as an interrupt does it, with exit code 1; what was over keeps its result."""
    quick_task(project, "a-done")
    project.task("b-fail", agent=scripted({"run": f"until [ -e {project.marks}/go ]; do sleep 0.05; done"}))
    for number in range(6):
        name = f"c-held-{number}"
        command = f"trap '' TERM INT HUP; : {project.mark_text}; touch {project.marks}/{name}; sleep 600"
        project.task(name, agent=scripted(USAGE, {"run": command}))
    quick_task(project, "d-later")
    run = project.start("tasks", "-x", "--codeprobe-agent=scripted", "--codeprobe-jobs=7")
    run.wait_for("c-held-*", 6)
    run.wait_for_events("trial_finished")
    (project.marks / "go").touch()
    none_within(lambda: trial_processes(project), WITHIN)
    assert_left_clean(run.wait(12))
    run.assert_consistent()
    assert run.code == 1
    held = dict.fromkeys([f"c-held-{number}" for number in range(6)], "not_run")
    assert run.statuses == {"a-done": "passed", "b-fail": "failed", **held, "d-later": "not_run"}
    assert {e["reason"] for e in run.finished.values() if e["status"] == "not_run"} == {"maxfail"}
    assert run.junit() == {"a-done": "passed", "b-fail": "failure", **dict.fromkeys(held, "skipped")}
    assert run.result("a-done")["status"] == "passed"
    assert run.result("c-held-0")["cost_usd"] == 0.25


def test_post_run_is_not_cut_short(project: Project, mode: str) -> None:
    """A signal in post_run: the verdict stands, post_run ends by itself."""
    quick_task(project, "a-done")
    for task in ("b-held", "c-held"):
        command = f"{holding(project, task, seconds=1.5)}; touch {project.marks}/post-{task}"
        project.task(task, agent=scripted({"write": {"path": "out.txt", "content": "x"}}), post_run=[{"command": command, "timeout": 60}])
    quick_task(project, "d-later")
    quick_task(project, "e-later")
    run = started(project, mode)
    to_group(run, signal.SIGINT)
    ends_clean(run).assert_consistent()
    assert run.code == 2
    held = {"b-held": "passed", "c-held": "not_run" if mode == "plain" else "passed"}
    assert run.statuses == {"a-done": "passed", **held, "d-later": "not_run", "e-later": "not_run"}
    assert (project.marks / "post-b-held").exists()
    assert [e["code"] for e in run.envelope["errors"]] == ["INTERRUPTED"]


def test_in_an_ordinary_test(project: Project, mode: str) -> None:
    """It is interrupted as pytest does it; tasks are closed from the plan."""
    quick_task(project, "a-done", file="a/a.yaml")
    slow = f"import time, pathlib\ndef test_slow():\n    pathlib.Path('{project.marks}/slow').touch()\n    while True: time.sleep(0.1)\n"
    project.write("b/test_slow.py", slow)
    quick_task(project, "c-later", file="c/c.yaml")
    project.write("d/test_slow2.py", "import time\ndef test_slow():\n    while True: time.sleep(0.1)\n")
    quick_task(project, "e-later", file="e/e.yaml")
    run = project.start("a", "b", "c", "d", "e", "--codeprobe-agent=scripted", mode=mode)
    run.wait_for("slow")
    if mode == "jobs":  # they are over, and the thread that tells pytest of it sits in the test
        run.poll(lambda: len(list(run.folder.glob("trials/*/*/*/result.json"))) == 3)
    else:
        run.wait_for_events("trial_finished", 1 if mode == "plain" else 2)
    to_group(run, signal.SIGINT)
    ends_clean(run).assert_consistent()
    assert run.code == 2
    # xdist's second worker had c, and sits in test_slow2
    later = {"plain": ("not_run", "not_run"), "xdist": ("passed", "not_run"), "jobs": ("passed", "passed")}[mode]
    assert run.statuses == {"a-done": "passed", "c-later": later[0], "e-later": later[1]}
    assert [e["code"] for e in run.envelope["errors"]] == ["INTERRUPTED"]


def test_pytest_exit_in_a_fixture(project: Project, mode: str) -> None:
    """It ends the run as a signal does; there is no teardown phase that would clear up."""
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef leave(codeprobe_session): pytest.exit('enough')\n")
    quick_task(project, "a-done")
    project.task("b-held", agent=scripted({"write": {"path": "out.txt", "content": "x"}}), fixtures=["leave"])
    run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    assert run.code == 2
    assert (run.statuses["b-held"], run.finished["b-held"]["reason"]) == ("not_run", "interrupted")
    none_within(lambda: harness_processes(run), 2)
    assert private_folders(project) == []


@pytest.mark.parametrize("mode", ["plain", pytest.param("xdist", marks=pytest.mark.joint)])
def test_while_collecting(project: Project, mode: str) -> None:
    """There is no plan yet: no run dir, an envelope on stdout."""
    quick_task(project, "a", file="a/a.yaml")
    slow = f"import time, pathlib, os\npathlib.Path('{project.marks}/collecting-' + str(os.getpid())).touch()\nwhile 1: time.sleep(0.1)\n"
    project.write("b/test_slow.py", slow)
    run = project.start("a", "b", "--codeprobe-agent=scripted", "--codeprobe-json", mode=mode)
    run.wait_for("collecting-*", 2 if mode == "xdist" else 1)
    to_group(run, signal.SIGINT)
    ends_clean(run)
    assert run.code == 2
    (envelope,) = run.lines
    assert envelope["exit_code"] == 2
    assert [e["code"] for e in envelope["errors"]] == ["INTERRUPTED"]
    assert envelope["data"]["run_dir"] is None
    assert not run.wrote


def test_sigint_ignored_by_the_shell(project: Project, mode: str) -> None:
    """A background job of sh inherits SIGINT as ignored, and CI wrappers are just that."""
    fill(project, "session")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        run = project.start("tasks", "--codeprobe-agent=scripted", *TWO.get(mode, ()), mode=mode)
    finally:
        signal.signal(signal.SIGINT, before)
    run.wait_for("[bc]-held", 1 if mode == "plain" else 2)
    run.wait_for_events("trial_finished")
    run.signal(signal.SIGINT)
    assert_interrupted(ends_clean(run))


def test_hang_up_ignored(project: Project) -> None:
    """nohup means it."""
    project.task("a-slow", agent=scripted({"run": f"touch {project.marks}/slow; sleep 1"}, {"write": {"path": "out.txt", "content": "x"}}))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = project.start("tasks", "--codeprobe-agent=scripted")
    finally:
        signal.signal(signal.SIGHUP, before)
    run.wait_for("slow")
    run.signal(signal.SIGHUP)
    run.wait().assert_consistent()
    assert run.statuses == {"a-slow": "passed"}
    assert run.code == 0
