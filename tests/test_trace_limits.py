"""Limits of transcripts: of one, of all together, and what it means to be over them; the same in every mode."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_codeprobe.agents.base.transcripts import STEP_JSON, Draft, TranscriptBuilder, json_size
from pytest_codeprobe.model.result import AgentInfo, Usage
from pytest_codeprobe.model.transcript import Transcript
from tests.front_door import Project, Run, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"
HEAD = 700  #: bytes of a transcript beside its steps, and of the step that says where it was cut
ENDLESS = "i=0; while [ $i -lt 100000 ]; do echo line $i of many; i=$((i+1)); done"


def talking(count: int, size: int = 1000) -> dict[str, Any]:
    return scripted(*({"say": f"{n} " + "x" * size} for n in range(count)), WRITE)


def named(*tasks: str) -> list[str]:
    """Each by its file: that chooses the agent which it names itself."""
    return [f"tasks/{task}.yaml" for task in tasks]


def transcript(run: Run, task: str) -> dict[str, Any]:
    return dict(json.loads((run.trial(task) / "attempt-1" / "transcript.json").read_text()))


def size(run: Run, task: str) -> int:
    return (run.trial(task) / "attempt-1" / "transcript.json").stat().st_size


def is_cut(run: Run, task: str) -> bool:
    return bool(transcript(run, task)["steps"][-1].get("extra") == {"truncated": True})


def test_truncate_marks_the_end_and_goes_on(project: Project) -> None:
    project.task("long", agent=talking(50))
    project.task("short", agent=scripted(WRITE))
    project.task("quiet", agent={"type": "command", "command": ["sh", "-c", f"{ENDLESS}; echo done > out.txt"]})
    run = project.run(*named("long", "short", "quiet"), "--codeprobe-trace-max-bytes=20000").assert_consistent()
    assert (run.code, run.statuses) == (0, {"long": "passed", "short": "passed", "quiet": "passed"})
    assert is_cut(run, "long")
    assert is_cut(run, "quiet")  # of which all is one step, made at its end
    for name, warned in (("long", True), ("short", False), ("quiet", True)):
        said = [w for w in run.result(name)["warnings"] if w == "the transcript was truncated after 20000 bytes; the raw log has the rest"]
        assert len(said) == warned
    assert not is_cut(run, "short")
    assert 15_000 < size(run, "long") < 20_000 + HEAD
    Transcript.model_validate(transcript(run, "long"))
    assert "49 xxx" in (run.trial("long") / "attempt-1" / "agent.stdout").read_text()  # the raw log has all of it
    assert [w for w in run.envelope["warnings"] if "transcript was truncated" in w]


def test_fail_stops_the_session(project: Project) -> None:
    """Also where it has ended before anybody looked, and where its transcript is made at its end."""
    project.task("long", agent=scripted({"say": "x" * 3000}, {"usage": {"cost_usd": 0.5}}, {"sleep": 60}, WRITE))
    project.task("quick", agent=scripted({"say": "x" * 3000}, WRITE))
    project.task("quiet", agent={"type": "command", "command": ["sh", "-c", f"{ENDLESS}; echo done > out.txt"]})
    project.task("short", agent=scripted(WRITE))
    flags = ("--codeprobe-trace-overflow=fail", "--codeprobe-trace-max-bytes=2000")
    run = project.run(*named("long", "quick", "quiet", "short"), *flags).assert_consistent()
    assert (run.code, run.statuses) == (6, {"long": "error", "quick": "error", "quiet": "error", "short": "passed"})
    record = run.result("long")
    assert (record["code"], record["phase"], len(record["attempts"])) == ("TRACE_OVERFLOW_FIRED", "session", 1)
    assert record["attempts"][0]["code"] == "TRACE_OVERFLOW_FIRED"
    assert record["cost_usd"] in (0.0, 0.5)  # whichever came first: the stop, or the bill
    assert record["duration_seconds"] < 30
    (error,) = run.envelope["errors"]
    assert (error["code"], error["count"]) == ("TRACE_OVERFLOW_FIRED", 3)
    assert "2000 bytes" in error["message"]
    assert "--codeprobe-trace-max-bytes" in error["remediation"]
    run.assert_nothing_left()


def test_off_writes_none(project: Project) -> None:
    check = 'test -z "${TRANSCRIPT+set}"'
    project.task(
        "t", agent=talking(5), success_criteria=[{"type": "run_command", "command": check}, {"type": "file_exists", "path": "out.txt"}]
    )
    limits = ("--codeprobe-trace-max-bytes=100", "--codeprobe-trace-budget=100")
    run = project.run("tasks", AGENT, "--codeprobe-trace-overflow=off", *limits).assert_consistent()
    assert (run.code, run.envelope["warnings"]) == (0, [])
    assert not (run.trial("t") / "attempt-1" / "transcript.json").exists()
    assert (run.trial("t") / "attempt-1" / "agent.stdout").stat().st_size > 5000
    assert run.result("t")["final_message"].startswith("4 xxx")


def test_over_the_budget_later_transcripts_are_truncated(project: Project, mode: str) -> None:
    for n in range(12):
        project.task(f"t{n:02}", agent=talking(10))
    run = project.run("tasks", AGENT, "--codeprobe-trace-budget=30KB", mode=mode).assert_consistent()
    assert (run.code, set(run.statuses.values())) == (0, {"passed"})
    cut = [name for name in run.statuses if is_cut(run, name)]
    assert cut
    assert all(len(transcript(run, name)["steps"]) == 2 for name in cut)
    assert not is_cut(run, "t00")
    assert [w for w in run.envelope["warnings"] if "passed their budget of 30000 bytes; those that came later were truncated" in w]
    assert not (run.folder / "stop").exists()


def test_over_the_budget_the_run_stops(project: Project, mode: str) -> None:
    for n in range(4):
        project.task(f"a{n}", agent=talking(20))
    for n in range(8):
        project.task(f"b{n}", agent=scripted({"sleep": 60}, WRITE))
    fail = ("--codeprobe-trace-overflow=fail", "--codeprobe-trace-budget=30KB")
    run = project.run("tasks", AGENT, *fail, mode=mode).assert_consistent()
    assert run.code == 6
    codes = [e["code"] for e in run.envelope["errors"]]
    assert codes == ["TRACE_BUDGET_EXCEEDED"]
    assert run.envelope["errors"][0]["detail"]["bytes"] > 30_000
    stopped = {e["reason"] for e in run.envelope["data"]["results"] if e["status"] == "not_run"}
    assert stopped == {"trace"}
    assert {run.statuses[f"b{n}"] for n in range(8)} == {"not_run"}
    assert "TRACE_BUDGET_EXCEEDED: the transcripts of the run passed" in run.output
    run.assert_nothing_left()


def test_a_budget_that_the_last_transcript_passes_is_told_too(project: Project) -> None:
    project.task("t", agent=talking(20))
    run = project.run("tasks", AGENT, "--codeprobe-trace-overflow=fail", "--codeprobe-trace-budget=1KB").assert_consistent()
    assert (run.code, run.statuses, [e["code"] for e in run.envelope["errors"]]) == (6, {"t": "passed"}, ["TRACE_BUDGET_EXCEEDED"])


def test_both_attempts_count(project: Project) -> None:
    project.task("t", agent=scripted({"say": "x" * 900}, {"fail": "LLM_UNAVAILABLE"}))
    run = project.run("tasks", AGENT, "--codeprobe-trace-overflow=fail", "--codeprobe-trace-budget=1KB").assert_consistent()
    first, second = (run.trial("t") / f"attempt-{n}" / "transcript.json" for n in (1, 2))
    assert first.exists()
    (error,) = [e for e in run.envelope["errors"] if e["code"] == "TRACE_BUDGET_EXCEEDED"]
    assert error["detail"]["bytes"] == first.stat().st_size + (second.stat().st_size if second.exists() else 0)


def test_a_forged_spool_counts_for_nothing(project: Project) -> None:
    """Only whole numbers that are not negative are sizes."""
    lines = [{"event": "transcript", "node_id": "tasks/t.yaml::t", "attempt": 1, "bytes": b} for b in (-5, "9", 1e9, None, [1], True)]
    text = "".join(json.dumps(line) + "\\n" for line in lines)
    project.task(
        "t", agent=scripted({"run": f"printf '%b' '{text}' >> \"$SPOOL/main.ndjson\""}, WRITE), sandbox={"env_passthrough": ["SPOOL"]}
    )
    run = project.run(
        "tasks", AGENT, "--codeprobe-run-dir=out", "--codeprobe-trace-budget=1MB", env={"SPOOL": str(project.path / "out" / "spool")}
    )
    assert run.assert_consistent().envelope["warnings"] == []


# ---- the builder


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["step", "text", "reason", "call", "result", "raw"]), st.text(max_size=600)), max_size=60),
    st.integers(0, 20_000),
)
def test_the_file_is_no_larger_than_its_limit(actions: list[tuple[str, str]], limit: int) -> None:
    builder = TranscriptBuilder("prompt", limit=limit)
    draft = builder.step("agent")
    for number, (action, text) in enumerate(actions):
        if action == "step":
            draft = builder.step("agent", text, timestamp="2026-01-01T00:00:00.000Z", model="m" * 40)
        elif action == "text":
            builder.text(draft, text)
        elif action == "reason":
            builder.reasoning(draft, text)
        elif action == "call":
            builder.call(draft, str(number), "tool", {"text": text})
        elif action == "result":
            builder.result(str(number - 1), text)
        else:
            builder.raw(text.encode("utf-8", "surrogatepass"))
    built = builder.build(AgentInfo(name="a"), Usage(), session_id="s")
    assert len(Transcript.model_validate_json(written := built.model_dump_json(exclude_none=True)).steps) == len(built.steps)
    assert len(written.encode()) <= limit + HEAD
    assert (built.steps[-1].extra == {"truncated": True}) is builder.truncated


@given(st.text(st.characters(), max_size=200))
def test_sizes_are_those_of_the_file(text: str) -> None:
    step = Transcript.model_validate(
        {"session_id": "s", "agent": {"name": "a", "version": "1"}, "steps": [{"step_id": 1, "source": "user"}]}
    )
    empty = len(step.model_dump_json(exclude_none=True).encode())
    if any("\ud800" <= c <= "\udfff" for c in text):
        return
    filled = step.model_copy(update={"session_id": text})
    assert len(filled.model_dump_json(exclude_none=True).encode()) - empty == json_size(text) - len('"s"')


@pytest.mark.parametrize("text", ["x" * 1000, "\0" * 1000, "😀" * 1000, 'é"\n' * 1000])
@pytest.mark.parametrize("limit", [0, 1, 100, 300, 301, 500, 900, 5000])
def test_a_text_is_cut_where_its_bytes_are_full(text: str, limit: int) -> None:
    builder = TranscriptBuilder(text, limit=limit)
    built = builder.build(AgentInfo(name="a"), Usage(), session_id="s")
    assert text.startswith(built.steps[0].message.removesuffix("..."))
    assert built.steps[0].message.endswith("...") == (0 < len(built.steps[0].message) < len(text))
    assert json_size(built.steps[0].message) <= max(2, limit)
    assert builder.truncated == (json_size(text) > limit - STEP_JSON)


def lines(builder: TranscriptBuilder, draft: Draft, number: int) -> None:
    builder.raw(b"line %d" % number)


def pieces(builder: TranscriptBuilder, draft: Draft, number: int) -> None:
    builder.text(draft, f"piece {number}")


def steps(builder: TranscriptBuilder, draft: Draft, number: int) -> None:
    builder.step("agent", f"step {number}", timestamp="2026-01-01T00:00:00.000Z", model="claude-sonnet-4-5")


def calls(builder: TranscriptBuilder, draft: Draft, number: int) -> None:
    builder.call(draft, str(number), "Bash", {"list": [{"key": number}] * 3})


def results(builder: TranscriptBuilder, draft: Draft, number: int) -> None:
    builder.result("1", f"result {number}", failed=True)


SMALL = 2 << 20


@pytest.mark.parametrize(("fill", "limit", "cut"), [
    (lines, SMALL, ""), (pieces, SMALL, ""), (steps, SMALL, "memory"), (calls, SMALL, "memory"), (results, 1000, "limit"),
    (lines, 50_000, "limit"), (steps, 100_000, "limit"),
])  # fmt: skip
def test_very_many_small_things(fill: Callable[[TranscriptBuilder, Draft, int], None], limit: int, cut: str) -> None:
    """Memory is bounded, nothing is called too much that is not, and what is said about it is true."""
    builder = TranscriptBuilder("p", limit=limit, memory=SMALL)
    draft = builder.step("agent")
    builder.call(draft, "1", "Bash", {})
    tracemalloc.start()
    for number in range(10_000):
        fill(builder, draft, number)
    built = builder.build(AgentInfo(name="a"), Usage(), session_id="s")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = len(built.model_dump_json(exclude_none=True))
    assert peak < SMALL + (256 << 10)
    assert (builder.over_limit, builder.over_memory) == (cut == "limit", cut == "memory")
    said = built.steps[-1].message
    if cut == "memory":
        assert size < limit / 2
        assert said == f"[transcript truncated after {len(built.steps) - 1} steps, which take 2 MiB of memory; the raw log has the rest]"
    elif cut == "limit":
        assert limit / 3 - HEAD < size <= limit + HEAD
        assert said == f"[transcript truncated after {limit} bytes; the raw log has the rest]"
    else:
        assert " ".join(step.message for step in built.steps).endswith(" 9999")


def test_a_million_lines_are_no_million_steps() -> None:
    builder = TranscriptBuilder("p", limit=20_000_000)
    for number in range(1_000_000):
        builder.raw(b"line %d" % number)
    built = builder.build(AgentInfo(name="a"), Usage(), session_id="s")
    assert not builder.truncated
    assert len(built.steps) < 250
    assert "\n".join(step.message for step in built.steps[1:]).splitlines() == [f"line {n}" for n in range(1_000_000)]


def test_off_collects_nothing() -> None:
    builder = TranscriptBuilder("p" * 100, off=True)
    draft = builder.step("agent", "x")
    assert builder.call(draft, "1", "tool", {}) is True
    builder.result("1", "y")
    assert not builder.truncated
    assert vars(builder)["_drafts"] == []


def test_the_flag_of_an_ended_run_is_gone(project: Project) -> None:
    project.task("t", agent=talking(20))
    for _ in range(2):
        run = project.run("tasks", AGENT, "--codeprobe-trace-budget=1KB")
        assert not is_cut(run, "t")
        assert not (Path(run.folder) / "stop").exists()
