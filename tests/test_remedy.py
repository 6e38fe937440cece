"""What a remedy tells its reader to type: the flags of the front door that was used, and the same call with one thing changed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.options import MODES, OPTIONS, spelled
from pytest_codeprobe.plugin import refusal
from pytest_codeprobe.run.envelope import entry
from pytest_codeprobe.run.remedy import Invocation, addressed

CONSOLE = Invocation(program=("codeprobe", "run"), console=True)
PYTEST = Invocation(program=("pytest",))


def console(*typed: str) -> Invocation:
    return Invocation(program=("codeprobe", "run"), arguments=typed, console=True)


def plain(*typed: str) -> Invocation:
    return Invocation(program=("pytest",), arguments=typed)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Use --codeprobe-agent NAME.", "Use --agent NAME."),
        ("--codeprobe-jobs: '0' is no number", "-j: '0' is no number"),
        ("Use --codeprobe-jobs=4 instead.", "Use --max-parallel=4 instead."),
        ("--codeprobe-json and --codeprobe-json-lines exclude each other", "--json and --json-lines exclude each other"),
        ("a trailing --codeprobe-run-dir.", "a trailing --run-dir."),
        ("See `pytest --help`, section codeprobe.", "See `codeprobe run --help`."),
        ("no flag of ours: --codeprobe-nosuch", "no flag of ours: --codeprobe-nosuch"),
        ("ini codeprobe_runs_dir, CODEPROBE_AGENT, --codeprobe-doctor", "ini codeprobe_runs_dir, CODEPROBE_AGENT, --codeprobe-doctor"),
    ],
)
def test_flags_in_the_spelling_of_codeprobe(text: str, said: str) -> None:
    assert spelled(text, console=True) == said
    assert spelled(text, console=False) == text


def test_every_flag_has_a_spelling() -> None:
    for option in OPTIONS:
        if option.cli:
            assert spelled(f"x {option.flag} y", console=True) == f"x {option.cli[0]} y"


@pytest.mark.parametrize(
    "typed", [("--agent", "a"), ("--agent=a",), ("-T", "a"), ("-Ta",), ("--type=a",), ("--agent", "a", "--type", "b"), ()]
)
def test_the_same_call_with_another_value(typed: tuple[str, ...]) -> None:
    call = console("tasks", *typed, "--json", "--", "-k", "x", "--agent")
    assert call.again("agent", "claude") == ("codeprobe", "run", "tasks", "--json", "--agent", "claude", "--", "-k", "x", "--agent")


@pytest.mark.parametrize("typed", [("--codeprobe-agent", "a"), ("--codeprobe-agent=a",), ()])
def test_the_same_call_of_pytest(typed: tuple[str, ...]) -> None:
    assert plain(*typed, "tasks", "-x").again("agent", "b") == ("pytest", "tasks", "-x", "--codeprobe-agent=b")
    assert plain(*typed, "--", "tasks").again("agent", "b") == ("pytest", "--codeprobe-agent=b", "--", "tasks")


def test_a_flag_without_its_value_swallows_no_other() -> None:
    assert plain("tasks", "--codeprobe-agent", "--codeprobe-json").again("agent", "b") == (
        "pytest", "tasks", "--codeprobe-json", "--codeprobe-agent=b",
    )  # fmt: skip


def test_the_folder_of_the_run_that_is_over_is_left_out() -> None:
    assert console("--run-dir", "out", "tasks").again() == ("codeprobe", "run", "tasks")
    assert plain("--codeprobe-run-dir=out", "tasks").again() == ("pytest", "tasks")


def test_what_did_not_pass_once_more() -> None:
    assert console("tasks").again(failed_only=True) == ("codeprobe", "run", "tasks", "--", "--lf")
    assert console("tasks", "--", "-n", "2", "--lf").again(failed_only=True) == ("codeprobe", "run", "tasks", "--", "-n", "2", "--lf")
    assert plain("tasks", "--lf").again(failed_only=True) == ("pytest", "tasks", "--lf")


@pytest.mark.parametrize("on_path", [True, False])
def test_what_started_pytest_is_what_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_path: bool) -> None:
    script = tmp_path / "pytest"
    script.write_text("#!/bin/sh\n")
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path) if on_path else "/nowhere")
    monkeypatch.setattr(sys, "argv", [str(script), "tasks"])
    assert refusal._pytest() == (("pytest",) if on_path else (str(script),))
    monkeypatch.setattr(sys, "argv", ["/lib/site-packages/pytest/__main__.py"])
    assert refusal._pytest() == (sys.executable, "-m", "pytest")
    monkeypatch.setattr(sys, "argv", ["-c"])
    assert refusal._pytest() == ("pytest",)


def test_help_and_doctor() -> None:
    assert (CONSOLE.help(), PYTEST.help()) == (("codeprobe", "run", "--help"), ("pytest", "--help"))
    assert CONSOLE.doctor("claude") == ("codeprobe", "doctor", "--agent", "claude", "--json")
    assert PYTEST.doctor(None) == ("pytest", "--codeprobe-doctor")
    assert PYTEST.doctor("claude") == ("pytest", "--codeprobe-doctor", "--codeprobe-agent=claude")


def printed(code: str, **detail: object) -> tuple[str, ...]:
    called = console("tasks", "--driver", "docker", "--permission-mode", "plan", "--canary", "require", "--offline")
    return addressed(entry(CodeprobeError(code, "x", detail=detail)), called).command or ()


@pytest.mark.parametrize("code", error_codes())
def test_no_command_gives_an_agent_more_than_the_call_did(code: str) -> None:
    """A caller runs it without asking anybody."""
    command = printed(code)
    assert "renew" not in command
    if command[:2] == ("codeprobe", "run") and command[-1] != "--help":
        assert command[:7] == ("codeprobe", "run", "tasks", "--driver", "docker", "--permission-mode", "plan")
        assert "--offline" in command


@pytest.mark.parametrize(
    ("setting", "typed", "choices", "meant"),
    [
        ("permission-mode", "aut0", MODES, "auto"),
        ("permission-mode", "acceptEdit", MODES, "acceptEdits"),
        ("permission-mode", "yolo", MODES, None),
        ("permission-mode", "bypassPermisions", MODES, None),
        ("canary", "requir", ("off", "auto", "require", "renew"), "require"),
        ("canary", "renw", ("off", "auto", "require", "renew"), None),
        ("driver", "tempbox", ("auto", "tempdir"), None),
        ("driver", "bubblewrp", ("auto", "bubblewrap", "tempdir"), "bubblewrap"),
    ],
)
def test_a_slip_is_corrected_to_what_was_meant_and_to_nothing_laxer(
    setting: str, typed: str, choices: tuple[str, ...], meant: str | None
) -> None:
    code = "INVALID_PERMISSION_MODE" if setting == "permission-mode" else "USAGE_ERROR"
    command = printed(code, setting=setting, value=typed, choices=choices)
    assert command[-2:] == (f"--{setting}", meant) if meant is not None else command in ((), ("codeprobe", "run", "--help"))
