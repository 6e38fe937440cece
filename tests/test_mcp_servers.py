"""agent.mcp_servers with agent claude: what is refused, how the CLI gets them, and a real server under the real CLI."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.agents.claude import servers as mcp
from pytest_codeprobe.agents.claude.adapter import Claude
from pytest_codeprobe.model.agent import SessionCommand
from pytest_codeprobe.model.config import AgentConfig
from tests.agent_sessions import make_request
from tests.claude_runs import ClaudeProject, calls, server, transcript
from tests.front_door import Project, Run
from tests.model_server import Script, ToolCall, Turn, Usage
from tests.real_cli import require_clis

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
SECRET = "mcp-0123456789abcdef"


def started(tmp_path: Path, agent: dict[str, Any]) -> SessionCommand:
    return Claude().command(make_request(tmp_path, agent))


def values(command: SessionCommand, option: str) -> list[str]:
    """What follows an option, up to the next one."""
    if option not in command.argv:
        return []
    rest = list(command.argv[list(command.argv).index(option) + 1 :])
    return rest[: next((n for n, part in enumerate(rest) if part.startswith("--")), len(rest))]


def test_they_go_by_a_private_file(tmp_path: Path) -> None:
    command = started(tmp_path, {"mcp_servers": {"docs": {"command": "docs", "args": ["--all"], "env": {"KEY": "a-secret-key"}}}})
    (path,) = values(command, "--mcp-config")
    assert Path(path).is_relative_to(tmp_path / "home")
    assert json.loads(command.files[Path(path)]) == {
        "mcpServers": {"docs": {"type": "stdio", "command": "docs", "args": ["--all"], "env": {"KEY": "a-secret-key"}}}
    }
    assert "--strict-mcp-config" in command.argv
    assert not any("a-secret-key" in part for part in command.argv)
    assert command.env["MCP_TIMEOUT"] == "24000"  # less than the silence that is taken for an outage


def test_the_task_says_how_long_to_wait_for_them(tmp_path: Path) -> None:
    agent = {"mcp_servers": {"docs": {"command": "docs"}}}
    patient = make_request(tmp_path, agent, limits={"provider_patience": 600})
    assert Claude().command(patient).env["MCP_TIMEOUT"] == "30000"
    assert "MCP_TIMEOUT" not in started(tmp_path, {**agent, "env": {"MCP_TIMEOUT": "90000"}}).env
    assert "MCP_TIMEOUT" not in started(tmp_path, {}).env


def test_the_workspaces_own_stand_beside_them_and_the_tasks_win(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir(exist_ok=True)
    (tmp_path / "workspace" / ".mcp.json").write_text('{"mcpServers": {"db": {"command": "x"}}}')
    agent = {"mcp_servers": {"docs": {"command": "docs"}}}
    first, second = values(started(tmp_path, agent), "--mcp-config")
    assert (Path(first).name, Path(second).name) == (".mcp.json", mcp.FILE)
    config = AgentConfig.model_validate(agent)
    assert mcp.servers(config, tmp_path / "workspace").declared == {"db", "docs"}
    alone = AgentConfig.model_validate({**agent, "project_settings": False})
    assert mcp.servers(alone, tmp_path / "workspace").declared == {"docs"}


@pytest.mark.parametrize(
    ("lists", "allowed", "denied"),
    [
        ({}, "Bash,Read,Write,Edit,Glob,Grep,Skill,mcp__docs", None),
        ({"allowed_tools": ["read"]}, "Read", "mcp__docs"),
        ({"allowed_tools": ["read", "mcp:docs"]}, "Read,mcp__docs", None),
        ({"allowed_tools": ["mcp:docs__find"]}, "mcp__docs__find", None),
        ({"disallowed_tools": ["mcp:docs"]}, "Bash,Read,Write,Edit,Glob,Grep,Skill,mcp__docs", "mcp__docs"),
    ],
)
def test_their_tools_are_approved_unless_the_task_names_others(
    tmp_path: Path, lists: dict[str, Any], allowed: str, denied: str | None
) -> None:
    command = started(tmp_path, {"mcp_servers": {"docs": {"command": "docs"}}, **lists})
    assert values(command, "--allowedTools") == [allowed]
    assert values(command, "--disallowedTools") == ([denied] if denied else [])


@pytest.mark.parametrize(
    ("servers", "says"),
    [
        ({"docs": {}}, "needs a 'command'"),
        ({"docs": {"command": ""}}, "agent.mcp_servers.docs.command"),
        ({"docs": {"command": "x", "args": "y"}}, "must be a list of texts"),
        ({"docs": {"command": "x", "args": [True]}}, "agent.mcp_servers.docs.args[0]"),
        ({"docs": {"command": "x", "env": ["A"]}}, "must be a mapping"),
        ({"docs": {"command": "x", "env": {"A=B": "c"}}}, "name of a variable"),
        ({"docs": {"command": "x", "comand": "y"}}, "unknown field 'comand' (did you mean 'command'?)"),
        ({"docs": {"url": "http://127.0.0.1:1/"}}, "not available yet"),
        ({"my docs": {"command": "x"}}, "'my docs'"),
        ({"docs": {"command": "x", "env": {"A": "$NOT_SET_ANYWHERE"}}}, "NOT_SET_ANYWHERE"),
    ],
)
def test_what_is_wrong_is_said_at_its_line(project: Project, servers: dict[str, Any], says: str) -> None:
    project.task("t", agent={"type": "claude", "mcp_servers": servers})
    done = project.run("tasks", "--codeprobe-agent=claude", "--codeprobe-json", junit=False, env={"ANTHROPIC_API_KEY": "k"})
    (error,) = done.assert_pure(events=False)["errors"]
    assert (error["code"], done.code) == ("TASK_INVALID", 4)
    assert says in error["message"]
    assert error["detail"]["line"] > 1


def test_an_agent_that_has_none_of_it_leaves_it_out_or_refuses(project: Project) -> None:
    servers = {"docs": {"command": "x"}}
    project.task("neutral", agent={"mcp_servers": servers})
    done = project.run("tasks", "--codeprobe-agent=nop", junit=False)
    assert any("agent.mcp_servers is not supported by nop" in w for w in done.envelope["warnings"])
    project.task("its-own", agent={"type": "scripted", "mcp_servers": servers})
    assert project.run("tasks/its-own.yaml", junit=False).code == 4


# ---- the real CLI and a real server


def real(project: Project) -> ClaudeProject:
    return ClaudeProject(project, require_clis())


def docs(*tools: str, **more: Any) -> dict[str, Any]:
    return {"command": sys.executable, "args": [PROGRAM, *tools], **more}


@pytest.mark.real_cli
def test_sessions_with_servers(project: Project) -> None:
    """One that is used, one whose tools the task's lists take away, one that the workspace has too, and two that are not there."""
    claude = real(project)
    env = {"MCP_TOKEN": "${MCP_SOURCE}", "MCP_PLAIN": "plain", "MCP_DOLLAR": "$${HOME}"}
    project.environment["MCP_SOURCE"] = SECRET
    claude.task("uses", agent={"mcp_servers": {"docs": docs("find", env=env)}})
    claude.task("lists", agent={"mcp_servers": {"docs": docs("find")}, "allowed_tools": ["read", "write"]})
    own = {"mcpServers": {"docs": docs("theirs"), "db": docs("query")}}
    claude.task("both", agent={"mcp_servers": {"docs": docs("ours")}}, files={".mcp.json": json.dumps(own)})
    claude.task("gone", agent={"mcp_servers": {"docs": {"command": "/no/such/server", "args": ["-x y"]}}})
    claude.task("ends", files={".mcp.json": json.dumps({"mcpServers": {"db": {"command": "false"}}})})
    write = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})
    end = (Turn("I write.", [write], Usage(103, 13, 0, 0)), Turn("Done."))
    scripts = [
        Script((Turn("I look.", [ToolCall("mcp__docs__find", {"text": "hello"})], Usage(101, 11, 0, 0)), *end), key="[uses]"),
        Script(end, key="[lists]"),
        Script((Turn("", [ToolCall("mcp__docs__ours", {}), ToolCall("mcp__db__query", {})]), *end), key="[both]"),
        *(Script((Turn("Too late.", [write], delay=60), *end), key=f"[{name}]") for name in ("gone", "ends")),
    ]
    with server(scripts) as model:
        run = claude.run(model, "--codeprobe-jobs=3")
    assert run.statuses == {"uses": "passed", "lists": "passed", "both": "passed", "gone": "error", "ends": "error"}, run.output
    check_use(run)
    offered = next(record.body for record in model.stats.log if record.key == "[lists]")["tools"]
    assert sorted(tool["name"] for tool in offered) == ["Read", "Write"]
    extra = transcript(run, "both").agent.extra or {}
    assert {tool for tool in extra["tools"] if tool.startswith("mcp__")} == {"mcp__docs__ours", "mcp__db__query"}
    assert all("workspace" in said for _, _, said in calls(transcript(run, "both"))[:2])
    for name, named, remedy in (("gone", "docs (failed)", "`/no/such/server '-x y'`"), ("ends", "db (failed)", ".mcp.json")):
        record = run.result(name)
        assert (record["code"], len(record["attempts"])) == ("AGENT_CRASHED", 2)
        assert record["reason"].endswith(f"a declared MCP server was not there at the start: {named}")
        assert remedy in record["remediation"]
        # it ended before the model had said a word
        assert record["duration_seconds"] < 55
        assert not any(record["usage"][kind] for kind in ("input_tokens", "output_tokens"))


def check_use(run: Run) -> None:
    found = transcript(run, "uses")
    (name, arguments, said), _ = calls(found)
    assert (name, arguments) == ("mcp__docs__find", {"text": "hello"})
    told = json.loads(said)
    seen = {"MCP_TOKEN": "[REDACTED]", "MCP_PLAIN": "plain", "MCP_DOLLAR": "${HOME}", "MCP_TIMEOUT": "24000"}
    assert told["environment"] == seen
    assert Path(told["cwd"]).name == "workspace"
    extra = found.agent.extra or {}
    assert extra["mcp_servers"] == {"docs": "connected"}
    assert "mcp__docs__find" in extra["tools"]
    for file in run.folder.rglob("*"):
        assert not file.is_file() or SECRET.encode() not in file.read_bytes(), file
