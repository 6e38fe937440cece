"""Capability snapshots: recorded at no cost, and held against what each session says of itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.agents.claude.adapter import Claude
from pytest_codeprobe.model.capabilities import Capabilities, compare
from pytest_codeprobe.model.config import AgentConfig
from tests.claude_runs import MODEL, ClaudeProject, server
from tests.fake_claude import TOOLS, FakeClaude
from tests.front_door import Project
from tests.install_clis import locked_version
from tests.model_server import Script, ToolCall, Turn, Usage
from tests.netns import netns_argv
from tests.real_cli import require_clis
from tests.schemas import check

PROGRAM = str(Path(__file__).with_name("mcp_server.py"))
ASKED = ("--codeprobe-capabilities=caps.json", "--codeprobe-json")


@pytest.fixture
def claude(project: Project) -> FakeClaude:
    """A task for it."""
    fake = FakeClaude(project, servers={"docs": "connected"})
    fake.task("a")
    return fake


def record(project: Project, *args: str, name: str = "caps.json") -> dict[str, Any]:
    """The snapshot that the command prints, written to a file."""
    done = project.codeprobe("capabilities", *args)
    assert done.code == 0, done.output
    snapshot: dict[str, Any] = json.loads(done.stdout)
    check("capabilities", snapshot)
    project.write(name, done.stdout)
    return snapshot


def run(claude: FakeClaude, *args: str, mode: str = "plain") -> dict[str, Any]:
    done = claude.project.run("tasks", "--codeprobe-agent=claude", *ASKED, *args, mode=mode, junit=False)
    envelope = done.assert_pure(events=False)
    if done.code != 4:  # `latest` still is the run before
        done.assert_consistent()
    done.assert_nothing_left()
    return envelope


# ---- the command


def test_the_command_prints_what_the_first_event_says(claude: FakeClaude) -> None:
    snapshot = record(claude.project, "--agent", "claude")
    assert snapshot == {
        "schema_version": "1",
        "agent": "claude",
        "version": "2.1.332",
        "model": "claude-sonnet-4-5",
        "tools": list(TOOLS),
        "mcp_servers": ["docs"],
    }
    assert not (claude.project.path / ".codeprobe").exists()
    assert not list((claude.project.scratch / "tmp").iterdir())


def test_it_ends_the_agent_at_its_first_event(claude: FakeClaude) -> None:
    claude.install(hangs=True)
    assert record(claude.project, "--agent", "claude")["version"] == "2.1.332"


def test_it_writes_to_a_file_that_a_run_can_take(claude: FakeClaude) -> None:
    done = claude.project.codeprobe("capabilities", "-T", "claude", "--output", "caps.json")
    assert (done.code, done.stdout) == (0, "")
    assert run(claude)["exit_code"] == 0


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--agent", "nop"), "USAGE_ERROR", "agent nop reports no tools"),
        (("--agent", "scripted"), "USAGE_ERROR", "agent scripted reports no tools"),
        (("--agent", "clade"), "UNKNOWN_BACKEND", "claude"),
        ((), "NO_BACKENDS_CONFIGURED", "no agent is named"),
        (("--agent", "claude", "nowhere.yaml"), "TASK_INVALID", "nowhere.yaml"),
        (("--agent", "claude", "--output", "no/such/folder/x.json"), "USAGE_ERROR", "no/such/folder"),
        (("--agent", "claude", "--permission-mode", "yolo"), "INVALID_PERMISSION_MODE", "yolo"),
    ],
)
def test_what_can_not_be_recorded_is_refused(claude: FakeClaude, args: tuple[str, ...], code: str, says: str) -> None:
    done = claude.project.codeprobe("capabilities", *args)
    assert done.code == 4
    assert done.stdout == ""
    assert code in done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.output


@pytest.mark.parametrize("silent", [{"tools": ()}, {"fails": "no such model"}])
def test_an_agent_that_reports_no_tools(claude: FakeClaude, silent: dict[str, Any]) -> None:
    if "fails" in silent:  # before it says anything
        (claude.folder / "claude").write_text("#!/bin/sh\necho 'no such model' >&2\nexit 1\n")
    else:
        claude.install(**silent)
    done = claude.project.codeprobe("capabilities", "--agent", "claude")
    assert (done.code, done.stdout) == (4, "")
    assert "reports no tools" in done.stderr


def test_the_settings_of_a_task_count(claude: FakeClaude) -> None:
    claude.task("b", agent={"type": "claude", "args": ["--of-the-task"]})
    record(claude.project, "--agent", "claude", "tasks/b.yaml")
    assert "--of-the-task" in claude.sessions[-1]["argv"]


# ---- a run


def test_a_session_like_the_snapshot_passes(claude: FakeClaude, mode: str) -> None:
    record(claude.project, "--agent", "claude")
    envelope = run(claude, mode=mode)
    assert (envelope["exit_code"], envelope["errors"], envelope["warnings"]) == (0, [], [])


@pytest.mark.parametrize(
    ("change", "says", "detail"),
    [
        ({"tools": ("Bash", "Edit", "Read")}, "tools gone: Write", {"missing_tools": ["Write"]}),
        ({"servers": {}}, "MCP servers gone: docs", {"missing_mcp_servers": ["docs"]}),
        ({"servers": {"docs": "failed"}}, "MCP servers gone: docs", {"missing_mcp_servers": ["docs"]}),
        ({"version": "2.2.0"}, "version 2.1.332 -> 2.2.0", {"version": {"old": "2.1.332", "new": "2.2.0"}}),
        ({"model": "opus"}, "model claude-sonnet-4-5 -> opus", {"model": {"old": "claude-sonnet-4-5", "new": "opus"}}),
    ],
)
def test_a_session_that_has_less_is_an_error(
    claude: FakeClaude, mode: str, change: dict[str, Any], says: str, detail: dict[str, Any]
) -> None:
    record(claude.project, "--agent", "claude")
    claude.task("b")
    claude.install(**change)
    envelope = run(claude, mode=mode)
    assert (envelope["exit_code"], envelope["data"]["tasks_error"]) == (6, 2)
    (error,) = envelope["errors"]
    assert (error["code"], error["count"], error["retryable"]) == ("CAPABILITY_DRIFT", 2, "no")
    assert says in error["message"]
    assert {name: error["detail"][name] for name in detail} == detail
    assert "codeprobe capabilities -T claude -o caps.json" in error["remediation"]
    assert [r["attempts"] for r in envelope["data"]["results"]] == [1, 1]


def test_the_printed_command_records_it_again(claude: FakeClaude) -> None:
    record(claude.project, "--agent", "claude")
    claude.install(version="2.2.0")
    (error,) = run(claude)["errors"]
    command = error["remediation"].partition("`")[2].partition("`")[0].split()
    assert command[0] == "codeprobe"
    assert claude.project.codeprobe(*command[1:]).code == 0
    assert run(claude)["exit_code"] == 0


def test_it_is_ended_as_soon_as_it_has_shown_it(claude: FakeClaude) -> None:
    record(claude.project, "--agent", "claude")
    claude.install(version="2.2.0", hangs=True)
    assert run(claude)["errors"][0]["code"] == "CAPABILITY_DRIFT"


def test_what_it_has_beyond_the_snapshot_is_a_warning(claude: FakeClaude, mode: str) -> None:
    record(claude.project, "--agent", "claude")
    claude.task("b")
    claude.install(tools=(*TOOLS, "Zap"), servers={"docs": "connected", "db": "connected"})
    envelope = run(claude, mode=mode)
    assert envelope["exit_code"] == 0
    assert envelope["warnings"] == ["agent claude has more than the snapshot caps.json: tools Zap and MCP servers db"]


def test_what_the_tasks_own_lists_remove_is_no_drift(claude: FakeClaude, mode: str) -> None:
    record(claude.project, "--agent", "claude")
    claude.install(tools=("Edit", "Read", "Write"))
    claude.task("a", agent={"type": "claude", "disallowed_tools": ["shell"]})
    claude.task("b", agent={"type": "claude", "allowed_tools": ["read", "write", "edit"]})
    envelope = run(claude, mode=mode)
    assert (envelope["exit_code"], envelope["errors"]) == (0, [])
    claude.task("c")
    assert [(r["task_id"], r["status"]) for r in run(claude, mode=mode)["data"]["results"]][2] == ("c", "error")


def test_the_snapshot_of_one_agent_holds_no_other(claude: FakeClaude) -> None:
    record(claude.project, "--agent", "claude")
    done = claude.project.run("tasks", "--codeprobe-agent=nop", *ASKED, junit=False)
    assert [r["status"] for r in done.assert_pure(events=False)["data"]["results"]] == ["failed"]


def test_the_canary_is_held_to_it_as_well(claude: FakeClaude) -> None:
    record(claude.project, "--agent", "claude")
    claude.install(version="2.2.0")
    envelope = run(claude, "--codeprobe-canary=auto")
    (error,) = envelope["errors"]
    assert (error["code"], error["detail"]["trial_code"]) == ("CANARY_PROOF_FAILED", "CAPABILITY_DRIFT")
    assert claude.others == 1  # the recording's


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"agent": "claude"}', '{"tools": [1]}', "folder"])
def test_a_snapshot_that_can_not_be_used_refuses_the_run(claude: FakeClaude, content: str | None) -> None:
    if content == "folder":
        (claude.project.path / "caps.json").mkdir()
    elif content is not None:
        claude.project.write("caps.json", content)
    is_refused(claude, "plain", ASKED[0])


@pytest.mark.parametrize("where", ["flag", "environment", "ini"])
def test_it_is_refused_wherever_it_is_named(claude: FakeClaude, mode: str, where: str) -> None:
    if where == "ini":
        claude.project.write("pytest.ini", "[pytest]\ncodeprobe_capabilities = caps.json\n")
    if where == "environment":
        claude.project.environment["CODEPROBE_CAPABILITIES"] = "caps.json"
    is_refused(claude, mode, *([ASKED[0]] if where == "flag" else []))


def is_refused(claude: FakeClaude, mode: str, *args: str) -> None:
    done = claude.project.run("tasks", "--codeprobe-agent=claude", "--codeprobe-json", *args, mode=mode, junit=False)
    (error,) = done.assert_pure(events=False)["errors"]
    assert (error["code"], done.code) == ("USAGE_ERROR", 4)
    assert "caps.json" in error["message"]
    assert claude.sessions == []


# ---- comparing


def snapshot(*tools: str, servers: tuple[str, ...] = ()) -> Capabilities:
    return Capabilities(agent="claude", version="1", model="m", tools=tools, mcp_servers=servers)


def test_what_a_task_adds_itself_is_no_addition() -> None:
    now = snapshot("Read", "mcp__docs__find", "mcp__db__query", servers=("db", "docs"))
    found = compare(snapshot("Read"), now, removed=lambda _: False, own_servers={"docs"})
    assert (found.drifted, found.added_tools, found.added_servers) == (False, ("mcp__db__query",), ("db",))


@pytest.mark.parametrize(
    ("lists", "gone"),
    [
        ({}, ""),
        ({"disallowed_tools": ["shell"]}, "Bash"),
        ({"disallowed_tools": ["Bash(rm *)"]}, ""),
        ({"disallowed_tools": ["mcp:docs"]}, "mcp__docs__find mcp__docs__get"),
        ({"disallowed_tools": ["mcp:docs__get"]}, "mcp__docs__get"),
        ({"allowed_tools": ["read", "Bash(git *)"]}, "Write mcp__docs__find mcp__docs__get"),
        ({"allowed_tools": ["read", "shell", "write", "mcp:docs"]}, ""),
    ],
)
def test_which_tools_a_tasks_lists_take_away(lists: dict[str, Any], gone: str) -> None:
    config = AgentConfig.model_validate(lists)
    tools = ("Bash", "Read", "Write", "mcp__docs__find", "mcp__docs__get")
    assert " ".join(tool for tool in tools if Claude().takes_away(config, tool)) == gone


# ---- the real CLI


def recorded_offline(claude: ClaudeProject, *args: str) -> dict[str, Any]:
    """Where nothing at all is reachable: no model, and nobody else."""
    program = ("-c", "from pytest_codeprobe.cli import main; main()")
    environment = {"ANTHROPIC_API_KEY": "sk-ant-nobody-0123456789", "ANTHROPIC_BASE_URL": "https://models.example.invalid"}
    started = claude.project.start(
        "capabilities", "--agent", "claude", *args, program=program, env=environment, junit=False, prefix=tuple(netns_argv([]))
    )
    done = started.wait(60)
    assert done.code == 0, done.output
    claude.assert_nothing_left()
    content: dict[str, Any] = json.loads(done.stdout)
    claude.project.write("caps.json", done.stdout)
    return content


@pytest.mark.real_cli
def test_the_real_cli_is_recorded_and_held(project: Project, mode: str) -> None:
    claude = ClaudeProject(project, require_clis())
    servers = {"docs": {"command": sys.executable, "args": [PROGRAM, "find"]}}
    claude.task("t", agent={"mcp_servers": servers})
    before = claude.snapshot()
    snapshot = recorded_offline(claude, "--model", MODEL, "tasks/t.yaml")
    assert (snapshot["version"], snapshot["model"]) == (locked_version("@anthropic-ai/claude-code"), MODEL)
    assert snapshot["mcp_servers"] == ["docs"]
    assert {"Bash", "Edit", "Read", "Write", "mcp__docs__find"} <= set(snapshot["tools"])
    assert claude.snapshot() == before

    write = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})
    turns = (Turn("I write it.", [write], Usage(101, 11, 0, 0)), Turn("Done.", usage=Usage(103, 7, 0, 0)))
    with server([Script(turns, key="[t]")]) as model:
        run = claude.run(model, "--codeprobe-capabilities=caps.json", mode=mode)
    assert (run.code, run.envelope["errors"], run.envelope["warnings"]) == (0, [], []), run.output

    # a tool and a server gone: the CLI of the snapshot had more
    richer = {**snapshot, "tools": [*snapshot["tools"], "Telepathy"], "mcp_servers": ["docs", "tickets"]}
    project.write("caps.json", json.dumps(richer))
    with server([Script(turns, key="[t]")]) as model:
        run = claude.run(model, "--codeprobe-capabilities=caps.json", mode=mode)
    (error,) = run.envelope["errors"]
    assert (run.code, error["code"]) == (6, "CAPABILITY_DRIFT")
    assert (error["detail"]["missing_tools"], error["detail"]["missing_mcp_servers"]) == (["Telepathy"], ["tickets"])


@pytest.mark.real_cli
def test_the_real_cli_loses_a_tool_and_a_server(project: Project) -> None:
    claude = ClaudeProject(project, require_clis())
    servers = {"docs": {"command": sys.executable, "args": [PROGRAM, "find"]}}
    claude.task("t", agent={"mcp_servers": servers})
    recorded_offline(claude, "--model", MODEL, "tasks/t.yaml")
    write = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})
    turns = (Turn("I write it.", [write], Usage(101, 11, 0, 0)), Turn("Done.", usage=Usage(103, 7, 0, 0)))
    # by settings that the task's lists say nothing of, as an update or an administrator would
    settings = {"permissions": {"deny": ["WebSearch"]}}
    claude.task("t", agent={"claude": {"settings": settings}})
    with server([Script(turns, key="[t]")]) as model:
        run = claude.run(model, "--codeprobe-capabilities=caps.json")
    (error,) = run.envelope["errors"]
    assert (run.code, error["code"]) == (6, "CAPABILITY_DRIFT")
    assert "docs" in error["detail"]["missing_mcp_servers"]
    assert {"WebSearch", "mcp__docs__find"} <= set(error["detail"]["missing_tools"])
