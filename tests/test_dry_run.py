"""--codeprobe-dry-run: everything is resolved and checked, nothing starts, and the estimate holds what a real run then takes."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.criteria.command.programs import programs_of
from pytest_codeprobe.run.estimate import RUNS, History, estimate, makespan
from pytest_codeprobe.run.plan import PlannedTrial
from tests.front_door import Project, Run, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"
DRY = "--codeprobe-dry-run"


def usage(tokens: int, dollars: float) -> dict[str, Any]:
    return {"usage": {"model": "m1", "input_tokens": tokens, "output_tokens": tokens // 10, "cost_usd": dollars}}


def marking(project: Project, name: str) -> str:
    """A shell command that leaves a mark."""
    return f"touch '{project.marks}/{name}'"


def fill(project: Project) -> None:
    """A task that would leave marks wherever something of it runs, a skipped one, ordinary and marked tests, a fixture, hooks."""
    steps: list[dict[str, Any]] = [WRITE, {"run": marking(project, "agent")}, usage(100, 0.5)]
    project.task(
        "a",
        agent=scripted(*steps),
        pre_run=[{"command": marking(project, "pre_run")}],
        post_run=[{"command": marking(project, "post_run")}],
        success_criteria=[{"type": "run_command", "command": marking(project, "grader")}],
        fixtures=["marking"],
    )
    project.task("b", agent=scripted(*steps), skip="not today")
    touch = f"open({str(project.marks)!r} + '/' + name, 'w').close()"
    project.write(
        "conftest.py",
        f"""import pytest
def mark(name): {touch}
@pytest.fixture
def marking(): mark('fixture')
@pytest.fixture(autouse=True, scope='session')
def always(): mark('session')
@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item): mark('setup')
def pytest_runtest_teardown(item): mark('teardown')
""",
    )
    project.write(
        "tests/test_own.py",
        f"""import pytest
def setup_module():
    name = 'module'; {touch}
def test_ordinary():
    name = 'ordinary'; {touch}
@pytest.mark.codeprobe(task='tasks/a.yaml')
def test_marked(codeprobe_score):
    name = 'marked'; {touch}
""",
    )


def test_nothing_starts(project: Project, mode: str) -> None:
    fill(project)
    run = project.run("tasks", "tests", AGENT, DRY, mode=mode)
    envelope = run.run_dir_of_it().assert_consistent().envelope
    assert run.code == 0, run.output
    assert list(project.marks.iterdir()) == []
    data = envelope["data"]
    assert {r["task_id"]: r["reason"] for r in data["results"] if "::test_" not in r["node_id"]} == {"a": "dry run", "b": "not today"}
    assert [r["reason"] for r in data["results"] if "::test_" in r["node_id"]] == ["dry run"]
    assert {r["attempts"] for r in data["results"]} == {0}
    assert (data["tasks_skipped"], data["ordinary_tests"]) == (3, {"skipped": 1})
    assert data["estimate"]["trials"] == 2
    assert {e["event"] for e in run.events} == {"run_started", "trial_finished"}
    assert not (run.folder / "trials").exists()
    assert not (project.path / ".codeprobe/runs/latest").is_symlink()
    assert "estimate for 2 trials" in run.output
    run.assert_nothing_left()
    assert [p.name for p in Path(project.environment["TMPDIR"]).iterdir() if not p.name.startswith("pytest-of-")] == []


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_ordinary_tests_alone_do_not_run_either(project: Project, mode: str) -> None:
    project.write("tests/test_own.py", "def test_ordinary(): raise SystemExit(9)\n")
    run = project.run("tests", DRY, mode=mode)
    assert (run.code, run.junit()) == (0, {"test_ordinary": "skipped"})
    assert not (project.path / ".codeprobe").exists()


def test_the_estimate_holds_what_the_next_run_takes(project: Project, mode: str) -> None:
    for n in range(1, 4):
        project.task(f"t{n}", agent=scripted({"sleep": 0.1 * n}, WRITE, usage(1000 * n, 0.25 * n)))
    if mode == "plain":
        cold = project.run("tasks", AGENT, DRY).run_dir_of_it().envelope["data"]["estimate"]
        assert (cold["measured_trials"], cold["runs"]) == (0, 0)
        assert cold["cost_usd"] == {"low": 0, "expected": None, "high": None, "unknown_trials": 3}
        assert cold["duration_seconds"]["low"] == 0
        assert cold["duration_seconds"]["expected"] is None
    measured = project.run("tasks", AGENT, mode=mode).assert_consistent().envelope["data"]
    latest = project.path / ".codeprobe/runs/latest"
    before = latest.readlink()
    told = project.run("tasks", AGENT, DRY, mode=mode).run_dir_of_it().envelope["data"]["estimate"]
    assert latest.readlink() == before, "a dry run is not the latest"
    assert (told["trials"], told["measured_trials"], told["runs"]) == (3, 3, 1)
    assert told["parallel"] == {"plain": 1, "xdist": 2, "jobs": 4}[mode]
    # the run that it was made from lies within it to the last second; of one that follows, all that does not hang on the machine
    assert told["duration_seconds"]["low"] < told["duration_seconds"]["expected"] < told["duration_seconds"]["high"]
    assert told["duration_seconds"]["low"] <= measured["duration_seconds"] <= told["duration_seconds"]["high"]
    assert told["duration_seconds"]["expected"] == pytest.approx(measured["duration_seconds"], abs=0.01)
    if mode == "plain":
        measured = project.run("tasks", AGENT, mode="jobs").assert_consistent().envelope["data"]
    tokens = sum(n for n in measured["tokens"].values() if n is not None)
    for name, value in (("tokens", tokens), ("cost_usd", measured["cost_usd"])):
        assert told[name]["low"] <= told[name]["expected"] == value <= told[name]["high"], name


def test_limits_bound_what_nobody_has_measured(project: Project) -> None:
    limits = {"max_usd": 2, "max_total_tokens": 5000, "task_timeout": 60, "setup_timeout": 30, "grading_timeout": 10}
    project.task("t", agent=scripted(WRITE), run_limits=limits)
    project.task("u", agent=scripted(WRITE), run_limits=limits)
    told = project.run("tasks", AGENT, DRY).run_dir_of_it().envelope["data"]["estimate"]
    assert told["cost_usd"] == {"low": 0, "expected": None, "high": 4, "unknown_trials": 2}
    assert told["tokens"]["high"] == 10000
    assert told["duration_seconds"]["high"] == 200
    free = project.run("tasks", "--codeprobe-agent=nop", DRY).run_dir_of_it().envelope["data"]["estimate"]
    assert free["cost_usd"] == {"low": 0, "expected": 0, "high": 0, "unknown_trials": 0}


# ---- what it finds


BROKEN_TEST = "def test_it(:\n    pass\n"


def test_what_would_fail_every_agent_alike_is_found(project: Project) -> None:
    """Each with the code that the trial would end with; what a session may still bring is a warning. Nothing of it is left."""
    folder = project.path / "tasks" / "files"
    folder.mkdir(parents=True)
    (folder / "out").symlink_to("/etc")
    project.write("tasks/hidden/test_broken.py", BROKEN_TEST)
    project.write("tasks/hidden/test_fine.py", "def test_it(): pass\n")
    command = {"type": "command", "command": ["no-such-cli", "{prompt}"]}
    bring = [{"command": marking(project, "pre_run")}]

    def hidden(name: str, **more: Any) -> list[dict[str, Any]]:
        return [{"type": "pytest", "paths": [f"hidden/{name}.py"], **more}]

    project.environment["CODEPROBE_DRIVER"] = ""
    project.task("driver", agent=scripted(WRITE), sandbox={"driver": "docker", "docker": {"image": "x"}})
    project.write("pytest.ini", "[pytest]\ncodeprobe_engine = no-engine\n")
    for name in ("template-1", "template-2"):
        project.task(name, agent=scripted(WRITE), sandbox={"template_sources": [{"type": "template_dir", "path": "files"}]})
    project.task("syntax", agent=scripted(WRITE), success_criteria=hidden("test_broken"))
    project.task("requires", agent=scripted(WRITE), success_criteria=hidden("test_fine", requires=["no_such_package"]))
    project.task("cli", agent=command)
    project.task("cli-inside", agent={**command, "command": ["./none.sh"]})
    project.task("cli-by-pre-run", agent=command, pre_run=bring)
    project.task("disabled", agent=scripted(WRITE), success_criteria=[*hidden("test_fine"), {**hidden("test_broken")[0], "enabled": False}])
    graders = [{"type": "run_command", "command": line} for line in ("cd /tmp && no-such-tool --check | cat", "no-such-tool || true")]
    project.task("grader", agent=scripted(WRITE), success_criteria=graders)
    run = project.run(*sorted(f"tasks/{p.name}" for p in (project.path / "tasks").glob("*.yaml")), DRY).run_dir_of_it().assert_consistent()
    found = {task: (e["code"], e["reason"]) for task, e in run.finished.items()}
    assert {task: code for task, (code, _) in found.items()} == {
        "driver": "SANDBOX_UNAVAILABLE",
        **dict.fromkeys(("template-1", "template-2"), "SANDBOX_FAILED"),
        **dict.fromkeys(("syntax", "requires"), "VERIFIER_FAILED"),
        "cli": "AGENT_CRASHED",
        **dict.fromkeys(("cli-inside", "cli-by-pre-run", "disabled", "grader")),
    }
    assert "does not parse" in found["syntax"][1]
    assert "the hidden tests need no_such_package" in found["requires"][1]
    assert "there is no program 'no-such-cli'" in found["cli"][1]
    assert [w for w in run.envelope["warnings"] if "no program" in w] == [
        "dry run: tasks/cli-inside.yaml::cli-inside: the templates have no program './none.sh', which agent command would start",
        "dry run: tasks/grader.yaml::grader: criterion 1 (run_command): there is no program 'no-such-tool' here",
    ]
    assert (run.code, run.envelope["data"]["estimate"]["trials"]) == (6, 4)
    assert not list(project.marks.iterdir())
    run.assert_nothing_left()
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


@pytest.mark.parametrize("args", [(), (DRY,)])
def test_why_oracle_skips_a_task_is_said(project: Project, args: tuple[str, ...]) -> None:
    """On its record, and once for all of them in the summary."""
    project.task("a", solution={"script": "touch out.txt"})
    for name in "bc":
        project.task(name)
    run = project.run("tasks", "--codeprobe-agent=oracle", *args)
    run = run.run_dir_of_it().assert_consistent()
    why = "agent oracle: the task has no solution to apply"
    assert (run.code, [run.finished[name]["reason"] for name in "bc"]) == (0, [why, why])
    assert [r["reason"] for r in run.envelope["data"]["results"]][1:] == [why, why]
    said = f"3 trials: 3 skipped (2 {why}, 1 dry run)" if args else f"3 trials: 1 passed, 2 skipped ({why})"
    assert said in run.output


@pytest.mark.parametrize(
    ("line", "programs"),
    [
        ("make test", ("make",)),
        ("cd sub && FOO=1 make test | tee log; python -m pytest -q 2>&1", ("make", "tee", "python")),
        ("./run.sh && /usr/bin/env x && sub/tool", ()),
        ("test -f a && [ -d b ] && echo 'no && yes'", ()),
        ("grep -q 'a b' out.txt & wait", ("grep",)),
        ("which jest || exit 0", ()),
        ("if make; then true; fi", ()),
        ("make && for f in *; do cat $f; done", ()),
        ("x() { y; }; x", ()),
        ("`tool` && b", ()),
        ("cat <<E\nmake\nE", ()),
        ("make 'unfinished", ()),
        ("", ()),
    ],
)
def test_programs_that_a_command_is_sure_to_start(line: str, programs: tuple[str, ...]) -> None:
    assert programs_of(line) == programs


def test_a_broken_task_and_a_missing_agent_refuse(project: Project) -> None:
    project.task("a")
    empty = {"PATH": str(project.marks), "ANTHROPIC_API_KEY": "sk-some-key-or-other"}
    run = project.run("tasks", "--codeprobe-agent=claude", DRY, "--codeprobe-json", env=empty, junit=False)
    envelope = run.assert_pure(events=False)
    assert (run.code, [e["code"] for e in envelope["errors"]]) == (4, ["NO_BACKENDS_CONFIGURED"])
    assert (Path(project.path, envelope["data"]["run_dir"]) / "plan.json").exists()
    project.write("tasks/broken.yaml", "task_id: broken\n")
    run = project.run("tasks", AGENT, DRY, "--codeprobe-json-lines", junit=False)
    assert (run.code, [e["code"] for e in run.assert_pure()["errors"]]) == (4, ["TASK_INVALID"])


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("#!/bin/sh\nexec sleep 60\n", "no answer within 2 s"),
        ("#!/bin/sh\nexit 7\n", "exit status 7"),
        ("#!/bin/sh\n", "nothing is printed"),
    ],
)
def test_a_cli_without_a_version_is_a_warning(project: Project, program: str, said: str) -> None:
    project.task("a")
    fake_claude(project, program)
    run = project.run("tasks", "--codeprobe-agent=claude", DRY, "--codeprobe-json", env=claude(project), junit=False)
    envelope = run.assert_pure(events=False)
    assert run.code == 0
    assert [w for w in envelope["warnings"] if "its version is unknown" in w and said in w]
    run.assert_nothing_left()


def test_a_version_in_the_package_is_not_asked_for(project: Project) -> None:
    project.task("a")
    package = project.scratch / "node_modules" / "@anthropic-ai" / "claude-code"
    package.mkdir(parents=True)
    (package / "package.json").write_text('{"version": "2.1.9"}')
    fake_claude(project, f"#!/bin/sh\n{marking(project, 'started')}\n", package / "cli.sh")
    (project.scratch / "bin" / "claude").symlink_to(package / "cli.sh")
    run = project.run("tasks", "--codeprobe-agent=claude", DRY, "--codeprobe-json", env=claude(project), junit=False)
    assert run.code == 0
    assert run.assert_pure(events=False)["warnings"] == []
    assert not list(project.marks.iterdir())


def fake_claude(project: Project, program: str, place: Path | None = None) -> None:
    (project.scratch / "bin").mkdir(exist_ok=True)
    place = place or project.scratch / "bin" / "claude"
    place.write_text(program)
    place.chmod(0o755)


def claude(project: Project) -> dict[str, str]:
    return {"PATH": f"{project.scratch / 'bin'}:{os.environ['PATH']}", "ANTHROPIC_API_KEY": "sk-some-key-or-other"}


@pytest.mark.parametrize("mode", ["plain", "xdist"])  # a worker's warning reaches the summary
def test_neither_a_hook_for_sandboxes_nor_the_canary_runs(project: Project, mode: str) -> None:
    project.environment["CODEPROBE_DRIVER"] = ""
    project.task("a", agent={"type": "command", "command": ["no-such-cli"]}, sandbox={"driver": "docker", "docker": {"image": "x"}})
    project.write("conftest.py", f"def pytest_codeprobe_make_sandbox(): open({str(project.marks)!r} + '/hook', 'w').close()\n")
    run = project.run("tasks", "--codeprobe-agent=command", DRY, "--codeprobe-canary=auto", mode=mode).run_dir_of_it().assert_consistent()
    assert run.code == 0, run.output
    assert not list(project.marks.iterdir())
    assert [w for w in run.envelope["warnings"] if "pytest_codeprobe_make_sandbox in conftest.py, which was not called" in w]
    assert not (project.path / ".codeprobe" / "canary").exists()


def test_all_skipped_is_no_tasks_as_in_the_real_run(project: Project) -> None:
    project.task("a", agent=scripted(WRITE), skip="not today")
    assert project.run("tasks", AGENT).code == 5
    run = project.run("tasks", AGENT, DRY, "--codeprobe-json", junit=False)
    envelope = run.assert_pure(events=False)
    assert (run.code, [e["code"] for e in envelope["errors"]]) == (5, ["NO_TASKS"])
    assert "estimate" in envelope["data"]


def test_without_an_agent_there_is_nothing_to_tell(project: Project) -> None:
    project.task("a", agent=scripted(WRITE))
    run = project.run("tasks", DRY)
    assert run.code == 5
    assert not (project.path / ".codeprobe").exists()
    assert "no agent chosen" in run.output


def test_the_console_script_keeps_its_stdout_pure(project: Project) -> None:
    project.task("a", agent=scripted(WRITE))
    project.write("conftest.py", "print('noise')\n")
    run = project.codeprobe("run", "--dry-run", "--json")
    assert run.code == 0
    assert run.assert_pure(events=False)["data"]["estimate"]["trials"] == 1
    lines = project.codeprobe("run", "--dry-run")  # stdout is no terminal
    assert lines.assert_pure()["data"]["estimate"]["trials"] == 1


# ---- the history


def planned(task: str, **limits: float) -> PlannedTrial:
    return PlannedTrial(
        node_id=f"tasks/{task}.yaml::{task}", task_id=task, variant_id=None, row_id=None, repeat=1, folder=f"default/{task}/r001",
        task_file="x", agent="claude", model=None, driver="auto", limits={"setup_timeout": 600, "task_timeout": 600, **limits},
    )  # fmt: skip


def past(runs: Path, number: int, **fields: Any) -> Path:
    """A run directory with one record of task `t`."""
    folder = runs / f"20260101T{number:09d}Z-abcd" / "trials" / "default" / "t" / "r001"
    folder.mkdir(parents=True)
    usage = {"input_tokens": 100, "output_tokens": 10, "cache_read_tokens": None, "cache_write_tokens": None}
    record = {"status": "passed", "attempts": [{}], "agent": {"name": "claude"}, "cost_usd": 1.0, "duration_seconds": 8.0, "usage": usage}
    (folder / "result.json").write_text(json.dumps({**record, **fields}))
    return folder


def test_a_limit_of_tokens_bounds_only_what_counts_in_it(tmp_path: Path) -> None:
    """What a model reads from a cache is tokens, in the estimate as in the envelope; in `max_total_tokens` only on request."""
    for counted, may_cache, high in ((None, True, None), (True, True, 500), (False, True, None), (None, False, 500)):
        limits = {"max_total_tokens": 500, **({"count_cached_input": counted} if counted is not None else {})}
        told = estimate(
            [planned("t", **limits)],
            History.read(tmp_path, [], but=""),
            parallel=1,
            is_free=lambda _: False,
            may_cache=lambda _, cached=may_cache: cached,  # type: ignore[misc]
        )
        assert told["tokens"] == {"low": 0, "expected": None, "high": high, "unknown_trials": 1}


def ranges(runs: Path, *trials: PlannedTrial, parallel: int = 1) -> dict[str, Any]:
    history = History.read(runs, trials, but="none")
    return estimate(list(trials), history, parallel=parallel, is_free=lambda _: False)


def test_half_of_the_least_the_median_twice_the_most(tmp_path: Path) -> None:
    for number, cost in enumerate((1.0, 5.0, 2.0)):
        past(tmp_path, number, cost_usd=cost)
    assert ranges(tmp_path, planned("t"))["cost_usd"] == {"low": 0.5, "expected": 2.0, "high": 10.0, "unknown_trials": 0}


def test_only_the_newest_runs_count_and_dry_ones_do_not(tmp_path: Path) -> None:
    past(tmp_path, 1, cost_usd=1000.0)
    for number in range(2, 2 + RUNS):
        past(tmp_path, number)
    (tmp_path / "20270101T000000000Z-abcd").mkdir()  # a dry run has no folder of trials
    told = ranges(tmp_path, planned("t"))
    assert (told["runs"], told["cost_usd"]["high"]) == (RUNS, 2.0)


def test_other_agents_errors_and_unknown_costs_do_not_count(tmp_path: Path) -> None:
    past(tmp_path, 1, agent={"name": "codex"})
    past(tmp_path, 2, status="error")
    past(tmp_path, 3, attempts=[])
    past(tmp_path, 4, cost_usd=None)
    told = ranges(tmp_path, planned("t"), planned("u", max_usd=3))
    assert told["measured_trials"] == 1
    assert told["cost_usd"] == {"low": 0, "expected": None, "high": None, "unknown_trials": 2}
    assert told["tokens"]["low"] == 55


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"status": "passed"}', b"[" * 100_000, b'{"cost_usd": NaN}'])
def test_a_broken_record_is_left_out(tmp_path: Path, content: bytes) -> None:
    folder = past(tmp_path, 1)
    (folder / "result.json").write_bytes(content)
    past(tmp_path, 2)
    told = ranges(tmp_path, planned("t"))
    assert (told["runs"], told["cost_usd"]["expected"]) == (1, 1.0)


@pytest.mark.parametrize(
    "fields",
    [{"usage": "much"}, {"usage": {"input_tokens": True}}, {"agent": 3}, {"cost_usd": -1}, {"cost_usd": "1"},
     {"duration_seconds": float("nan")}, {"duration_seconds": 1e300}, {"attempts": "x", "cost_usd": [1]}],
)  # fmt: skip
def test_junk_in_a_record_is_left_out(tmp_path: Path, fields: dict[str, Any]) -> None:
    past(tmp_path, 1, **fields)
    told = ranges(tmp_path, planned("t"))
    assert told["trials"] == 1
    json.dumps(told, allow_nan=False)


def test_what_is_no_file_neither_blocks_nor_fails(tmp_path: Path) -> None:
    folder = past(tmp_path, 1)
    (folder / "result.json").unlink()
    os.mkfifo(folder / "result.json")
    (past(tmp_path, 2) / "result.json").chmod(0)
    (past(tmp_path, 3).parents[3] / "envelope.json").mkdir()
    (past(tmp_path, 4).parents[3] / "envelope.json").write_text(
        '{"data": {"duration_seconds": 1, "results": [null, {"duration_seconds": "x"}]}}'
    )
    (tmp_path / "20260101T000000009Z-abcd").write_text("a file")
    (tmp_path / "20260101T000000008Z-abcd").mkdir()
    (tmp_path / "20260101T000000008Z-abcd" / "trials").write_text("a file")
    (tmp_path / "20260101T000000007Z-abcd").symlink_to("/nowhere")
    assert stat.S_ISFIFO((folder / "result.json").stat().st_mode)
    assert ranges(tmp_path, planned("t"))["measured_trials"] == 1
    assert ranges(tmp_path / "nowhere", planned("t"))["measured_trials"] == 0


def test_the_span_of_a_run() -> None:
    assert makespan([], 4) == 0
    assert makespan([3, 1, 1, 1], 1) == 6
    assert makespan([3, 1, 1, 1], 2) == 3
    assert makespan([1, 1, 1, 3], 2) == 4
    assert makespan([2, 2], 100) == 2


def test_a_run_cut_off_in_the_middle_still_tells_what_its_trials_took(project: Project) -> None:
    project.task("a", agent=scripted(WRITE, usage(100, 0.5)))
    project.task("b", agent=scripted(WRITE, {"run": marking(project, "there")}, {"sleep": 60}))
    run: Run = project.start("tasks", AGENT)
    run.wait_for("there")
    run.signal(9)
    run.wait()
    told = project.run("tasks", AGENT, DRY).run_dir_of_it().envelope["data"]["estimate"]
    assert (told["measured_trials"], told["cost_usd"]["unknown_trials"]) == (1, 1)
