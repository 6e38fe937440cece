"""SKILL.md for calling agents: what it says is true, and a caller that follows it alone comes to the right end."""

from __future__ import annotations

import importlib.resources
import re
import shlex
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_codeprobe.cli.main import group
from pytest_codeprobe.errors import error_codes
from tests import code_tables
from tests.code_tables import SKILL
from tests.front_door import Project, scripted
from tests.schemas import NAMES, shipped
from tests.shell import type_in
from tests.skill_caller import Caller, Rule, Story

TEXT = SKILL.read_text(encoding="utf-8")
WRITE = {"write": {"path": "out.txt", "content": "x"}}
RUN = ("codeprobe", "run", "tasks", "--json")


# ---------------------------------------------------------------- what it says


@pytest.mark.parametrize("page", code_tables.PAGES, ids=lambda page: page.stem)
def test_tables_are_those_of_the_code(page: Path) -> None:
    """To write them anew: `python -m tests.code_tables`."""
    assert page.read_text(encoding="utf-8") == code_tables.as_it_should_be(page)


def test_head() -> None:
    _, head, _ = TEXT.split("---\n", 2)
    front = yaml.safe_load(head)
    assert front.keys() == {"name", "description", "user-invocable"}
    assert (front["name"], front["user-invocable"]) == ("codeprobe-run", False) == (SKILL.parent.name, False)
    assert 50 < len(front["description"]) < 1024


def test_it_ships_in_the_package() -> None:
    assert importlib.resources.files("pytest_codeprobe").joinpath("skills/codeprobe-run/SKILL.md").is_file()


def calls() -> list[list[str]]:
    """Command lines that it shows."""
    shown = re.findall(r"```sh\n(.*?)```", TEXT, re.DOTALL) + re.findall(r"`(codeprobe [^`]+)`", TEXT)
    return [shlex.split(line) for block in shown for line in block.splitlines() if line]


def test_every_flag_and_command_is_there() -> None:
    assert {call[1] for call in calls()} <= group.commands.keys()
    for call in calls():
        command = group.commands[call[1]]
        known = {flag for parameter in command.params for flag in parameter.opts}
        assert {part for part in call[2:] if part.startswith("-")} <= known | {"--help"}, call
    known = {flag for command in group.commands.values() for parameter in command.params for flag in parameter.opts}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", TEXT)) <= known | {"--help"}
    assert {call[2] for call in calls() if call[1] == "schema" and len(call) == 3} <= set(NAMES)


def test_every_call_for_a_run_works(project: Project) -> None:
    """With an agent that costs nothing in the place of claude."""
    project.task("t", agent=scripted(WRITE))
    shown = [call for call in calls() if call[1] == "run" and "tasks/" in call]
    assert len(shown) >= 4
    for call in shown:
        done = type_in(project, ["scripted" if part == "claude" else part for part in call])
        assert done.returncode == 0, (call, done.stderr)
        assert done.stdout.splitlines()[-1].startswith('{"record_type": "envelope"') or '"record_type":"envelope"' in done.stdout


def test_exit_codes_and_fields_are_the_codes() -> None:
    rows = dict(re.findall(r"^\| (\d) \| ([^|]+) \|", TEXT, re.MULTILINE))
    assert sorted(rows) == [str(n) for n in range(7)]
    fields = {*shipped("envelope")["$defs"]["error"]["required"], *shipped("envelope")["required"]}
    for name in ("errors", "data", "message", "remediation", "command", "retryable", "terminal"):
        assert name in fields
        assert f"`{name}" in TEXT


def test_the_table_can_be_read_by_a_program() -> None:
    rules = Caller(TEXT, type_in).rules  # type: ignore[arg-type]  # nothing is called
    assert rules == {code: Rule(row.retryable, row.terminal, row.exit_code) for code, row in error_codes().items()}


# ---------------------------------------------------------------- who follows it


def follow(project: Project, *call: str, agent: str = "scripted", env: dict[str, str] | None = None) -> Story:
    def execute(argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        return type_in(project, argv, env=env)

    return Caller(TEXT, execute).drive(call or (*RUN, "--agent", "scripted"), agent)


def failing_first(*codes: str) -> str:
    """A conftest.py whose agent ends its sessions with these codes, run by run, and then works."""
    return f"""\
import pathlib
from pytest_codeprobe.agents.command import CommandAgent, CommandParser
from pytest_codeprobe.model.agent import SessionEnd

COUNT = pathlib.Path(__file__).with_name("runs.txt")
CODES = {list(codes)!r}

class Parser(CommandParser):
    def end(self, exit, *, stopped_for, stderr_tail):
        number = int(COUNT.read_text()) if COUNT.exists() else 0
        return SessionEnd(code=CODES[number - 1], reason="no luck") if number <= len(CODES) else SessionEnd()

class Flaky(CommandAgent):
    name = "flaky"
    def parser(self, request): return Parser(request)

def pytest_codeprobe_agents(config): return [Flaky()]

def pytest_sessionstart(session):
    COUNT.write_text(str((int(COUNT.read_text()) if COUNT.exists() else 0) + 1))
"""


def flaky(project: Project, *codes: str) -> Story:
    project.write("conftest.py", failing_first(*codes))
    project.task("t", agent={"type": "flaky", "command": ["touch", "out.txt"]})
    return follow(project, *RUN, "--agent", "flaky", agent="flaky")


def test_a_pass_and_a_fail_are_results(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    story = follow(project)
    assert (story.end, len(story.calls), story.doctors) == ("passed", 1, 1)
    project.task("u", agent=scripted({"say": "no idea"}))
    story = follow(project)
    assert (story.end, len(story.calls)) == ("failed", 1)


@pytest.mark.parametrize(
    ("codes", "end", "calls"),
    [
        (("SANDBOX_FAILED", "WORKER_DIED"), "passed", 3),
        (("SANDBOX_FAILED", "SANDBOX_FAILED"), "stopped: twice the same", 2),
        (("SANDBOX_FAILED", "WORKER_DIED", "SANDBOX_FAILED"), "stopped: two retries", 3),
        (("SANDBOX_FAILED", "AGENT_BLOCKED"), "stopped: needs a fix", 2),
    ],
)
def test_retries_are_bounded(project: Project, codes: tuple[str, ...], end: str, calls: int) -> None:
    story = flaky(project, *codes)
    assert (story.end, len(story.calls), story.doctors) == (end, calls, calls)
    assert story.codes == list(codes)[:calls]


def test_terminal_errors_stop_even_beside_a_fail(project: Project) -> None:
    project.task("a", agent=scripted({"say": "no idea"}))
    project.write("tests/test_stop.py", "import signal\ndef test_stop(): signal.raise_signal(signal.SIGTERM)\n")
    story = follow(project, *RUN, "tests", "--agent", "scripted")
    assert (story.end, story.codes, len(story.calls)) == ("stopped: terminal", ["INTERRUPTED"], 1)


def test_a_budget_that_is_used_up_is_terminal(project: Project) -> None:
    usage = {"usage": {"model": "m1", "input_tokens": 10, "output_tokens": 5, "cost_usd": 1.0}}
    for name in ("a", "b"):
        project.task(name, agent=scripted(WRITE, usage))
    story = follow(project, *RUN, "--agent", "scripted", "--max-cost-usd", "0.5")
    assert (story.end, story.codes, len(story.calls)) == ("stopped: terminal", ["BUDGET_EXCEEDED"], 1)


@pytest.mark.parametrize(
    ("typed", "code"),
    [
        (("--agent", "scriptd"), "UNKNOWN_BACKEND"),
        (("--agent", "scripted", "--permission-mode", "aut0"), "INVALID_PERMISSION_MODE"),
        (("--agnt", "scripted"), "USAGE_ERROR"),
        (("--agent", "scripted", "--preservation-mode", "mov"), "USAGE_ERROR"),
    ],
)
def test_faults_of_a_call_are_repaired_by_the_printed_command(project: Project, typed: tuple[str, ...], code: str) -> None:
    project.task("t", agent=scripted(WRITE))
    story = follow(project, *RUN, *typed)
    assert (story.end, story.codes, len(story.calls)) == ("passed", [code], 2), story


@pytest.mark.parametrize(
    ("fields", "typed", "code"),
    [
        ({"initial_prompt": None}, (), "TASK_INVALID"),
        ({}, ("--timeout", "soon"), "USAGE_ERROR"),
        ({}, ("--driver", "docker", "-D", "sandbox.docker.image=x"), "SANDBOX_UNAVAILABLE"),
        ({}, ("--permission-mode", "bypass"), "INVALID_PERMISSION_MODE"),
        ({"fixtures": ["broken"]}, (), "FIXTURE_FAILED"),
    ],
)
def test_what_needs_another_fix_is_left_to_others(project: Project, fields: dict[str, Any], typed: tuple[str, ...], code: str) -> None:
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef broken(): raise OSError('no database')\n")
    project.write("pytest.ini", "[pytest]\ncodeprobe_engine = no-engine\n")
    project.task("t", agent=scripted(WRITE), **fields)
    story = follow(project, *RUN, "--agent", "scripted", *typed)
    assert (story.end, story.codes, len(story.calls)) == ("stopped: needs a fix", [code], 1)


def test_what_can_not_be_retried(project: Project) -> None:
    (project.path / "tasks").mkdir()
    story = follow(project)
    assert (story.end, story.codes, len(story.calls)) == ("stopped: no retry", ["NO_TASKS"], 1)


def test_nothing_is_run_on_a_machine_that_lacks_what_it_takes(project: Project) -> None:
    project.task("t")
    environment = {
        "HOME": "/nowhere",
        "ANTHROPIC_API_KEY": "",
        "ANTHROPIC_AUTH_TOKEN": "",
        "CLAUDE_CODE_OAUTH_TOKEN": "",
        "CLAUDE_CONFIG_DIR": "",
    }
    story = follow(project, *RUN, "--agent", "claude", agent="claude", env=environment)
    assert (story.end, story.calls, story.doctors) == ("stopped: doctor", [], 1)


def test_a_run_that_was_killed(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write("tests/test_kill.py", "import os\ndef test_kill(): os.kill(os.getpid(), 9)\n")
    story = follow(project, *RUN, "tests", "--agent", "scripted")
    assert (story.end, story.codes, len(story.calls)) == ("stopped: no envelope", ["INTERRUPTED"], 1)
    assert (project.path / ".codeprobe/runs/latest/events.ndjson").read_text().count("trial_finished") == 1
