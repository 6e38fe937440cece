"""`dialect: coder-eval` and ini codeprobe_dialect: what such files mean without saying it, and nothing of it elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.model.config import PythonSetup, SandboxSetup
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.sandboxes.patterns import Patterns
from pytest_codeprobe.tasks import dialect
from pytest_codeprobe.tasks.expand import explained
from pytest_codeprobe.tasks.load import load_file
from tests.front_door import Project, scripted
from tests.task_files import MINIMAL, expand_one, load_one, plan, refused, settings, write

DIALECT = MINIMAL + "dialect: coder-eval\n"
CLAUDE = "agent: {type: claude-code}\n"


def test_a_layer_below_all_others(tmp_path: Path) -> None:
    trial = expand_one(tmp_path, DIALECT + CLAUDE)
    assert (trial.sandbox.driver, trial.sandbox.setup, trial.host_environment) == ("tempdir", SandboxSetup(python=PythonSetup()), True)
    assert trial.agent.allowed_tools == ("Bash", "Read", "Write", "Edit", "Glob", "Grep", "Skill")
    (found,) = explained(load_one(tmp_path, DIALECT + CLAUDE), plan(settings(tmp_path)))
    assert {path: owner for path, owner in found.origins.items() if owner[0] == "dialect"} == {
        "agent.allowed_tools": ["dialect", None],
        "sandbox.driver": ["dialect", None],
        "sandbox.setup.python": ["dialect", None],
    }
    write(tmp_path / "experiments/default.yaml", "defaults: {driver: auto, sandbox: {python: null}, agent: {allowed_tools: [Read]}}\n")
    trial = expand_one(tmp_path, DIALECT + CLAUDE)
    assert (trial.sandbox.driver, trial.sandbox.setup, trial.agent.allowed_tools) == ("auto", SandboxSetup(), ("Read",))
    assert expand_one(tmp_path, DIALECT, RunOptions(driver="tempdir", on_command_line=("driver",))).sandbox.driver == "tempdir"


def test_packages_of_a_layer_above_join_it(tmp_path: Path) -> None:
    packages = DIALECT + "sandbox: {python: {env_packages: [x]}}\n"
    assert expand_one(tmp_path, packages).sandbox.setup == SandboxSetup(python=PythonSetup(packages=("x",)))
    assert expand_one(tmp_path, DIALECT + "sandbox: {python: null}\n").sandbox.setup == SandboxSetup()


def test_a_simulated_user_is_there_if_it_is_said(tmp_path: Path) -> None:
    agent = "agent: {type: scripted, scripted: {steps: [{say: x}]}}\n"
    user = "simulation: {goal: g, agent: {type: scripted, scripted: {steps: [{say: y}]}}%s}\n"
    assert expand_one(tmp_path, MINIMAL + agent + user % "").simulation is not None
    assert expand_one(tmp_path, DIALECT + agent + user % "").simulation is None
    assert expand_one(tmp_path, DIALECT + agent + user % ", enabled: true").simulation is not None


def test_no_other_agent_gets_its_tools(tmp_path: Path) -> None:
    for text, options in (
        (DIALECT, RunOptions(agent="scripted")),
        (DIALECT + CLAUDE, RunOptions(agent="command", set=("agent.command=[x]",))),
        (DIALECT, None),
    ):
        assert expand_one(tmp_path, text, options).agent.allowed_tools is None
    assert expand_one(tmp_path, DIALECT, RunOptions(agent="claude")).agent.allowed_tools is not None


def test_a_file_beats_the_ini(tmp_path: Path) -> None:
    ours = expand_one(tmp_path, MINIMAL)
    assert expand_one(tmp_path, MINIMAL + "dialect: native\n", dialect="coder-eval") == ours
    assert (ours.sandbox.driver, ours.host_environment) == ("auto", False)
    assert expand_one(tmp_path, MINIMAL, dialect="coder-eval") == expand_one(tmp_path, DIALECT)
    assert "'dialect' must be 'native' or 'coder-eval', not 'other'" in refused(expand_one, tmp_path, MINIMAL + "dialect: other\n")


def test_a_sample_is_drawn_anew(tmp_path: Path) -> None:
    task = "initial_prompt: x\nsuccess_criteria: [{type: file_exists, path: a}]\n"
    rows = task + "dataset: {rows: [{id: a}, {id: b}], sample_per_stratum: 1%s}\n"
    seeds = []
    for number, (head, seed) in enumerate((("", ""), ("dialect: coder-eval\n", ""), ("dialect: coder-eval\n", ", sample_seed: 3"))):
        (loaded,) = load_file(write(tmp_path / "tasks/t.yaml", f"task_id: t{number}\n{head}" + rows % seed), settings(tmp_path)).tasks
        assert loaded.dataset is not None
        seeds.append(loaded.dataset.spec.sample_seed)
    assert seeds == [0, None, 3]


def test_what_is_copied(tmp_path: Path) -> None:
    write(tmp_path / "tasks/workspace/a.py")
    sources = "sandbox: {ignore_patterns: ['!dist', '*.log'], template_sources: [{type: template_dir, path: workspace, exclude: [b]}]}\n"
    (source,) = expand_one(tmp_path, DIALECT + sources).sandbox.template_sources
    patterns = Patterns(source.exclude or ())
    left_out = {name for name in ("a.py", "a.pyc", "dist", "build", "x.log", "b", "lib/node_modules") if patterns.match(name, folder=True)}
    assert left_out == {"a.pyc", "build", "x.log", "b", "lib/node_modules"}
    (source,) = expand_one(tmp_path, MINIMAL + sources).sandbox.template_sources
    assert source.exclude == ("b",)
    experiment = "defaults: {template_sources: [{type: template_dir, path: ../tasks/workspace}]}\nvariants: [{variant_id: a}]\n"
    for head, expected in (("", False), ("dialect: coder-eval\n", True)):
        file = write(tmp_path / "experiments/e.yaml", head + experiment)
        (source,) = expand_one(tmp_path, MINIMAL, experiment=file).sandbox.template_sources
        assert bool(source.exclude) is expected


def test_where_a_repository_lies() -> None:
    raw = {"sandbox": {"template_sources": [{"type": "repo", "url": "u"}, {"type": "repo", "url": "u", "mount_point": "x"}]}}
    found = dialect.completed_task(raw)["sandbox"]["template_sources"]
    assert [source["mount_point"] for source in found] == ["repo", "x"]
    assert "mount_point" not in raw["sandbox"]["template_sources"][0]


def test_commands_see_the_hosts_environment_and_the_agent_does_not(project: Project, mode: str) -> None:
    show = 'printf "%%s,%%s,%%s" "$HOST_VALUE" "$HOME" "$PYTHONPATH" > "$SEEN/%s-$WHO"'
    for who, head in (("theirs", {"dialect": "coder-eval"}), ("ours", {})):
        project.task(
            who,
            **head,
            agent=scripted({"run": show % "agent"}),
            sandbox={"env": {"WHO": who, "SEEN": str(project.path)}},
            pre_run=[{"command": show % "pre"}],
            post_run=[{"command": show % "post"}],
            success_criteria=[{"type": "run_command", "command": show % "criterion"}],
        )
    env = {"HOST_VALUE": "seen", "HOME": str(project.path)}
    run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode, env=env).assert_consistent()
    assert run.code == 0, run.output
    seen = {file.name: file.read_text() for file in project.path.glob("*-*") if file.is_file()}
    for place in ("pre", "post", "criterion"):
        assert seen[f"{place}-theirs"] == f"seen,{project.path},"
        value, home, _ = seen[f"{place}-ours"].split(",")
        assert (value, home == str(project.path)) == ("", False)
    assert not seen["agent-theirs"].startswith("seen")
    assert f",{project.path}," not in seen["agent-theirs"]


def test_the_ini_and_what_explain_says_of_it(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\ncodeprobe_dialect = coder-eval\n")
    project.task("t", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    run = project.run("tasks", "--codeprobe-agent=scripted").assert_consistent()
    assert (run.code, run.envelope["warnings"]) == (0, [])
    assert '["dialect", null]' in json.dumps(json.loads((run.folder / "lock.json").read_text()))
    told = [line.split() for line in project.codeprobe("explain", "t").output.splitlines()]
    assert ["sandbox.setup.python", "{}", "dialect", "coder-eval"] in told
    project.write("pytest.ini", "[pytest]\ncodeprobe_dialect = harbor\n")
    run = project.run("tasks", "--codeprobe-agent=scripted")
    assert (run.code, "ini codeprobe_dialect: 'harbor' is neither native nor coder-eval" in run.output) == (4, True)


def test_a_result_of_another_dialect_is_not_kept(project: Project) -> None:
    task: dict[str, Any] = {"agent": scripted({"write": {"path": "out.txt", "content": "x"}}), "sandbox": {"driver": "tempdir"}}
    project.task("t", **task)
    first = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-run-dir=run")
    project.task("t", **task, dialect="coder-eval")
    again = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-run-dir=run", "--codeprobe-resume")
    assert (first.code, again.code) == (0, 0), again.output
    assert "0 kept, 1 to run" in again.output
    (line,) = (line for line in again.output.splitlines() if line.startswith("1 run again: changed: "))
    assert "dialect" in line


@pytest.mark.parametrize("known", dialect.DIALECTS)
def test_dialect_of(known: dialect.Dialect) -> None:
    assert dialect.dialect_of({"dialect": known}, "native") == known
    assert dialect.dialect_of({}, known) == known
