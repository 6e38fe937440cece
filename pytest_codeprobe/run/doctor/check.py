"""What a check is, and what all of them may look at."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.options import spelled
from pytest_codeprobe.run import asking
from pytest_codeprobe.run.asking import Answer
from pytest_codeprobe.sandboxes.sweep import new_folder
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.text import one_line, plain

ANSWER_TIME = 2.0  #: seconds that a program gets to say its version
_NOWHERE = "/nonexistent"  #: HOME on a disk that is full
#: where container engines are found
_ENGINE = ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "CONTAINER_HOST", "XDG_RUNTIME_DIR")

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

    def clean(self, check: Check) -> Check:
        """Without secrets, on one line, in the flags of the front door that was used."""
        redact, console = self.context.redactor, self.context.options.console

        def text(value: str) -> str:
            return one_line(plain(spelled(redact.text(value), console=console)), 1000)

        detail = redact.json(dict(check.detail))
        return dataclasses.replace(check, message=text(check.message), fix=text(check.fix) if check.fix else None, detail=detail)


def ask(subject: Subject, argv: Sequence[str]) -> Answer:
    """What a program says that finds nothing of the user's own HOME, and can leave nothing there."""
    try:
        folder = new_folder(subject.scratch)  # should we be killed, the next run removes it
    except OSError:
        return asking.ask(subject.context, argv, env=asking.private(subject.context, _NOWHERE), seconds=ANSWER_TIME)
    try:
        own = {name: subject.context.environ[name] for name in _ENGINE if name in subject.context.environ}
        return asking.ask(subject.context, argv, env={**asking.private(subject.context, str(folder)), **own}, seconds=ANSWER_TIME)
    finally:
        remove_tree(folder)
