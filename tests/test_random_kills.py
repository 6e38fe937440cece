"""kill -9 of whatever a run consists of, at random points: nothing lives on, every trial has one final state, and an honest one.

CP_KILL_ROUNDS says how many rounds (by default each victim in each mode once; `make soak`: 200), CP_KILL_SEED (1) which; a round that
failed is repeated by the same two and `-k`. CP_KILL_DRIVER leaves the cards of one driver; docker has cards only so, as each takes long.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shlex
import signal
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests import containers
from tests.front_door import MODES, Project, Run, scripted
from tests.process_watch import (
    children_of,
    commands_of,
    control_groups,
    harness_processes,
    mounts_below,
    none_within,
    private_folders,
    tree_of,
    trial_processes,
    whole_lines,
    workers_of,
)
from tests.schemas import check
from tests.stages import USAGE, quick_task

SEED = int(os.environ.get("CP_KILL_SEED", "1"))
VICTIMS = ("pytest", "keeper", "spawner", "agent", "grader")
ONLY = os.environ.get("CP_KILL_DRIVER", "")
_AT_ONCE = ("tempdir", "bubblewrap", *(("docker",) if ONLY == "docker" else ()))
_OF_DRIVER = {"docker": ("client", "monitor")}  #: what the engine has of processes for each container
#: each victim in each mode, many at once under each driver; a worker's death is that of its trial alone
DECK = [
    (mode, victim, driver)
    for mode in MODES
    for driver in (_AT_ONCE if mode == "jobs" else ("tempdir",))
    for victim in (*VICTIMS, *(("worker",) if mode == "xdist" else ()), *_OF_DRIVER.get(driver, ()))
    if ONLY in ("", driver)
]
ROUNDS = int(os.environ.get("CP_KILL_ROUNDS", len(DECK)))
TASKS = {"plain": 4, "xdist": 6, "jobs": 8}
AT_ONCE = {"plain": 1, "xdist": 2, "jobs": 8}
#: what a killed trial may end with: the harness's own trouble, by its code
CODES = {
    "worker": {"WORKER_DIED"},
    "keeper": {"SANDBOX_FAILED", "AGENT_CRASHED"},
    "spawner": {"SANDBOX_FAILED"},
    "agent": {"AGENT_CRASHED"},
    "grader": {"VERIFIER_FAILED"},
    "client": {"SANDBOX_FAILED"},
    "monitor": {"SANDBOX_FAILED"},
}
#: and where it was the enclosure that was hit
ENCLOSED = {"agent": {"SANDBOX_FAILED"}, "grader": {"SANDBOX_FAILED"}}
LOOK = {"type": "file_contains", "path": "out.txt", "includes": ["done"]}
HIDDEN = "import pathlib, time\ndef test_it():\n    time.sleep(0.1)\n    assert pathlib.Path('out.txt').exists()\n"
_SPAWNER = re.compile(r"/children/(spawner|warm)\.py")
_GRADER = re.compile(r" grader|/children/warm\.py")  # hidden tests are forks of what has pytest loaded
_OURS = re.compile(
    r"plan\.json|lock\.json|run\.lock|events\.ndjson|envelope\.json|run\.log|spool/\w+\.ndjson|stop/\w+|trials/default/t\d/r001/(?P<of_trial>.+)"
)
_OF_TRIAL = re.compile(
    r"result\.json|diff\.patch|artifacts/((out|id)\.txt|\.git/.+)|attempt-\d/(agent\.std(out|err)|trial\.log|transcript\.json)"
)


@dataclass
class Round:
    """One run and what is killed in it."""

    project: Project
    mode: str
    victim: str
    driver: str
    dice: random.Random
    hit: str = ""  #: what was killed, for a person
    trial: str | None = None  #: task id of the trial that it belonged to, where that can be seen
    engine: Mapping[str, str] = field(default_factory=dict)  #: variables for podman, under driver docker
    run: Run = field(init=False)

    # ---- what runs
    def fill(self) -> None:
        """Tasks whose every stage takes a moment and leaves a sign, an ordinary test between them."""
        if self.driver == "docker":
            self.engine = containers.use(self.project)
        marks = shlex.quote(str(self.project.marks)) if self.driver == "tempdir" else "/tmp"  # nothing of ours is to be seen inside
        limits = {} if self.driver == "tempdir" else {"sandbox": {"limits": {"pids": 500}, "network": "off"}}
        for number in range(TASKS[self.mode]):
            name = f"t{number}"
            self.project.task(
                name,
                file=f"{'ab'[number % 2]}/{name}.yaml",
                **limits,
                agent=scripted(
                    {"say": "I begin"},
                    USAGE,
                    {"run": f"sleep 0.15; : {name} agent"},
                    {"write": {"path": "out.txt", "content": "done\n"}},
                    {"run": f"sleep 0.1; : {name} agent"},
                ),
                pre_run=[{"command": f"echo {name} >id.txt; touch {marks}/pre-{name}; sleep 0.03"}],
                post_run=[{"command": f"sleep 0.03; touch {marks}/post-{name}"}],
                success_criteria=[
                    {"type": "run_command", "command": f"sleep 0.1; grep -qx done out.txt && touch {marks}/graded-{name}; : {name} grader"},
                    {"type": "pytest", "paths": ["hidden"]} if self.mode == "jobs" and number in (1, 5) else {**LOOK},
                ],
            )
        if self.mode == "jobs":
            self.project.write("b/hidden/test_hidden.py", HIDDEN)
        self.project.write("a/test_between.py", "def test_between():\n    pass\n")

    # ---- the kill
    def kill(self) -> None:
        """Somewhere between start and end."""
        if self.victim == "pytest" and self.dice.random() < 0.3:  # at any moment of the start too
            until = time.monotonic() + self.dice.uniform(0, 1.5)
        else:
            seen = self.dice.randrange(TASKS[self.mode] - 1)
            while self.begun() <= seen and self.run.process.poll() is None:
                time.sleep(0.02)
            until = time.monotonic() + self.dice.uniform(0, 0.5)
        time.sleep(max(0.0, until - time.monotonic()))
        while not self.hit and self.run.process.poll() is None:
            if found := sorted(self.candidates()):
                self.strike(self.dice.choice(found))
            time.sleep(0.01)

    def begun(self) -> int:
        """Trials so far."""
        if self.driver == "tempdir":
            return len(list(self.project.marks.glob("pre-*")))
        with contextlib.suppress(FileNotFoundError):
            return (self.run.folder / "events.ndjson").read_text().count('"event":"trial_started"')
        return 0

    def strike(self, pid: int) -> None:
        """Kill it, if it is still there."""
        what = " ".join(commands_of(pid))[:120]
        self.trial = self.trial_of(pid) if self.victim in ("keeper", "agent", "grader") else None
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            self.hit = f"{self.victim} {pid} {what!r} of {self.trial}"

    def candidates(self) -> Iterator[int]:
        """Live processes of the kind that is to be killed."""
        owners = workers_of(self.run) if self.mode == "xdist" else [self.run.process.pid]
        if self.victim == "pytest":
            yield self.run.process.pid
        elif self.victim == "worker":
            yield from owners
        else:
            spawners = [pid for owner in owners for pid in children_of(owner) if _SPAWNER.search(" ".join(commands_of(pid)))]
            keepers = [pid for spawner in spawners for pid in children_of(spawner)]
            if self.victim in ("spawner", "keeper"):
                yield from {"spawner": spawners, "keeper": keepers}[self.victim]
            if self.victim == "client":
                yield from self.of_engine("run -i --name codeprobe-")
            monitors = list(self.of_engine("conmon ")) if self.driver == "docker" else []
            yield from monitors if self.victim == "monitor" else []
            tops = monitors if self.driver == "docker" else keepers  # below whom the trials' own processes are
            for pid in [pid for top in tops for pid in tree_of(top)[1:]] if self.victim in ("agent", "grader") else []:
                command = " ".join(commands_of(pid))
                if {"agent": "scripted.py" in command or " agent" in command, "grader": _GRADER.search(command)}[self.victim]:
                    yield pid

    def of_engine(self, word: str) -> Iterator[int]:
        """Processes of podman's for this run's containers."""
        for entry in Path("/proc").iterdir():
            command = " ".join(commands_of(int(entry.name))) if entry.name.isdigit() else ""
            if word in command and f"codeprobe-{self.run.process.pid}-" in command:
                yield int(entry.name)

    def trial_of(self, pid: int) -> str | None:
        """Task id of the trial that a process works for; None where it can't be seen, or no longer."""
        for each in tree_of(pid):
            if named := re.search(r": (t\d) |/(?:pre|post)-(t\d)", " ".join(commands_of(each))):
                return named[1] or named[2]
            with contextlib.suppress(OSError):
                return (Path(f"/proc/{each}/cwd") / "id.txt").read_text().strip()
        return None

    # ---- what must hold afterwards
    def nothing_lives(self) -> None:
        """10 s, counted from the kill where that ended pytest, else from the end of the run."""
        if self.victim != "pytest" or not self.hit:
            self.run.wait(60 if self.driver != "docker" else 200)
        none_within(lambda: trial_processes(self.project) + harness_processes(self.run) + self.containers(), 10)
        if self.victim == "pytest":
            self.run.wait()

    def containers(self) -> list[str]:
        """Those that the run has made and that are there still."""
        name = f"name=^codeprobe-{self.run.process.pid}-"
        return containers.podman(self.engine, "ps", "-a", "--filter", name, "--format", "{{.Names}}").split() if self.engine else []

    def files_are_whole(self) -> None:
        """No temporary name, nothing half-written."""
        for path in sorted(self.run.folder.rglob("*")):
            if path.is_dir():
                continue
            name = path.relative_to(self.run.folder).as_posix()
            kind = _OURS.fullmatch(name)
            assert kind, name
            assert kind["of_trial"] is None or _OF_TRIAL.fullmatch(kind["of_trial"]), name
            if path.suffix == ".json":
                json.loads(path.read_text())
            if path.name == "result.json":
                check("result", json.loads(path.read_text()))
            if path.name in ("out.txt", "id.txt"):
                assert path.read_text() in ("done\n", f"{path.parts[-4]}\n")

    def states(self) -> dict[str, str]:
        """Task id -> status; each trial has one, in the events and in result.json."""
        if not self.run.wrote:
            return {}
        events = [e for e in whole_lines(self.run) if e["event"] == "trial_finished"]
        told = {e["task_id"]: str(e["status"]) for e in events}
        assert len(told) == len(events)
        known = {t["task_id"] for t in self.run.plan}
        assert told.keys() <= known
        written = {t: str(self.run.result(t)["status"]) for t in known if (self.run.trial(t) / "result.json").exists()}
        assert told.items() <= {**told, **written}.items()  # never two answers
        return {**written, **told}

    def statuses_are_honest(self, states: dict[str, str]) -> None:
        """Passed means done and graded; only what was hit may have ended otherwise, and says why."""
        for task, status in states.items():
            if status == "passed":
                assert (self.run.trial(task) / "artifacts" / "out.txt").read_text() == "done\n"
                assert self.driver != "tempdir" or (self.project.marks / f"graded-{task}").exists()
                assert [c["verdict"] for c in self.run.result(task)["criteria"]] == ["passed", "passed"]
        if self.victim == "pytest" and self.hit:
            assert set(states.values()) <= {"passed", "not_run"}  # of a worker that saw its controller go
            return
        others = {task: status for task, status in states.items() if status != "passed"}
        assert len(others) <= (AT_ONCE[self.mode] if self.victim == "spawner" else 1), others
        assert self.trial is None or others.keys() <= {self.trial}, (others, self.trial)
        for task, status in others.items():
            record = self.run.result(task)
            if self.victim in ("agent", "grader") and status == "failed":
                continue  # its work was graded as it was found, or a grader's exit status was 137
            assert status == "error", record
            assert record["code"] in CODES[self.victim] | (ENCLOSED.get(self.victim, set()) if self.driver != "tempdir" else set()), record
        assert self.run.code == (1 if "failed" in others.values() else 6 if others else 0)

    def post_run_came(self) -> None:
        """Whatever was killed in a trial, what its pre_run made is cleaned up."""
        if self.victim in ("pytest", "worker") or self.driver != "tempdir":
            return
        begun, cleaned = ({p.name.rpartition("-")[2] for p in self.project.marks.glob(f"{kind}-*")} for kind in ("pre", "post"))
        assert begun - cleaned <= ({self.trial} if self.victim == "keeper" else set())  # post_run's own keeper may be the one

    def next_run_works(self) -> None:
        """And sweeps what was left."""
        quick_task(self.project, "next", file="next/next.yaml")
        again = self.project.run("next/next.yaml", "--codeprobe-run-dir=next-run", f"--codeprobe-driver={self.driver}")
        assert again.statuses == {"next": "passed"}


@pytest.mark.parametrize("number", range(ROUNDS), ids=lambda n: f"{SEED}-{n}")
def test_random_kill(project: Project, number: int, request: pytest.FixtureRequest) -> None:
    cards = random.Random(f"{SEED} {number // len(DECK)}").sample(DECK, len(DECK))
    mode, victim, driver = cards[number % len(DECK)]
    this = Round(project, mode, victim, driver, random.Random(f"{SEED} {number} dice"))
    try:
        played(this)
        request.node.user_properties.append(("killed", f"{mode}, {driver}, {this.hit or f'no {victim}'}"))
    except AssertionError as error:
        only = f"CP_KILL_DRIVER={ONLY} " if ONLY else ""
        again = f"{only}CP_KILL_SEED={SEED} CP_KILL_ROUNDS={ROUNDS} pytest tests/test_random_kills.py -k '[{SEED}-{number}]'"
        error.add_note(f"{mode}, {driver}, {this.hit or f'no {victim} killed'}; again: {again}")
        raise


def played(this: Round) -> None:
    """One round."""
    this.fill()
    jobs = (f"--codeprobe-jobs={AT_ONCE['jobs']}",) if this.mode == "jobs" else ()
    flags = ("--codeprobe-agent=scripted", "--codeprobe-run-dir=run", f"--codeprobe-driver={this.driver}", *jobs)
    this.run = this.project.start("a", "b", *flags, mode=this.mode)
    this.kill()
    this.nothing_lives()
    this.files_are_whole()
    states = this.states()
    this.statuses_are_honest(states)
    if this.victim == "pytest" and this.hit:
        this.next_run_works()
    else:
        this.run.assert_consistent()
        assert len(states) == TASKS[this.mode]
        cases = this.run.junit()
        assert len(cases) == TASKS[this.mode] + 1
        this.post_run_came()
        if this.victim == "worker" and this.hit:
            this.next_run_works()
    assert private_folders(this.project) == []
    assert mounts_below(this.project.scratch) == []
    assert control_groups(this.run.process.pid) == []
