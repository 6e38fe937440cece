"""Variants, rows and repeats of a run: ids, selection, gates, and the same in every mode of parallelism."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.front_door import MODES, Project, Run, scripted

AGENT = "--codeprobe-agent=scripted"
EXPERIMENT = "--codeprobe-experiment=models"
THREE = """\
experiment_id: models
variants:
  - {variant_id: haiku}
  - {variant_id: sonnet, sandbox: {env: {V: s}}}
  - {variant_id: opus, prompt_mutations: {suffix: Be quick.}}
"""


def labelled(project: Project, rows: int, **more: Any) -> None:
    """A task over so many rows, whose agent writes what the row expects; every fifth writes something else."""
    lines = [json.dumps({"id": f"n{n:02d}", "want": "yes" if n % 2 else "no", "says": "maybe" if n % 5 == 0 else "yes" if n % 2 else "no"})
             for n in range(rows)]  # fmt: skip
    project.write("tasks/rows.jsonl", "\n".join(lines) + "\n")
    project.task(
        "cls",
        initial_prompt="say ${row.want}",
        agent=scripted({"run": "cat seed > out.txt"}),
        sandbox={"template_sources": [{"type": "starter_files", "files": [{"path": "seed", "content": "${row.says}"}]}]},
        dataset={"paths": ["rows.jsonl"]},
        success_criteria=[{"type": "file_contains", "path": "out.txt", "includes": ["${row.want}"], **more}],
    )


def results(run: Run) -> dict[str, tuple[str, float | None]]:
    """Status and score of each trial, by the name of its item."""
    return {r["node_id"].partition("::")[2]: (r["status"], r["score"]) for r in run.envelope["data"]["results"]}


@pytest.mark.parametrize("mode", MODES)
def test_rows_variants_and_repeats(project: Project, mode: str) -> None:
    labelled(project, 6)
    project.write("experiments/models.yaml", THREE)
    run = project.run("tasks", AGENT, EXPERIMENT, "--codeprobe-repeats=2", mode=mode).assert_consistent()
    assert run.code == 1
    found = results(run)
    assert len(found) == 6 * 3 * 2
    assert found["cls[row-n01-opus-r2]"] == ("passed", 1.0)
    assert found["cls[row-n00-haiku-r1]"] == ("failed", 0.0)
    data = run.envelope["data"]
    assert {v["variant_id"]: (v["tasks_passed"], v["tasks_failed"]) for v in data["variants"]} == dict.fromkeys(
        ("haiku", "opus", "sonnet"), (8, 4)
    )
    (suite, *_) = data["suites"]
    assert (suite["task_id"], suite["variant_id"], suite["rows"], suite["passed"]) == ("cls", "haiku", 6, 8)
    assert suite["criteria"][0]["metrics"]["mean"] == pytest.approx(2 / 3, abs=1e-6)
    lock = json.loads((run.folder / "lock.json").read_text())
    assert [t["variant_id"] for t in lock["tasks"]] == ["haiku", "sonnet", "opus"]
    assert lock["tasks"][1]["origins"]["sandbox.env.V"] == ["variant", "experiments/models.yaml"]
    assert lock["agents"].keys() == {"scripted"}


def test_ids_are_stable_and_select(project: Project) -> None:
    labelled(project, 3)
    project.write("experiments/models.yaml", THREE)

    def collected(*flags: str, **env: str) -> list[str]:
        run = project.run("tasks", AGENT, EXPERIMENT, "--codeprobe-repeats=3", "--collect-only", "-q", *flags, env=env)
        return [line for line in run.stdout.splitlines() if "::" in line]

    cold = collected("-p", "no:cacheprovider", PYTHONHASHSEED="1")
    assert len(cold) == 27
    assert cold == collected(PYTHONHASHSEED="2") == collected(PYTHONHASHSEED="3")  # filling the index, and from it
    assert cold[:2] == ["tasks/cls.yaml::cls[row-n00-haiku-r1]", "tasks/cls.yaml::cls[row-n00-haiku-r2]"]
    assert collected("-k", "sonnet and r2") == [name for name in cold if "sonnet-r2" in name]
    sample = collected("--codeprobe-sample=1")
    assert len(sample) == 9
    assert sample == [name for name in cold if name in sample]
    assert collected("--codeprobe-sample=1") == sample
    one = project.run("tasks/cls.yaml::cls[row-n02-opus-r1]", AGENT, EXPERIMENT, "--codeprobe-repeats=3", junit=False)
    assert list(results(one)) == ["cls[row-n02-opus-r1]"]


def test_tags_and_skipped(project: Project) -> None:
    for name, tags, skip in (("a", ["smoke"], False), ("b", ["smoke", "slow"], False), ("c", ["slow"], False), ("d", ["smoke"], "later")):
        project.task(name, agent=scripted({"write": {"path": "out.txt", "content": "x"}}), tags=tags, skip=skip)
    project.write("tests/test_x.py", "def test_x(): pass\n")
    run = project.run("tasks", "tests", AGENT, "--codeprobe-tags=smoke,other", "--codeprobe-exclude-tags=slow")
    assert (run.statuses, run.envelope["data"]["ordinary_tests"]) == ({"a": "passed", "d": "skipped"}, {"passed": 1})
    assert "2 deselected" in run.output
    run = project.run("tasks", AGENT, "--codeprobe-include-skipped", env={"CODEPROBE_EXCLUDE_TAGS": "slow"})
    assert run.statuses == {"a": "passed", "d": "passed"}


# ---- overrides


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            ("-D", "sandbox.network=off", "-D", "sandbox={driver: tempdir}"),
            "--set sandbox.network=off and --set sandbox={driver: tempdir} both set sandbox",
        ),
        (("--model", "x", "-D", "agent.model=y"), "--set agent.model=y and --model both set agent.model"),
        (("-D", "run_limits.max_turns=1", "-D", "run_limits.max_turns=2"), "both set run_limits.max_turns"),
        (("-D", "agent.modle=x"), "unknown field 'modle' (did you mean 'model'?)"),
        (("-D", "run_limits.max_turns=many"), "'run_limits.max_turns' is text, not a number"),
    ],
)
def test_overrides_at_odds(project: Project, flags: tuple[str, ...], said: str) -> None:
    project.task("t", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    run = project.codeprobe("run", "--agent=scripted", *flags, "--json")
    (error,) = run.assert_pure(events=False)["errors"]
    assert (error["code"], run.code) == ("OVERRIDE_INVALID", 4)
    assert said in error["message"]


def test_what_stands_in_addopts_yields(project: Project) -> None:
    project.task("t", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    project.write("pytest.ini", "[pytest]\naddopts = --codeprobe-set=run_limits.max_turns=3 --codeprobe-timeout=50\n")
    run = project.run("tasks", AGENT, "--codeprobe-set=run_limits.max_turns=4", "--codeprobe-set=run_limits.task_timeout=60", mode="xdist")
    assert (run.code, run.plan[0]["limits"]["max_turns"], run.plan[0]["limits"]["task_timeout"]) == (0, 4, 60)
    same = project.run("tasks", AGENT, "--codeprobe-timeout=70")
    assert same.plan[0]["limits"]["task_timeout"] == 70


# ---- gates


def often(project: Project, name: str, passes: int, **fields: Any) -> None:
    """A task that passes the first so many times that it is run."""
    count = f"n=$(ls {project.marks} | grep -c '^{name}'); mktemp {project.marks}/{name}.XXXXXX; [ $n -ge {passes} ] || touch out.txt"
    project.task(name, agent=scripted({"run": count}), **fields)


@pytest.mark.parametrize("mode", MODES)
def test_a_proportion_of_repeats(project: Project, mode: str) -> None:
    """It ends as soon as it is decided: what had not started is skipped, and changes nothing."""
    often(project, "holds", 99, repeats=6, min_passes=2)
    often(project, "falls", 0, repeats=6, min_passes=5)
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert run.code == 1
    by_task: dict[str, list[tuple[str, bool, str | None]]] = {"holds": [], "falls": []}
    for r in run.envelope["data"]["results"]:
        by_task[r["task_id"]].append((r["status"], r["expected"], r["reason"]))
    ran = {name: [entry for entry in entries if entry[0] in ("passed", "failed")] for name, entries in by_task.items()}
    assert 2 <= len(ran["holds"]) <= 2 + 4
    assert {entry[0] for entry in ran["holds"]} == {"passed"}
    assert 2 <= len(ran["falls"]) <= 2 + 4
    assert {(status, expected) for status, expected, _ in ran["falls"]} == {("failed", False)}
    assert {entry[2] for entries in by_task.values() for entry in entries if entry[0] == "skipped"} <= {"decided"}
    gates = {g["name"]: (g["threshold"], g["held"]) for g in run.envelope["data"]["gates"]}
    assert gates == {"holds: passes of 6": (2, True), "falls: passes of 6": (5, False)}
    assert "miss 1 of 1 allowed" in run.output or "xfailed" in run.output


def test_misses_within_a_gate_that_holds_are_expected(project: Project) -> None:
    often(project, "t", 3, repeats=5, min_passes=3)
    run = project.run("tasks", AGENT, "-rx").assert_consistent()
    data = run.envelope["data"]
    assert (run.code, data["tasks_passed"], data["tasks_missed"], data["tasks_skipped"]) == (0, 3, 0, 2)
    selected = project.run("tasks/t.yaml", AGENT, "-k", "r1 or r2", "--codeprobe-repeats=3")  # 2 of 3 repeats: each stands for itself
    assert selected.envelope["data"]["gates"] == []
    assert selected.code == 1


def test_an_error_counts_neither_way(project: Project) -> None:
    often(project, "t", 1, repeats=3, min_passes=2, pre_run=[{"command": f"[ $(ls {project.marks} | wc -l) -lt 2 ]"}])
    run = project.run("tasks", AGENT).assert_consistent()
    data = run.envelope["data"]
    assert (run.code, data["tasks_passed"], data["tasks_missed"], data["tasks_error"]) == (6, 1, 1, 1)
    assert data["gates"][0] == {"name": "t: passes of 3", "value": 1, "threshold": 2, "held": None}


@pytest.mark.parametrize("mode", MODES)
def test_a_task_that_is_known_to_fail_may_miss_its_gate(project: Project, mode: str) -> None:
    often(project, "t", 0, repeats=3, min_passes=2, xfail="known")
    run = project.run("tasks/t.yaml", AGENT, mode=mode).assert_consistent()
    data = run.envelope["data"]
    assert (run.code, data["gates"], data["tasks_failed"], "failure" in run.junit().values()) == (0, [], 0, False)


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_a_miss_is_not_rerun(project: Project, mode: str) -> None:
    """Others are left out for it; and a gate that lacks verdicts is no success."""
    often(project, "t", 0, repeats=4, min_passes=2)
    run = project.run("tasks", AGENT, "--reruns=1", mode=mode).assert_consistent()
    data = run.envelope["data"]
    assert (run.code, [g["held"] for g in data["gates"]], data["tasks_failed"] + data["tasks_skipped"]) == (1, [False], 4)
    assert {r["attempts"] for r in data["results"] if r["status"] == "failed"} == {1}
    assert not [e for e in run.events if e["event"] == "trial_retried"]


def test_a_gate_that_lacks_verdicts_is_no_success(project: Project) -> None:
    often(project, "t", 1, repeats=3, min_passes=2)
    project.write("conftest.py", "import pytest\ndef pytest_runtest_setup(item):\n    if 'r3' in item.name: pytest.skip('not today')\n")
    run = project.run("tasks", AGENT).assert_consistent()
    data = run.envelope["data"]
    assert (run.code, [g["held"] for g in data["gates"]]) == (6, [None])
    assert (data["tasks_passed"], data["tasks_missed"], data["tasks_skipped"]) == (1, 1, 1)


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_a_gate_stands_when_its_run_is_gone_on_with_or_graded_again(project: Project, mode: str) -> None:
    """What the earlier run told of its repeats counts, and so does what it left out."""
    often(project, "misses", 2, repeats=4, min_passes=2)
    often(project, "decided", 9, repeats=4, min_passes=2)
    project.task("falls", agent=scripted({"say": "no"}), repeats=3, min_passes=2)
    first = project.run("tasks", AGENT, "--codeprobe-run-dir=run")
    gates = {"misses: passes of 4": True, "decided: passes of 4": True, "falls: passes of 3": False}
    assert {g["name"]: g["held"] for g in first.envelope["data"]["gates"]} == gates
    again = project.run("tasks", AGENT, "--codeprobe-run-dir=run", "--codeprobe-resume", mode=mode)
    data = again.envelope["data"]
    assert ({g["name"]: g["held"] for g in data["gates"]}, again.code) == (gates, 1)
    assert {r["task_id"] for r in data["results"] if r["status"] == "failed" and not r["expected"]} == {"falls"}
    if mode == "plain":
        graded = project.codeprobe("regrade", "run", "--json", "-k", "not falls")
        data = graded.assert_pure(events=False)["data"]
        held = {g["name"]: g["held"] for g in data["gates"]}
        assert (held, graded.code) == ({"misses: passes of 4": True, "decided: passes of 4": True}, 0)
        assert "\n4 not graded again: no verdict is kept of it: tasks/decided.yaml::decided[r3], " in graded.stderr
        assert "run again" not in graded.stderr


def test_a_worker_that_dies_between_verdict_and_record_leaves_no_place(project: Project) -> None:
    often(project, "t", 9, repeats=3, min_passes=2)
    project.write(
        "conftest.py",
        "import os, signal\nfrom pytest_codeprobe.trial.store import AttemptStore\nwrite = AttemptStore.write\n"
        "def dies(self, result):\n    if result.repeat == 1: os.kill(os.getpid(), signal.SIGKILL)\n    write(self, result)\n"
        "AttemptStore.write = dies\n",
    )
    run = project.run("tasks", AGENT, "-n", "1")
    data = run.envelope["data"]
    assert (run.code, data["tasks_error"], data["tasks_passed"], data["gates"][0]["held"]) == (6, 1, 2, True)


@pytest.mark.parametrize("mode", MODES)
def test_a_suite_falls_with_all_rows_green(project: Project, mode: str) -> None:
    labelled(project, 4, pass_threshold=0, suite_thresholds={"mean": 0.9, "completion_rate": 1})
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    data = run.envelope["data"]
    assert (run.code, data["tasks_passed"]) == (1, 4)
    assert [(g["value"], g["threshold"], g["held"]) for g in data["gates"]] == [(0.75, 0.9, False), (1.0, 1.0, True)]
    assert "gate fell: cls: file_contains[0] mean: needs 0.9, is 0.75" in run.output
    part = project.run("tasks", AGENT, "-k", "n01 or n02", mode=mode)
    assert (part.code, [g["held"] for g in part.envelope["data"]["gates"]]) == (0, [None, None])
    sampled = project.run("tasks", AGENT, "--codeprobe-sample=2", mode=mode)
    assert [g["held"] is None for g in sampled.envelope["data"]["gates"]] == [False, False]


def test_gates_of_the_run_and_against_a_baseline(project: Project) -> None:
    labelled(project, 5)
    gates = "gates:\n  - {metric: pass_rate, variant: sonnet, baseline: haiku, min: -0.05}\n  - {metric: score_mean, max: 0.1}\n"
    project.write("experiments/models.yaml", THREE + gates)
    run = project.run("tasks", AGENT, EXPERIMENT, "--codeprobe-min-pass-rate=50%", "--codeprobe-min-score=0.95")
    found = {g["name"]: (g["value"], g["held"]) for g in run.envelope["data"]["gates"]}
    assert found == {
        "pass_rate >= 0.5": (0.8, True),
        "score_mean >= 0.95": (0.8, False),
        "pass_rate [sonnet] - [haiku] >= -0.05": (0.0, True),
        "score_mean <= 0.1": (0.8, False),
    }
    assert run.code == 1
    part = project.run("tasks", AGENT, EXPERIMENT, "--codeprobe-min-score=0.1", "-k", "sonnet or n01")  # each variant on other rows
    held = {g["name"]: g["held"] for g in part.envelope["data"]["gates"]}
    assert held == {"score_mean >= 0.1": True, "pass_rate [sonnet] - [haiku] >= -0.05": None, "score_mean <= 0.1": None}
    assert "not all of its trials were in the run" in part.output


# ---- the summary


def test_variants_and_repeats_stand_side_by_side(project: Project, mode: str) -> None:
    project.write("experiments/two.yaml", "variants: [{variant_id: first}, {variant_id: second, prompt_mutations: {suffix: x}}]\n")
    once = f"mkdir {project.marks}/once && touch out.txt; true"
    out = [{"type": "file_exists", "path": "out.txt"}]
    project.task("a", agent=scripted({"write": {"path": "out.txt", "content": "x"}}, {"usage": {"cost_usd": 0.25}}), success_criteria=out)
    project.task("all", agent=scripted({"run": "touch out.txt"}), success_criteria=out, repeats=2, min_passes=2)
    project.task("b", agent=scripted({"run": once}), success_criteria=out, repeats=3)
    project.task("c", agent=scripted(), success_criteria=out, repeats=3, min_passes=2)
    run = project.run("tasks", AGENT, "--codeprobe-experiment=two", mode=mode).assert_consistent()
    lines = [line.split() for line in run.stdout.splitlines()]
    head = ["variant", "trials", "passed", "failed", "error", "pass", "rate", "95", "%", "interval", "score", "cost", "mean", "time"]
    at = lines.index(head)
    assert [line[0] for line in lines[at : at + 3]] == ["variant", "first", "second"]
    assert sum(int(line[2]) for line in lines[at + 1 : at + 3]) == 3 + 4
    assert all("$0.25" in line for line in lines[at + 1 : at + 3])
    assert len(run.stdout.splitlines()[at]) == len(run.stdout.splitlines()[at + 1])
    told = [line for line in run.stdout.splitlines() if line.startswith("repeats: ")]
    assert [line.partition(":")[2].partition(":")[0].strip() for line in told[:2]] == ["c[first]", "c[second]"]
    two, three = ", of 2 graded (95 % interval 0% to 66%)", " (95 % interval 0% to 56%)"  # several at once may have begun the third
    assert told[0].removeprefix("repeats: c[first]: 0/3 passed") in (f"{two}, 2 needed", f"{three}, 2 needed")
    assert ": 1/3 passed (95 % interval 6% to 79%)" in told[2]  # b of one variant; of the other it failed thrice, which is no news
    assert told[3:] == [f"repeats: all[{v}]: 2/2 passed (95 % interval 34% to 100%), 2 needed" for v in ("first", "second")]
