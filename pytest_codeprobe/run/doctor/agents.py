"""The agents: which can start here, with what version and which credential, and how long that holds."""

from __future__ import annotations

import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

from pytest_codeprobe.model.agent import Agent, CredentialLife
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.run.doctor.check import ANSWER_TIME, Check, Subject, ask
from pytest_codeprobe.text import ending, one_line

_HOUR = 3600.0
#: programs of agents that are known, and not there yet
_LATER = {
    "codex": "codex",
    "opencode": "opencode",
    "gemini": "gemini",
    "qwen": "qwen",
    "copilot": "copilot",
    "mini-swe-agent": "mini",
    "aider": "aider",
    "pi": "pi",
    "acp": None,
}


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], Sequence[Check]]]]:
    """Name and work of each."""
    for name, agent in sorted(subject.context.registry.agents.items()):
        yield f"agent.{name}", lambda agent=agent: _agent(subject, agent)  # type: ignore[misc]  # mypy can't infer a default's type
    for name, program in _LATER.items():
        if name not in subject.context.registry.agents:
            yield f"agent.{name}", lambda name=name, program=program: [_later(subject, name, program)]  # type: ignore[misc]


def overall(subject: Subject, found: Sequence[Check]) -> list[Check]:
    """Whether any agent at all can be used, where none is chosen."""
    if subject.chosen is not None:
        return []
    usable = [name for name, agent in sorted(subject.context.registry.agents.items()) if _is_usable(agent, found)]
    if usable:
        return [Check(name="agents", status="pass", message=f"can be used here: {', '.join(usable)}; none is chosen")]
    fix = next((agent.install_hint for agent in subject.context.registry.agents.values() if agent.install_hint), "Install an agent's CLI.")
    message = "no agent that calls a model can be used here"
    return [
        Check(name="agents", status="fail", message=message, fix=f"{fix} Then set its credentials, and name it with --codeprobe-agent.")
    ]


def _is_usable(agent: Agent, found: Sequence[Check]) -> bool:
    """Agents that call no model, or run any program that a task names, don't count: they have no checks of their own."""
    mine = [check for check in found if check.name.startswith(f"agent.{agent.name}.")]
    return bool(mine) and all(check.detail.get("usable", True) for check in mine)


def _agent(subject: Subject, agent: Agent) -> list[Check]:
    top = f"agent.{agent.name}"
    if not agent.calls_model:
        return [Check(name=top, status="info", message=f"{agent.name}: built in, calls no model")]
    if agent.executable is None:
        return [_without_program(subject, agent, top)]
    path = agent.find(subject.context)
    if path is None:
        message = f"{agent.name}: `{agent.executable}` is not on PATH"
        fix = agent.install_hint or f"Install `{agent.executable}`, or put it on PATH."
        inside = subject.context.options.driver == "docker"  # an image may have it
        status = "info" if inside else subject.severity(agent, "info")
        return [Check(name=f"{top}.cli", status=status, message=message, fix=fix, detail={"usable": inside})]
    cli = Check(name=f"{top}.cli", status="pass", message=f"{agent.name}: {path}", detail={"path": path})
    return [cli, _version(subject, agent, path), *_credentials(subject, agent)]


def _without_program(subject: Subject, agent: Agent, top: str) -> Check:
    """An agent of a plugin's own, or `command`, whose program the task names."""
    wrong = agent.unavailable(subject.context)
    if wrong is None:
        return Check(name=top, status="info", message=f"{agent.name}: nothing to look for beforehand")
    status = subject.severity(agent, "info")
    return Check(name=top, status=status, message=wrong.message, fix=wrong.remediation, detail={"usable": False})


def _version(subject: Subject, agent: Agent, path: str) -> Check:
    name, bad = f"agent.{agent.name}.version", subject.severity(agent, "warn")
    answer = ask(subject, [path, "--version"])
    fix = f"Try `{path} --version` by hand; then install the CLI anew. {agent.install_hint}".strip()
    if answer.late:
        said = f"{agent.name}: `{path} --version` has not answered in {ANSWER_TIME:g} s; it may be slow at its first start, or hang"
        return Check(name=name, status="warn", message=said, fix=fix)
    if answer.trouble is not None:
        said = f"{agent.name}: `{path} --version`: {answer.trouble}" + (f": {ending(answer.text, 300)}" if answer.text else "")
        return Check(name=name, status=bad, message=said, fix=fix, detail={"usable": False})
    if answer.version is None:
        said = f"{agent.name}: `{path} --version` names no version: {one_line(answer.first_line) or 'nothing is printed'}"
        return Check(name=name, status="warn", message=said, fix=fix)
    if agent.minimum_version is not None and _numbers(answer.version) < _numbers(agent.minimum_version):
        said = f"{agent.name} {answer.version} ({path}) is too old: {agent.minimum_version} or later is needed"
        detail = {"version": answer.version, "usable": False}
        return Check(name=name, status=bad, message=said, fix=agent.install_hint or "Install a newer one.", detail=detail)
    return Check(name=name, status="pass", message=f"{agent.name} {answer.version}", detail={"version": answer.version})


def _numbers(version: str) -> list[int]:
    """What a version is compared by: its numbers, up to the first part that is none."""
    return [int(part) for part in itertools.takewhile(str.isdecimal, re.split(r"[.+-]", version))]


def _credentials(subject: Subject, agent: Agent) -> list[Check]:
    """Whether there is one, and how long it holds. Its value is never looked at here."""
    name = f"agent.{agent.name}.credentials"
    wrong = agent.unavailable(subject.context)
    if wrong is not None:
        status = subject.severity(agent, "info")
        return [Check(name=name, status=status, message=wrong.message, fix=wrong.remediation, detail={"usable": False})]
    lives = agent.credential_lives(subject.context)
    return [_life(subject, agent, name, life) for life in lives] or [
        Check(name=name, status="pass", message=f"{agent.name}: nothing is missing")
    ]


def _life(subject: Subject, agent: Agent, name: str, life: CredentialLife) -> Check:
    options = subject.context.options
    wanted = options.offline_expected_run_duration or _HOUR
    held = subject.uses(agent) and options.offline  # then the run itself would be refused
    fix = life.remedy or None
    if life.unknown:
        said = f"{agent.name}: {life.name} is set; {life.unknown}"
        return Check(name=name, status="fail" if held else "pass", message=said, fix=fix if held else None, detail={"source": life.name})
    if life.expires_at is None:
        return Check(name=name, status="pass", message=f"{agent.name}: {life.name}, does not expire", detail={"source": life.name})
    left = (life.expires_at - subject.context.clock.now()).total_seconds()
    detail = {"source": life.name, "expires_at": stamp(life.expires_at), "seconds_left": int(left), "usable": left > 0}
    if left <= 0:
        said = f"{agent.name}: {life.name} expired at {life.expires_at:%Y-%m-%d %H:%M} UTC"
        return Check(name=name, status=subject.severity(agent, "warn"), message=said, fix=fix or "Log in again.", detail=detail)
    said = f"{agent.name}: {life.name}, expires in {timedelta(seconds=int(left))}"
    if left < wanted:
        more = f", sooner than the run may last ({timedelta(seconds=int(wanted))})"
        return Check(name=name, status="fail" if held else "warn", message=said + more, fix=fix or "Log in again.", detail=detail)
    return Check(name=name, status="pass", message=said, detail=detail)


def _later(subject: Subject, name: str, program: str | None) -> Check:
    path = shutil.which(program, path=subject.context.environ.get("PATH", os.defpath)) if program else None
    found = f"; `{program}` is at {path}" if path else ""
    return Check(name=f"agent.{name}", status="info", message=f"{name}: not available yet{found}")
