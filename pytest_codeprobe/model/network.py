"""What a run under --codeprobe-offline may reach: the face that trials, sandboxes and adapters see of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_codeprobe.errors import CodeprobeError
    from pytest_codeprobe.model.sandbox import Role
    from pytest_codeprobe.model.trial import Trial

#: who asks: `harness` and `criterion` are code in pytest's own process, the others processes in a sandbox
Component = Literal["harness", "criterion", "agent", "grader", "setup", "post_run"]
DOOR_PORT = 61080  #: where clients in a network of their own find the proxy
_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A place on the network. `port` None: any."""

    host: str  #: lower case, without brackets
    port: int | None = None

    @classmethod
    def of_url(cls, url: str) -> Endpoint | None:
        """Of a base URL; None where it has no host or no port that can be read."""
        from urllib.parse import urlsplit  # collecting tasks needs this module, and no URL

        try:
            parts = urlsplit(url.strip())
            port = parts.port
        except ValueError:
            return None
        return cls(parts.hostname, port or _PORTS.get(parts.scheme)) if parts.hostname else None


class Network(Protocol):
    """Holds what belongs to a trial to where it may go, and knows what else it tried. From any thread.

    A trial is told from others by its node id; of one id at most one runs at a time in a process.
    """

    def acting(self, trial: Trial, component: Component, by: str = "") -> AbstractContextManager[None]:
        """Within, this thread, and what it starts, runs code for the trial. `by`: which criterion it is."""

    def apart(self, trial: Trial, role: Role) -> bool:
        """Whether processes of this role need nothing of this machine's network, so that a driver which can gives them one of their own."""

    def environment(self, trial: Trial, role: Role, environ: Mapping[str, str], door: Path | None = None) -> Mapping[str, str]:
        """The environment of a process that is about to start, so changed that clients in it ask here first.

        `door`: a folder that the process sees; it has a network of its own, and hands out through it who listens on DOOR_PORT there.
        CodeprobeError SANDBOX_FAILED where that can't be had: nothing may start without it.
        """

    def came_out(self, trial: Trial, role: Role, door: Path) -> bool:
        """Whether the process that was given this door has handed its socket out: what it became can't have run otherwise."""

    def settle(self, trial: Trial, role: Role) -> None:
        """All processes of this role are gone: what they said last is taken in, and what they knew is of no use to others."""

    def has_attempts(self, trial: Trial) -> bool:
        """Whether something that is not allowed was tried so far."""

    def allows(self, host: str, port: int | None) -> bool:
        """Whether the harness may go there. `port` None: it is not known yet."""

    def end(self, trial: Trial) -> CodeprobeError | None:
        """The trial is over: OFFLINE_NET_ATTEMPT where something was tried that is not allowed. What comes later is a new life of it."""


class Unheld:
    """A Network that holds nothing: of every run without --codeprobe-offline."""

    def acting(self, trial: Trial, component: Component, by: str = "") -> AbstractContextManager[None]:
        """See Network."""
        return contextlib.nullcontext()

    def apart(self, trial: Trial, role: Role) -> bool:
        """See Network."""
        return False

    def environment(self, trial: Trial, role: Role, environ: Mapping[str, str], door: Path | None = None) -> Mapping[str, str]:
        """See Network."""
        return environ

    def came_out(self, trial: Trial, role: Role, door: Path) -> bool:
        """See Network."""
        return True

    def settle(self, trial: Trial, role: Role) -> None:
        """See Network."""

    def has_attempts(self, trial: Trial) -> bool:
        """See Network."""
        return False

    def allows(self, host: str, port: int | None) -> bool:
        """See Network."""
        return True

    def end(self, trial: Trial) -> CodeprobeError | None:
        """See Network."""
        return None
