"""Files of coder-eval: each field name of theirs is read as ours, said once, and means the same as a file in our names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.criterion import Criterion, Grading, Score
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.tasks.expand import expand
from pytest_codeprobe.tasks.load import LoadSettings, load_file
from pytest_codeprobe.tasks.overrides import flags_again, flags_layer, settle
from pytest_codeprobe.tasks.spellings import TABLE, respelled
from tests.front_door import Project, scripted
from tests.task_files import MINIMAL, faults, plan, refused, registry, settings, write

CASES: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "data/coder_eval.yaml").read_text())
BESIDE = {
    "workspace/mocks/gh": "#!/bin/sh\n",
    "reference/solution.py": "",
    "docker/Dockerfile": "FROM scratch\n",
    "plugin/skills/s/SKILL.md": "",
    "rows.jsonl": '{"key": "a", "text": "x", "label": "yes"}\n{"key": "b", "text": "y", "label": "no"}\n',
    "prompt.md": "Do it.\n",
    "system.md": "Be brief.\n",
}


def told(root: Path, task: str, experiment: str | None) -> tuple[Any, list[str]]:
    """All that its trials are, and the experiment's judge; or the faults, each with its place. And what is said beside."""
    notes: list[str] = []
    made = settings(root, warn=notes.append)
    try:
        found = load_file(write(root / "tasks/t.yaml", task), made)
        notes += found.warnings
        file = None if experiment is None else write(root / "experiments/e.yaml", experiment)
        chosen = plan(made, experiment=file)
        trials = [trial.model_dump() for loaded in found.tasks for trial in expand(loaded, chosen)]
    except CodeprobeError as error:
        return faults(error), notes
    return (trials, chosen.experiment.judge), notes


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_file_means_the_same_as_one_in_our_names(tmp_path: Path, case: dict[str, Any]) -> None:
    for name, content in BESIDE.items():
        write(tmp_path / "tasks" / name, content)
    found, notes = told(tmp_path, case["theirs"], case.get("experiment"))
    if "refused" in case:
        with_place = case["refused"][0][0].isdigit()
        assert [each if with_place else each.partition(" ")[2] for each in found] == case["refused"]
        return
    ours, said = told(tmp_path, case["ours"], case.get("our_experiment", case.get("experiment")))
    if isinstance(ours, list):  # what can't be had yet is refused in the same words
        found, ours = ([each.partition(" ")[2] for each in faults] for faults in (found, ours))
        theirs, same = (respelled(yaml.safe_load(case[which]), "task") for which in ("theirs", "ours"))
        assert (theirs.value, same.notes) == (same.value, [])
        notes = notes or theirs.notes
    assert found == ours
    assert (notes, said) == (case.get("notes", []), [])


def test_judges_get_the_model_of_their_task() -> None:
    criteria = [{"type": "llm_judge"}, {"type": "agent_judge", "model": "mine"}, {"type": "file_exists"}]
    found = respelled({"checker_context": {"api_route": {"model": "m"}}, "success_criteria": criteria}, "task")
    expected = [{"type": "llm_judge", "model": "m"}, {"type": "agent_judge", "model": "mine"}, {"type": "file_exists"}]
    assert (found.value, found.faults) == ({"success_criteria": expected}, [])
    assert criteria[0] == {"type": "llm_judge"}, "what the file says is not changed"


def test_each_name_is_in_some_file() -> None:
    written = "\n".join(case["theirs"] + case.get("experiment", "") for case in CASES)
    assert [row.theirs for row in TABLE if f"{row.theirs[-1]}:" not in written] == []


def test_faults_stand_where_the_name_does(tmp_path: Path) -> None:
    task = """\
task_id: t
initial_prompt: x
sandbox:
  python:
    env_packages: 3
  limits: {timeout: soon}
  docker:
    network: [a, true]
success_criteria:
  - {type: run_command, command: x}
agent: {type: claude-code, setting_sources: [mine]}
"""
    found, _ = told(tmp_path, task, None)
    assert [each.split()[0] for each in found] == ["5:19", "6:21", "8:18", "11:46"]
    experiment = """\
experiment_id: e
defaults:
  sandbox: {limits: {max_cpus: -1}}
variants:
  - variant_id: a
    agent: {type: claude-code, sdk_options: {max_thinking_tokens: none}}
"""
    found, _ = told(tmp_path, MINIMAL, experiment)
    assert [each.split()[0] for each in found] == ["3:32", "6:67"]


def test_a_criterion_of_somebodys_own_keeps_its_fields(tmp_path: Path) -> None:
    text = "task_id: t\ninitial_prompt: x\nsuccess_criteria: [{type: mine, read_only: true, agent_file: a, stop_early: 1}]\n"
    (loaded,) = (found := load_file(write(tmp_path / "tasks/t.yaml", text), with_mine(tmp_path))).tasks
    assert loaded.criteria[0].model_dump(exclude_unset=True) == {"type": "mine", "read_only": True, "agent_file": "a", "stop_early": 1}
    assert found.warnings == ()


def with_mine(root: Path) -> LoadSettings:
    known = registry()
    return settings(root, registry=replace(known, criteria={**known.criteria, "mine": Mine}))


class Mine(Criterion):
    """Somebody's own."""

    type: Literal["mine"]
    read_only: bool
    agent_file: str
    stop_early: int

    def evaluate(self, grading: Grading) -> Score:
        raise NotImplementedError


# ---- flags


def sets(root: Path, *texts: str) -> tuple[Any, list[str]]:
    notes: list[str] = []
    options = settle(RunOptions(set=texts, typed_sets=len(texts), on_command_line=("set",), typed=("set",)))
    return flags_layer(options, settings(root, warn=notes.append)).values, notes


def test_flags_of_an_earlier_run_are_set_again_as_one() -> None:
    settled = {
        "set": ["agent.model=4.10", "sandbox={env: {A: null}}", "sandbox.env.B=x"],
        "agent": "claude",
        "model": "4.10",
        "timeout": None,
    }
    assert flags_again(settled) == [
        '--codeprobe-set=agent={"model": 4.10, "type": "claude"}',
        '--codeprobe-set=sandbox={"env": {"A": null, "B": "x"}}',
    ]
    assert flags_again({"set": [], "agent": "x", "timeout": 3.0}) == ["--codeprobe-agent=x", "--codeprobe-timeout=3.0"]


def test_flags_take_the_names_too(tmp_path: Path) -> None:
    values, notes = sets(tmp_path, "agent.sdk_options.effort=high", "sandbox.python.env_packages=[x]", "sandbox.docker.network=none")
    assert values == {"agent": {"effort": "high"}, "sandbox": {"setup": {"python": {"packages": ["x"]}}, "network": "off"}}
    assert notes == [
        "sandbox.python is read as sandbox.setup.python",
        "env_packages is read as sandbox.setup.python.packages",
        "sandbox.docker.network is read as sandbox.network",
        "agent.sdk_options.effort is read as agent.effort",
    ]
    assert sets(tmp_path, "sandbox.docker.network=off") == ({"sandbox": {"network": "off"}}, [])  # a field of ours, too
    assert sets(tmp_path, "sandbox={python: null}", "run_limits.stop_early=false") == (
        {"sandbox": {"setup": {"python": None}}, "run_limits": {}},
        ["sandbox.python is read as sandbox.setup.python"],
    )


def test_two_flags_of_one_setting_are_at_odds_by_whatever_name(tmp_path: Path) -> None:
    for first, second in (
        ("agent.effort=low", "agent.sdk_options.effort=high"),
        ("sandbox.network=off", "sandbox.docker.network=bridge"),
        ("sandbox.limits.max_cpus=1", "sandbox.limits={cpus: 2}"),
    ):
        message = refused(sets, tmp_path, first, second)
        assert f"--codeprobe-set {first}" in message
        assert f"--codeprobe-set {second}" in message
    assert "agent.sdk_options' has 'betas'" in refused(sets, tmp_path, "agent.sdk_options.betas=[x]")
    assert "'sandbox.limits.cpus' must be greater than 0" in refused(sets, tmp_path, "sandbox.limits.max_cpus=-1")


# ---- through the front door


def test_a_name_is_said_once_in_the_summary(project: Project, mode: str) -> None:
    criteria = [{"type": "run_command", "command": "test -e out.txt", "read_only": True}]
    agent = scripted({"write": {"path": "out.txt", "content": "x"}})
    for name in ("a", "b"):
        project.task(name, agent={**agent, "ignore_patterns": ["*.log"]}, success_criteria=criteria, sandbox={"python": None})
    project.write("experiments/default.yaml", "defaults:\n  sandbox: {limits: {timeout: 60}}\n")
    expected = {
        "sandbox.python is read as sandbox.setup.python",
        "agent.ignore_patterns is read as sandbox.ignore_patterns",
        "success_criteria[].read_only has no effect: each criterion is evaluated after a limit too",
        "sandbox.limits.timeout has no effect: it is the time-out of each run_command of the task that says it, so give it there",
    }
    for _ in range(2):  # the second time from what is known of the files
        run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
        assert (run.code, set(run.envelope["warnings"])) == (0, expected)
        assert all(run.output.count(text) == 1 for text in expected)
