"""--codeprobe-resume: what a run has finished is told again, and not run again, however the run ended."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.front_door import MODES, Project, Run, scripted

AGENT = "--codeprobe-agent=scripted"
DIR = "--codeprobe-run-dir=run"
RESUME = "--codeprobe-resume"


def counted(project: Project, name: str, *more: dict[str, Any]) -> dict[str, Any]:
    """A session that leaves a sign of itself for each time that it is run."""
    sign = f"mktemp {project.marks}/{name}.XXXXXX; : {project.mark_text}"
    return scripted({"run": sign}, *more, {"write": {"path": "out.txt", "content": "x"}})


def sessions(project: Project, name: str) -> int:
    """How often it was run."""
    return len(list(project.marks.glob(f"{name}.*")))


def last(run: Run) -> dict[str, dict[str, Any]]:
    """The last trial_finished of each trial, which is the one that counts."""
    return {e["node_id"]: e for e in run.events if e["event"] == "trial_finished"}


def whole(run: Run) -> None:
    """What holds of a run that was gone on with: one final word for each trial, events numbered through, results as the events say."""
    assert [e["seq"] for e in run.events] == list(range(len(run.events)))
    final = last(run)
    assert sorted(final) == sorted(t["node_id"] for t in run.plan)
    data = run.envelope["data"]
    assert {r["node_id"]: r["status"] for r in data["results"]} == {node: e["status"] for node, e in final.items()}
    assert len(data["results"]) == data["tasks_total"] == len(run.plan)
    assert not list(run.folder.glob("run.lock"))
    for trial in run.plan:
        file = run.folder / "trials" / trial["folder"] / "result.json"
        if file.exists():
            assert json.loads(file.read_text())["status"] == final[trial["node_id"]]["status"]


@pytest.mark.parametrize("mode", MODES)
def test_what_is_done_is_told_again_in_every_mode(project: Project, mode: str) -> None:
    project.task("good", agent=counted(project, "good"))
    project.task("bad", agent=counted(project, "bad"), success_criteria=[{"type": "file_exists", "path": "gone"}])
    project.task("broken", agent=counted(project, "broken"), pre_run=[{"command": "test -e " + str(project.marks / "mended")}])
    first = project.run("tasks", AGENT, DIR, mode=mode)
    assert (first.code, first.statuses) == (1, {"good": "passed", "bad": "failed", "broken": "error"})
    run_id = first.plan and first.envelope["data"]["run_id"]
    (project.marks / "mended").touch()
    again = project.run("tasks", AGENT, DIR, RESUME, mode=mode)
    whole(again)
    assert (again.code, again.statuses) == (1, {"good": "passed", "bad": "failed", "broken": "passed"})
    assert again.envelope["data"]["run_id"] == run_id
    assert [sessions(project, name) for name in ("good", "bad", "broken")] == [1, 1, 1]
    assert {node.rpartition(":")[2]: e.get("cached", False) for node, e in last(again).items()} == {
        "good": True,
        "bad": True,
        "broken": False,
    }
    assert again.junit() == {"good": "passed", "bad": "failure", "broken": "passed"}
    assert "2 kept, 1 to run" in again.output
    assert "1 run again: it ended error: tasks/broken.yaml::broken" in again.output
    assert sorted(p.name for p in again.folder.glob("plan.json*")) == ["plan.json", "plan.json.1"]


def test_only_what_has_changed_runs_again_and_says_why(project: Project) -> None:
    for name in ("prompt", "template", "model", "criterion", "limit", "tags", "same"):
        project.write(f"tasks/{name}/w/a.txt", "a")
        project.task(
            name,
            file=f"tasks/{name}/t.yaml",
            agent=counted(project, name),
            sandbox={"template_sources": [{"type": "template_dir", "path": "w"}]},
            run_limits={"max_turns": 90},
        )
    first = project.run("tasks", AGENT, DIR)
    assert first.code == 0
    edit = {
        "prompt": ("do it", "do it well"),
        "criterion": ("file_exists\n  path: out.txt", "file_exists\n  path: a.txt"),
        "limit": ("max_turns: 90", "max_turns: 91"),
        "tags": ("initial_prompt:", "description: new\ntags: [new]\ninitial_prompt:"),
    }
    for name, (old, new) in edit.items():
        file = project.path / f"tasks/{name}/t.yaml"
        file.write_text(file.read_text().replace(old, new))
    (project.path / "tasks/template/w/a.txt").write_text("b")
    again = project.run("tasks", AGENT, DIR, RESUME)
    whole(again)
    assert again.code == 0
    assert {name: sessions(project, name) for name in ("prompt", "template", "criterion", "limit", "tags", "same")} == {
        "prompt": 2, "template": 2, "criterion": 1, "limit": 1, "tags": 1, "same": 1,
    }  # fmt: skip
    assert "1 run again: changed: prompt: tasks/prompt/t.yaml::prompt" in again.output
    assert "1 run again: changed: template: tasks/template/t.yaml::template" in again.output
    assert "1 graded again: changed: criteria: tasks/criterion/t.yaml::criterion" in again.output
    graded = again.result("criterion")
    assert (graded["regraded"], graded["cached"], graded["status"], graded["changed_total"]) == (True, False, "passed", 1)
    rerun = again.result("prompt")
    assert [a["number"] for a in rerun["attempts"]] == [1, 2]
    assert (again.trial("prompt") / "attempt-1").is_dir()


def test_another_experiment_is_told_before_anything_runs(project: Project) -> None:
    """The same call without its experiment is another run's; what it had is not lost, and is there for the right call."""
    project.task("a", agent=counted(project, "a"))
    project.write("experiments/two.yaml", "experiment_id: two\nvariants: [{variant_id: x}, {variant_id: y}]\n")
    project.run("tasks", AGENT, DIR, "--codeprobe-experiment=two")
    said = "the run was last run with experiment two, and goes on without an experiment (--codeprobe-experiment=two is what it had)"
    without = project.run("tasks", AGENT, DIR, RESUME)
    assert 0 < without.stdout.find(f"\ncodeprobe: warning: {said}") < without.stdout.find("\ntasks/a.yaml")
    assert any(line.startswith(said) for line in without.envelope["warnings"])
    project.write("experiments/three.yaml", "experiment_id: three\n")
    graded = project.codeprobe("regrade", "run", "--json").assert_pure(events=False)
    assert (graded["warnings"], graded["data"]["tasks_passed"]) == ([], 1)  # there is no flag by which it could be given one
    again = project.run("tasks", AGENT, DIR, RESUME, "--codeprobe-experiment=two")
    assert "2 kept, 0 to run" in again.output
    assert sessions(project, "a") == 3


def test_a_run_of_other_trials_is_told(project: Project) -> None:
    """`latest` may be another run than the one that is meant."""
    for name in ("a", "b"):
        project.task(name, agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    project.run("tasks/a.yaml", AGENT, DIR)
    said = "the run dir has results of 1 trial, and of none of this call: is it the one that is meant?"
    assert said in project.run("tasks/b.yaml", AGENT, DIR, RESUME).envelope["warnings"]
    assert said not in project.run("tasks", AGENT, DIR, RESUME).envelope["warnings"]


def test_a_raised_limit_runs_again_what_it_stopped(project: Project) -> None:
    for name, seconds in (("slow", 60), ("quick", 0)):
        project.task(name, agent=counted(project, name, {"sleep": seconds}), run_limits={"task_timeout": 2})
    first = project.run("tasks", AGENT, DIR)
    assert first.finished["slow"]["limit_hit"] == {"name": "task_timeout", "value": 2.0}
    for name in ("slow", "quick"):
        file = project.path / f"tasks/{name}.yaml"
        file.write_text(file.read_text().replace("task_timeout: 2", "task_timeout: 3"))
    again = project.run("tasks", AGENT, DIR, RESUME)
    whole(again)
    assert [sessions(project, name) for name in ("slow", "quick")] == [2, 1]
    assert "1 run again: limit task_timeout was 2, and is 3: tasks/slow.yaml::slow" in again.output


def test_a_resume_that_is_refused_leaves_the_run_as_it_was(project: Project) -> None:
    project.task("t", agent=counted(project, "t"))
    first = project.run("tasks", AGENT, DIR)
    before = {name: (first.folder / name).read_bytes() for name in ("plan.json", "lock.json")}
    broken = project.write("tasks/broken.yaml", "task_id: broken\n")
    assert project.run("tasks", AGENT, DIR, RESUME).code == 4
    dry = project.run("tasks", AGENT, DIR, RESUME, "--codeprobe-dry-run")
    assert (dry.code, "--codeprobe-dry-run can't be given with --codeprobe-resume" in dry.output) == (4, True)
    assert {path.name: path.read_bytes() for pattern in ("plan.json*", "lock.json*") for path in first.folder.glob(pattern)} == before
    broken.unlink()
    for args in ((), ("-n", "1")):
        nobody = project.run("tasks", DIR, RESUME, *args)
        assert (nobody.code, "NO_BACKENDS_CONFIGURED: no agent is chosen for 1 task" in nobody.output) == (4, True), nobody.output
        assert {path.name: path.read_bytes() for pattern in ("plan.json*", "lock.json*") for path in first.folder.glob(pattern)} == before
        assert nobody.envelope["data"]["tasks_passed"] == 1  # of the run, which is not touched
    assert project.run("tasks", AGENT, DIR, RESUME).code == 0
    assert sessions(project, "t") == 1


@pytest.mark.parametrize(
    ("asked", "reruns"),
    [("all", {"good", "bad"}), ("none", set()), ("failed", {"bad"}), ("passed,error", {"good"})],
    ids=["all", "none", "failed", "several"],
)
def test_outcomes_that_are_run_again(project: Project, asked: str, reruns: set[str]) -> None:
    project.task("good", agent=counted(project, "good"))
    project.task("bad", agent=counted(project, "bad"), success_criteria=[{"type": "file_exists", "path": "gone"}])
    project.run("tasks", AGENT, DIR)
    whole(project.run("tasks", AGENT, DIR, RESUME, f"--codeprobe-rerun={asked}"))
    assert {name for name in ("good", "bad") if sessions(project, name) == 2} == reruns


def test_a_killed_run_goes_on_wherever_it_was_killed(project: Project) -> None:
    """By SIGKILL of pytest or of a worker, at random moments, in all modes: nothing is lost, nothing that was finished is paid twice."""
    dice = random.Random(20)
    names = [f"t{n}" for n in range(6)]
    for name in names:
        project.task(name, agent=counted(project, name, {"sleep": 0.15}))
    for round_number in range(int(os.environ.get("CODEPROBE_TEST_ROUNDS", "4"))):
        folder = f"run{round_number}"
        for sign in project.marks.iterdir():
            sign.unlink()
        mode = dice.choice(list(MODES))
        run = project.start("tasks", AGENT, f"--codeprobe-run-dir={folder}", mode=mode)
        run.wait_for_plan()
        time.sleep(dice.uniform(0, 1.2))
        with contextlib.suppress(ProcessLookupError):
            run.signal(signal.SIGKILL)
        run.process.wait()
        run.assert_nothing_left(10)
        left = [json.loads(f.read_text()) for f in Path(project.path, folder).glob("trials/**/result.json")]
        done = {record["task_id"] for record in left if record["verdict"]}
        before = {name: sessions(project, name) for name in names}
        again = project.run("tasks", AGENT, f"--codeprobe-run-dir={folder}", RESUME, mode=dice.choice(list(MODES)))
        whole(again)
        assert again.code == 0, again.output
        assert set(again.statuses.values()) == {"passed"}
        for name in names:
            assert sessions(project, name) == before[name] + (name not in done), (name, done, before)


def test_two_runs_on_one_run_dir(project: Project) -> None:
    project.task("t", agent=counted(project, "t", {"sleep": 60}))
    first = project.start("tasks", AGENT, DIR)
    first.wait_for("t.*")
    second = project.codeprobe("run", "tasks", "--agent=scripted", "--run-dir=run", "--resume", "--json")
    (error,) = second.assert_pure(events=False)["errors"]
    assert (error["code"], second.code, error["detail"]["pid"]) == ("RUN_DIR_IN_USE", 4, first.process.pid)
    first.signal(signal.SIGINT)
    first.wait(30)
    assert first.statuses == {"t": "not_run"}
    command = first.envelope["errors"][0]["command"]
    assert command[-2:] == ["--codeprobe-resume", "--codeprobe-run-dir=run"]


def test_a_run_dir_of_something_else(project: Project, tmp_path: Path) -> None:
    project.task("t", agent=counted(project, "t"))
    nothing = project.codeprobe("run", "--agent=scripted", "--run-dir=run", "--resume", "--json")
    assert (nothing.assert_pure(events=False)["errors"][0]["code"], nothing.code) == ("USAGE_ERROR", 4)
    project.run("tasks", AGENT, DIR)
    plan = project.path / "run/plan.json"
    for change, said in (({"rootdir": "/elsewhere"}, "it was made for rootdir /elsewhere"), ({"schema_version": "2"}, "schema 2")):
        plan.write_text(json.dumps({**json.loads(plan.read_text()), **change}))
        run = project.codeprobe("run", "--agent=scripted", "--run-dir=run", "--resume", "--json")
        (error,) = run.assert_pure(events=False)["errors"]
        assert (error["code"], run.code) == ("RESUME_MISMATCH", 4)
        assert said in error["message"]
    for flags in (("--resume",), ("--run-dir=run", "--rerun=failed"), ("--run-dir=run", "--resume", "--rerun=some")):
        assert (
            project.codeprobe("run", "--agent=scripted", *flags, "--json").assert_pure(events=False)["errors"][0]["code"] == "USAGE_ERROR"
        )
    (taken,) = project.codeprobe("run", "--agent=scripted", "--run-dir=run", "--json").assert_pure(events=False)["errors"]
    assert "to go on with a run there, add --resume" in taken["remediation"]


def test_what_was_spent_counts_against_the_budget(project: Project) -> None:
    paid = {"usage": {"input_tokens": 1, "cost_usd": 1.0}}
    for name in ("a", "b", "c"):
        project.task(name, agent=counted(project, name, paid), run_limits={"max_usd": 1})
    first = project.run("tasks/a.yaml", "tasks/b.yaml", AGENT, DIR)
    assert (first.code, first.envelope["data"]["cost_usd"]) == (0, 2.0)
    again = project.run("tasks", AGENT, DIR, RESUME, "--codeprobe-max-cost-usd=2.5")
    whole(again)
    assert (again.code, again.statuses) == (6, {"a": "passed", "b": "passed", "c": "not_run"})
    rest = "\nto run the rest: the same call with --codeprobe-resume --codeprobe-run-dir="
    assert f"{rest}run and a larger budget\n" in again.stdout
    refused = project.run("tasks", "--codeprobe-agent=claude", "--codeprobe-run-dir=refused", junit=False)  # no key, perhaps no CLI
    assert ("not run (refused)" in refused.stdout, rest in refused.stdout) == (True, False)
    more = project.run("tasks", AGENT, DIR, RESUME, "--codeprobe-max-cost-usd=3")
    assert (more.code, more.envelope["data"]["cost_usd"]) == (0, 3.0)


# ---- regrade


def test_regrade_grades_again_and_leaves_the_old_run_alone(project: Project) -> None:
    project.task("a", agent=counted(project, "a"))
    project.task("b", agent=counted(project, "b"))
    first = project.run("tasks", AGENT, DIR)
    before = {p: p.read_bytes() for p in first.folder.rglob("*") if p.is_file()}
    file = project.path / "tasks/a.yaml"
    file.write_text(file.read_text().replace("path: out.txt", "path: gone.txt"))
    run = project.codeprobe("regrade", "run", "--run-dir=graded")
    graded = json.loads((project.path / "graded/envelope.json").read_text())
    assert run.code == 1
    assert {r["task_id"]: r["status"] for r in graded["data"]["results"]} == {"a": "failed", "b": "passed"}
    assert "regraded: tasks/a.yaml::a: passed 1.00 -> failed 0.00" in run.stdout
    assert [sessions(project, name) for name in ("a", "b")] == [1, 1]
    assert before == {p: p.read_bytes() for p in first.folder.rglob("*") if p.is_file()}
    again = project.codeprobe("regrade", "graded", "--json")  # what was graded can be graded once more
    assert again.assert_pure(events=False)["data"]["tasks_failed"] == 1


def test_regrade_takes_what_flags_set_and_all_that_resumes_have_added(project: Project) -> None:
    """What `-D` and its short forms set is set again as one; the plans of resumes that selected less, or nothing, don't count alone."""
    paid = {"usage": {"input_tokens": 1, "cost_usd": 1.0}}
    for name in ("k1", "k2"):
        project.task(name, agent={"scripted": counted(project, name, paid)["scripted"]})
    flags = ("--codeprobe-set=run_limits.max_turns=3", "--codeprobe-set=sandbox.env={V: 1.10}", "--codeprobe-timeout=50")
    project.write("pytest.ini", "[pytest]\naddopts = --codeprobe-set=run_limits.max_turns=4\n")
    first = project.run("tasks", AGENT, DIR, *flags)
    assert first.statuses == {"k1": "passed", "k2": "passed"}
    project.run("tasks/k2.yaml", AGENT, DIR, *flags, RESUME)
    run = project.codeprobe("regrade", "run", "--json", "--run-dir=graded")
    data = run.assert_pure(events=False)["data"]
    assert {r["task_id"]: (r["status"], r["cost_usd"]) for r in data["results"]} == dict.fromkeys(("k1", "k2"), ("passed", 0.0))
    assert (run.code, data["cost_usd"]) == (0, 0.0)
    (limits, *_) = (t["limits"] for t in json.loads((project.path / "graded/plan.json").read_text())["trials"])
    assert (limits["max_turns"], limits["task_timeout"]) == (3, 50)
    record = json.loads((project.path / "graded/trials/default/k1/r001/result.json").read_text())
    assert (record["status"], record["cost_usd"]) == ("passed", 1.0)  # what its session cost
    project.run("tasks", "-k", "none_of_them", AGENT, DIR, RESUME)
    again = project.codeprobe("regrade", "run", "--json").assert_pure(events=False)["data"]
    assert again["tasks_passed"] == 2


def test_regrade_starts_no_agent_with_jobs_either(project: Project) -> None:
    """Nothing is graded of what has no verdict; under jobs no thread may take it for a trial that is to run."""
    paid = {"usage": {"input_tokens": 1, "cost_usd": 1.0}}
    project.task("a", agent=counted(project, "a", paid))
    project.task("b", agent=counted(project, "b", {"fail": "AUTH_FAILED"}))
    first = project.run("tasks", AGENT, DIR)
    assert first.statuses == {"a": "passed", "b": "error"}
    run = project.codeprobe("regrade", "run", "--json", "-j", "4")
    data = run.assert_pure(events=False)["data"]
    assert {r["task_id"]: r["status"] for r in data["results"]} == {"a": "passed", "b": "skipped"}
    assert [sessions(project, name) for name in ("a", "b")] == [1, 1]


@pytest.mark.parametrize(
    ("flags", "kept"), [(("--codeprobe-preserve=none",), "none"), ((), "only in part (ignore_patterns, or a secret in it)")]
)
def test_regrade_refuses_what_was_not_kept_whole(project: Project, flags: tuple[str, ...], kept: str) -> None:
    project.task("a", agent=counted(project, "a"), sandbox={"ignore_patterns": ["*.txt"]})
    project.run("tasks", AGENT, DIR, *flags)
    run = project.codeprobe("regrade", "run", "--json")
    (error,) = run.assert_pure(events=False)["errors"]
    assert (error["code"], run.code) == ("USAGE_ERROR", 4)
    assert error["detail"]["trials"] == {"tasks/a.yaml::a": f"its workspace was kept {kept}"}
    assert sessions(project, "a") == 1


def test_regrade_with_direct_preservation(project: Project) -> None:
    project.task("a", agent=counted(project, "a"))
    project.run("tasks", AGENT, DIR, "--codeprobe-preserve=direct")
    assert project.codeprobe("regrade", "run").code == 0
