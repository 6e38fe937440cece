"""The commands that a task brings: pre_run, post_run, and what fixtures run in its workspace."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic
from typing import Literal

from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.hints import not_shown
from pytest_codeprobe.model.result import LimitHit
from pytest_codeprobe.model.sandbox import RESOURCES, Command, CommandResult, Sandbox
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.installing import LIMIT
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.trial.environment import command_environment, interpreter_inside, make_tools, with_host
from pytest_codeprobe.trial.setup import lay, setup_of, tools_python


class TaskCommands:
    """Runs them by `/bin/sh -c`, each under a keeper.

    `deadline`: pytest-timeout's seconds for prepare and session together. `agent_began`: the agent may have touched what is there.
    """

    def __init__(self, trial: Trial, context: Context, deadline: float | None, agent_began: Callable[[], bool]) -> None:
        self._trial, self._context, self._deadline, self._agent_began = trial, context, deadline, agent_began
        self._laid: tuple[Path, bool] | None = None  # for which tools are there
        self.limit: LimitHit | None = None  #: what preparing ran into
        self.post_run_due = False  #: pre_run has begun, and post_run cleans up what it made elsewhere

    def run(
        self,
        sandbox: Sandbox,
        command: str,
        timeout: float,
        *,
        log: logging.Logger | None,
        extra: Mapping[str, str] | None = None,
        role: Literal["setup", "post_run"] = "setup",
        is_tasks: bool = False,
    ) -> CommandResult:
        """One command to its end; `is_tasks`: the task itself has it. SANDBOX_FAILED if it can't start; Stopped where the run ended it."""
        tools, trusted = self._tools(sandbox), not self._agent_began()
        environment = command_environment(self._trial, self._context, sandbox, tools, "grader", trusted=trusted) | dict(extra or {})
        if is_tasks:
            environment = with_host(self._trial, self._context, environment)
        try:
            reads = [*self._trial.places(), *setup_of(self._trial, self._context).places(sandbox)]
            shell = Command(argv=["/bin/sh", "-c", command], env=environment, reads=reads, mentions=command)
            result = sandbox.run(shell, role=role, timeout=timeout)
        except OSError as error:
            raise CodeprobeError("SANDBOX_FAILED", f"{command!r} could not be started: {error.strerror}") from error
        if log is not None:
            log.info("%s %r: status %s, %s", role, command, result.exit.status, result.exit.cause)
        if result.exit.stopped is not None:
            raise Stopped(result.exit.stopped)
        return result

    def _tools(self, sandbox: Sandbox) -> Path:
        """HOME, TMPDIR and `python` of the commands, laid at their first use: anew once the agent has had its hands on the old ones."""
        folder, state = sandbox.root / "setup", (sandbox.root, self._agent_began())
        if state != self._laid:
            if left := remove_tree(folder):
                raise CodeprobeError("SANDBOX_FAILED", f"what the session left could not be removed: {left[0]}")
            lay_python = tools_python(self._trial, self._context, sandbox)
            make_tools(folder, self._trial.row, interpreter_inside(sandbox), lay_python)
            self._laid = state
        return folder

    def lay_setup(self, sandbox: Sandbox) -> None:
        """The packages of sandbox.setup. SANDBOX_FAILED, OFFLINE_NET_ATTEMPT, Stopped."""
        try:
            lay(self._trial, self._context, sandbox)
        except CodeprobeError as error:
            if (name := (error.detail or {}).get(LIMIT)) is not None:
                self.limit = LimitHit(name=name, value=self._trial.limits.setup_timeout)
            raise

    def pre_run(self, sandbox: Sandbox, began: float, used: float, log: logging.Logger) -> None:
        """All of pre_run.

        `began`: when preparing this attempt did (monotonic). `used`: seconds that earlier attempts took of the deadline.
        """
        limit = self._trial.limits.setup_timeout
        left = None if self._deadline is None else max(0.0, self._deadline - used)
        until = began + (limit if left is None else min(limit, left))
        self._check(until, left)
        for entry in self._trial.pre_run:
            self.post_run_due = True
            seconds = min(entry.timeout, max(0.001, until - monotonic()))
            result = self.run(sandbox, entry.command, seconds, log=log, is_tasks=True)
            self._check(until, left)
            if result.exit.cause in RESOURCES and entry.fail_on_error:
                limits, name = self._trial.sandbox.limits, result.exit.cause
                self.limit = LimitHit(name=name, value=float(getattr(limits, name)))
                raise CodeprobeError("SANDBOX_FAILED", f"pre_run {entry.command!r} hit {limits.said(name)}", remediation="Raise the limit.")
            if result.exit.status != 0 and entry.fail_on_error:
                hint = not_shown(result.stderr, self._path, self._trial.sandbox.driver)
                slow = result.exit.cause == "timeout"
                why = f"took longer than its timeout of {entry.timeout:g} s" if slow else f"exited {result.exit.status}"
                said = (result.stderr or result.stdout).strip()
                raise CodeprobeError(
                    "SANDBOX_FAILED",
                    f"pre_run {entry.command!r} {why}{f': {said}' if said or hint else ''}{hint}",
                    remediation="Correct the command, raise its timeout, or set fail_on_error: false.",
                )
        self.post_run_due = True

    @property
    def _path(self) -> str:
        return self._context.environ.get("PATH", os.defpath)

    def _check(self, until: float, left: float | None) -> None:
        if monotonic() < until:
            return
        setup = self._trial.limits.setup_timeout
        by_deadline = self._deadline is not None and left is not None and left < setup
        self.limit = LimitHit(name="timeout", value=self._deadline or 0.0) if by_deadline else LimitHit(name="setup_timeout", value=setup)
        message = f"preparing took longer than {self.limit.name} = {self.limit.value:g} s"
        raise CodeprobeError("SANDBOX_FAILED", message, remediation="Raise the limit.")

    def post_run(self, sandbox: Sandbox) -> list[str]:
        """All of post_run, once; what went wrong, which never changes a verdict."""
        if not self.post_run_due:
            return []
        self.post_run_due = False
        failures = []
        for entry in self._trial.post_run:
            try:
                result = self.run(sandbox, entry.command, entry.timeout, log=None, role="post_run", is_tasks=True)
                if result.exit.status != 0 or result.exit.cause in RESOURCES:
                    failures.append(f"post_run {entry.command!r}: status {result.exit.status}, {result.exit.cause}")
            except (Stopped, CodeprobeError) as trouble:
                failures.append(f"post_run {entry.command!r}: {trouble}")
        return failures
