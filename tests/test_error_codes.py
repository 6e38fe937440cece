"""error_codes.json: each code is provoked by a real run, and sources and table name the same codes."""

from __future__ import annotations

import ast
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pytest_codeprobe
from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.options import BUILT, spelled
from tests.code_tables import COMMANDS
from tests.doors import through
from tests.fake_claude import FakeClaude
from tests.front_door import Project, Run, scripted
from tests.schemas import check
from tests.shell import type_in

SOURCES = Path(pytest_codeprobe.__file__).parent
WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"
JSON = "--codeprobe-json"


def failing(code: str) -> Callable[[Project], Run]:
    """A session that ends with that code."""

    def provoke(project: Project) -> Run:
        project.task("t", agent=scripted({"fail": code}))
        return project.run("tasks", AGENT, JSON, junit=False)

    return provoke


def refused(*args: str) -> Callable[[Project], Run]:
    """A good task, wrong arguments."""

    def provoke(project: Project) -> Run:
        project.task("t", agent=scripted(WRITE))
        return project.run("tasks", *args, JSON, junit=False)

    return provoke


def interrupted(project: Project) -> Run:
    project.task("t", agent=scripted(WRITE))
    project.write("tests/test_stop.py", "import signal\ndef test_stop(): signal.raise_signal(signal.SIGTERM)\n")
    return project.run("tests", "tasks", AGENT, JSON, junit=False)


def internal_error(project: Project) -> Run:
    project.task("t", agent=scripted(WRITE))
    project.write("conftest.py", "def pytest_runtest_logfinish(): raise RuntimeError('boom')\n")
    return project.run("tasks", AGENT, JSON, junit=False)


def task_invalid(project: Project) -> Run:
    project.write("tasks/t.yaml", "task_id: t\n")
    return project.run("tasks", AGENT, JSON, junit=False)


def duplicate_task(project: Project) -> Run:
    project.task("t", agent=scripted(WRITE))
    project.task("t", file="tasks/u.yaml", agent=scripted(WRITE))
    return project.run("tasks", AGENT, JSON, junit=False)


def no_tasks(project: Project) -> Run:
    (project.path / "tasks").mkdir()
    return project.run("tasks", AGENT, JSON, junit=False)


def no_backends(project: Project) -> Run:
    project.task("t")
    return project.codeprobe("run", "--json")


def ambiguous_experiment(project: Project) -> Run:
    project.task("t", agent=scripted(WRITE))
    project.write("experiments/a.yaml", "")
    project.write("experiments/a.yml", "")
    return project.run("tasks", AGENT, "--codeprobe-experiment=a", JSON, junit=False)


def traced(limit: str) -> Callable[[Project], Run]:
    """A transcript that is over a limit."""

    def provoke(project: Project) -> Run:
        project.task("t", agent=scripted(WRITE))
        return project.run("tasks", AGENT, "--codeprobe-trace-overflow=fail", limit, JSON, junit=False)

    return provoke


def sandbox_failed(project: Project) -> Run:
    project.task("t", agent=scripted(WRITE), pre_run=[{"command": "exit 3"}])
    return project.run("tasks", AGENT, JSON, junit=False)


def worker_died(project: Project) -> Run:
    project.task("t", agent=scripted(WRITE), fixtures=["die"])
    project.write("conftest.py", "import os, pytest\n@pytest.fixture\ndef die(codeprobe_session): os._exit(9)\n")
    return project.run("tasks", AGENT, JSON, mode="xdist", junit=False)


def fixture_failed(project: Project) -> Run:
    project.task("t", agent=scripted(WRITE), fixtures=["broken"])
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef broken(): raise OSError('no database')\n")
    return project.run("tasks", AGENT, JSON, junit=False)


def verifier_failed(project: Project) -> Run:
    criteria = [{"type": "run_command", "command": "sleep 60", "timeout": 50, "weight": 0}, {"type": "file_exists", "path": "out.txt"}]
    project.task("t", agent=scripted(WRITE), success_criteria=criteria, run_limits={"grading_timeout": 1})
    return project.run("tasks", AGENT, JSON, junit=False)


def offline_preflight_failed(project: Project) -> Run:
    folder = project.scratch / "home" / ".claude"
    folder.mkdir(parents=True)
    (folder / ".credentials.json").write_text(json.dumps({"claudeAiOauth": {"accessToken": "a-token-of-claude", "expiresAt": 1}}))
    (folder / "claude").write_text("#!/bin/sh\nexit 1\n")
    (folder / "claude").chmod(0o755)
    nobody = dict.fromkeys(("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CONFIG_DIR"), "")
    path = f"{folder}:{os.environ.get('PATH', os.defpath)}"
    project.task("t")
    environment = {**nobody, "HOME": str(folder.parent), "PATH": path}
    return project.run("tasks", "--codeprobe-agent=claude", "--codeprobe-offline", JSON, junit=False, env=environment)


def offline_net_attempt(project: Project) -> Run:
    program = "import urllib.request as u\ntry: u.urlopen('http://outside.test/')\nexcept OSError: pass"
    project.task("t", agent=scripted(WRITE, {"run": f'"{sys.executable}" -c "{program}"'}))
    return project.run("tasks", AGENT, "--codeprobe-offline", JSON, junit=False)


SHY_AGENT = """\
from pytest_codeprobe.agents.command import CommandAgent, CommandParser
from pytest_codeprobe.model.agent import SessionEnd

class ShyParser(CommandParser):
    def end(self, exit, *, stopped_for, stderr_tail):
        if self.request.trial.agent.permission_mode == "auto":
            return SessionEnd()
        return SessionEnd(code="AGENT_BLOCKED", reason="Write was refused")

class Shy(CommandAgent):
    name = "shy"
    supports = frozenset({"command", "permission_mode"})
    permission_modes = ("auto", "default")
    def parser(self, request): return ShyParser(request)

def pytest_codeprobe_agents(config): return [Shy()]
"""


def blocked(project: Project) -> Run:
    """Under `default` it asks for a permission that nobody gives."""
    project.write("conftest.py", SHY_AGENT)
    project.task("t", agent={"type": "shy", "command": ["touch", "out.txt"]})
    return project.run("tasks", "--codeprobe-agent=shy", "--codeprobe-permission-mode=default", JSON, junit=False)


def doctor_failed(project: Project) -> Run:
    return project.run("--codeprobe-doctor", "--codeprobe-agent=claude", JSON, junit=False, env={"PATH": os.defpath, "HOME": "/nowhere"})


def budget_exceeded(project: Project) -> Run:
    project.task("t", agent=scripted(WRITE, {"usage": {"cost_usd": 2}}, {"sleep": 60}))
    return project.run("tasks", AGENT, JSON, "--codeprobe-max-cost-usd=1", junit=False)


def canary(*modes: str, **changes: Any) -> Callable[[Project], Run]:
    """A run for each mode of --codeprobe-canary; the CLI is another one before the last."""

    def provoke(project: Project) -> Run:
        claude = FakeClaude(project)
        claude.task("t")
        for number, mode in enumerate(modes):
            claude.install(**(changes if number == len(modes) - 1 else {}))
            asked = ("tasks", "--codeprobe-agent=claude", f"--codeprobe-canary={mode}", f"--codeprobe-run-dir=run-{number}")
            run = project.run(*asked, JSON, junit=False)
        return run

    return provoke


def canary_gate_failed(project: Project) -> Run:
    project.task("t", agent=scripted({"say": "no idea"}), tags=["canary"])
    return project.run("tasks", AGENT, JSON, junit=False)


def capability_drift(project: Project) -> Run:
    claude = FakeClaude(project)
    claude.task("t")
    assert project.codeprobe("capabilities", "--agent", "claude", "--output", "caps.json").code == 0
    claude.install(tools=("Read",))
    return project.run("tasks", "--codeprobe-agent=claude", "--codeprobe-capabilities=caps.json", JSON, junit=False)


#: every code of the table -> a real run that ends with it
def run_dir_in_use(project: Project) -> Run:
    project.task("t", agent=scripted({"run": f"touch {project.marks}/on; sleep 60; : {project.mark_text}"}))
    first = project.start("tasks", AGENT, "--codeprobe-run-dir=run", junit=False)
    first.wait_for("on")
    try:
        return project.run("tasks", AGENT, "--codeprobe-run-dir=run", "--codeprobe-resume", JSON, junit=False)
    finally:
        second = [(project.scratch / name).read_bytes() for name in ("stdout", "stderr")]
        first.signal(signal.SIGTERM)
        first.process.wait(30)
        for name, content in zip(("stdout", "stderr"), second, strict=True):
            (project.scratch / name).write_bytes(content)


def resume_mismatch(project: Project) -> Run:
    project.task("t", agent=scripted(WRITE))
    project.run("tasks", AGENT, "--codeprobe-run-dir=run", junit=False)
    plan = project.path / "run" / "plan.json"
    plan.write_text(plan.read_text().replace('"schema_version": "1"', '"schema_version": "99"', 1))
    return project.run("tasks", AGENT, "--codeprobe-run-dir=run", "--codeprobe-resume", JSON, junit=False)


PROVOKED: dict[str, Callable[[Project], Run]] = {
    "INTERRUPTED": interrupted,
    "INTERNAL_ERROR": internal_error,
    "USAGE_ERROR": refused(AGENT, "--codeprobe-timeout=soon"),
    "UNKNOWN_BACKEND": refused("--codeprobe-agent=scriptd"),
    "NO_BACKENDS_CONFIGURED": no_backends,
    "INVALID_PERMISSION_MODE": refused(AGENT, "--codeprobe-permission-mode=aut0"),
    "NO_EXPERIMENT": refused(AGENT, "--codeprobe-experiment=nowhere"),
    "AMBIGUOUS_EXPERIMENT": ambiguous_experiment,
    "OFFLINE_PREFLIGHT_FAILED": offline_preflight_failed,
    "TASK_INVALID": task_invalid,
    "DUPLICATE_TASK": duplicate_task,
    "OVERRIDE_INVALID": refused(AGENT, "--codeprobe-set=agent.modle=x"),
    "RUN_DIR_IN_USE": run_dir_in_use,
    "RESUME_MISMATCH": resume_mismatch,
    "NO_TASKS": no_tasks,
    "NO_SUITE_MATCH": refused(AGENT, "--codeprobe-suite=nowhere.toml"),
    "OFFLINE_NET_ATTEMPT": offline_net_attempt,
    "BUDGET_EXCEEDED": budget_exceeded,
    "CANARY_PROOF_REQUIRED": canary("require"),
    "CANARY_MISMATCH": canary("auto", "auto", version="2.2.0"),
    "CANARY_PROOF_FAILED": canary("auto", writes=False),
    "CANARY_GATE_FAILED": canary_gate_failed,
    "CAPABILITY_DRIFT": capability_drift,
    "AUTH_FAILED": failing("AUTH_FAILED"),
    "SANDBOX_UNAVAILABLE": refused(
        AGENT, "--codeprobe-driver=docker", "--codeprobe-set=sandbox.docker.image=x", "--override-ini=codeprobe_engine=no-engine"
    ),
    "SANDBOX_FAILED": sandbox_failed,
    "AGENT_BLOCKED": blocked,
    "AGENT_CRASHED": failing("AGENT_CRASHED"),
    "LLM_UNAVAILABLE": failing("LLM_UNAVAILABLE"),
    "TRACE_OVERFLOW_FIRED": traced("--codeprobe-trace-max-bytes=100"),
    "TRACE_BUDGET_EXCEEDED": traced("--codeprobe-trace-budget=100"),
    "WORKER_DIED": worker_died,
    "FIXTURE_FAILED": fixture_failed,
    "VERIFIER_FAILED": verifier_failed,
    "DOCTOR_CHECKS_FAILED": doctor_failed,
}


def test_every_code_has_a_run_that_ends_with_it() -> None:
    assert sorted(PROVOKED) == sorted(error_codes())


#: by pytest itself too, where the printed command is the call again: it is put together from what was typed. test_parity_codes.py has all
BY_PYTEST = [code for code, kind in COMMANDS.items() if kind == "corrected"] + ["USAGE_ERROR", "LLM_UNAVAILABLE", "INTERRUPTED"]
CASES = [*((code, "codeprobe") for code in PROVOKED), *((code, "pytest") for code in BY_PYTEST)]
#: whose next steps are typed as well
FOLLOWED = ("SANDBOX_FAILED", "VERIFIER_FAILED")
#: whose doctor is run; the others only have to name it
ASKED = ("LLM_UNAVAILABLE", "NO_BACKENDS_CONFIGURED")


@pytest.mark.parametrize(("code", "door"), CASES)
def test_a_real_run_ends_with(project: Project, code: str, door: str) -> None:
    row = error_codes()[code]
    project = through(door, project)
    run = PROVOKED[code](project)
    envelope = run.lines[-1]
    if envelope["command"] == "run":
        run.assert_pure(events=False)
    check("envelope", envelope)
    error = envelope["errors"][0]
    assert error["code"] == code, run.stderr
    assert (error["kind"], error["retryable"], error["terminal"]) == (row.kind, row.retryable, row.terminal)
    assert error["message"]
    assert error["remediation"]
    assert run.code == row.exit_code == envelope["exit_code"]
    assert run.stderr.strip()  # a person is told too
    if run.wrote:
        run.assert_nothing_left()
    used = "codeprobe" if run.args[0] in ("run", "doctor") else "pytest"
    spelled_for(used, [error["message"], error["remediation"], *(error["command"] or ()), *envelope["warnings"]], run.stderr)
    follow(project, error, COMMANDS.get(code))
    for step in envelope["next_steps"]:
        assert step["summary"]
        assert code not in FOLLOWED or type_in(project, step["command"]).returncode in (0, 1, 5, 6), step


def spelled_for(door: str, texts: list[str], stderr: str) -> None:
    """No flag of the other front door."""
    said = "\n".join(texts) + "\n".join(line for line in stderr.splitlines() if line.startswith(("ERROR", "  ", "E ", "warning")))
    if door == "codeprobe":
        assert said == spelled(said, console=True)
    else:
        assert not [option.cli for option in BUILT if option.cli and f" {option.cli[0]} " in said and option.cli[0].startswith("--")]


def follow(project: Project, error: dict[str, Any], expected: str | None) -> None:
    """The printed command, typed as it is printed, does what it is for."""
    command = error["command"]
    assert (command is None) == (expected is None), command
    if command is None:
        return
    if expected == "doctor" and error["code"] not in ASKED:
        assert command[1] == "doctor" or "--codeprobe-doctor" in command
        return
    if expected == "resume":  # tests/test_resume.py types it
        assert any(word in command for word in ("--resume", "--codeprobe-resume")), command
        return
    done = type_in(project, command)
    if expected == "look":
        assert done.returncode in (0, 5), done.stderr
        assert done.stdout.strip()
    elif expected == "made":
        assert done.returncode == 0, done.stderr
    elif expected == "doctor":
        assert done.returncode in (0, 6), done.stderr
        assert "python" in done.stdout
    else:
        envelope = json.loads(done.stdout.splitlines()[-1])
        check("envelope", envelope)
        assert error["code"] not in {e["code"] for e in envelope["errors"]}, done.stderr
        assert envelope["exit_code"] != 4, done.stderr


def test_the_table_is_sound() -> None:
    rows = json.loads((SOURCES / "error_codes.json").read_text(encoding="utf-8"))
    assert len({row["code"] for row in rows}) == len(rows)
    rank = [3, 2, 4, 1, 6, 5, 0]
    for row in rows:
        assert row["exit_code"] in rank
        for sentence in (row["summary"], row["remediation"]):
            assert sentence[0].isupper() or sentence[0] == "`"
            assert sentence.endswith(".")
        assert not (row["terminal"] and row["retryable"] != "no")
    with pytest.raises(KeyError):
        CodeprobeError("NO_SUCH_CODE", "x")


def test_sources_and_table_name_the_same_codes() -> None:
    raised = {(code, where) for code, where in _raised()}
    assert {code for code, _ in raised} <= set(error_codes()), [x for x in raised if x[0] not in error_codes()]
    assert {code for code, _ in raised} | _constants() >= set(error_codes())


def _trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCES.rglob("*.py")):
        yield str(path.relative_to(SOURCES)), ast.parse(path.read_text(encoding="utf-8"))


def _raised() -> Iterator[tuple[str, str]]:
    """Literal codes: the first argument of CodeprobeError, and every `code=` whose value looks like one."""
    for name, tree in _trees():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call):
                continue
            called = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
            given = [node.args[0]] if called == "CodeprobeError" and node.args else []
            given += [keyword.value for keyword in node.keywords if keyword.arg == "code"]
            for value in given:
                if isinstance(value, ast.Constant) and isinstance(value.value, str) and value.value.isupper():
                    yield value.value, f"{name}:{value.lineno}"


def _constants() -> set[str]:
    return {n.value for _, tree in _trees() for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
