"""What a project's own code can do to a process that it shares with many trials: the outcome is the same as without jobs."""

from __future__ import annotations

import pytest

from tests.front_door import Project, Run, scripted
from tests.process_watch import harness_processes, none_within, private_folders, trial_processes

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
        exec(trial.metadata["does"])

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
    found = {made.get(task, "fine"): (e["status"], e["code"]) for task, e in run.finished.items()}
    wanted = {}
    for place, statement in made.values():
        status, code = RAISED[statement]
        wanted[place, statement] = (status, CODES.get((place, statement), code))
    assert found == {**wanted, "fine": ("passed", None)}
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
