"""Limits stop a session and grade what is there; provider faults and early crashes give one more attempt; full disks say so."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.front_door import Project, Run, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
SLEEP = {"sleep": 60}


def usage(inputs: int = 10, outputs: int = 5, cost: float = 0.25) -> dict[str, Any]:
    return {"usage": {"model": "m", "input_tokens": inputs, "output_tokens": outputs, "cost_usd": cost}}


#: limits of a session: run_limits or sandbox.limits, steps, limit_hit
LIMITS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], tuple[str, float]]] = {
    "task-timeout": ({"task_timeout": 1}, [WRITE, SLEEP], ("task_timeout", 1)),
    "turn-timeout": ({"turn_timeout": 1, "task_timeout": 30}, [WRITE, SLEEP], ("turn_timeout", 1)),
    "output": ({"output_mb": 0.01}, [WRITE, {"run": "seq 100000"}, SLEEP], ("output_mb", 0.01)),
    "turns": ({"max_turns": 2}, [WRITE, {"run": "true"}, {"run": "true"}, SLEEP], ("max_turns", 2)),
    "input-tokens": ({"max_input_tokens": 99}, [WRITE, usage(100), SLEEP], ("max_input_tokens", 99)),
    "output-tokens": ({"max_output_tokens": 9}, [WRITE, usage(outputs=10), SLEEP], ("max_output_tokens", 9)),
    "total-tokens": ({"max_total_tokens": 14}, [WRITE, usage(10, 5), SLEEP], ("max_total_tokens", 14)),
    "usd": ({"max_usd": 0.4}, [WRITE, usage(), usage(), SLEEP], ("max_usd", 0.4)),
}


def limited(project: Project, task_id: str, limits: dict[str, Any], steps: list[dict[str, Any]]) -> None:
    own = {k: v for k, v in limits.items() if k == "output_mb"}
    rest = {k: v for k, v in limits.items() if k != "output_mb"}
    project.task(task_id, agent=scripted(*steps), run_limits=rest, sandbox={"limits": own})


def test_limits_stop_and_grade(project: Project, mode: str) -> None:
    """Each ends its session at once; the work counts, unless the task says that a limit is a fail."""
    for name, (limits, steps, _) in LIMITS.items():
        limited(project, name, limits, steps)
    limited(project, "fail", {"max_turns": 1, "on_limit": "fail"}, [WRITE, {"run": "true"}, SLEEP])
    limited(
        project, "none", {"max_turns": 3, "max_usd": 1, "task_timeout": 60, "expected_turns": 1}, [WRITE, {"run": "true"}, {"say": "x"}]
    )
    run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    run.assert_nothing_left()
    hits = {task: e["limit_hit"] and (e["limit_hit"]["name"], e["limit_hit"]["value"]) for task, e in run.finished.items()}
    assert hits == {**{name: hit for name, (_, _, hit) in LIMITS.items()}, "fail": ("max_turns", 1), "none": None}
    assert run.statuses == {**dict.fromkeys(LIMITS, "passed"), "fail": "failed", "none": "passed"}
    assert run.result("fail")["reason"] == "limit max_turns = 1 was hit (on_limit: fail)"
    assert "limit hit: max_turns = 1" in run.output
    # beyond what was expected: said, never a fail (tool calls and one final message)
    assert run.result("none")["expected_turns_overage"] == 2
    assert run.result("usd")["cost_usd"] == 0.5
    # stopped at once, not at its sleep's end
    assert max(r["duration_seconds"] for r in run.envelope["data"]["results"]) < 30
    log = run.trial("output") / "attempt-1" / "agent.stdout"
    assert log.stat().st_size <= int(0.01 * (1 << 20))


def test_setup_timeout(project: Project) -> None:
    """Not the agent's doing: an error, with the limit that was hit."""
    project.task("t", agent=scripted(WRITE), pre_run=[{"command": "sleep 60", "timeout": 60}], run_limits={"setup_timeout": 1})
    project.task("own", agent=scripted(WRITE), pre_run=[{"command": "sleep 60", "timeout": 1}])
    project.task("lenient", agent=scripted(WRITE), pre_run=[{"command": "sleep 60", "timeout": 0.5, "fail_on_error": False}])
    run = project.run("tasks", "--codeprobe-agent=scripted").assert_consistent()
    assert run.statuses == {"t": "error", "own": "error", "lenient": "passed"}
    assert run.finished["t"]["limit_hit"] == {"name": "setup_timeout", "value": 1.0}
    assert run.finished["t"]["code"] == run.finished["own"]["code"] == "SANDBOX_FAILED"
    assert run.result("own")["reason"] == "pre_run 'sleep 60' took longer than its timeout of 1 s"
    assert run.result("t")["phase"] == "prepare"


def test_grading_timeout(project: Project) -> None:
    """The verifier's trouble, not the agent's, as long as nothing that decides was missed."""
    slow = [
        {"type": "run_command", "command": "sleep 60", "timeout": 60, "weight": 0},
        {"type": "file_exists", "path": "out.txt"},
    ]
    project.task("t", agent=scripted(WRITE), success_criteria=slow, run_limits={"grading_timeout": 1})
    run = project.run("tasks", "--codeprobe-agent=scripted").assert_consistent()
    assert (run.statuses["t"], run.finished["t"]["code"]) == ("error", "VERIFIER_FAILED")
    assert run.result("t")["phase"] == "grade"
    assert run.seconds < 40
    run.assert_nothing_left()


def test_code_that_hangs_while_it_is_graded_is_no_error(project: Project) -> None:
    """Else an agent could leave the pass rate by an endless loop."""
    slow = [{"type": "run_command", "command": "sh out.txt", "timeout": 60}, {"type": "file_exists", "path": "out.txt"}]
    loop = {"write": {"path": "out.txt", "content": "sleep 60\n"}}
    project.task("t", agent=scripted(loop), success_criteria=slow, run_limits={"grading_timeout": 1})
    run = project.run("tasks", "--codeprobe-agent=scripted").assert_consistent()
    assert (run.code, run.statuses) == (1, {"t": "failed"})
    assert [c["verdict"] for c in run.result("t")["criteria"]] == ["failed", "left out"]


def test_a_workspace_that_became_a_link_is_empty_for_graders(project: Project) -> None:
    project.write("elsewhere/out.txt", "not made by the session\n")
    link = f'cd / && rm -rf "$OLDPWD" && ln -s \'{project.path}/elsewhere\' "$OLDPWD"'
    project.task("t", agent=scripted({"run": link}))
    run = project.run("tasks", "--codeprobe-agent=scripted").assert_consistent()
    assert (run.code, run.statuses) == (1, {"t": "failed"})
    assert (project.path / "elsewhere" / "out.txt").exists()


def test_one_more_attempt(project: Project, mode: str) -> None:
    """Two attempts in fresh workspaces, both kept on disk, their costs added up."""
    run_it = f"touch {project.marks}/run-$(date +%s%N); test ! -e left && touch left; ls >seen"
    steps: dict[str, list[dict[str, Any]]] = {
        "AGENT_CRASHED": [{"fail": "AGENT_CRASHED"}],  # a usage is a reply, and after one a crash is final
        "LLM_UNAVAILABLE": [usage(), {"run": run_it}, {"fail": "LLM_UNAVAILABLE"}],
    }
    for code, of_it in steps.items():
        project.task(code, agent=scripted(*of_it), post_run=[{"command": f"touch {project.marks}/post-{code}"}])
    began = time.monotonic()
    run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    assert time.monotonic() - began > 5  # the wait between them
    for code in steps:
        assert_tried_twice(run, code, 2 * (code == "LLM_UNAVAILABLE"))
        assert (project.marks / f"post-{code}").exists()
    assert len(list(project.marks.glob("run-*"))) == 2
    second = run.result("LLM_UNAVAILABLE")
    assert not [c for c in second["changed_files"] if c.startswith("M")]  # it found nothing of the first
    assert (run.trial("LLM_UNAVAILABLE") / "artifacts" / "seen").read_text() == "left\nseen\n"
    run.assert_nothing_left()
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


def assert_tried_twice(run: Run, code: str, spent: int) -> None:
    """Of the task that is called after its code: two attempts, so many of them paid."""
    assert (run.statuses[code], run.finished[code]["code"]) == ("error", code)
    record = run.result(code)
    assert [(a["number"], a["cause"], a["code"]) for a in record["attempts"]] == [(1, "first", code), (2, "retry", code)]
    assert record["cost_usd"] == run.finished[code]["cost_usd"] == 0.25 * spent
    assert record["usage"]["input_tokens"] == 10 * spent
    assert record["limit_hit"] is None
    for number in (1, 2):
        folder = run.trial(code) / f"attempt-{number}"
        assert json.loads((folder / "transcript.json").read_text())["steps"]
        assert (folder / "agent.stdout").stat().st_size
        assert (folder / "trial.log").stat().st_size
    events = [(e["event"], e.get("attempt")) for e in run.events if e.get("task_id") == code]
    assert events == [("trial_started", 1), ("trial_retried", 2), ("trial_started", 2), ("trial_finished", 2)]


def test_no_second_attempt(project: Project) -> None:
    """After a reply a crash is the agent's; auth and blocked can't be helped; a limit has been hit."""
    project.task("auth", agent=scripted({"fail": "AUTH_FAILED"}), file="auth/t.yaml")
    project.task("blocked", agent=scripted({"fail": "AGENT_BLOCKED"}))
    project.task("crashed", agent=scripted(WRITE, {"fail": "AGENT_CRASHED"}))
    project.task("exit", agent=scripted(WRITE, {"exit": 3}))
    run = project.run("tasks", "auth", "--codeprobe-agent=scripted").assert_consistent()
    assert {t: (e["status"], e["code"]) for t, e in run.finished.items()} == {
        "auth": ("error", "AUTH_FAILED"),
        "blocked": ("error", "AGENT_BLOCKED"),
        "crashed": ("error", "AGENT_CRASHED"),
        "exit": ("passed", None),
    }
    assert {len(r["attempts"]) for r in (run.result(t) for t in run.finished)} == {1}


# ---- full disks


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 8 MiB."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.geteuid() != 0:
        pytest.skip("mounting a file system takes root")
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(place)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield place
    with contextlib.suppress(OSError):
        os.chdir("/")
    subprocess.run(["umount", "-l", str(place)], check=True)


def assert_full(run: Run, task: str) -> None:
    """SANDBOX_FAILED that says what is the matter."""
    assert "INTERNALERROR" not in run.output
    assert "Logging error" not in run.output
    assert run.code == 6
    assert (run.statuses[task], run.finished[task]["code"]) == ("error", "SANDBOX_FAILED")
    assert "No space left on device" in run.finished[task]["reason"]
    entry = next(e for e in run.envelope["errors"] if e["code"] == "SANDBOX_FAILED")
    assert entry["remediation"]
    run.assert_nothing_left()


@pytest.mark.parametrize("how", ["template", "session", "pre-run", "output", "grading"])
def test_full_disk_below_trials(project: Project, small_disk: Path, how: str) -> None:
    """TMPDIR is full: at layout, by the agent's files, by its output, by a grader."""
    project.environment["TMPDIR"] = str(small_disk)
    fill = "head -c 20000000 /dev/zero >fill"
    fields: dict[str, Any] = {"agent": scripted(WRITE)}
    if how == "template":
        project.write("tasks/templates/big/.keep", "")
        (project.path / "tasks/templates/big/file").write_bytes(os.urandom(1 << 20) * 12)
        fields["sandbox"] = {"template_sources": [{"type": "template_dir", "path": "templates/big"}]}
    if how == "session":
        fields["agent"] = scripted({"run": fill}, WRITE)
    if how == "pre-run":
        fields["pre_run"] = [{"command": fill}]
    if how == "output":
        fields["agent"] = {"type": "command", "command": ["sh", "-c", "echo x >out.txt; seq 3000000"]}
    if how == "grading":
        fields["success_criteria"] = [{"type": "run_command", "command": f"{fill}; true"}, {"type": "file_exists", "path": "out.txt"}]
    project.task("a-full", **fields)
    project.task("b-next", agent=scripted(WRITE))
    run = project.run("tasks/*.yaml", "--codeprobe-preserve=none").assert_consistent()
    if how == "session":  # the agent's own trouble, if there is room for what the harness writes; else said as it is
        assert run.finished["a-full"]["status"] in ("failed", "passed", "error")
        assert run.finished["a-full"]["status"] != "error" or run.finished["a-full"]["code"] == "SANDBOX_FAILED"
    else:
        assert_full(run, "a-full")
    assert run.statuses["b-next"] == "passed"  # the first one's folder is gone
    assert not list(small_disk.glob("codeprobe-*"))


def test_full_run_dir(project: Project, small_disk: Path) -> None:
    """What is kept doesn't fit: an error of that trial; the envelope is there, and the next run works."""
    project.task("a-big", agent=scripted({"run": "head -c 20000000 /dev/urandom >big"}, WRITE))
    project.task("b-small", agent=scripted(WRITE))
    run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-run-dir={small_disk}/run").assert_consistent()
    assert_full(run, "a-big")
    assert run.statuses["b-small"] == "passed"
    again = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-preserve=none").assert_consistent()
    assert set(again.statuses.values()) == {"passed"}


@pytest.mark.parametrize("mode", ["plain", "jobs"])  # xdist ends workers that hear no flag
def test_interrupt_where_no_flag_can_be_raised(project: Project, mode: str, small_disk: Path) -> None:
    """The run dir's file system takes no further file: the signal still ends the session, and pytest by its own way."""
    subprocess.run(["mount", "-o", "remount,size=8m,nr_inodes=200", str(small_disk)], check=True)
    fill = f"i=0; while touch {small_disk}/$i; do i=$((i+1)); done 2>/dev/null; touch {project.marks}/full"
    fill += f"; sleep 600; : {project.mark_text}"
    project.task("a-held", agent=scripted(WRITE, {"run": fill}))
    later = f"until [ -e {project.marks}/full ]; do sleep 0.1; done; touch {project.marks}/later; sleep 600; : {project.mark_text}"
    names = ("b-later", "c-later")
    for name in names:
        project.task(name, agent=scripted(WRITE, {"run": later}))
    run = project.start("tasks", "--codeprobe-agent=scripted", "--codeprobe-json", f"--codeprobe-run-dir={small_disk}/run", mode=mode)
    run.wait_for("full")
    if mode != "plain":
        run.wait_for("later")
    run.signal(signal.SIGINT)
    run.wait(20)
    assert run.code == 2
    assert "INTERNALERROR" not in run.output
    (envelope,) = run.lines
    assert {r["task_id"]: (r["status"], r["reason"]) for r in envelope["data"]["results"]} == dict.fromkeys(
        ("a-held", *names), ("not_run", "interrupted")
    )
    assert "INTERRUPTED" in {e["code"] for e in envelope["errors"]}
    assert "No space left on device" in json.dumps(envelope)
    run.assert_nothing_left()
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


@pytest.mark.parametrize("where", ["trials", "run dir"])
def test_many_trials_on_a_full_disk(project: Project, small_disk: Path, where: str) -> None:
    """Each is what it can be; the disk's trouble is said as such, and it is no end of the run."""
    args = []
    if where == "trials":
        project.environment["TMPDIR"] = str(small_disk)
    else:
        args.append(f"--codeprobe-run-dir={small_disk}/run")
    for number in range(24):
        command = f"head -c 1500000 /dev/urandom >fill; sleep 0.{number % 3}; echo x >out.txt"
        project.task(
            f"t{number:02}", agent=scripted({"run": command}), success_criteria=[{"type": "run_command", "command": "grep x out.txt"}]
        )
    run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-jobs=8", "--codeprobe-json", *args)
    assert "INTERNALERROR" not in run.output
    (envelope,) = run.lines
    assert envelope["exit_code"] == run.code
    results = envelope["data"]["results"]
    assert len(results) == 24
    ends = {(r["status"], r["code"]) for r in results}
    assert ends <= {("passed", None), ("failed", None), ("error", "SANDBOX_FAILED")}
    assert ("error", "SANDBOX_FAILED") in ends
    assert all("No space left" in r["reason"] for r in results if r["status"] == "error")
    told = [json.loads(line) for line in (run.folder / "events.ndjson").read_text().splitlines()]
    assert [e["seq"] for e in told] == list(range(len(told)))  # whole lines, as far as there was room
    run.assert_nothing_left()
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_run_dir_without_any_room(project: Project, mode: str, small_disk: Path) -> None:
    """Not even events and results can be written: no INTERNALERROR, a plain reason, and the next run works."""
    (small_disk / "ballast").write_bytes(bytes((8 << 20) - 32768))
    for number in range(40):
        project.task(f"t{number:02}", agent=scripted(WRITE, {"say": "x" * 2000}))
    run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-json", f"--codeprobe-run-dir={small_disk}/run", mode=mode)
    assert "INTERNALERROR" not in run.output
    (envelope,) = run.lines
    assert envelope["exit_code"] == run.code != 0
    assert "No space left on device" in json.dumps(envelope)
    run.assert_nothing_left()
    assert not list(Path(project.environment["TMPDIR"]).glob("codeprobe-*"))
    (small_disk / "ballast").unlink()
    again = project.run("tasks", "--codeprobe-agent=scripted", "-k", "t00").assert_consistent()
    assert again.statuses == {"t00": "passed"}
