"""Capability snapshots: made by starting an agent's CLI where no model can be reached, and read for a run that is held to one."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent, SessionParser, SessionRequest
from pytest_codeprobe.model.capabilities import Capabilities
from pytest_codeprobe.model.context import Context, Snapshot
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.text import one_line
from pytest_codeprobe.trial.drift import ENOUGH
from pytest_codeprobe.trial.run import MakeSandbox
from pytest_codeprobe.trial.session import Session

TIMEOUT = 60.0  #: seconds until the CLI must have said what it can use
_MOST = 4 << 20  #: bytes of a snapshot
_log = logging.getLogger("codeprobe")


def read_snapshot(given: str, folders: Sequence[Path]) -> Snapshot:
    """The snapshot, looked for below each of the folders. USAGE_ERROR where there is none, or it can't be used."""
    places = [folder / given for folder in folders]
    path = next((place for place in places if place.exists()), places[0])
    try:
        if not path.is_file():
            raise _unusable(given, "is no file" if path.exists() else "is not there")
        with path.open("rb") as file:
            content = Capabilities.model_validate_json(file.read(_MOST))
    except OSError as error:
        raise _unusable(given, f"can't be read: {error.strerror}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise _unusable(given, f"is no capability snapshot: {f'{where}: ' if where else ''}{one_line(first['msg'], 200)}") from error
    return Snapshot(given, content)


def _unusable(given: str, why: str) -> CodeprobeError:
    return CodeprobeError(
        "USAGE_ERROR",
        f"--codeprobe-capabilities {given}: {why}",
        remediation="Record it with `codeprobe capabilities --agent NAME --output FILE`.",
        detail={"capabilities": given},
    )


def record(trial: Trial, context: Context, make_sandbox: MakeSandbox) -> Capabilities:
    """Start the trial's agent, and end it as soon as it has said what it can use. No model is asked, and so nothing is paid.

    USAGE_ERROR where the agent says nothing of the kind, or can't be started without its model.
    """
    agent = context.registry.agent(trial.agent.type or "")
    if agent.endpoint_variable is None:
        raise _silent(agent, "it has no event for that")
    with socket.socket() as closed:  # bound, so that nobody else gets it, and not listening
        closed.bind(("127.0.0.1", 0))
        env = {**trial.agent.env, agent.endpoint_variable: f"http://127.0.0.1:{closed.getsockname()[1]}"}
        trial = trial.model_copy(update={"agent": trial.agent.model_copy(update={"env": env})})
        sandbox = make_sandbox(trial, context)
        try:
            sandbox.prepare()
            if (why := agent.paid_anyway(trial, context, sandbox.workspace)) is not None:
                raise CodeprobeError(
                    "USAGE_ERROR",
                    f"capabilities are recorded without a model, but {why}",
                    remediation="Leave that out for the recording: what an agent can use does not depend on where its model is.",
                    detail={"agent": agent.name},
                )
            if (missing := agent.unavailable(context, frozenset({*trial.sandbox.env, *trial.agent.env}))) is not None:
                raise missing
            return _heard(agent, trial, context, sandbox)
        finally:
            for left in sandbox.delete():
                _log.warning("could not be deleted: %s", left)


def _heard(agent: Agent, trial: Trial, context: Context, sandbox: Sandbox) -> Capabilities:
    driver = context.registry.drivers.get(sandbox.driver)
    request = SessionRequest(
        trial=trial,
        context=context,
        prompt=trial.prompt or "Hello.",
        sandbox=sandbox,
        isolates=driver is not None and driver.isolates,
        executable=agent.find(context),
    )
    command = agent.command(request)
    if command is None:
        raise _silent(agent, "there is nothing to start")
    parser = agent.parser(request)
    session = Session(agent, request, {"task_timeout": (TIMEOUT, TIMEOUT)}, _log, until=_until_told)
    outcome = session.run(command, parser, lambda: None)
    found = parser.capabilities()
    if found is None or not found.tools:
        why = outcome.end.reason or outcome.stderr_tail.strip().rpartition("\n")[2] or "it said nothing"
        raise _silent(agent, one_line(context.redactor.text(why), 300))
    return found.model_copy(update={"asked_model": trial.agent.model})


def _until_told(parser: SessionParser) -> str | None:
    return ENOUGH if parser.capabilities() is not None else None


def _silent(agent: Agent, why: str) -> CodeprobeError:
    return CodeprobeError(
        "USAGE_ERROR",
        f"agent {agent.name} reports no tools: {why}",
        remediation="Name an agent whose CLI reports its tools when it starts, such as claude.",
        detail={"agent": agent.name},
    )
