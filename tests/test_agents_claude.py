"""How a Claude Code session is started."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from pytest_codeprobe.agents.claude import Claude, ClaudeTable
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import SessionCommand
from tests.agent_sessions import make_request, make_trial


def started(tmp_path: Path, agent: dict[str, Any] | None = None, **more: Any) -> SessionCommand:
    return Claude().command(make_request(tmp_path, agent, **more))


def value(command: SessionCommand, option: str) -> str | None:
    """What follows an option; it stands at most once."""
    argv = list(command.argv)
    assert argv.count(option) <= 1
    return argv[argv.index(option) + 1] if option in argv else None


def test_the_prompt_goes_to_stdin_byte_for_byte(tmp_path: Path) -> None:
    prompt = "-p é\r\n\n"
    command = started(tmp_path, prompt=prompt)
    assert command.stdin == prompt.encode()
    assert command.argv[:2] == ("/opt/claude", "-p")
    assert prompt not in command.argv
    assert value(command, "--output-format") == "stream-json"
    assert {"--verbose", "--include-partial-messages", "--strict-mcp-config"} <= set(command.argv)
    assert value(command, "--setting-sources") == "project"


def test_nothing_of_the_users_is_read_and_nobody_else_is_asked(tmp_path: Path) -> None:
    command = started(
        tmp_path, environ={"ANTHROPIC_API_KEY": "key-key-key", "ANTHROPIC_MODEL": "users-own", "CLAUDE_CODE_MAX_RETRIES": "9"}
    )
    assert command.env["CLAUDE_CONFIG_DIR"] == str(tmp_path / "home" / ".claude")
    assert command.env["CLAUDE_CODE_MAX_RETRIES"] == "2"
    assert command.env["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert "ANTHROPIC_MODEL" not in command.env


@pytest.mark.parametrize(
    ("agent", "isolates", "mode", "approved"),
    [
        ({}, True, "bypassPermissions", None),
        ({}, False, "acceptEdits", "Bash,Read,Write,Edit,Glob,Grep,Skill"),
        ({"permission_mode": "default"}, True, "manual", None),
        ({"permission_mode": "acceptEdits"}, False, "acceptEdits", None),
        ({"permission_mode": "plan"}, False, "plan", None),
        ({"permission_mode": "bypassPermissions"}, False, "bypassPermissions", None),
        ({"claude": {"permission_mode": "dontAsk"}, "permission_mode": "plan"}, True, "dontAsk", None),
    ],
)
def test_permissions(tmp_path: Path, agent: dict[str, Any], isolates: bool, mode: str, approved: str | None) -> None:
    command = started(tmp_path, agent, isolates=isolates)
    assert value(command, "--permission-mode") == mode
    assert value(command, "--allowedTools") == approved
    assert ("IS_SANDBOX" in command.env) is (mode == "bypassPermissions" and os.geteuid() == 0)


def test_tool_lists_take_neutral_names_and_the_clis_own(tmp_path: Path) -> None:
    allowed = ["read", "search", "Bash(git *)", "agent", "mcp:db", "Read"]
    command = started(tmp_path, {"allowed_tools": allowed, "disallowed_tools": ["web", "Bash(rm *)"]})
    assert value(command, "--tools") == "Read,Glob,Grep,Bash,Task,Agent"
    assert value(command, "--allowedTools") == "Read,Glob,Grep,Bash(git *),Task,Agent,mcp__db"
    assert value(command, "--disallowedTools") == "WebFetch,WebSearch,Bash(rm *)"
    none = started(tmp_path, {"allowed_tools": []})
    assert value(none, "--tools") == ""
    assert "--allowedTools" not in none.argv


def test_other_fields(tmp_path: Path) -> None:
    agent = {"model": "sonnet", "effort": "high", "max_thinking_tokens": 5000, "args": ["--betas", "x"], "project_settings": False}
    command = started(tmp_path, agent, limits={"max_turns": 3, "max_usd": 1.5})
    assert value(command, "--model") == "sonnet"
    assert value(command, "--effort") == "high"
    assert command.env["MAX_THINKING_TOKENS"] == "5000"
    assert command.argv[-2:] == ("--betas", "x")
    assert value(command, "--setting-sources") == ""
    assert value(command, "--max-turns") == "4"  # so that the answer after the last turn is still let through
    assert value(command, "--max-budget-usd") == "1.5"


def test_whose_settings_are_read(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir(exist_ok=True)
    for given, expected in ((["project", "local"], "project,local"), ([], ""), (["user"], "user")):
        command = started(tmp_path, {"claude": {"setting_sources": given}})
        assert value(command, "--setting-sources") == expected
    assert (
        value(started(tmp_path, {"claude": {"setting_sources": ["project"]}, "project_settings": False}), "--setting-sources") == "project"
    )


def test_prompts_and_settings_go_by_file(tmp_path: Path) -> None:
    agent: dict[str, Any] = {"system_prompt": "be brief " * 50_000, "append_system_prompt": "é", "claude": {"settings": {"a": 1}}}
    command = started(tmp_path, agent)
    contents = {
        option: command.files[Path(value(command, option) or "")] for option in ("--system-prompt-file", "--append-system-prompt-file")
    }
    assert contents == {"--system-prompt-file": agent["system_prompt"].encode(), "--append-system-prompt-file": "é".encode()}
    assert json.loads(command.files[Path(value(command, "--settings") or "")]) == {"a": 1}
    assert all(tmp_path / "home" in path.parents for path in command.files)
    assert all(len(part) < 1000 for part in command.argv)


def test_a_system_prompt_file_is_handed_over_as_a_copy(tmp_path: Path) -> None:
    (tmp_path / "sys.md").write_text("rules")
    command = started(tmp_path, {"system_prompt_file": str(tmp_path / "sys.md")})
    assert command.files[Path(value(command, "--system-prompt-file") or "")] == b"rules"
    with pytest.raises(CodeprobeError, match="TASK_INVALID"):
        started(tmp_path, {"system_prompt_file": str(tmp_path / "gone.md")})


def test_the_workspaces_mcp_file_counts_unless_project_settings_are_off(tmp_path: Path) -> None:
    assert "--mcp-config" not in started(tmp_path).argv
    (tmp_path / "workspace" / ".mcp.json").write_text("{}")
    assert value(started(tmp_path), "--mcp-config") == str(tmp_path / "workspace" / ".mcp.json")
    assert "--mcp-config" not in started(tmp_path, {"project_settings": False}).argv


def test_keys_go_by_environment_and_are_secrets(tmp_path: Path) -> None:
    environ = {"ANTHROPIC_API_KEY": "sk-ant-1234", "ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}
    command = started(tmp_path, environ=environ)
    assert environ.items() <= command.env.items()
    assert command.secrets == {"sk-ant-1234"}
    assert not any("sk-ant" in part for part in command.argv)


def test_what_the_task_declares_wins(tmp_path: Path) -> None:
    env = {"ANTHROPIC_AUTH_TOKEN": "of-the-task", "CLAUDE_CODE_MAX_RETRIES": "0", "CLAUDE_CONFIG_DIR": "/elsewhere"}
    command = started(tmp_path, {"env": env}, environ={"ANTHROPIC_API_KEY": "of-the-user", "HOME": str(tmp_path)})
    assert "ANTHROPIC_API_KEY" not in command.env
    assert "CLAUDE_CODE_MAX_RETRIES" not in command.env  # agent.env is in the environment already
    assert command.env["CLAUDE_CONFIG_DIR"] == str(tmp_path / "home" / ".claude")
    assert command.secrets == {"of-the-task"}


def test_a_login_is_copied_without_the_token_that_would_void_it(tmp_path: Path) -> None:
    (tmp_path / "user" / ".claude").mkdir(parents=True)
    login = {
        "accessToken": "sk-ant-oat01-access",
        "refreshToken": "sk-ant-ort01-refresh",
        "expiresAt": 4102444800000,
        "scopes": ["user:inference"],
    }
    stored = tmp_path / "user" / ".claude" / ".credentials.json"
    stored.write_text(json.dumps({"claudeAiOauth": login, "other": "thing"}, indent=1))
    command = started(tmp_path, environ={"HOME": str(tmp_path / "user")})
    copy = json.loads(command.files[tmp_path / "home" / ".claude" / ".credentials.json"])
    assert copy == {"claudeAiOauth": {**login, "refreshToken": None}}
    # neither may leave the trial: a session that isn't isolated can read the user's own file
    assert command.secrets == {"sk-ant-oat01-access", "sk-ant-ort01-refresh"}
    with_key = started(tmp_path, environ={"HOME": str(tmp_path / "user"), "ANTHROPIC_API_KEY": "key-key-key"})
    assert with_key.files == {}


def test_unavailable_says_what_to_do(tmp_path: Path) -> None:
    def why(**environ: str) -> CodeprobeError | None:
        return Claude().unavailable(make_request(tmp_path, environ=environ).context)

    no_cli = why(PATH=str(tmp_path), ANTHROPIC_API_KEY="k")
    assert no_cli is not None
    assert no_cli.code == "NO_BACKENDS_CONFIGURED"
    assert "npm install" in no_cli.remediation
    cli = tmp_path / "claude"
    cli.write_text("#!/bin/sh\n")
    cli.chmod(0o755)
    no_key = why(PATH=str(tmp_path), HOME=str(tmp_path / "nobody"))
    assert no_key is not None
    assert no_key.code == "NO_BACKENDS_CONFIGURED"
    assert "ANTHROPIC_API_KEY" in no_key.remediation
    assert why(PATH=str(tmp_path), CLAUDE_CODE_OAUTH_TOKEN="t") is None
    assert Claude().find(make_request(tmp_path, environ={"PATH": str(tmp_path)}).context) == str(cli)


def test_problems_of_a_task(tmp_path: Path) -> None:
    def fields(agent: dict[str, Any], **more: Any) -> list[str]:
        return [field for field, _ in Claude().problems(make_trial(tmp_path, agent, **more))]

    assert fields({"effort": "max"}) == []
    assert fields({"effort": "huge"}) == ["agent.effort"]
    assert fields({"system_prompt": "a", "system_prompt_file": "/b"}) == ["agent.system_prompt_file"]
    assert fields({}, prompt=" \n") == ["initial_prompt"]


@pytest.mark.parametrize("table", [{"permission_mode": "default"}, {"unknown": 1}, {"settings": "text"}])
def test_the_table_is_strict(table: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ClaudeTable.model_validate(table)
