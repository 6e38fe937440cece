"""Who chooses an agent: a plain pytest in a repository never spends money."""

from __future__ import annotations

import pytest

from tests.front_door import Project, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
NO_AGENT = "no agent chosen: pass --codeprobe-agent"
ORDINARY = "\n".join(f"def test_{n}(): pass" for n in range(20)) + "\n"


def said(output: str) -> list[str]:
    """Lines of the terminal that speak of tasks."""
    return [line for line in output.splitlines() if line.startswith("codeprobe:")]


def test_without_an_agent_all_tasks_are_skipped(project: Project, mode: str) -> None:
    project.task("a")
    project.task("b")
    run = project.run("tasks/", "-rs", mode=mode)
    assert run.code == 5, run.output
    assert run.junit() == {"a": "skipped", "b": "skipped"}
    assert f"2 tasks skipped: {NO_AGENT}" in run.stdout
    assert said(run.stdout) == [f"codeprobe: 2 tasks skipped: {NO_AGENT}"]
    assert f"SKIPPED [1] tasks/b.yaml:1: {NO_AGENT}" in run.stdout
    assert not (project.path / ".codeprobe").exists()
    assert not [p for p in (project.scratch / "tmp").iterdir() if "codeprobe" in p.name]


def test_a_repository_with_ordinary_tests_stays_green(project: Project) -> None:
    project.write("tests/test_much.py", ORDINARY)
    project.task("a")
    project.task("b", agent=scripted({"run": f"touch {project.marks}/paid"}))
    run = project.run()
    assert run.code == 0, run.output
    assert said(run.stdout) == [f"codeprobe: 2 tasks skipped: {NO_AGENT}"]
    assert list(run.junit().values()).count("passed") == 20
    assert not list(project.marks.iterdir())
    assert not (project.path / ".codeprobe").exists()


def test_an_agent_in_the_file_counts_only_where_the_file_is_meant(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\ntestpaths = tasks/own.yaml\n")
    project.task("own", agent=scripted(WRITE))
    project.task("bare")
    for args in ((), ("tasks",), (".",)):
        run = project.run(*args)
        assert run.code == 5, (args, run.output)
        assert set(run.junit().values()) == {"skipped"}
        assert not run.wrote
    named = project.run("tasks/own.yaml").assert_consistent()
    assert named.statuses == {"own": "passed"}
    assert named.code == 0
    by_id = project.run("tasks/own.yaml::own", "tasks/bare.yaml").assert_consistent()
    assert by_id.statuses == {"own": "passed", "bare": "skipped"}
    assert by_id.finished["bare"]["reason"] == NO_AGENT
    by_glob = project.run("tasks/o*.yaml").assert_consistent()
    assert by_glob.statuses == {"own": "passed"}


def test_the_console_script_runs_what_the_file_names(project: Project) -> None:
    project.task("own", agent=scripted(WRITE))
    run = project.codeprobe("run", "--no-json").assert_consistent()
    assert run.statuses == {"own": "passed"}
    assert run.code == 0


@pytest.mark.parametrize("args", [(), ("tasks",), ("tasks/a.yaml",)])
def test_the_console_script_without_any_agent_is_refused(project: Project, args: tuple[str, ...]) -> None:
    project.task("a")
    run = project.codeprobe("run", "--json", *args)
    (envelope,) = run.lines
    assert envelope["status"] == "error"
    assert [e["code"] for e in envelope["errors"]] == ["NO_BACKENDS_CONFIGURED"]
    assert run.code == envelope["exit_code"] == 4


def test_flag_beats_environment_beats_ini(project: Project) -> None:
    project.task("a")
    project.write("pytest.ini", "[pytest]\ncodeprobe_agent = nop\n")

    def agent(run_args: tuple[str, ...], env: dict[str, str]) -> str:
        run = project.run("tasks", *run_args, env=env).assert_consistent()
        return str(run.envelope["data"]["agent"])

    assert agent((), {}) == "nop"
    assert agent((), {"CODEPROBE_AGENT": "scripted"}) == "scripted"
    assert agent(("--codeprobe-agent=none",), {"CODEPROBE_AGENT": "scripted"}) == "none"


@pytest.mark.parametrize(
    ("mode", "where", "spelled"),
    [
        ("plain", "flag", "--codeprobe-agent"),
        ("jobs", "env", "CODEPROBE_AGENT"),
        ("xdist", "ini", "codeprobe_agent"),
    ],
)
def test_an_unknown_agent_is_refused_with_a_hint(project: Project, mode: str, where: str, spelled: str) -> None:
    project.task("a")
    if where == "ini":
        project.write("pytest.ini", f"[pytest]\n{spelled} = orcale\n")
    flags = (f"{spelled}=orcale",) if where == "flag" else ()
    run = project.run("tasks", *flags, mode=mode, env={spelled: "orcale"} if where == "env" else {})
    assert run.code == 4, run.output
    assert "UNKNOWN_BACKEND" in run.output
    assert "oracle" in run.output
    assert not run.wrote


def test_an_unknown_driver_is_named_as_it_was_typed(project: Project) -> None:
    project.task("a")
    run = project.run("tasks", "--codeprobe-agent=nop", "--codeprobe-set=sandbox.driver=tempdri", junit=False)
    assert run.code == 4
    assert "USAGE_ERROR: --codeprobe-set sandbox.driver=tempdri: unknown driver 'tempdri' (did you mean 'tempdir'?)" in run.output


def test_a_flag_changes_the_agent_of_a_file(project: Project) -> None:
    project.task("own", agent=scripted(WRITE))
    run = project.run("tasks", "--codeprobe-agent=nop").assert_consistent()
    assert run.statuses == {"own": "failed"}
    assert run.result("own")["agent"]["name"] == "nop"


def test_workers_on_other_hosts_are_refused(project: Project) -> None:
    project.task("a")
    run = project.run("tasks", "--codeprobe-agent=nop", "-d", "--tx", "ssh=nobody@127.0.0.1//python=python3")
    assert run.code == 4, run.output
    assert "USAGE_ERROR" in run.output or "not a local process" in run.output
    assert not run.wrote


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_tasks_that_are_asked_for_and_not_there_are_missed_aloud(project: Project, mode: str) -> None:
    project.write("tests/test_a.py", "def test_a(): pass\n")
    run = project.run("tests", "--codeprobe-agent=oracle", mode=mode)
    assert run.code == 0
    assert "codeprobe: NO_TASKS: no task was found or selected in tests" in run.stdout
    assert "NO_TASKS" not in project.run("tests", mode=mode).stdout


def test_an_agent_that_only_an_experiment_names(project: Project) -> None:
    """A folder is not enough to spend money on; the summary says what is."""
    project.task("a")
    project.write("experiments/own.yaml", "defaults: {agent: {type: scripted, scripted: {steps: []}}}\n")
    hint = "codeprobe: an agent that an experiment or a task names counts where the task's file is named, and in `codeprobe run`"
    run = project.run("tasks", "--codeprobe-experiment=own")
    assert said(run.stdout) == [f"codeprobe: 1 task skipped: {NO_AGENT}", hint]
    assert project.run("tasks/a.yaml", "--codeprobe-experiment=own").statuses == {"a": "failed"}
