"""Driver `tempdir`: a private folder and a process tree of its own. No security boundary: the agent can read what you can read."""

from __future__ import annotations

import os
from collections.abc import Sequence

from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import Command, WarmProgram
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.base import BaseSandbox, StoreOfRun

_ISOLATING = "driver bubblewrap or docker"


class TempdirSandbox(BaseSandbox):
    """An attempt's folder below the system's temporary one."""

    driver = "tempdir"

    def warm(self, command: Command) -> WarmProgram | None:
        """Nothing is between the command and its keeper, so it can be forked."""
        return command.warm


class TempdirDriver:
    """Files by convention, HOME, process tree; needs nothing but POSIX."""

    name = "tempdir"
    isolates = False

    def __init__(self) -> None:
        self._templates = StoreOfRun()

    def unavailable(self, context: Context) -> str | None:
        """A reason on systems without POSIX, else None."""
        return None if os.name == "posix" else "sessions need Linux or macOS"

    def unsupported(self, trial: Trial) -> Sequence[tuple[str, str]]:
        """What this driver can't hold: the network."""
        config, found = trial.sandbox, []
        if config.network != "on":
            found.append(("sandbox.network", _ISOLATING))
        if config.docker is not None:
            found.append(("sandbox.docker", "driver docker"))
        return found

    def create(self, trial: Trial, context: Context) -> TempdirSandbox:
        """A new sandbox; nothing is on disk before its prepare()."""
        return TempdirSandbox(trial, context, self._templates.of(context))
