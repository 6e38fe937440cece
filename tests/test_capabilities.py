"""Capability snapshots: recorded at no cost, and held against what each session says of itself."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_codeprobe.agents.claude.adapter import Claude
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.capabilities import Capabilities, compare
from pytest_codeprobe.model.config import AgentConfig
from pytest_codeprobe.model.context import Snapshot
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.run.capabilities import read_snapshot
from pytest_codeprobe.trial.drift import DriftCheck
from tests.agent_sessions import make_trial
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
#: of the fake CLI with the server `docs`
CONTENT = {
    "schema_version": "1",
    "agent": "claude",
    "version": "2.1.332",
    "model": "claude-sonnet-4-5",
    "asked_model": None,
    "tools": list(TOOLS),
    "mcp_servers": ["docs"],
}


@pytest.fixture
def claude(project: Project) -> FakeClaude:
    """A task for it."""
    fake = FakeClaude(project, servers={"docs": "connected"})
    fake.task("a")
    return fake


def snapshot_file(claude: FakeClaude, **changes: Any) -> None:
    """caps.json, as it would be recorded of the CLI that the fixture makes."""
    claude.project.write("caps.json", json.dumps({**CONTENT, **changes}))


def run(claude: FakeClaude, *args: str, mode: str = "plain") -> dict[str, Any]:
    done = claude.project.run("tasks", "--codeprobe-agent=claude", *ASKED, *args, mode=mode, junit=False)
    envelope = done.assert_pure(events=False)
    if done.code != 4:  # `latest` still is the run before
        done.assert_consistent()
    done.assert_nothing_left()
    return envelope


# ---- the command


def test_the_command_prints_what_the_first_event_says_and_nothing_else(claude: FakeClaude) -> None:
    """It ends the agent then, and asks it for nothing; a task's settings count; what is printed at import is no part of it."""
    claude.project.write("conftest.py", "import os\nprint('loaded')\nos.system('echo loaded too')\n")
    claude.task("b", agent={"type": "claude", "args": ["--of-the-task"], "model": "opus"})
    claude.install(hangs=True)
    done = claude.project.codeprobe("capabilities", "--agent", "claude", "tasks/b.yaml")
    assert done.code == 0, done.output
    snapshot = json.loads(done.stdout)
    check("capabilities", snapshot)
    assert snapshot == {**CONTENT, "asked_model": "opus"}
    assert "--of-the-task" in claude.sessions[-1]["argv"]
    assert not (claude.project.path / ".codeprobe").exists()
    assert not list((claude.project.scratch / "tmp").iterdir())


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("--agent", "nop"), "USAGE_ERROR", "agent nop reports no tools"),
        ((), "NO_BACKENDS_CONFIGURED", "no agent is named"),
        (("--agent", "claude", "nowhere.yaml"), "TASK_INVALID", "nowhere.yaml"),
        (("--agent", "claude", "tasks/cloud.yaml"), "USAGE_ERROR", "the task sets CLAUDE_CODE_USE_BEDROCK"),
        (("--agent", "claude", "--output", "no/such/folder/x.json"), "USAGE_ERROR", "no/such/folder"),
    ],
)
def test_what_can_not_be_recorded_is_refused(claude: FakeClaude, args: tuple[str, ...], code: str, says: str) -> None:
    claude.task("cloud", agent={"type": "claude", "env": {"CLAUDE_CODE_USE_BEDROCK": "1"}})
    done = claude.project.codeprobe("capabilities", *args)
    assert (done.code, done.stdout) == (4, "")
    assert code in done.stderr
    assert says in done.stderr
    assert "Traceback" not in done.output
    assert len(claude.sessions) == ("--output" in args)


@pytest.mark.parametrize("silent", [{"tools": ()}, {"fails": "no such model"}], ids=["no-tools", "no-event"])
def test_an_agent_that_reports_no_tools(claude: FakeClaude, silent: dict[str, Any]) -> None:
    if "fails" in silent:  # before it says anything
        (claude.folder / "claude").write_text("#!/bin/sh\necho 'no such model' >&2\nexit 1\n")
    else:
        claude.install(**silent)
    done = claude.project.codeprobe("capabilities", "--agent", "claude")
    assert (done.code, done.stdout) == (4, "")
    assert "reports no tools" in done.stderr


def test_a_full_disk_behind_stdout_is_said(claude: FakeClaude) -> None:
    program = ("-c", "import os; os.dup2(os.open('/dev/full', os.O_WRONLY), 1); from pytest_codeprobe.cli import main; main()")
    done = claude.project.start("capabilities", "--agent", "claude", program=program, junit=False).wait()
    assert done.code == 4
    assert "USAGE_ERROR: stdout: No space left" in done.stderr


@pytest.mark.parametrize(
    ("agent", "sandbox", "file", "says"),
    [
        ({}, {}, None, None),
        ({"env": {"CLAUDE_CODE_USE_BEDROCK": "0"}}, {}, None, None),
        ({"env": {"CLAUDE_CODE_USE_BEDROCK": "1"}}, {}, None, "the task sets CLAUDE_CODE_USE_BEDROCK"),
        ({"env": {"ANTHROPIC_BASE_URL": "http://models"}}, {}, None, None),  # ours is put in its place
        ({}, {"env": {"CLAUDE_CODE_USE_VERTEX": "true"}}, None, "the task sets CLAUDE_CODE_USE_VERTEX"),
        ({}, {"env_passthrough": ["CLAUDE_CODE_USE_VERTEX"]}, None, "the task sets CLAUDE_CODE_USE_VERTEX"),
        ({}, {"env_passthrough": ["grader:CLAUDE_CODE_USE_VERTEX"]}, None, None),
        (
            {"claude": {"settings": {"env": {"ANTHROPIC_BASE_URL": "http://models"}}}},
            {},
            None,
            "agent.claude.settings sets ANTHROPIC_BASE_URL",
        ),
        ({}, {}, {"env": {"CLAUDE_CODE_USE_BEDROCK": 1}}, "the workspace's .claude/settings.json sets CLAUDE_CODE_USE_BEDROCK"),
        ({"project_settings": False}, {}, {"env": {"CLAUDE_CODE_USE_BEDROCK": 1}}, None),
    ],
)
def test_what_would_lead_a_recording_to_a_model(
    tmp_path: Path, agent: dict[str, Any], sandbox: dict[str, Any], file: dict[str, Any] | None, says: str | None
) -> None:
    trial = make_trial(tmp_path, {"type": "claude", **agent})
    trial = trial.model_copy(update={"sandbox": type(trial.sandbox).model_validate(sandbox)})
    if file is not None:
        (tmp_path / ".claude").mkdir()
        (tmp_path / ".claude" / "settings.json").write_text(json.dumps(file))
    context = SimpleNamespace(options=RunOptions(), environ={"CLAUDE_CODE_USE_VERTEX": "1"})
    why = Claude().paid_anyway(trial, context, tmp_path)  # type: ignore[arg-type]
    assert why is None if says is None else (why or "").startswith(says)


# ---- a run


def test_what_is_no_drift(claude: FakeClaude) -> None:
    """What a task's own lists take away, and the model that it names; c has no such list."""
    snapshot_file(claude)
    claude.install(tools=("Edit", "Read", "Write"))
    claude.task("a", agent={"type": "claude", "disallowed_tools": ["shell"]})
    claude.task("b", agent={"type": "claude", "allowed_tools": ["read", "write", "edit"]})
    claude.task("c")
    envelope = run(claude)
    assert [(r["task_id"], r["status"]) for r in envelope["data"]["results"]] == [("a", "passed"), ("b", "passed"), ("c", "error")]
    assert envelope["warnings"] == []


def test_a_session_that_has_less_is_an_error(claude: FakeClaude, mode: str) -> None:
    """It is ended as soon as it has shown it, and is not tried again."""
    snapshot_file(claude, mcp_servers=["docs", "tickets"])
    claude.task("b")
    claude.install(tools=("Bash", "Edit", "Read"), version="2.2.0", model="opus", servers={"docs": "failed"}, hangs=True)
    envelope = run(claude, mode=mode)
    assert (envelope["exit_code"], envelope["data"]["tasks_error"]) == (6, 2)
    (error,) = envelope["errors"]
    assert (error["code"], error["count"], error["retryable"]) == ("CAPABILITY_DRIFT", 2, "no")
    for words in ("version 2.1.332 -> 2.2.0", "model claude-sonnet-4-5 -> opus", "tools gone: Write", "MCP servers gone: docs, tickets"):
        assert words in error["message"]
    assert error["detail"]["missing_tools"] == ["Write"]
    assert error["detail"]["missing_mcp_servers"] == ["docs", "tickets"]
    assert error["detail"]["version"] == {"old": "2.1.332", "new": "2.2.0"}
    assert [r["attempts"] for r in envelope["data"]["results"]] == [1, 1]


def test_the_printed_command_records_it_again(claude: FakeClaude) -> None:
    snapshot_file(claude, version="2.0.0")
    (error,) = run(claude)["errors"]
    program, *command = shlex.split(error["remediation"].partition("`")[2].partition("`")[0])
    assert program == "codeprobe"
    done = claude.project.codeprobe(*command)
    assert (done.code, done.stdout) == (0, "")
    envelope = run(claude)
    assert (envelope["exit_code"], envelope["errors"], envelope["warnings"]) == (0, [], [])


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_what_it_has_beyond_the_snapshot_is_a_warning(claude: FakeClaude, mode: str) -> None:
    snapshot_file(claude)
    claude.task("b")
    claude.install(tools=(*TOOLS, "Zap"), servers={"docs": "connected", "db": "connected"})
    envelope = run(claude, mode=mode)
    assert envelope["exit_code"] == 0
    assert envelope["warnings"] == ["agent claude has more than the snapshot caps.json: tools Zap and MCP servers db"]


def test_the_snapshot_of_one_agent_holds_no_other(claude: FakeClaude) -> None:
    snapshot_file(claude)
    done = claude.project.run("tasks", "--codeprobe-agent=nop", *ASKED, junit=False)
    assert [r["status"] for r in done.assert_pure(events=False)["data"]["results"]] == ["failed"]


def test_the_canary_is_held_to_what_it_can_have(claude: FakeClaude) -> None:
    """No MCP servers, which are a task's own; a snapshot that has them is no reason to fail it. Another version is."""
    snapshot_file(claude, tools=[*TOOLS, "mcp__tickets__find"], mcp_servers=["docs", "tickets"])
    servers = {"tickets": {"command": "tickets"}}
    claude.task("a", agent={"type": "claude", "mcp_servers": servers})
    claude.install(tools=(*TOOLS, "Zap"))
    envelope = run(claude, "--codeprobe-canary=auto")
    assert [proof["state"] for proof in envelope["data"]["canary"]["proofs"]] == ["proved"]
    assert "CANARY_PROOF_FAILED" not in [error["code"] for error in envelope["errors"]]

    claude.install(version="2.2.0")
    (error,) = run(claude, "--codeprobe-canary=renew")["errors"]
    assert (error["code"], error["detail"]["canary"]) == ("CAPABILITY_DRIFT", True)
    assert "in the canary of agent claude" in error["message"]
    assert "MCP" not in error["message"]
    assert claude.others == 1  # of the first run


@pytest.mark.parametrize(("where", "mode"), [("flag", "plain"), ("environment", "plain"), ("ini", "xdist")])
def test_one_that_can_not_be_used_refuses_the_run(claude: FakeClaude, mode: str, where: str) -> None:
    if where == "ini":
        claude.project.write("pytest.ini", "[pytest]\ncodeprobe_capabilities = caps.json\n")
    if where == "environment":
        claude.project.environment["CODEPROBE_CAPABILITIES"] = "caps.json"
    named = [ASKED[0]] if where == "flag" else ["--codeprobe-canary=auto"]
    done = claude.project.run("tasks", "--codeprobe-agent=claude", "--codeprobe-json", *named, mode=mode, junit=False)
    (error,) = done.assert_pure(events=False)["errors"]
    assert (error["code"], done.code) == ("USAGE_ERROR", 4)
    assert "caps.json" in error["message"]
    assert claude.sessions == []


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"agent": "claude"}', '{"tools": [1]}', "folder"])
def test_what_is_no_snapshot(tmp_path: Path, content: str | None) -> None:
    if content == "folder":
        (tmp_path / "caps.json").mkdir()
    elif content is not None:
        (tmp_path / "caps.json").write_text(content)
    with pytest.raises(CodeprobeError, match=r"USAGE_ERROR.*caps\.json"):
        read_snapshot("caps.json", [tmp_path])


# ---- comparing


def snapshot(*tools: str, servers: tuple[str, ...] = (), **more: Any) -> Capabilities:
    return Capabilities.model_validate({"agent": "claude", "version": "1", "model": "m", "tools": tools, "mcp_servers": servers, **more})


def test_what_a_task_adds_itself_is_no_addition() -> None:
    now = snapshot("Read", "mcp__docs__find", "mcp__db__query", servers=("db", "docs"))
    found = compare(snapshot("Read"), now, removed=lambda _: False, own_servers={"docs"})
    assert (found.drifted, found.added_tools, found.added_servers) == (False, ("mcp__db__query",), ("db",))


@pytest.mark.parametrize(
    ("recorded_for", "asked", "drifted", "warned"),
    [
        (None, None, True, False),
        (None, "opus", False, True),
        ("opus", "opus", True, False),
        ("opus", None, True, False),
        ("opus", "haiku", False, True),
        (None, "m", False, False),  # by another name it is what was recorded
    ],
)
def test_another_model_is_drift_unless_it_was_asked_for(
    tmp_path: Path, recorded_for: str | None, asked: str | None, drifted: bool, warned: bool
) -> None:
    known, now = snapshot("Read", asked_model=recorded_for), snapshot("Read", model="m" if asked == "m" else "another")
    trial = make_trial(tmp_path, {"type": "claude", **({"model": asked} if asked else {})})
    check = DriftCheck(Snapshot("caps.json", known), Claude(), trial)
    check.look(SimpleNamespace(capabilities=lambda: now))  # type: ignore[arg-type]
    assert check.found is not None
    assert check.found.drifted is drifted
    assert any("models are not compared" in warning for warning in check.warnings()) is warned


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
def test_the_real_cli_is_recorded_and_held(project: Project) -> None:
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
        run = claude.run(model, "--codeprobe-capabilities=caps.json")
    assert (run.code, run.envelope["errors"], run.envelope["warnings"]) == (0, [], []), run.output

    # a tool and a server gone, by settings that the task's lists say nothing of, as an update or an administrator would
    settings = {"permissions": {"deny": ["WebSearch"]}}
    claude.task("t", agent={"claude": {"settings": settings}})
    with server([Script(turns, key="[t]")]) as model:
        run = claude.run(model, "--codeprobe-capabilities=caps.json")
    (error,) = run.envelope["errors"]
    assert (run.code, error["code"]) == (6, "CAPABILITY_DRIFT")
    assert "docs" in error["detail"]["missing_mcp_servers"]
    assert {"WebSearch", "mcp__docs__find"} <= set(error["detail"]["missing_tools"])
