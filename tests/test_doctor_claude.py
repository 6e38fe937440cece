"""Doctor and the real Claude Code CLI: its version, and a probe that finds out a credential which the provider refuses."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from tests.claude_runs import KEY, MODEL, ClaudeProject, server
from tests.front_door import Project
from tests.model_server import Fault, ModelServer, Script, ToolCall, Turn
from tests.netns import netns_argv, receive_listener
from tests.real_cli import require_clis
from tests.schemas import check

pytestmark = pytest.mark.real_cli
_PROGRAM = ("-c", "from pytest_codeprobe.cli import main; main()")


@pytest.fixture
def claude(project: Project) -> ClaudeProject:
    return ClaudeProject(project, require_clis())


def doctor(claude: ClaudeProject, model: ModelServer, *args: str, key: str = KEY) -> dict[str, dict[str, Any]]:
    """The checks by name, of a doctor for whom the server is the only host there is."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        run = claude.project.start(
            "doctor", "--json", "--agent", "claude", "--model", MODEL, *args,
            program=_PROGRAM, env={"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": key}, junit=False,
            prefix=tuple(netns_argv([], listen=(theirs.fileno(), model.port))), pass_fds=(theirs.fileno(),),
        )  # fmt: skip
        theirs.close()
        model.join(receive_listener(ours))
    (told,) = run.wait(120).lines
    check("envelope", told)
    claude.assert_nothing_left()
    assert key not in run.output
    assert not claude.leaked.exists()
    return {each["name"]: each for each in told["data"]["checks"]}


def test_version_and_credential(claude: ClaudeProject) -> None:
    with server([]) as model:
        checks = doctor(claude, model)
        assert model.stats.log == []  # nothing was asked
    assert checks["agent.claude.version"]["status"] == "pass"
    assert checks["agent.claude.version"]["detail"]["version"].startswith("2.1.")
    assert checks["agent.claude.credentials"]["detail"]["source"] == "ANTHROPIC_API_KEY"
    assert "probe" not in checks


def test_a_probe_that_passes(claude: ClaudeProject) -> None:
    write = ToolCall("Write", {"file_path": "{cwd}/codeprobe-probe.txt", "content": "{nonce}\n"})
    with server([Script([Turn("", [write]), Turn("{nonce}")])]) as model:
        checks = doctor(claude, model, "--probe")
    assert checks["probe"]["status"] == "pass", checks["probe"]
    assert (checks["probe"]["detail"]["model"], checks["probe"]["detail"]["cost_usd"] > 0) == (MODEL, True)


def test_a_probe_of_one_that_only_talks(claude: ClaudeProject) -> None:
    with server([Script([Turn("I wrote it.")])]) as model:
        checks = doctor(claude, model, "--probe")
    assert (checks["probe"]["status"], checks["probe"]["detail"]["status"]) == ("fail", "failed")
    assert checks["probe"]["detail"]["cost_usd"] > 0


def test_a_probe_finds_a_wrong_credential(claude: ClaudeProject) -> None:
    with server([Script([Turn("Hello.")])], [Fault("status", status=401, times=None, where="all")]) as model:
        checks = doctor(claude, model, "--probe")
    assert checks["agent.claude.credentials"]["status"] == "pass"  # it is there; what it is worth shows now
    assert (checks["probe"]["status"], checks["probe"]["detail"]["code"]) == ("fail", "AUTH_FAILED"), checks["probe"]
    assert "ANTHROPIC_API_KEY" in checks["probe"]["fix"]
