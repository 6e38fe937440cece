from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_codeprobe.agents.scripted import ScriptedAgent, ScriptedTable
from pytest_codeprobe.model.agent import SessionEnd, SessionParser
from tests.agent_sessions import checked_transcript, ended, make_request, run_session


def scripted(folder: Path, *steps: dict[str, Any]) -> tuple[SessionParser, SessionEnd]:
    parser, end, _ = run_session(ScriptedAgent(), make_request(folder, {"scripted": {"steps": list(steps)}}))
    return parser, end


def test_every_step(tmp_path: Path) -> None:
    parser, end = scripted(
        tmp_path,
        {"write": {"path": "a/b.txt", "content": "é\n"}},
        {"write": {"path": "gone", "content": ""}},
        {"delete": "gone"},
        {"run": "echo out; echo err >&2; cat a/b.txt; exit 3"},
        {"sleep": 0},
        {"usage": {"model": "m1", "input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}},
        {"say": "first"},
        {"usage": {"input_tokens": 1, "cost_usd": 0.25}},
        {"say": "done \x1b[31m\x00"},
        {"exit": 4},
        {"say": "never"},
    )
    assert end.code is None
    assert parser.final_seen
    assert (tmp_path / "workspace" / "a" / "b.txt").read_text() == "é\n"
    assert not (tmp_path / "workspace" / "gone").exists()
    usage = parser.usage()
    assert (usage.input_tokens, usage.output_tokens, usage.cost_usd, usage.turns, usage.replies) == (11, 5, 0.5, 4, 6)
    assert parser.info().model == "m1"
    assert parser.final_message() == "done \x1b[31m\x00"
    steps = checked_transcript(parser).steps
    calls = [call.function_name for step in steps for call in step.tool_calls or ()]
    assert calls == ["write", "write", "delete", "run"]
    ran = steps[4].observation
    assert ran is not None
    assert ran.results[0].content == "out\nerr\né\n\n[exit status 3]"
    assert ran.results[0].extra == {"failed": True}


def test_no_steps_do_nothing(tmp_path: Path) -> None:
    parser, end = scripted(tmp_path)
    assert end.code is None
    assert parser.usage().total_tokens == 0
    assert parser.usage().cost_usd == 0


def test_a_step_that_fails_is_a_result_and_the_next_one_runs(tmp_path: Path) -> None:
    parser, end = scripted(tmp_path, {"delete": "nothing"}, {"write": {"path": "a\0b", "content": ""}}, {"run": "echo \0"}, {"say": "on"})
    assert end.code is None
    assert parser.final_message() == "on"
    results = [step.observation.results[0] for step in checked_transcript(parser).steps if step.observation]
    assert [result.extra for result in results] == [{"failed": True}] * 3
    assert "FileNotFoundError" in (results[0].content or "")


@pytest.mark.parametrize("code", ["LLM_UNAVAILABLE", "AUTH_FAILED", "AGENT_BLOCKED", "AGENT_CRASHED"])
def test_fail_ends_the_session_with_its_code(tmp_path: Path, code: str) -> None:
    parser, end = scripted(tmp_path, {"fail": code}, {"write": {"path": "never", "content": ""}})
    assert end.code == code
    assert not parser.replied
    assert not (tmp_path / "workspace" / "never").exists()
    assert (parser.fault.kind if parser.fault else None) == {"LLM_UNAVAILABLE": "unavailable", "AUTH_FAILED": "auth"}.get(code)


def test_an_exit_status_before_any_work_is_a_crash(tmp_path: Path) -> None:
    assert scripted(tmp_path, {"exit": 3})[1].code == "AGENT_CRASHED"
    assert scripted(tmp_path, {"exit": 0})[1].code is None
    assert scripted(tmp_path, {"say": "hi"}, {"exit": 3})[1].code is None


def test_output_of_a_command_is_bounded(tmp_path: Path) -> None:
    parser, _ = scripted(tmp_path, {"run": "yes | head -c 20000000; echo the end"})
    (result,) = next(step.observation.results for step in checked_transcript(parser).steps if step.observation)
    assert len(result.content or "") < 70_000
    assert "bytes left out" in (result.content or "")
    assert (result.content or "").endswith("the end\n")


def test_a_background_process_does_not_hold_the_session(tmp_path: Path) -> None:
    # It holds the pipe, as a server that an agent leaves running does; ending it is the keeper's part.
    began = time.monotonic()
    parser, _ = scripted(tmp_path, {"run": "sleep 20 & echo $!"}, {"say": "done"})
    assert time.monotonic() - began < 15
    assert parser.final_message() == "done"
    (result,) = next(step.observation.results for step in checked_transcript(parser).steps if step.observation)
    os.kill(int((result.content or "").strip()), signal.SIGKILL)


def test_an_unpriced_usage_makes_the_cost_unknown(tmp_path: Path) -> None:
    parser, _ = scripted(tmp_path, {"usage": {"input_tokens": 1, "cost_usd": 1}}, {"usage": {"input_tokens": 1}})
    assert parser.usage().cost_usd is None
    assert parser.usage().input_tokens == 2
    assert any("cost is unknown" in warning for warning in parser.warnings)


def test_usage_and_turns_are_known_while_it_runs(tmp_path: Path) -> None:
    parser = ScriptedAgent().parser(make_request(tmp_path))
    parser.feed(json.dumps({"event": "call", "id": "1", "tool": "run", "arguments": {}}).encode())
    parser.feed(json.dumps({"event": "usage", "usage": {"input_tokens": 7, "cost_usd": 2}}).encode())
    assert parser.replied
    assert (parser.usage().turns, parser.usage().input_tokens, parser.usage().cost_usd) == (1, 7, 2)
    assert not parser.final_seen
    assert parser.end(ended(-9, "stopped"), stopped_for="max_usd", stderr_tail="").code is None


@pytest.mark.parametrize(
    "step",
    [{}, {"say": "a", "exit": 1}, {"say": None}, {"shout": "a"}, {"sleep": -1}, {"sleep": "1"}, {"exit": 256}, {"fail": "BUDGET_EXCEEDED"}],
)
def test_a_step_is_exactly_one_thing(step: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ScriptedTable.model_validate({"steps": [step]})
