from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.agents.command import CommandAgent
from pytest_codeprobe.errors import CodeprobeError
from tests.agent_sessions import checked_transcript, ended, make_request, make_trial, run_session
from tests.front_door import Project

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


@pytest.mark.parametrize(
    ("command", "reason", "remedy"),
    [
        (["/bin/sh", "-c", "no-such-program"], "'/bin/sh' could not start what it was told to (exit status 127)", "agent.command starts"),
        (["sh", "-c", "exit 126"], "'sh' could not start what it was told to (exit status 126)", "agent.command starts"),
        (["./agent.sh", "x"], "'./agent.sh' was not found in the workspace, where a relative path leads (exit status 127)",
         "beside the task file as {task_dir}/agent.sh"),
        (["no-such-agent"], "'no-such-agent' was not found (exit status 127)", "install the program"),
        (["/etc/passwd"], "'/etc/passwd' could not be run (exit status 126)", "Correct agent.command"),
    ],
)  # fmt: skip
def test_the_reason_names_what_was_tried(tmp_path: Path, command: list[str], reason: str, remedy: str) -> None:
    request = make_request(tmp_path, {"command": command})
    status = 126 if "126" in reason else 127
    end = CommandAgent().parser(request).end(ended(status), stopped_for=None, stderr_tail="sh: it said: why\n")
    assert end.code == "AGENT_CRASHED"
    assert (end.reason or "").startswith(reason), end.reason
    assert "it said: why" in (end.reason or "")
    assert remedy in (end.remediation or "")


def test_a_program_beside_the_task(tmp_path: Path) -> None:
    request = make_request(tmp_path, {"command": ["sh", "{task_dir}/agent.sh", "{task_dir}"]})
    folder = Path(request.trial.task_file).parent
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "agent.sh").write_text('echo "$1" > out.txt\n')
    run_session(CommandAgent(), request)
    assert (tmp_path / "workspace" / "out.txt").read_text() == f"{folder}\n"


def test_a_failed_program_that_did_nothing_is_told(tmp_path: Path) -> None:
    parser, end, _ = run_session(CommandAgent(), make_request(tmp_path, {"command": ["sh", "-c", "echo no key >&2; exit 3"]}))
    assert end.code is None
    assert [w for w in parser.warnings if "the agent ended with exit status 3 and changed nothing" in w]
    parser, _, _ = run_session(CommandAgent(), make_request(tmp_path, {"command": ["sh", "-c", "echo x > out.txt; exit 3"]}))
    assert parser.warnings == []


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


def test_what_a_user_reads(project: Project) -> None:
    """Of a program that failed and did nothing, of one that is not where it was looked for, of a runner that graders don't have."""
    project.task("exits", agent={"type": "command", "command": ["sh", "-c", "echo no key given >&2; exit 3"]})
    project.task("lost", agent={"type": "command", "command": ["./agent.sh"]})
    project.write("tasks/agent.sh", "#!/bin/sh\ntouch out.txt\n").chmod(0o755)
    project.task("found", agent={"type": "command", "command": ["{task_dir}/agent.sh"]})
    project.task("runner", agent={"type": "command", "command": ["touch", str(project.marks / "began")]},
                 success_criteria=[{"type": "run_command", "command": "python -m pytest -q"}])  # fmt: skip
    run = project.run("tasks", "--codeprobe-agent=command").assert_consistent()
    assert run.statuses == {"exits": "failed", "lost": "error", "found": "passed", "runner": "error"}
    told = "tasks/exits.yaml::exits: the agent ended with exit status 3 and changed nothing: no key given"
    assert f"warning: {told}" in run.output
    assert told in run.envelope["warnings"]
    assert "./agent.sh could not be started in the workspace, where a relative path leads: No such file" in run.result("lost")["reason"]
    assert "{task_dir}/agent.sh" in run.result("lost")["remediation"]
    assert (run.result("runner")["code"], run.result("runner")["phase"]) == ("VERIFIER_FAILED", "prepare")
    assert "the criterion `pytest`" in run.result("runner")["remediation"]
    assert not (project.marks / "began").exists()
