"""The same tasks in every mode: the same outcomes, ids, records, counts, exit code and JUnit."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.front_door import MODES, Project, Run, comparable, scripted

pytestmark = pytest.mark.joint

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}


def fill(project: Project, *, seconds: int = 1) -> None:
    """One task of each kind of ending, ordinary tests between them. `seconds` that one has which goes on longer."""
    project.write("tests/test_before.py", "def test_plain(): print('noise')\n")
    project.task(
        "a-pass",
        agent=scripted(WRITE, {"say": "I wrote it."}, {"usage": {"model": "m1", "input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}}),
    )
    project.task("b-fail", agent=scripted({"say": "no idea"}))
    project.task("c-error", agent=scripted(WRITE), pre_run=[{"command": "exit 3"}])
    project.task("d-skip", agent=scripted(WRITE), skip="not today")
    project.task("e-xfail", agent=scripted(), xfail="known gap")
    project.task("f-limit", agent=scripted(WRITE, {"sleep": 30}), run_limits={"task_timeout": seconds})
    project.task("g-crash", agent=scripted({"fail": "AGENT_CRASHED"}))
    project.task(
        "h-verifier",
        agent=scripted(WRITE),
        success_criteria=[{"type": "run_command", "command": "/no/such/program", "expected_exit_code": 127}],
    )
    project.task("i-xpass", agent=scripted(WRITE), xfail="was a gap")
    project.write("ztests/test_after.py", "def test_bad(): assert 0\ndef test_good(): pass\n")


def records(run: Run) -> dict[str, Any]:
    found = {}
    for trial in run.plan:
        file = run.folder / "trials" / trial["folder"] / "result.json"
        found[trial["node_id"]] = comparable(json.loads(file.read_text())) if file.exists() else None
    return found


def outcome(run: Run) -> dict[str, Any]:
    """What two runs are compared by."""
    envelope = comparable(run.envelope)
    envelope["data"]["run_dir"] = None
    envelope["next_steps"] = [step["summary"] for step in envelope["next_steps"]]  # their commands say how the run was spread
    for error in envelope["errors"]:
        error["command"] = error["command"] is not None
    for part in ("results", "variants"):
        envelope["data"][part] = sorted(map(json.dumps, envelope["data"][part]))
    events = sorted(json.dumps({k: v for k, v in comparable(e).items() if k not in ("seq", "time")}) for e in run.events)
    return {"code": run.code, "envelope": envelope, "events": events, "records": records(run), "junit": run.junit()}


def test_modes_agree(project: Project) -> None:
    fill(project)
    seen = {}
    for mode in MODES:
        run = project.run("tests", "tasks", "ztests", f"--codeprobe-run-dir=run-{mode}", "--codeprobe-agent=scripted", mode=mode)
        run.assert_consistent()
        run.assert_nothing_left()
        seen[mode] = outcome(run)
    first = seen.pop("plain")
    assert first["code"] == 1
    statuses = {json.loads(r)["task_id"]: json.loads(r)["status"] for r in first["envelope"]["data"]["results"]}
    assert statuses == {
        "a-pass": "passed",
        "b-fail": "failed",
        "c-error": "error",
        "d-skip": "skipped",
        "e-xfail": "failed",
        "f-limit": "passed",
        "g-crash": "error",
        "h-verifier": "passed",
        "i-xpass": "passed",
    }
    for mode, other in seen.items():
        assert other == first, mode
