"""Sessions for adapter tests: a request without a run around it, and the start of a command as the trial does it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pytest_codeprobe.model.agent import Agent, SessionEnd, SessionParser, SessionRequest
from pytest_codeprobe.model.config import AgentConfig, Reference, RunLimits, SandboxConfig, Solution
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.prices import list_prices
from pytest_codeprobe.model.sandbox import ProcessExit, Sandbox
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions


def make_trial(folder: Path, agent: Mapping[str, Any] | None = None, *, prompt: str | None = "do it", **more: Any) -> Trial:
    return Trial(
        node_id="tasks/a.yaml::a",
        task_id="a",
        folder="trials/default/a/01",
        task_file=str(folder / "task" / "a.yaml"),
        prompt=prompt,
        agent=AgentConfig.model_validate(agent or {}),
        sandbox=SandboxConfig(),
        limits=RunLimits.model_validate(more.pop("limits", {})),
        criteria=(),
        reference=Reference(**more.pop("reference")) if "reference" in more else None,
        solution=Solution(**more.pop("solution")) if "solution" in more else None,
        **more,
    )


def make_request(folder: Path, agent: Mapping[str, Any] | None = None, **more: Any) -> SessionRequest:
    """A request whose sandbox is three folders below `folder`. `environ`: the harness's environment."""
    environ = more.pop("environ", {})
    isolates, options = more.pop("isolates", False), more.pop("options", RunOptions())
    trial = make_trial(folder, agent, **more)
    for name in ("workspace", "home", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    places = {name: folder / name for name in ("workspace", "home", "tmp")}
    sandbox = SimpleNamespace(**places, root=folder, changes=lambda: sorted((folder / "workspace").iterdir()))
    stops = SimpleNamespace(is_raised=lambda _: False)
    context = SimpleNamespace(run_id="run-1", environ=environ, python=sys.executable, options=options, stops=stops, prices=list_prices())
    return SessionRequest(
        trial=trial,
        context=cast(Context, context),
        prompt=trial.prompt or "",
        sandbox=cast(Sandbox, sandbox),
        isolates=isolates,
        executable="/opt/claude",
    )


def ended(status: int | None = 0, cause: str = "exit") -> ProcessExit:
    return ProcessExit(status=status, cause=cause)


def read(parser: SessionParser, lines: Iterable[bytes]) -> None:
    for line in lines:
        parser.feed(line)


def checked_transcript(parser: SessionParser) -> Transcript:
    """The transcript after a round trip through strict JSON and its own validation."""
    transcript = parser.transcript()
    return Transcript.model_validate_json(transcript.model_dump_json())


def run_session(agent: Agent, request: SessionRequest) -> tuple[SessionParser, SessionEnd, subprocess.CompletedProcess[bytes]]:
    """Start the agent's command and read what it prints."""
    command = agent.command(request)
    assert command is not None
    for path, content in command.files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    environ = {"PATH": os.defpath, "HOME": str(request.sandbox.home), "TMPDIR": str(request.sandbox.tmp), "LANG": "C.UTF-8", **command.env}
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if command.stdin is None else {"input": command.stdin}
    done = subprocess.run(command.argv, check=False, cwd=request.sandbox.workspace, env=environ, capture_output=True, timeout=60, **given)
    parser = agent.parser(request)
    read(parser, done.stdout.split(b"\n"))
    end = parser.end(ended(done.returncode), stopped_for=None, stderr_tail=done.stderr.decode("utf-8", "replace"))
    return parser, end, done
