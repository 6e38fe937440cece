"""What a check is, and what all of them may look at."""

from __future__ import annotations

import dataclasses
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import ProcessLimits
from pytest_codeprobe.options import spelled
from pytest_codeprobe.text import one_line, plain

ANSWER_TIME = 2.0  #: seconds that a program gets to say its version
_OURS = ("PYTEST_", "CODEPROBE_", "_CODEPROBE_", "COV_")
_MAX_ANSWER = 1 << 16  # bytes


Status = Literal["pass", "warn", "fail", "info"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One finding. `fail` only for what the run would use; `info` for what it would not, and for plain facts."""

    name: str  #: dotted: `git`, `agent.claude.version`
    status: Status
    message: str
    fix: str | None = None  #: a sentence; always there for warn and fail
    detail: Mapping[str, Any] = field(default_factory=dict)  #: JSON values

    def as_json(self) -> dict[str, Any]:
        """As the envelope shows it."""
        return {"name": self.name, "status": self.status, "message": self.message, "fix": self.fix, "detail": dict(self.detail)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is looked at."""

    context: Context
    chosen: Agent | None  #: the agent that flag, environment or ini names
    scratch: Path  #: where private folders of trials lie
    runs: Path  #: where run directories are made

    def severity(self, agent: Agent, otherwise: Status) -> Status:
        """Of a fault: fail where the run would use this agent."""
        return "fail" if self.uses(agent) else otherwise

    def uses(self, agent: Agent) -> bool:
        """Whether the run would use this agent."""
        return self.chosen is not None and self.chosen.name == agent.name

    def environment(self) -> dict[str, str]:
        """Of the programs that are asked: the user's own."""
        return {k: v for k, v in self.context.environ.items() if not k.startswith(_OURS)}

    def clean(self, check: Check) -> Check:
        """Without secrets, on one line, in the flags of the front door that was used."""
        redact, console = self.context.redactor, self.context.options.console

        def text(value: str) -> str:
            return one_line(plain(spelled(redact.text(value), console=console)), 1000)

        detail = redact.json(dict(check.detail))
        return dataclasses.replace(check, message=text(check.message), fix=text(check.fix) if check.fix else None, detail=detail)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said."""

    text: str  #: both streams, stdout first
    trouble: str | None = None  #: why it can't be relied on: `exit status 1`, `no answer within 2 s`

    @property
    def first_line(self) -> str:
        """For a version."""
        return next((line.strip() for line in self.text.splitlines() if line.strip()), "")


def ask(subject: Subject, argv: Sequence[str], *, seconds: float = ANSWER_TIME) -> Answer:
    """Run a program under a keeper, which ends its whole tree once the time is over."""
    try:
        out, err = _anonymous("out"), _anonymous("err")
    except OSError as error:
        return Answer("", f"could not be asked: {error.strerror}")
    with os.fdopen(out, "rb") as stdout, os.fdopen(err, "rb") as stderr, Path(os.devnull).open("rb") as nothing:
        try:
            process = subject.context.processes.start(
                argv, env=subject.environment(), cwd="/", stdin=nothing.fileno(), stdout=stdout.fileno(), stderr=stderr.fileno(),
                limits=ProcessLimits(timeout=seconds, grace=0.0, output_bytes=_MAX_ANSWER), role="setup",
            )  # fmt: skip
            ended = process.wait(seconds + 2.0) or process.destroy()
        except OSError as error:
            return Answer("", f"could not be started: {error.strerror or error}")
        stdout.seek(0)
        stderr.seek(0)
        text = (stdout.read(_MAX_ANSWER) + b"\n" + stderr.read(_MAX_ANSWER)).decode("utf-8", "replace").strip()
    if ended.cause == "timeout":
        return Answer(text, f"no answer within {seconds:g} s")
    if ended.status is not None and ended.status < 0:
        return Answer(text, f"signal {-ended.status}")
    return Answer(text, None if ended.status == 0 else f"exit status {ended.status}")


def _anonymous(name: str) -> int:
    """A file that is on no disk, which may be full."""
    if sys.platform == "linux":
        return os.memfd_create(f"codeprobe-{name}", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="codeprobe-")
    Path(path).unlink()
    return fd
