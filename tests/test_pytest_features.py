"""pytest's own flags, and the plugins that people use beside it, on task items."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.front_door import Project, Run, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
USAGE = {"usage": {"model": "m1", "input_tokens": 100, "output_tokens": 20, "cost_usd": 0.25}}
AGENT = "--codeprobe-agent=scripted"


def three(project: Project) -> None:
    """alpha passes, beta fails, gamma passes."""
    project.task("alpha", agent=scripted(WRITE, USAGE), tags=["smoke", "slow-one"])
    project.task("beta", agent=scripted({"say": "no idea"}), tags=["area:db", "smoke"])
    project.task("gamma", agent=scripted(WRITE), tags=["nightly"])


def ids(run: Run) -> list[str]:
    """What --collect-only -q printed."""
    return [line for line in run.stdout.splitlines() if "::" in line]


# ---------------------------------------------------------------- choosing items


def test_collect_only_prints_ids_and_writes_nothing(project: Project) -> None:
    three(project)
    project.write("tasks/many.yaml", MANY)
    run = project.run("--collect-only", "-q", "tasks", AGENT, junit=False)
    assert ids(run) == [
        "tasks/alpha.yaml::alpha",
        "tasks/beta.yaml::beta",
        "tasks/gamma.yaml::gamma",
        "tasks/many.yaml::one",
        "tasks/many.yaml::group/two",
        "tasks/many.yaml::three.3",
    ]
    assert run.code == 0, run.output
    assert not (project.path / ".codeprobe").exists()
    assert not list((project.scratch / "tmp").iterdir())


MANY = """\
- task_id: one
  initial_prompt: x
  success_criteria: [{type: file_exists, path: a}]
- task_id: group/two
  initial_prompt: x
  success_criteria: [{type: file_exists, path: a}]
---
task_id: three.3
initial_prompt: x
success_criteria: [{type: file_exists, path: a}]
"""


@pytest.mark.parametrize(
    ("args", "chosen"),
    [
        (("-k", "smoke"), ["alpha", "beta"]),
        (("-k", "area:db"), ["beta"]),
        (("-k", "smoke and not beta"), ["alpha"]),
        (("-m", "smoke", "--strict-markers"), ["alpha", "beta"]),
        (("-m", "not smoke", "--strict-markers"), ["gamma"]),
        (("-m", "codeprobe(tag='smoke')"), ["alpha", "beta"]),
        (("-m", "codeprobe(task='gamma')"), ["gamma"]),
        (("--deselect", "tasks/beta.yaml::beta"), ["alpha", "gamma"]),
        (("--deselect", "tasks/beta.yaml"), ["alpha", "gamma"]),
    ],
)
def test_selection(project: Project, args: tuple[str, ...], chosen: list[str]) -> None:
    three(project)
    run = project.run("--collect-only", "-q", "tasks", *args, junit=False)
    assert ids(run) == [f"tasks/{name}.yaml::{name}" for name in chosen], run.output


def test_only_what_is_chosen_is_planned(project: Project, mode: str) -> None:
    """By node id, mark and --deselect."""
    three(project)
    project.write("tasks/many.yaml", MANY)
    ids_of = ("tasks/many.yaml::group/two", "tasks/gamma.yaml::gamma", "tasks/alpha.yaml", "tasks/beta.yaml")
    chosen = ("-m", "not nightly", "--strict-markers", "--deselect", "tasks/beta.yaml::beta")
    run = project.run(*ids_of, AGENT, *chosen, mode=mode).assert_consistent()
    assert set(run.junit()) == {"group/two", "alpha"}
    assert run.statuses == {"group/two": "failed", "alpha": "passed"}


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_an_id_that_is_not_there(project: Project, mode: str) -> None:
    three(project)
    run = project.run("tasks/alpha.yaml::alpah", "tasks/gamma.yaml", AGENT, mode=mode)
    assert run.code == 4, run.output
    assert "not found" in run.output
    assert "alpah" in run.output
    assert not run.wrote


# ---------------------------------------------------------------- failures first, and stopping


def test_last_failed_and_failed_first(project: Project) -> None:
    three(project)
    assert project.run("tasks", AGENT).code == 1
    again = project.run("tasks", AGENT, "--lf").assert_consistent()
    assert again.statuses == {"beta": "failed"}
    first = project.run("tasks", AGENT, "--ff").assert_consistent()
    assert [t["task_id"] for t in first.plan] == ["beta", "alpha", "gamma"]
    project.task("beta", agent=scripted(WRITE))
    assert project.run("tasks", AGENT, "--lf").assert_consistent().statuses == {"beta": "passed"}
    assert set(project.run("tasks", AGENT, "--lf").statuses) == {"alpha", "beta", "gamma"}


@pytest.mark.parametrize("mode", ["xdist", "jobs"])
def test_last_failed_where_a_run_is_spread(project: Project, mode: str) -> None:
    three(project)
    assert project.run("tasks", AGENT, mode=mode).code == 1
    assert project.run("tasks", AGENT, "--lf", mode=mode).assert_consistent().statuses == {"beta": "failed"}


def test_an_error_counts_as_failed_for_lf(project: Project) -> None:
    project.task("broken", agent=scripted(WRITE), pre_run=[{"command": "exit 3"}])
    project.task("fine", agent=scripted(WRITE))
    assert project.run("tasks", AGENT).code == 6
    assert project.run("tasks", AGENT, "--lf").assert_consistent().statuses == {"broken": "error"}


@pytest.mark.parametrize(("mode", "flag"), [("plain", "-x"), ("xdist", "-x"), ("jobs", "-x"), ("jobs", "--maxfail=2")])
def test_stopping_after_failures(project: Project, mode: str, flag: str) -> None:
    for n in range(8):
        project.task(f"t{n}", agent=scripted({"sleep": 0.1}))
    run = project.run("tasks", AGENT, flag, mode=mode).assert_consistent()
    wanted = 1 if flag == "-x" else 2
    assert run.code == 1
    found = list(run.statuses.values())
    beside = {"plain": 0, "xdist": 1, "jobs": 3}[mode]  # were running at that moment, and perhaps over
    assert found.count("not_run") >= 8 - wanted - beside
    assert wanted <= found.count("failed") <= wanted + beside
    assert {e["reason"] for e in run.events if e["event"] == "trial_finished" and e["status"] == "not_run"} == {"maxfail"}


def test_stepwise(project: Project) -> None:
    three(project)
    first = project.run("tasks", AGENT, "--stepwise").assert_consistent()
    assert first.statuses == {"alpha": "passed", "beta": "failed", "gamma": "not_run"}
    second = project.run("tasks", AGENT, "--stepwise").assert_consistent()
    assert second.statuses == {"beta": "failed", "gamma": "not_run"}
    third = project.run("tasks", AGENT, "--stepwise", "--stepwise-skip").assert_consistent()
    assert third.statuses == {"beta": "failed", "gamma": "passed"}


# ---------------------------------------------------------------- reports


def test_junit_and_the_short_summary(project: Project, mode: str) -> None:
    """The lines of failures say why; in the JUnit file each case has its figures."""
    three(project)
    several = [{"type": "file_exists", "path": "out.txt"}, {"type": "file_contains", "path": "b", "includes": ["x"]}]
    project.task("miss", agent=scripted(), success_criteria=several)
    project.task("limit", agent=scripted(WRITE, {"sleep": 30}), run_limits={"task_timeout": 0.5, "on_limit": "fail"})
    project.task("bad", agent=scripted(WRITE), pre_run=[{"command": "echo oh no; exit 3"}])
    run = project.run("tasks", AGENT, "-rfE", mode=mode, env={"COLUMNS": "160"}).assert_consistent()
    lines = {line.split("::")[1].split(" - ")[0]: line for line in run.stdout.splitlines() if line.startswith(("FAILED ", "ERROR tasks"))}
    assert "file_exists 0.00 < 1.00; file_contains 0.00 < 0.90" in lines["miss"]
    assert "limit task_timeout = 0.5 was hit" in lines["limit"]
    assert "SANDBOX_FAILED: pre_run" in lines["bad"]
    assert "Traceback" not in run.stdout
    assert "protocol.py" not in run.stdout  # no line of ours in a report about an agent
    assert "error in phase prepare: SANDBOX_FAILED" in run.stdout
    cases = {"alpha": "passed", "beta": "failure", "gamma": "passed", "bad": "error", "miss": "failure", "limit": "failure"}
    assert run.junit() == cases
    assert_properties(run)


def assert_properties(run: Run) -> None:
    cases = {c.get("name"): c for c in ET.parse(run.junit_file).iter("testcase")}
    assert cases["alpha"].get("classname") == "tasks.alpha.yaml"
    properties = run.junit_properties("alpha")
    assert properties == {
        "codeprobe_status": "passed",
        "codeprobe_score": "1.0",
        "codeprobe_cost_usd": "0.25",
        "codeprobe_tokens": "120",
        "codeprobe_turns": properties["codeprobe_turns"],
        "codeprobe_agent": "scripted",
        "codeprobe_model": "m1",
    }
    assert int(properties["codeprobe_turns"]) >= 0
    assert run.junit_properties("bad")["codeprobe_status"] == "error"
    failure = cases["beta"].find("failure")
    assert failure is not None
    assert "file_exists" in failure.get("message", "")
    assert "verdict fail" in (failure.text or "")


def test_setup_show(project: Project) -> None:
    three(project)
    run = project.run("tasks", AGENT, "--setup-show", "-k", "alpha").assert_consistent()
    assert run.code == 0
    wanted = ["SETUP    F codeprobe_sandbox", "SETUP    F codeprobe_session", "SETUP    F codeprobe_score", "TEARDOWN F codeprobe_score"]
    places = [run.stdout.index(text) for text in wanted]
    assert places == sorted(places)


@pytest.mark.parametrize(("mode", "flag"), [("plain", "--setup-only"), ("xdist", "--setup-plan"), ("jobs", "--setup-only")])
def test_no_session_starts_under_setup_only_and_plan(project: Project, mode: str, flag: str) -> None:
    project.task("a", agent=scripted({"run": f"touch {project.marks}/ran"}))
    project.write("test_plain.py", "def test_it(tmp_path): pass\n")
    run = project.run("tasks", "test_plain.py", AGENT, flag, "-rs", mode=mode)
    assert run.code in (0, 5), run.output
    assert not list(project.marks.iterdir())
    assert not (project.path / ".codeprobe").exists()
    assert not list((project.scratch / "tmp").glob("codeprobe-*"))
    assert "no agent starts under --setup-only and --setup-plan" in run.stdout


def test_without_the_terminal_and_cache_plugins(project: Project, mode: str) -> None:
    three(project)
    run = project.run("tasks", AGENT, "-p", "no:terminal", "-p", "no:cacheprovider", mode=mode).assert_consistent()
    assert run.code == 1
    assert run.stdout == ""
    assert run.statuses == {"alpha": "passed", "beta": "failed", "gamma": "passed"}
    assert not (project.path / ".pytest_cache").exists()


def test_durations_show_where_the_time_goes(project: Project) -> None:
    project.task("slow", agent=scripted({"sleep": 1}, WRITE))
    run = project.run("tasks", AGENT, "--durations=2", "-vv")
    line = next(line for line in run.stdout.splitlines() if "setup    tasks/slow.yaml::slow" in line)
    assert float(line.split("s ")[0]) >= 1.0


def test_warnings_as_errors_change_nothing(project: Project, mode: str) -> None:
    three(project)
    project.write("pytest.ini", "[pytest]\nfilterwarnings = error\n")
    for name in ("x", "y", "z"):  # a folder that is not read to its end
        project.task(f"in-{name}", file=f"tasks/deep/{name}.yaml", agent=scripted(WRITE))
        project.write(f"tasks/deep/{name}-data/file.txt", "")
    # a setting that nothing honours is a note of ours, once for the whole run, and never a warning of Python's
    for name in ("noted-1", "noted-2", "noted-3"):
        project.task(name, agent={"allowed_tools": ["read"]}, success_criteria=[{"type": "run_command", "command": "true"}])
    run = project.run("tasks", AGENT, "-W", "error", "--strict-config", "--strict-markers", mode=mode).assert_consistent()
    assert run.code == 1
    assert {task: status for task, status in run.statuses.items() if status != "passed"} == {"beta": "failed"}
    said = "agent.allowed_tools is not supported by scripted; it is left out"
    assert run.envelope["warnings"] == [said]
    assert run.stdout.count(said) == 1


# ---------------------------------------------------------------- marks


def test_tags_that_are_marks_of_plugins_are_not_made_marks(project: Project) -> None:
    """A tag called `skip` or `timeout` must not skip the task, nor break pytest-timeout."""
    project.task("a", agent=scripted(WRITE), tags=["skip", "timeout", "flaky", "usefixtures", "xfail"])
    run = project.run("tasks", AGENT, "--strict-markers").assert_consistent()
    assert run.statuses == {"a": "passed"}
    assert ids(project.run("--collect-only", "-q", "tasks", "-k", "skip", junit=False)) == ["tasks/a.yaml::a"]


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_strict_xfail_by_ini(project: Project, mode: str) -> None:
    project.write("pytest.ini", "[pytest]\nxfail_strict = true\n")
    project.task("gap", agent=scripted(), xfail="known")
    project.task("closed", agent=scripted(WRITE), xfail="was known")
    project.task("trouble", agent=scripted(WRITE), xfail="known", pre_run=[{"command": "exit 3"}])
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert run.statuses == {"gap": "failed", "closed": "failed", "trouble": "error"}
    assert run.finished["gap"]["expected"] is True
    assert run.junit() == {"gap": "skipped", "closed": "failure", "trouble": "error"}
    assert run.code == 1


# ---------------------------------------------------------------- pytest-timeout


def limit_of(run: Run, task: str) -> Any:
    return run.finished[task]["limit_hit"]


SLOW = scripted(WRITE, {"sleep": 60})


def test_timeout_flag_becomes_the_deadline_and_the_work_is_graded(project: Project, mode: str) -> None:
    project.task("slow", agent=SLOW)
    project.write("tests/test_plain.py", "import time\ndef test_long(): time.sleep(30)\n")
    run = project.run("tasks", "tests", AGENT, "--timeout=2", mode=mode).assert_consistent()
    assert run.statuses == {"slow": "passed"}
    assert limit_of(run, "slow") == {"name": "timeout", "value": 2.0}
    assert run.junit()["test_long"] == "failure"
    assert "Timeout" in run.stdout
    run.assert_nothing_left()


@pytest.mark.joint
def test_timeout_method_is_not_for_tasks(project: Project) -> None:
    project.task("slow", agent=SLOW)
    run = project.run("tasks", AGENT, "--timeout=2", "--timeout-method=thread").assert_consistent()
    assert run.statuses == {"slow": "passed"}
    assert limit_of(run, "slow") == {"name": "timeout", "value": 2.0}
    assert "pytest-timeout: method is ignored for tasks" in run.stdout
    run.assert_nothing_left()


def test_timeout_by_environment_ini_and_mark(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\ntimeout = 40\n")
    project.task("slow", agent=SLOW)
    by_environment = project.run("tasks", AGENT, env={"PYTEST_TIMEOUT": "2"}).assert_consistent()
    assert limit_of(by_environment, "slow") == {"name": "timeout", "value": 2.0}
    assert by_environment.envelope["warnings"] == []
    project.write("pytest.ini", "[pytest]\ntimeout = 2.5\n")
    by_ini = project.run("tasks", AGENT).assert_consistent()
    assert limit_of(by_ini, "slow") == {"name": "timeout", "value": 2.5}
    project.write(
        "conftest.py",
        "import pytest\ndef pytest_collection_modifyitems(items):\n"
        "    for i in items: i.add_marker(pytest.mark.timeout(1.8, method='thread', func_only=True))\n",
    )
    by_mark = project.run("tasks", AGENT, "--timeout=40").assert_consistent()
    assert limit_of(by_mark, "slow") == {"name": "timeout", "value": 1.8}
    (said,) = by_mark.envelope["warnings"]
    assert "func_only and method are ignored" in said
    assert by_mark.statuses == {"slow": "passed"}


def test_the_smaller_limit_wins(project: Project) -> None:
    project.task("slow", agent=SLOW, run_limits={"task_timeout": 0.5})
    run = project.run("tasks", AGENT, "--timeout=30").assert_consistent()
    assert limit_of(run, "slow") == {"name": "task_timeout", "value": 0.5}


# ---------------------------------------------------------------- pytest-rerunfailures


@pytest.mark.joint
def test_a_rerun_is_a_further_attempt(project: Project, mode: str) -> None:
    project.task("second", agent=scripted({"run": f"test -e {project.marks}/been && echo x > out.txt; touch {project.marks}/been"}, USAGE))
    project.task("never", agent=scripted({"say": "no"}, USAGE))
    setup = [{"command": f"test -e {project.marks}/setup || {{ touch {project.marks}/setup; exit 7; }}"}]
    project.task("unborn", agent=scripted(WRITE), pre_run=setup)
    run = project.run("tasks", AGENT, "--reruns=1", mode=mode).assert_consistent()
    assert run.statuses == {"second": "passed", "never": "failed", "unborn": "passed"}
    assert [(a["number"], a["cause"], a["code"]) for a in run.result("unborn")["attempts"]] == [
        (1, "first", "SANDBOX_FAILED"),
        (2, "rerun", None),
    ]
    assert "exit 7" in (run.trial("unborn") / "attempt-1" / "trial.log").read_text()
    for task in ("second", "never"):
        result = run.result(task)
        assert [(a["number"], a["cause"]) for a in result["attempts"]] == [(1, "first"), (2, "rerun")]
        assert result["cost_usd"] == pytest.approx(0.5)
        assert (run.trial(task) / "attempt-1").is_dir()
        assert (run.trial(task) / "attempt-2").is_dir()
        events = [(e["event"], e["attempt"]) for e in run.events if e.get("task_id") == task]
        assert events == [("trial_started", 1), ("trial_retried", 2), ("trial_started", 2), ("trial_finished", 2)]
    retried = [e for e in run.events if e["event"] == "trial_retried"]
    assert {e["cause"] for e in retried} == {"rerun"}
    assert run.envelope["data"]["cost_usd"] == pytest.approx(1.0)
    cases = [c for c in ET.parse(run.junit_file).iter("testcase") if c.get("name") == "second"]
    last = {p.get("name"): p.get("value") for p in cases[-1].iter("property")}
    assert (last["codeprobe_status"], last["codeprobe_cost_usd"]) == ("passed", "0.5")
    assert run.code == 1


def test_what_a_limit_or_a_refused_login_decided_is_not_rerun(project: Project) -> None:
    project.task("a-limit", agent=scripted({"sleep": 30}), run_limits={"task_timeout": 0.5})
    project.task("b-locked", agent=scripted({"fail": "AUTH_FAILED"}))
    run = project.run("tasks", AGENT, "--reruns=2", "--strict-markers").assert_consistent()
    assert run.statuses == {"a-limit": "failed", "b-locked": "error"}
    assert [len(run.result(task)["attempts"]) for task in run.statuses] == [1, 1]
    assert not [e for e in run.events if e["event"] == "trial_retried"]


def test_a_run_writes_only_where_it_should(project: Project) -> None:
    """A run adds its run dir and pytest's cache to a project, and nothing else."""
    three(project)
    before = {p for p in project.path.rglob("*") if ".git" not in p.parts}
    project.run("tasks", AGENT)
    new = {p.relative_to(project.path).parts[0] for p in {p for p in project.path.rglob("*") if ".git" not in p.parts} - before}
    assert new <= {".codeprobe", ".pytest_cache"}
    assert not [p for p in Path(project.environment["TMPDIR"]).iterdir() if p.name.startswith("codeprobe-")]
