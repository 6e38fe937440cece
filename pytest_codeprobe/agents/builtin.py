"""Agents without a model: `oracle` applies the task's solution, `nop` does nothing, `none` grades what is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

from pytest_codeprobe.agents.base import QuietParser
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent, SessionCommand, SessionRequest
from pytest_codeprobe.model.rows import ROW_FILE, row_variables
from pytest_codeprobe.model.trial import Trial

# No configuration but git's own defaults, and no repository: a patch means the same in every workspace.
_PLAIN_GIT = {"GIT_DIR": os.devnull, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


class _Parser(QuietParser):
    def __init__(self, request: SessionRequest, agent: type[Agent]) -> None:
        self.agent = agent  # type: ignore[misc]  # three agents share this parser
        super().__init__(request)


class Oracle(Agent):
    """Applies the task's `solution`, else lays `reference.directory` over the workspace. What passes under it can be passed."""

    name = "oracle"
    is_session = False
    calls_model = False

    def skip_reason(self, trial: Trial) -> str | None:
        if trial.solution is None and (trial.reference is None or trial.reference.directory is None):
            return "agent oracle: the task has no solution to apply"
        return None

    def command(self, request: SessionRequest) -> SessionCommand | None:
        trial = request.trial
        solution = trial.solution
        if solution is not None and solution.script is not None:
            argv = ("/bin/sh", "-c", solution.script)
            return SessionCommand(argv=argv, env=_variables(request), reads=trial.places(), mentions=solution.script)
        if solution is not None and solution.patch is not None:
            return _apply(Path(solution.patch), request.sandbox.tmp / "solution.patch")
        directory = solution.directory if solution is not None else trial.reference.directory if trial.reference is not None else None
        if directory is None:
            return None
        return SessionCommand(argv=("cp", "-R", "-f", "--", f"{directory}/.", str(request.sandbox.workspace)), reads=[Path(directory)])

    def parser(self, request: SessionRequest) -> QuietParser:
        return _Parser(request, Oracle)


def _variables(request: SessionRequest) -> dict[str, str]:
    """As for the task's other commands."""
    trial, sandbox = request.trial, request.sandbox
    found = trial.variables(sandbox.workspace)
    if trial.row is None:
        return found
    place = sandbox.home / ROW_FILE
    try:
        place.write_text(json.dumps(trial.row), encoding="utf-8")
    except OSError as error:
        raise CodeprobeError("SANDBOX_FAILED", f"{place}: {error.strerror}") from error
    return {**found, **row_variables(trial.row), "ROW_JSON": str(place)}


def _apply(patch: Path, copy: Path) -> SessionCommand:
    try:
        content = patch.read_bytes()
    except OSError as error:
        raise CodeprobeError("TASK_INVALID", f"solution.patch can't be read: {error}") from error
    return SessionCommand(argv=("git", "apply", "--whitespace=nowarn", "--", str(copy)), env=_PLAIN_GIT, files={copy: content})


class Nop(Agent):
    """Does nothing. What passes under it checks nothing."""

    name = "nop"
    is_session = False
    calls_model = False

    def command(self, request: SessionRequest) -> SessionCommand | None:
        return None

    def parser(self, request: SessionRequest) -> QuietParser:
        return _Parser(request, Nop)


class NoAgent(Agent):
    """Grades the workspace as it is; the one agent for tasks without a prompt."""

    name = "none"
    is_session = False
    calls_model = False

    def command(self, request: SessionRequest) -> SessionCommand | None:
        return None

    def parser(self, request: SessionRequest) -> QuietParser:
        return _Parser(request, NoAgent)
