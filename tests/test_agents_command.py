from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.agents.command import CommandAgent
from pytest_codeprobe.errors import CodeprobeError
from tests.agent_sessions import checked_transcript, ended, make_request, make_trial, run_session

SHOW = ["/bin/sh", "-c", 'printf "%s|" "$@"; cat', "sh"]


def test_placeholders_are_replaced_once_and_without_a_shell(tmp_path: Path) -> None:
    prompt = "say '{model}' and $(touch pwned); {prompt_file}\n"
    request = make_request(
        tmp_path, {"command": [*SHOW, "{prompt}", "--model={model}", "{workspace}/x", "{other}"], "model": "m1"}, prompt=prompt
    )
    parser, end, _ = run_session(CommandAgent(), request)
    assert end.code is None
    assert parser.final_message() == f"{prompt}|--model=m1|{tmp_path}/workspace/x|{{other}}|"
    assert not (tmp_path / "workspace" / "pwned").exists()
    assert parser.info().model == "m1"
    assert parser.usage().cost_usd is None
    assert parser.usage().cost_source == "unknown"
    assert [step.source for step in checked_transcript(parser).steps] == ["user", "agent"]


def test_the_prompt_goes_to_a_file_or_to_stdin_byte_for_byte(tmp_path: Path) -> None:
    prompt = "é \r\n\n"
    request = make_request(tmp_path, {"command": ["/bin/cp", "{prompt_file}", "copy"]}, prompt=prompt)
    run_session(CommandAgent(), request)
    assert (tmp_path / "workspace" / "copy").read_bytes() == prompt.encode()
    assert CommandAgent().command(request).stdin is None
    by_stdin = make_request(tmp_path, {"command": ["/bin/sh", "-c", "cat > copy2"]}, prompt=prompt)
    run_session(CommandAgent(), by_stdin)
    assert (tmp_path / "workspace" / "copy2").read_bytes() == prompt.encode()
    assert not CommandAgent().command(by_stdin).files


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("echo done; exit 3", None),
        ("exit 1", None),
        ("exit 127", "AGENT_CRASHED"),
        ("exit 126", "AGENT_CRASHED"),
        ("echo work > file; exit 127", None),
    ],
)
def test_only_a_program_that_could_not_start_is_a_crash(tmp_path: Path, script: str, code: str | None) -> None:
    _, end, _ = run_session(CommandAgent(), make_request(tmp_path, {"command": ["/bin/sh", "-c", script]}))
    assert end.code == code


def test_the_reason_names_program_and_stderr(tmp_path: Path) -> None:
    _, end, _ = run_session(CommandAgent(), make_request(tmp_path, {"command": ["/bin/sh", "-c", "no-such-program-here"]}))
    assert "'/bin/sh' was not found (exit status 127)" in (end.reason or "")
    assert "no-such-program-here" in (end.reason or "")


def test_no_patience_is_held_and_no_crash_is_before_the_first_reply(tmp_path: Path) -> None:
    parser = CommandAgent().parser(make_request(tmp_path, {"command": ["x"]}))
    assert parser.replied
    assert parser.fault is None
    assert parser.end(ended(127), stopped_for="stopped:interrupt", stderr_tail="").code is None


def test_problems_of_a_task(tmp_path: Path) -> None:
    def fields(agent: dict[str, Any], **more: Any) -> list[str]:
        return [field for field, _ in CommandAgent().problems(make_trial(tmp_path, agent, **more))]

    assert fields({"command": ["x", "{prompt}"]}) == []
    assert fields({}) == fields({"command": []}) == ["agent.command"]
    assert fields({"command": ["x", "{model}"]}) == ["agent.command"]
    assert fields({"command": ["x", "{prompt}"]}, prompt="a" * 200_000) == ["agent.command"]
    assert fields({"command": ["x", "{prompt_file}"]}, prompt="a" * 200_000) == []
    assert fields({"command": ["x"]}, limits={"max_turns": 3, "max_output_tokens": 1}) == [
        "run_limits.max_turns",
        "run_limits.max_output_tokens",
    ]


def test_a_prompt_that_is_no_argument_is_refused_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(CodeprobeError, match="has a NUL in it"):
        CommandAgent().command(make_request(tmp_path, {"command": ["x", "{prompt}"]}, prompt="a\0b"))
