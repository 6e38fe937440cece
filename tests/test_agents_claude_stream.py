"""The claude parser on what the real CLI has said."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.agents.claude import Claude
from pytest_codeprobe.agents.claude.parser import ClaudeParser
from pytest_codeprobe.model.agent import SessionEnd
from pytest_codeprobe.model.result import Usage
from tests.agent_sessions import checked_transcript, ended, make_request, read

DATA = Path(__file__).parent / "data"
CASES: Mapping[str, Any] = json.loads((DATA / "claude" / "cases.json").read_text(encoding="utf-8"))
SOLVED = (1724, 268, 6166, 391)
#: case -> code, tokens (input, output, cache read, cache write), turns
PARTIAL: dict[str, tuple[str | None, tuple[int, int, int, int], int]] = {
    "ok": (None, SOLVED, 3),
    "ok_allowed_tools": (None, SOLVED, 3),
    "ok_prompt_on_stdin": (None, SOLVED, 3),
    "unknown_model": (None, SOLVED, 3),
    "subagent": (None, (2518, 108, 0, 0), 2),
    "permission_denied": ("AGENT_BLOCKED", (2000, 100, 0, 0), 1),
    "max_turns": (None, (1410, 184, 1826, 308), 2),
    "429_once": (None, SOLVED, 3),
    "429_once_no_retry_after": (None, SOLVED, 3),
    "429_always": ("LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "429_long_retry_after": ("LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "500_once": (None, SOLVED, 3),
    "500_always": ("LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "500_in_mid_session": ("LLM_UNAVAILABLE", (1410, 184, 1826, 308), 2),
    "529_always": ("LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "400": ("AGENT_CRASHED", (0, 0, 0, 0), 0),
    "402": ("AUTH_FAILED", (0, 0, 0, 0), 0),
    "404": ("AGENT_CRASHED", (0, 0, 0, 0), 0),
    "413": ("AGENT_CRASHED", (0, 0, 0, 0), 0),
    "no_name": ("LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "no_tls": ("LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "401": ("AUTH_FAILED", (0, 0, 0, 0), 0),
    "403": ("AUTH_FAILED", (0, 0, 0, 0), 0),
    "cut_once": (None, (2725, 274, 6473, 602), 3),
    "cut_always": ("LLM_UNAVAILABLE", (3003, 18, 921, 633), 0),
    "cut_in_tool_call_once": (None, (1724, 156, 6166, 391), 2),
    "malformed_once": (None, (2725, 269, 6473, 602), 3),
    "malformed_always": ("LLM_UNAVAILABLE", (1001, 1, 307, 211), 0),
    "empty_always": ("LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "overloaded_event_once": (None, SOLVED, 3),
    "overloaded_event_always": ("LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "refused": ("LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "slow_first_byte": (None, SOLVED, 3),
    "slow_events": (None, SOLVED, 3),
    "stopped_while_waiting": (None, (1001, 53, 307, 211), 1),
}
REMEDIES = {"402": "ANTHROPIC_API_KEY", "404": "--codeprobe-model", "no_name": "ANTHROPIC_BASE_URL", "refused": "ANTHROPIC_BASE_URL"}
HELLO = (2104, 76, 816, 211)
#: file -> exit status, code, tokens, turns; without partial messages a killed session's output is known only where a result line came
WHOLE: dict[str, tuple[int, str | None, tuple[int, int, int, int], int]] = {
    "ok": (0, None, HELLO, 1),
    "ok_197": (0, None, HELLO, 1),
    "ok_bare": (0, None, HELLO, 1),
    "429once": (0, None, HELLO, 1),
    "ext": (0, None, HELLO, 1),
    "toolINT": (0, None, HELLO, 1),
    "400": (1, "AGENT_CRASHED", (0, 0, 0, 0), 0),
    "401": (1, "AUTH_FAILED", (0, 0, 0, 0), 0),
    "429always": (1, "LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "500": (1, "LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "refused": (1, "LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "slow-to": (1, "LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "badsse": (1, "LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "cutsse": (1, "LLM_UNAVAILABLE", (85, 7, 0, 0), 0),
    "emptysse": (1, "LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "errsse": (1, "LLM_UNAVAILABLE", (0, 0, 0, 0), 0),
    "maxturns": (1, None, (3003, 159, 921, 633), 3),
    "budget": (1, None, (3003, 159, 921, 633), 3),
    "noperm": (0, "AGENT_BLOCKED", HELLO, 1),
    "slowTERM": (143, "AGENT_CRASHED", (0, 0, 0, 0), 0),
    "slowINT": (0, "AGENT_CRASHED", (0, 0, 0, 0), 0),
    "ptoolTERM": (143, "AGENT_CRASHED", (1001, 1, 307, 211), 1),
    "ptoolINT": (0, "AGENT_CRASHED", (1001, 53, 307, 211), 1),
    "ptoolKILL": (-9, "AGENT_CRASHED", (1001, 1, 307, 211), 1),
}


def tokens(usage: Usage) -> tuple[int | None, ...]:
    return (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens, usage.cache_write_tokens)


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines()


def parsed(tmp_path: Path, path: Path, status: int, stopped_for: str | None = None, **agent: Any) -> tuple[ClaudeParser, SessionEnd]:
    parser = Claude().parser(make_request(tmp_path, agent))
    read(parser, lines_of(path))
    return parser, parser.end(ended(status), stopped_for=stopped_for, stderr_tail="")


def partial(tmp_path: Path, case: str) -> tuple[ClaudeParser, SessionEnd]:
    return parsed(tmp_path, DATA / "claude" / f"{case}.jsonl", CASES[case]["exit"])


def test_every_recording_is_looked_at() -> None:
    assert {path.stem for path in (DATA / "claude").glob("*.jsonl")} == set(PARTIAL)
    assert {path.stem for path in (DATA / "claude-2.1").glob("*.jsonl")} == set(WHOLE)


@pytest.mark.parametrize("case", PARTIAL)
def test_recorded_with_partial_messages(tmp_path: Path, case: str) -> None:
    code, expected, turns = PARTIAL[case]
    parser, end = partial(tmp_path, case)
    assert (end.code, tokens(parser.usage()), parser.usage().turns) == (code, expected, turns)
    assert parser.usage().tokens_source == "cli"
    assert parser.info().version == "2.1.332"
    transcript = checked_transcript(parser)
    assert transcript.steps[0].source == "user"
    assert transcript.agent.model_name == CASES[case]["argv"][CASES[case]["argv"].index("--model") + 1]
    if code in ("LLM_UNAVAILABLE", "AUTH_FAILED", "AGENT_CRASHED"):
        assert end.reason
        assert "\n" not in end.reason
    if case in REMEDIES:
        assert REMEDIES[case] in (end.remediation or "")


@pytest.mark.parametrize(
    "case", [case for case, (code, *_) in PARTIAL.items() if code is None and CASES[case]["stats"]["faults"].get("cut", 0) == 0]
)
def test_usage_is_what_the_server_sent(tmp_path: Path, case: str) -> None:
    sent = CASES[case]["stats"]["tokens"]
    cut = CASES[case]["stats"]["cut_tokens"]
    parser, _ = partial(tmp_path, case)
    assert tokens(parser.usage()) == tuple(sent[kind] + cut[kind] for kind in ("input", "output", "cache_read", "cache_write"))


@pytest.mark.parametrize("name", WHOLE)
def test_recorded_without_partial_messages(tmp_path: Path, name: str) -> None:
    status, code, expected, turns = WHOLE[name]
    parser, end = parsed(tmp_path, DATA / "claude-2.1" / f"{name}.jsonl", status)
    assert (end.code, tokens(parser.usage()), parser.usage().turns) == (code, expected, turns)
    checked_transcript(parser)


def test_a_good_session_in_full(tmp_path: Path) -> None:
    parser, end = partial(tmp_path, "ok")
    assert end == SessionEnd()
    usage = parser.usage()
    assert (usage.replies, usage.tool_calls, usage.cost_source) == (4, 4, "cli")
    assert usage.cost_usd == pytest.approx(1724 * 3e-6 + 268 * 15e-6 + 6166 * 0.3e-6 + 391 * 3.75e-6)
    assert parser.final_message() == "add() adds now; check.py says: all good."
    assert parser.final_seen
    assert parser.warnings == []
    transcript = checked_transcript(parser)
    assert [step.source for step in transcript.steps] == ["user", "agent", "agent", "agent", "agent"]
    both = transcript.steps[2]
    assert both.message == "Now the fix and the note."
    assert both.timestamp is not None
    assert [call.function_name for call in both.tool_calls or ()] == ["Edit", "Write"]
    assert both.observation is not None
    assert [result.source_call_id for result in both.observation.results] == [call.tool_call_id for call in both.tool_calls or ()]
    assert both.metrics is not None
    assert (both.metrics.prompt_tokens, both.metrics.completion_tokens, both.metrics.cached_tokens) == (409 + 1519 + 97, 131, 1519)
    metrics = transcript.final_metrics
    assert metrics is not None
    assert (metrics.total_prompt_tokens, metrics.total_completion_tokens, metrics.total_cached_tokens) == (1724 + 6166 + 391, 268, 6166)
    assert transcript.session_id == json.loads(lines_of(DATA / "claude" / "ok.jsonl")[0])["session_id"]


def test_usage_is_known_while_the_session_runs(tmp_path: Path) -> None:
    parser = Claude().parser(make_request(tmp_path))
    seen: list[tuple[int, int | None]] = []
    costs: list[float] = []
    for line in lines_of(DATA / "claude" / "ok.jsonl"):
        parser.feed(line)
        now = (parser.usage().output_tokens or 0, parser.usage().turns)
        assert not seen or now >= seen[-1]  # it only grows
        seen.append(now)
        if parser.replied and not parser.final_seen:
            assert parser.usage().cost_source == "price_table"
            costs.append(parser.usage().cost_usd or 0.0)
    before_result = seen[-2]
    assert before_result == (268, 3)
    assert costs == sorted(costs)
    # the same as what the CLI says at its end
    assert costs[-1] == pytest.approx(parser.usage().cost_usd)
    assert parser.usage().cost_source == "cli"


def test_a_price_that_is_made_up_is_unknown(tmp_path: Path) -> None:
    parser, _ = partial(tmp_path, "unknown_model")
    assert parser.usage().cost_usd is None
    assert parser.usage().cost_source == "unknown"
    assert [warning for warning in parser.warnings if "some-model-1" in warning and "cost is unknown" in warning]
    assert parser.unpriced == "some-model-1"


def test_a_price_that_only_the_table_knows(tmp_path: Path) -> None:
    """What the CLI makes up for a model that is too new for it is not taken."""
    parser = Claude().parser(make_request(tmp_path))
    used = {"claude-haiku-5-5": {"inputTokens": 1_000_000, "outputTokens": 1_000_000, "costBasis": "unknown", "costUSD": 99}}
    read(parser, [*tool_round("Bash", "1"), result_line(modelUsage=used, total_cost_usd=99)])
    assert parser.usage().cost_usd == pytest.approx(0.6)
    assert parser.usage().cost_source == "price_table"


def test_what_a_sub_agent_writes_costs_something_before_the_last_line(tmp_path: Path) -> None:
    """Its replies are not streamed: the CLI claims one token for each until its end."""
    parser = Claude().parser(make_request(tmp_path))
    content = [{"type": "text", "text": "x" * 40_000}]
    message = {"id": "m1", "model": "claude-sonnet-4-5", "content": content, "usage": {"input_tokens": 1000, "output_tokens": 1}}
    read(parser, [event(type="assistant", parent_tool_use_id="t1", message=message)])
    assert parser.usage().cost_usd == pytest.approx((1000 * 3 + 10_000 * 15) / 1e6)
    assert parser.usage().output_tokens == 1


def test_what_a_compaction_costs_before_the_last_line(tmp_path: Path) -> None:
    """It is asked for beside the stream."""
    parser = Claude().parser(make_request(tmp_path, {"model": "claude-sonnet-4-5"}))
    message = {"id": "m1", "model": "claude-sonnet-4-5", "content": [], "usage": {"input_tokens": 1000, "output_tokens": 10}}
    sizes = {"trigger": "auto", "pre_tokens": 150_000, "post_tokens": 5_000}
    read(parser, [event(type="assistant", message=message), event(type="system", subtype="compact_boundary", compact_metadata=sizes)])
    assert parser.usage().cost_usd == pytest.approx((1000 * 3 + 10 * 15 + 150_000 * 0.3 + 5_000 * 15) / 1e6)
    assert parser.usage().input_tokens == 1000
    parser.feed(result_line(total_cost_usd=0.5, modelUsage={"m": {"inputTokens": 9}}))
    assert parser.usage().cost_usd == 0.5


def test_cache_writes_that_last_for_an_hour(tmp_path: Path) -> None:
    parser = Claude().parser(make_request(tmp_path))
    kinds = {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": 3000}
    usage = {"input_tokens": 0, "output_tokens": 0, "cache_creation_input_tokens": 4000, "cache_creation": kinds}
    read(parser, [event(type="assistant", message={"id": "m1", "model": "claude-sonnet-4-5", "content": [], "usage": usage})])
    assert parser.usage().cost_usd == pytest.approx((1000 * 3.75 + 3000 * 6) / 1e6)


def test_sub_agents_count_and_are_marked(tmp_path: Path) -> None:
    parser, _ = partial(tmp_path, "subagent")
    marked = [step for step in checked_transcript(parser).steps if (step.extra or {}).get("parent_tool_use_id")]
    assert [step.source for step in marked] == ["user", "agent"]
    assert {(step.extra or {}).get("subagent_type") for step in marked} == {"general-purpose"}
    assert parser.usage().tool_calls == 2
    assert parser.final_message() == "The helper counted two files."


def test_limits_of_the_cli_itself(tmp_path: Path) -> None:
    assert partial(tmp_path, "max_turns")[1] == SessionEnd(limit="max_turns")
    assert parsed(tmp_path, DATA / "claude-2.1" / "budget.jsonl", 1)[1] == SessionEnd(limit="max_usd")


def test_refused_tools_are_named(tmp_path: Path) -> None:
    parser, end = partial(tmp_path, "permission_denied")
    assert "Bash" in (end.reason or "")
    assert any("1 (Bash)" in warning for warning in parser.warnings)
    (result,) = next(step.observation.results for step in checked_transcript(parser).steps if step.observation)
    assert result.extra == {"failed": True, "refused": True}


@pytest.mark.parametrize(("case", "retry_after"), [("429_always", 1), ("429_long_retry_after", 60), ("500_always", None)])
def test_the_wait_that_the_provider_asked_for(tmp_path: Path, case: str, retry_after: float | None) -> None:
    """Where it asks for more than the CLI is ready to wait, the CLI gives up at once, and does not tell."""
    _, end = partial(tmp_path, case)
    assert end.retry_after == (retry_after and pytest.approx(retry_after, abs=0.3))


@pytest.mark.parametrize(
    ("case", "kind"), [("401", "auth"), ("429_once", "unavailable"), ("500_once", "unavailable"), ("refused", "unavailable")]
)
def test_a_fault_shows_at_the_first_retry_and_ends_with_an_answer(tmp_path: Path, case: str, kind: str) -> None:
    parser = Claude().parser(make_request(tmp_path))
    lines = lines_of(DATA / "claude" / f"{case}.jsonl")
    first = next(n for n, line in enumerate(lines) if b'"api_retry"' in line)
    read(parser, lines[: first + 1])
    assert parser.fault is not None
    assert parser.fault.kind == kind
    assert not parser.replied
    assert parser.usage().cost_usd == 0
    if case.endswith("once"):
        read(parser, lines[first + 1 : first + 2])
        assert parser.fault is None
        assert parser.replied


def test_stopped_at_the_first_401(tmp_path: Path) -> None:
    parser = Claude().parser(make_request(tmp_path))
    read(parser, lines_of(DATA / "claude" / "401.jsonl")[:3])
    end = parser.end(ended(143, "stopped"), stopped_for="auth", stderr_tail="")
    assert end.code == "AUTH_FAILED"
    assert "401" in (end.reason or "")
    assert "ANTHROPIC_API_KEY" in (end.remediation or "")
    cloud = Claude().parser(make_request(tmp_path, {"env": {"CLAUDE_CODE_USE_BEDROCK": "1"}}))
    read(cloud, lines_of(DATA / "claude" / "403.jsonl")[:3])
    assert "AWS_PROFILE" in (cloud.end(ended(143), stopped_for="auth", stderr_tail="").remediation or "")


def test_patience_used_up(tmp_path: Path) -> None:
    mute = Claude().parser(make_request(tmp_path, {"mcp_servers": {"docs": {"command": "x"}}}))
    end = mute.end(ended(143, "stopped"), stopped_for="patience", stderr_tail="")
    assert (end.code, end.reason) == (
        "AGENT_CRASHED",
        "claude said nothing at all within 30 s of its start; it waits for its MCP servers first: docs",
    )
    assert "`/opt/claude --version`" in (end.remediation or "")
    silent = Claude().parser(make_request(tmp_path))
    read(silent, lines_of(DATA / "claude" / "ok.jsonl")[:2])
    assert silent.end(ended(143, "stopped"), stopped_for="patience", stderr_tail="").code == "LLM_UNAVAILABLE"
    assert silent.usage().cost_usd is None  # a request was under way


def test_a_limit_is_graded_but_not_an_outage(tmp_path: Path) -> None:
    working = Claude().parser(make_request(tmp_path))
    read(working, lines_of(DATA / "claude" / "500_in_mid_session.jsonl")[:-2])
    assert working.fault is not None
    assert working.end(ended(143), stopped_for="task_timeout", stderr_tail="").code is None
    down = Claude().parser(make_request(tmp_path))
    read(down, lines_of(DATA / "claude" / "500_always.jsonl")[:-2])
    assert down.end(ended(143), stopped_for="task_timeout", stderr_tail="").code == "LLM_UNAVAILABLE"


def test_the_runs_own_stop_is_no_failure_of_the_session(tmp_path: Path) -> None:
    parser = Claude().parser(make_request(tmp_path))
    read(parser, lines_of(DATA / "claude" / "500_always.jsonl")[:-2])
    assert parser.end(ended(143), stopped_for="stopped:interrupt", stderr_tail="") == SessionEnd()


def test_an_early_death_says_what_stderr_says(tmp_path: Path) -> None:
    parser = Claude().parser(make_request(tmp_path))
    stderr = "--dangerously-skip-permissions cannot be used with root/sudo privileges for security reasons\n"
    end = parser.end(ended(1), stopped_for=None, stderr_tail=stderr)
    assert end.code == "AGENT_CRASHED"
    assert "exit status 1: --dangerously" in (end.reason or "")
    assert parser.usage().cost_usd == 0
    assert not parser.replied


def test_a_death_after_work_is_graded_with_a_warning(tmp_path: Path) -> None:
    parser, end = partial(tmp_path, "stopped_while_waiting")
    assert end == SessionEnd()
    assert any("exit status 143" in warning for warning in parser.warnings)
    assert parser.usage().cost_usd == pytest.approx((1001 * 3 + 53 * 15 + 307 * 0.3 + 211 * 3.75) / 1e6)  # the CLI did not come to tell it
    assert parser.usage().cost_source == "price_table"


def event(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def tool_round(name: str, call_id: str, *, content: str = "ok", failed: bool = False) -> list[bytes]:
    block = {"type": "tool_use", "id": call_id, "name": name, "input": {}}
    result = {"type": "tool_result", "tool_use_id": call_id, "content": content, "is_error": failed}
    return [
        event(type="assistant", message={"id": f"m{call_id}", "model": "m", "content": [block], "usage": {}}),
        event(type="user", message={"content": [result]}),
    ]


def result_line(**fields: Any) -> bytes:
    return event(**{"type": "result", "subtype": "success", "is_error": False, "result": "done", **fields})


def test_429_in_a_tools_output_is_no_fault(tmp_path: Path) -> None:
    parser = Claude().parser(make_request(tmp_path))
    read(parser, tool_round("Bash", "1", content='API Error: 429 {"type":"system","subtype":"api_retry","error_status":401}', failed=True))
    assert parser.fault is None
    parser.feed(result_line())
    assert parser.end(ended(), stopped_for=None, stderr_tail="") == SessionEnd()


@pytest.mark.parametrize(
    ("tools", "mode", "code"),
    [
        ([("Read", False), ("Write", True)], "default", "AGENT_BLOCKED"),
        ([("Write", False), ("Bash", True)], "default", None),
        ([("mcp__x__do", False), ("Bash", True)], "default", None),
        ([("Read", False), ("WebFetch", True)], "default", None),
        ([("Read", False), ("Write", True)], "plan", None),
    ],
)
def test_what_counts_as_blocked(tmp_path: Path, tools: list[tuple[str, bool]], mode: str, code: str | None) -> None:
    parser = Claude().parser(make_request(tmp_path))
    parser.feed(event(type="system", subtype="init", permissionMode=mode))
    for number, (name, refused) in enumerate(tools):
        lines = tool_round(name, str(number), failed=refused)
        denial = event(type="system", subtype="permission_denied", tool_name=name, tool_use_id=str(number))
        read(parser, [lines[0], *([denial] if refused else []), lines[1]])
    parser.feed(result_line())
    assert parser.end(ended(), stopped_for="final", stderr_tail="").code == code


@pytest.mark.parametrize(
    ("servers", "named"),
    [
        ([{"name": "db", "status": "failed"}], "db (failed)"),
        ([{"name": "db", "status": "pending"}], "db (pending)"),
        ([], "db (missing)"),
        ([{"name": "db", "status": "connected"}], None),
    ],
)
def test_a_declared_mcp_server_that_is_not_there(tmp_path: Path, servers: list[dict[str, str]], named: str | None) -> None:
    request = make_request(tmp_path)
    (tmp_path / "workspace" / ".mcp.json").write_text('{"mcpServers": {"db": {"command": "x"}}}')
    parser = Claude().parser(request)
    read(parser, [event(type="system", subtype="init", mcp_servers=servers)])
    assert parser.doomed is bool(named)  # it is stopped here, or has been too quick for that
    for stopped_for in ("enough", None):
        end = parser.end(ended(), stopped_for=stopped_for, stderr_tail="")
        assert end.code == ("AGENT_CRASHED" if named else None)
        assert (named or "") in (end.reason or "")
        read(parser, [*tool_round("Bash", "1"), result_line()])


def test_no_model_reply_is_no_success(tmp_path: Path) -> None:
    parser = Claude().parser(make_request(tmp_path))
    parser.feed(result_line(result="Unknown command"))
    end = parser.end(ended(), stopped_for=None, stderr_tail="")
    assert end.code == "AGENT_CRASHED"
    assert "Unknown command" in (end.reason or "")


def test_a_session_that_goes_on_after_a_result(tmp_path: Path) -> None:
    parser = Claude().parser(make_request(tmp_path))
    used = {"m": {"inputTokens": 5, "outputTokens": 1}}
    read(parser, [*tool_round("Bash", "1"), result_line(modelUsage=used, total_cost_usd=1)])
    assert parser.final_seen
    read(parser, tool_round("Bash", "2"))
    assert not parser.final_seen
    used["m"]["inputTokens"] = 9
    parser.feed(result_line(modelUsage=used, total_cost_usd=2, result="at last"))
    assert (parser.usage().input_tokens, parser.usage().cost_usd, parser.final_message()) == (9, 2, "at last")


def test_a_message_id_counts_once_and_replayed_steps_are_marked(tmp_path: Path) -> None:
    parser = Claude().parser(make_request(tmp_path))
    usage = {"input_tokens": 10, "output_tokens": 3}
    line = {"type": "assistant", "message": {"id": "a", "model": "m", "content": [{"type": "thinking", "thinking": "hm"}], "usage": usage}}
    for _ in range(3):
        parser.feed(json.dumps(line).encode())
    parser.feed(event(type="user", isReplay=True, message={"content": "old"}))
    assert (parser.usage().input_tokens, parser.usage().replies) == (10, 1)
    steps = checked_transcript(parser).steps
    assert steps[1].reasoning_content == "hm\nhm\nhm"
    assert steps[2].is_copied_context
