"""What the fixture `codeprobe_sandbox` hands out: the live sandbox of the attempt that is running."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_codeprobe.model.sandbox import CommandResult, Sandbox

if TYPE_CHECKING:
    from pytest_codeprobe.trial.run import TrialRun


class SandboxHandle:
    """A sandbox for fixtures and tests. It outlives an attempt: `path` is the workspace of the one that runs now."""

    def __init__(self, run: TrialRun) -> None:
        self._run = run
        self._callbacks: list[Callable[[SandboxHandle], object]] = []
        self._replaying = False
        self.prepared_by_hand = False  #: the workspace was changed outside of on_prepare(): it can't be laid out again

    @property
    def sandbox(self) -> Sandbox:
        """The driver's sandbox."""
        return self._run.current_sandbox()

    @property
    def path(self) -> Path:
        """The workspace."""
        return self.sandbox.workspace

    @property
    def home(self) -> Path:
        """HOME of the session."""
        return self.sandbox.home

    @property
    def driver(self) -> str:
        """Name of the driver."""
        return self.sandbox.driver

    def run(self, command: str, *, timeout: float = 30.0, env: Mapping[str, str] | None = None) -> CommandResult:
        """Run a shell command in the workspace with the environment of task commands; `timeout` in seconds."""
        self._touch()
        return self._run.command(command, timeout=timeout, extra=env or {})

    def read_text(self, path: str) -> str:
        """Content of a file of the workspace."""
        return (self.path / path).read_text(encoding="utf-8")

    def write_text(self, path: str, content: str) -> None:
        """Write a file of the workspace, making its folders."""
        self._touch()
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")

    def on_prepare(self, callback: Callable[[SandboxHandle], object]) -> None:
        """Prepare the workspace by hand: called now, and again for every further attempt, which has a fresh workspace."""
        self._callbacks.append(callback)
        self._call(callback)

    def renew(self) -> None:
        """A fresh workspace for a further attempt; the evidence of the last one stays under `attempt-N/`."""
        self._run.renew()
        for callback in self._callbacks:
            self._call(callback)

    def _call(self, callback: Callable[[SandboxHandle], object]) -> None:
        self._replaying = True
        try:
            callback(self)
        finally:
            self._replaying = False

    def _touch(self) -> None:
        if not self._replaying and not self._run.session_began:
            self.prepared_by_hand = True

    @property
    def can_renew(self) -> bool:
        """Whether a further attempt would find the same workspace."""
        return not self.prepared_by_hand and (bool(self._callbacks) or not self._run.overridden)
