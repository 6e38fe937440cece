"""Python tests with the marker: a trial of their own, whose status is the test's outcome."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from tests.front_door import MODES, Project, Run, comparable, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
USAGE = {"usage": {"model": "m1", "input_tokens": 100, "output_tokens": 20, "cost_usd": 0.25}}
AGENT = "--codeprobe-agent=scripted"

TESTS = """
import pytest

good = pytest.mark.codeprobe(task="tasks/good.yaml")
bad = pytest.mark.codeprobe(task="tasks/bad.yaml")

@good
def test_small_diff(codeprobe_session, codeprobe_score):
    assert codeprobe_score.passed
    assert codeprobe_session.usage.cost_usd < 0.50
    assert codeprobe_session.changed_files == ("out.txt",)

@good
def test_too_dear(codeprobe_session, codeprobe_score):
    assert codeprobe_score.passed
    assert codeprobe_session.usage.cost_usd < 0.10, "too dear"

@bad
def test_expects_a_miss(codeprobe_score):
    assert not codeprobe_score.passed

@bad
def test_says_nothing(codeprobe_session):
    pass

@good
def test_skips(codeprobe_session):
    pytest.skip("seen enough")

@good
@pytest.mark.skip(reason="by hand")
def test_never(codeprobe_session):
    assert 0

@good
@pytest.mark.xfail(reason="known")
def test_xfail(codeprobe_score):
    assert not codeprobe_score.passed

@good
@pytest.mark.xfail(reason="known", strict=True)
def test_xpass(codeprobe_score):
    assert codeprobe_score.passed

@good
def test_without_fixtures():
    pass

@good
@pytest.mark.parametrize("limit", [1, 0])
def test_each(codeprobe_session, limit):
    assert len(codeprobe_session.changed_files) <= limit

@good
def test_sandbox_alone(codeprobe_sandbox, codeprobe_trial):
    codeprobe_sandbox.write_text("a/b.txt", "x")
    assert codeprobe_sandbox.read_text("a/b.txt") == "x"
    result = codeprobe_sandbox.run("cat a/b.txt; exit 3")
    assert (result.exit.status, result.stdout) == (3, "x")
    assert codeprobe_trial.task_id == "good"

def test_ordinary():
    pass
"""


def fill(project: Project) -> None:
    project.task("good", agent=scripted(WRITE, USAGE))
    project.task("bad", agent=scripted({"say": "no"}, USAGE))
    project.write("tests/test_agent.py", TESTS)


def folder_of(name: str, task: str = "good") -> str:
    node_id = f"tests/test_agent.py::{name}"
    return f"default/{task}@{hashlib.sha256(node_id.encode()).hexdigest()[:8]}/r001"


def by_name(run: Run) -> dict[str, dict[str, Any]]:
    """trial_finished by the test's name."""
    return {e["node_id"].partition("::")[2]: e for e in run.events if e["event"] == "trial_finished"}


@pytest.mark.joint
def test_outcomes_records_and_folders(project: Project) -> None:
    """In every mode, and the same in all."""
    fill(project)
    seen = []
    for mode in MODES:
        run = project.run("tests", AGENT, f"--codeprobe-run-dir=run-{mode}", mode=mode)
        look(run.assert_consistent())
        seen.append({name: comparable({k: v for k, v in e.items() if k not in ("seq", "time")}) for name, e in by_name(run).items()})
    assert seen == [seen[0]] * len(MODES)


def look(run: Run) -> None:
    finished = by_name(run)
    assert {name: e["status"] for name, e in finished.items()} == {
        "test_small_diff": "passed",
        "test_too_dear": "failed",
        "test_expects_a_miss": "passed",
        "test_says_nothing": "passed",
        "test_skips": "skipped",
        "test_never": "skipped",
        "test_xfail": "failed",
        "test_xpass": "failed",
        "test_without_fixtures": "passed",
        "test_each[1]": "passed",
        "test_each[0]": "failed",
        "test_sandbox_alone": "passed",
    }
    assert run.code == 1
    assert finished["test_xfail"]["expected"] is True
    assert run.envelope["data"]["ordinary_tests"] == {"passed": 1}
    junit = run.junit()
    assert (junit["test_too_dear"], junit["test_skips"], junit["test_xfail"], junit["test_xpass"]) == (
        "failure",
        "skipped",
        "skipped",
        "failure",
    )
    # the grade stands beside the outcome
    verdicts = {}
    for trial in run.plan:
        assert trial["marked"] is True
        file = run.folder / "trials" / trial["folder"] / "result.json"
        if file.exists():
            verdicts[trial["node_id"].partition("::")[2]] = json.loads(file.read_text())["verdict"]
    assert verdicts["test_too_dear"] == "passed"
    assert verdicts["test_expects_a_miss"] == "failed"
    assert verdicts["test_says_nothing"] is None
    assert verdicts["test_small_diff"] == "passed"
    folders = {t["node_id"].partition("::")[2]: t["folder"] for t in run.plan}
    assert folders["test_small_diff"] == folder_of("test_small_diff")
    assert folders["test_expects_a_miss"] == folder_of("test_expects_a_miss", "bad")
    assert len(set(folders.values())) == len(folders)
    assert "too dear" in finished["test_too_dear"]["reason"]
    assert finished["test_small_diff"]["reason"] is None
    run.assert_nothing_left()


def test_the_task_itself_runs_beside_the_tests_about_it(project: Project) -> None:
    fill(project)
    run = project.run("tasks", "tests", AGENT, "-k", "good or small").assert_consistent()
    assert {e["node_id"]: e["status"] for e in run.events if e["event"] == "trial_finished"} == {
        "tasks/good.yaml::good": "passed",
        "tests/test_agent.py::test_small_diff": "passed",
    }


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_without_an_agent_they_are_skipped(project: Project, mode: str) -> None:
    project.task("bare")
    project.write(
        "tests/test_agent.py",
        "import pytest\n@pytest.mark.codeprobe(task='tasks/bare.yaml')\n"
        "def test_it(codeprobe_score): assert 0\ndef test_ordinary(): pass\n",
    )
    run = project.run("tests", "-rs", mode=mode)
    assert run.code == 0, run.output
    assert run.junit() == {"test_it": "skipped", "test_ordinary": "passed"}
    assert "no agent chosen: pass --codeprobe-agent" in run.stdout
    assert not (project.path / ".codeprobe").exists()


def test_the_task_file_beside_the_test_and_one_of_several(project: Project) -> None:
    tasks = "".join(
        f"---\ntask_id: {n}\ninitial_prompt: x\nsuccess_criteria: [{{type: file_exists, path: out.txt}}]\n" for n in ("one", "two")
    )
    project.write("tests/cases/many.yaml", tasks)
    project.write(
        "tests/cases/test_it.py",
        "import pytest\n@pytest.mark.codeprobe(task='many.yaml::two')\n"
        "def test_it(codeprobe_trial): assert codeprobe_trial.task_id == 'two'\n",
    )
    run = project.run("tests/cases/test_it.py", AGENT).assert_consistent()
    assert list(run.statuses.values()) == ["passed"], run.output


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_a_task_that_is_not_there(project: Project, mode: str) -> None:
    project.write("test_it.py", "import pytest\n@pytest.mark.codeprobe(task='tasks/nowhere.yaml')\ndef test_it(codeprobe_score): pass\n")
    run = project.run("test_it.py", AGENT, mode=mode)
    assert run.code == 4, run.output
    assert "TASK_INVALID" in run.output
    assert "tasks/nowhere.yaml" in run.output
    assert not run.wrote


def test_fixtures_without_a_task(project: Project) -> None:
    project.write("test_it.py", "def test_it(codeprobe_sandbox): pass\n")
    run = project.run("test_it.py", AGENT, "-rE")
    assert run.code == 1
    assert run.junit() == {"test_it": "error"}
    assert "mark the test with @pytest.mark.codeprobe" in run.stdout
    assert "Traceback" not in run.stdout


@pytest.mark.parametrize("method", ["signal", "thread"])
def test_a_timeout_ends_the_session_and_the_test_goes_on(project: Project, method: str) -> None:
    """Neither pytest-timeout's signal nor its thread: they would leave the agent's processes alive, or end pytest."""
    project.task("slow", agent=scripted(WRITE, {"sleep": 60}))
    project.write(
        "test_it.py",
        "import pytest\n@pytest.mark.codeprobe(task='tasks/slow.yaml')\ndef test_it(codeprobe_session, codeprobe_score):\n"
        "    assert codeprobe_session.limit_hit.name == 'timeout'\n    assert codeprobe_score.passed\n",
    )
    run = project.run("test_it.py", AGENT, "--timeout=2", f"--timeout-method={method}").assert_consistent()
    assert list(run.statuses.values()) == ["passed"], run.output
    run.assert_nothing_left()


def test_a_class_and_a_module_can_carry_the_mark(project: Project) -> None:
    project.task("good", agent=scripted(WRITE))
    project.write(
        "test_it.py",
        "import pytest\npytestmark = pytest.mark.codeprobe(task='tasks/good.yaml')\n"
        "class TestIt:\n    def test_a(self, codeprobe_score): assert codeprobe_score.passed\n    def test_b(self): pass\n",
    )
    run = project.run("test_it.py", AGENT).assert_consistent()
    assert {e["node_id"]: e["status"] for e in run.events if e["event"] == "trial_finished"} == {
        "test_it.py::TestIt::test_a": "passed",
        "test_it.py::TestIt::test_b": "passed",
    }


def test_a_failed_test_shows_the_grade(project: Project) -> None:
    project.task("t", agent=scripted({"say": "no idea"}))
    project.write(
        "tests/test_m.py",
        "import pytest\n\n\n@pytest.mark.codeprobe(task='tasks/t.yaml')\ndef test_m(codeprobe_score):\n    assert codeprobe_score.passed\n",
    )
    run = project.run("tests", "--codeprobe-agent=scripted")
    assert run.code == 1
    assert "t: verdict fail, score 0.00" in run.stdout
    assert "<score 0.00, failed>" in run.stdout
    assert "no idea" in run.stdout
    assert "plugin/protocol.py" not in run.stdout
