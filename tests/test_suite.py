"""--codeprobe-suite: which tasks a suite.toml leaves, the same in every mode, and what is wrong with one that leaves none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.tasks.suite import Facts, read_suite
from tests.front_door import Project, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"
SUITE = "--codeprobe-suite=suite.toml"


TASKS: dict[str, dict[str, Any]] = {
    "easy-fix": {"tags": ["smoke", "py"], "metadata": {"difficulty": "easy", "task_type": "bugfix"}},
    "hard-fix": {"tags": ["smoke"], "metadata": {"difficulty": "Hard", "task_type": ["bugfix", "perf"]}},
    "slow-doc": {"tags": ["slow"], "metadata": {"difficulty": 3}},
    "plain": {},
}
#: a suite is applied where items are collected: in pytest itself, or in each worker
PLACES = pytest.mark.parametrize("mode", ["plain", "xdist"])


def fill(project: Project) -> None:
    for name, fields in TASKS.items():
        project.task(name, agent=scripted(WRITE), **fields)


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('tags = "smoke"', {"easy-fix", "hard-fix"}),
        ('tags = ["SMOKE", "slow"]', {"easy-fix", "hard-fix", "slow-doc"}),
        ('task_ids = ["Plain", "hard-fix"]', {"plain", "hard-fix"}),
        ('difficulties = ["hard", 3]', {"hard-fix", "slow-doc"}),
        ('task_types = "PERF"', {"hard-fix"}),
        ('exclude_tags = ["smoke"]', {"slow-doc", "plain"}),
        ('tags = "smoke"\ndifficulties = "easy"\nexclude_tags = "slow"', {"easy-fix"}),
        ('name = "all"\ndescription = "x"\ntask_dir = "tasks"\neval_goal = "y"', {"easy-fix", "hard-fix", "slow-doc", "plain"}),
    ],
)
def test_keys_and_values(tmp_path: Path, text: str, left: set[str]) -> None:
    (tmp_path / "suite.toml").write_text(f"[suite]\n{text}\n")
    suite = read_suite(tmp_path / "suite.toml", "suite.toml")
    all_facts = [Facts(task_id=name, tags=f.get("tags", []), metadata=f.get("metadata", {})) for name, f in TASKS.items()]
    assert {facts.task_id for facts in all_facts if suite.leaves_out(facts) is None} == left
    assert suite.unknown_ids(all_facts) == []


def test_the_same_in_every_mode(project: Project, mode: str) -> None:
    fill(project)
    project.write("suite.toml", '[suite]\ntags = ["smoke"]\ndifficulties = ["easy", "hard"]\n')
    project.write("tests/test_own.py", "def test_own(): pass\n")
    run = project.run("tasks", "tests", AGENT, SUITE, mode=mode).assert_consistent()
    assert (run.code, run.statuses) == (0, {"easy-fix": "passed", "hard-fix": "passed"})
    assert run.envelope["data"]["ordinary_tests"] == {"passed": 1}
    if mode != "xdist":  # whose controller is never told what its workers deselect
        assert "2 deselected" in run.stdout
    again = project.run("tasks", AGENT, SUITE, mode=mode)  # from the index of the run before
    assert again.statuses == run.statuses


@PLACES
def test_it_holds_beside_k_and_m(project: Project, mode: str) -> None:
    fill(project)
    project.write("suite.toml", '[suite]\ntags = "smoke"\n')
    assert project.run("tasks", AGENT, SUITE, "-k", "not hard", "-m", "py", mode=mode).statuses == {"easy-fix": "passed"}


def test_collect_only_shows_it(project: Project) -> None:
    fill(project)
    project.write("suite.toml", '[suite]\ntags = "slow"\n')
    run = project.run("tasks", AGENT, SUITE, "--collect-only", "-q")
    assert run.code == 0
    assert "slow-doc" in run.stdout
    assert "1/4 tests collected (3 deselected)" in run.stdout
    assert not (project.path / ".codeprobe").exists()


@PLACES
def test_no_match_says_which_key_removed_how_many(project: Project, mode: str) -> None:
    fill(project)
    project.write("suite.toml", '[suite]\nname = "s"\ntags = "smoke"\ndifficulties = "medium"\n')
    run = project.run("tasks", AGENT, SUITE, "--codeprobe-json-lines", mode=mode, junit=False)
    (error,) = run.assert_pure()["errors"]
    assert (error["code"], run.code) == ("NO_SUITE_MATCH", 5), (error, run.stderr)
    assert error["message"] == "suite 's' (suite.toml) matches none of 4 tasks: tags removed 2, difficulties removed 2"
    assert error["detail"] == {"suite": "s", "file": "suite.toml", "tasks": 4, "removed": {"tags": 2, "difficulties": 2}}
    assert error["message"] in run.stderr
    assert not (project.path / ".codeprobe").exists()


@PLACES
def test_ids_of_nobody_are_named(project: Project, mode: str) -> None:
    """A suite that has lost a task would measure something else; what a narrower command line leaves out is no loss."""
    fill(project)
    project.write("suite.toml", '[suite]\ntask_ids = ["plain", "hard-fx", "gone"]\n')
    run = project.run("tasks", AGENT, SUITE, "--codeprobe-json", mode=mode, junit=False)
    (error,) = run.assert_pure(events=False)["errors"]
    assert (error["code"], run.code) == ("NO_SUITE_MATCH", 5)
    assert error["message"].endswith("no task has the id 'hard-fx' (did you mean 'hard-fix'?), 'gone'")
    assert error["detail"]["unknown"] == ["hard-fx", "gone"]
    project.write("suite.toml", '[suite]\ntask_ids = ["plain", "Hard-Fix"]\n')
    assert project.run("tasks/plain.yaml", AGENT, SUITE, mode=mode, junit=False).statuses == {"plain": "passed"}


def test_a_broken_task_file_comes_before_ids_that_are_missing(project: Project) -> None:
    project.task("plain", agent=scripted(WRITE))
    project.write("tasks/gone.yaml", "task_id: gone\n")
    project.write("suite.toml", '[suite]\ntask_ids = ["gone"]\n')
    run = project.run("tasks", AGENT, SUITE, "--codeprobe-json", junit=False)
    assert [e["code"] for e in run.assert_pure(events=False)["errors"]] == ["TASK_INVALID"]


def test_no_task_at_all_is_no_fault_of_the_suite(project: Project) -> None:
    (project.path / "tasks").mkdir()
    project.write("suite.toml", '[suite]\ntags = "smoke"\n')
    run = project.run("tasks", AGENT, SUITE, "--codeprobe-json", junit=False)
    assert [e["code"] for e in run.assert_pure(events=False)["errors"]] == ["NO_TASKS"]


@PLACES
def test_the_file_is_looked_for_where_pytest_was_started(project: Project, mode: str) -> None:
    fill(project)
    project.write("below/suite.toml", '[suite]\ntask_ids = "plain"\n')
    if mode == "plain":
        run = project.codeprobe("run", "--suite", "below/suite.toml", "--no-json")
        assert run.statuses == {"plain": "passed"}
    assert project.run("tasks", AGENT, f"--codeprobe-suite={project.path}/below/suite.toml", mode=mode).statuses == {"plain": "passed"}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no table [suite]"),
        (b"[suite\n", "no TOML"),
        (b"suite = 3\n", "no table [suite]"),
        (b"\xff\xfe", "not UTF-8"),
        (b"[suite]\ntag = 'x'\n", "unknown key 'tag' in [suite] (did you mean 'tags'?)"),
        (b"[suite]\ntags = [true]\n", "'tags' must be text"),
        (b"[suite]\ntags = {a = 1}\n", "'tags' must be text"),
        (b"[suite]\nname = 3\n", "'name' must be text"),
        (b"[suite]\ntask_ids = [[1]]\n", "'task_ids' must be text"),
        (b"a = " + b"[" * 50_000, "no TOML"),
    ],
)
def test_a_broken_file(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "suite.toml").write_bytes(content)
    with pytest.raises(CodeprobeError) as caught:
        read_suite(tmp_path / "suite.toml", "suite.toml")
    assert caught.value.code == "NO_SUITE_MATCH"
    assert said in caught.value.message


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(CodeprobeError, match="Is a directory"):
        read_suite(tmp_path, "suite.toml")


def test_an_empty_list_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "s.toml").write_text("[suite]\ntask_ids = []\n")
    suite = read_suite(tmp_path / "s.toml", "s.toml")
    assert suite.leaves_out(Facts(task_id="a", tags=[], metadata={})) == "task_ids"
    assert suite.name == "s"
