"""Marked tests of tasks with rows, variants and repeats: parametrised as the task's items are."""

from __future__ import annotations

from typing import Any

import pytest

from tests.front_door import MODES, Project, Run, comparable, scripted

AGENT = "--codeprobe-agent=scripted"
EXPERIMENT = "--codeprobe-experiment=models"
MODELS = "experiment_id: models\nvariants:\n  - {variant_id: haiku}\n  - {variant_id: sonnet, sandbox: {env: {V: s}}}\n"
TESTS = """
import pytest

@pytest.mark.codeprobe(task="tasks/cls.yaml")
@pytest.mark.parametrize("limit", [1, 2])
def test_each(codeprobe_session, codeprobe_score, codeprobe_trial, limit, request):
    assert codeprobe_trial.prompt == f"say {codeprobe_trial.row['want']}"
    assert len(codeprobe_session.changed_files) <= limit
    assert codeprobe_trial.row_id in request.node.name and codeprobe_trial.variant_id in request.node.name

@pytest.mark.codeprobe(task="tasks/cls.yaml", variant="sonnet")
class TestOne:
    def test_narrow(self, codeprobe_score):
        assert codeprobe_score.passed

@pytest.mark.codeprobe(task="tasks/one.yaml")
def test_one(codeprobe_score):
    assert codeprobe_score.passed
"""


def fill(project: Project, **more: Any) -> None:
    project.write("experiments/models.yaml", MODELS)
    project.task(
        "cls",
        agent=scripted({"write": {"path": "out.txt", "content": "x"}}, {"say": "done"}),
        initial_prompt="say ${row.want}",
        dataset={"rows": [{"id": "a", "want": "yes"}, {"id": "b", "want": "no"}]},
        tags=["${row.want}", "smoke"],
        **more,
    )
    project.task("one", agent=scripted({"write": {"path": "out.txt", "content": "x"}}), tags=["slow"])
    project.write("tests/test_it.py", TESTS)


def names(run: Run) -> dict[str, str]:
    """Status by what follows the file's name."""
    return {e["node_id"].partition("::")[2]: e["status"] for e in run.events if e["event"] == "trial_finished"}


ALL = [
    *(f"test_each[{limit}-row-{row}-{variant}]" for limit in (1, 2) for row in "ab" for variant in ("haiku", "sonnet")),
    *(f"TestOne::test_narrow[row-{row}-sonnet]" for row in "ab"),
]


@pytest.mark.joint
def test_rows_and_variants_in_every_mode(project: Project) -> None:
    fill(project)
    seen = []
    for mode in MODES:
        run = project.run("tests", "tasks/cls.yaml", AGENT, EXPERIMENT, f"--codeprobe-run-dir=run-{mode}", mode=mode).assert_consistent()
        found = {e["node_id"]: comparable({k: v for k, v in e.items() if k not in ("seq", "time")}) for e in run.events
                 if e["event"] == "trial_finished"}  # fmt: skip
        seen.append(dict(sorted(found.items())))
        assert run.code == 0, run.output
    assert seen == [seen[0]] * len(MODES)
    ones = ["test_one[haiku]", "test_one[sonnet]"]
    items = [f"cls[row-{row}-{variant}]" for row in "ab" for variant in ("haiku", "sonnet")]
    assert names(run) == dict.fromkeys([*items, *ALL, *ones], "passed")
    folders = {t["node_id"].partition("::")[2]: t["folder"] for t in run.plan}
    assert len(set(folders.values())) == len(folders)
    head, row, repeat = folders["test_each[1-row-a-sonnet]"].rsplit("/", 2)
    assert (head.startswith("sonnet/cls@"), row, repeat) == (True, "row-a", "r001")
    assert folders["test_each[1-row-b-sonnet]"].startswith(head)
    assert not folders["test_each[2-row-b-sonnet]"].startswith(head)
    suites = run.envelope["data"]["suites"]
    assert [(s.get("test"), s["variant_id"], s["rows"], s["passed"]) for s in suites if s["variant_id"] == "sonnet"] == [
        (None, "sonnet", 2, 2),
        ("tests/test_it.py::test_each", "sonnet", 2, 2),
        ("tests/test_it.py::test_each", "sonnet", 2, 2),
        ("tests/test_it.py::TestOne::test_narrow", "sonnet", 2, 2),
    ]


def test_selection(project: Project) -> None:
    """By -k, -m, tags and samples, as of the items."""
    fill(project)
    for args, wanted in {
        ("-k", "sonnet and row-a and narrow"): ["TestOne::test_narrow[row-a-sonnet]"],
        ("-m", "no", "-k", "narrow"): ["TestOne::test_narrow[row-b-sonnet]"],
        ("--codeprobe-tags=slow",): ["test_one[haiku]", "test_one[sonnet]"],
        ("--codeprobe-exclude-tags=slow,yes", "-k", "haiku"): ["test_each[1-row-b-haiku]", "test_each[2-row-b-haiku]"],
        ("--codeprobe-sample=1", "-k", "narrow"): None,
    }.items():
        run = project.run("tests", AGENT, EXPERIMENT, *args)
        found = list(names(run.assert_consistent()))
        assert found == wanted if wanted is not None else len(found) == 1, (args, found)
        assert "deselected" in run.stdout
    plain = project.run("tests/test_it.py::test_one", AGENT)  # one trial: the name stays
    assert list(names(plain.assert_consistent())) == ["test_one"]
    assert project.run("tests", AGENT, "--codeprobe-tags=slow", "--collect-only", "-q").stdout.count("::") == 1


@pytest.mark.parametrize("mode", list(MODES))
def test_repeats_with_min_passes(project: Project, mode: str) -> None:
    """The status of the tests counts, not the grade; what is decided does not start."""
    project.task("cls", agent=scripted({"say": "no"}), repeats=4, min_passes=2)
    project.write(
        "tests/test_it.py",
        "import pytest\nmark = pytest.mark.codeprobe(task='tasks/cls.yaml')\n"
        "@mark\ndef test_holds(codeprobe_score, codeprobe_trial): assert codeprobe_trial.repeat != 1\n"
        "@mark\ndef test_falls(codeprobe_score, codeprobe_trial): assert codeprobe_trial.repeat == 4\n",
    )
    run = project.run("tests", AGENT, mode=mode).assert_consistent()
    assert run.code == 1, run.output
    gates = {g["name"]: g["held"] for g in run.envelope["data"]["gates"]}
    assert gates == {"test_holds: passes of 4": True, "test_falls: passes of 4": False}
    found = {r["node_id"].partition("::")[2]: (r["status"], r["expected"]) for r in run.envelope["data"]["results"]}
    assert found["test_holds[r1]"] == ("failed", True)
    if mode != "xdist":  # there two run at once, and one more may have begun before it was decided
        assert found["test_holds[r4]"] == ("skipped", False)
        assert [found[f"test_falls[r{n}]"] for n in (1, 2, 3)] == [("failed", False)] * 3
        assert found["test_falls[r4]"] == ("skipped", False)
        assert [run.junit()[f"test_falls[r{n}]"] for n in (1, 2, 3)] == ["skipped", "skipped", "failure"]
    alone = project.run("tests", AGENT, "-k", "holds and r1", mode=mode)
    assert alone.code == 1  # one of the repeats: it stands for itself


def test_a_second_run_in_the_run_dir_runs_them_again(project: Project) -> None:
    usage = {"usage": {"model": "m1", "input_tokens": 100, "output_tokens": 20, "cost_usd": 0.25}}
    project.task("cls", agent=scripted({"write": {"path": "out.txt", "content": "x"}}, usage), repeats=2)
    project.write(
        "tests/test_it.py",
        "import pytest\n@pytest.mark.codeprobe(task='tasks/cls.yaml')\n"
        "def test_it(codeprobe_session, codeprobe_score): assert codeprobe_session.usage.cost_usd == 0.25\n",
    )
    project.run("tests", AGENT, "--codeprobe-run-dir=run")
    run = project.run("tests", AGENT, "--codeprobe-run-dir=run", "--codeprobe-resume")
    assert run.code == 0, run.output
    assert [(r["status"], r["attempts"], r["cost_usd"]) for r in run.envelope["data"]["results"]] == [("passed", 2, 0.5)] * 2


def test_a_task_that_is_to_be_skipped_and_a_wrong_marker(project: Project) -> None:
    fill(project, skip="not today")
    run = project.run("tests", AGENT, EXPERIMENT, "-rs")
    assert {s for name, s in names(run.assert_consistent()).items() if "test_one" not in name} == {"skipped"}
    assert "not today" in run.stdout
    forced = project.run("tests", AGENT, EXPERIMENT, "-k", "narrow", "--codeprobe-include-skipped")
    assert set(names(forced.assert_consistent()).values()) == {"passed"}
    project.write("tests/test_it.py", TESTS.replace('variant="sonnet"', 'variant="opus"'))
    wrong = project.run("tests", AGENT, EXPERIMENT)
    assert wrong.code == 4
    assert "the marker fits no trial of its task; name one by variant: haiku, sonnet; row: a, b" in wrong.output
    assert project.run("tests", AGENT, EXPERIMENT, "-k", "test_one").code == 0  # it is not among the selected
