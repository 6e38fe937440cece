"""What a container engine holds for a command: processes that are not below the keeper, to be ended by the engine's own words.

The command that the keeper starts is then the engine's client. TERM is `stop_argv`, the end is `end_argv`: that one exits with 0
once the engine no longer knows the container, and may be run as often as one likes.
"""

# (no pathlib here, see keeper.py)
from __future__ import annotations

import os
import signal
import time
from typing import Any

NEVER = float("inf")
SECONDS = 20.0  #: that an end may take: an engine may hang
TRIES = 3


def start(argv: list[str], env: dict[str, str]) -> int:
    """The process of an engine's client, in a session of its own and with nothing of ours. OSError."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    try:
        return os.posix_spawn(
            argv[0], argv, env, file_actions=[(os.POSIX_SPAWN_DUP2, null, index) for index in range(3)], setsid=True, setsigmask=()
        )
    finally:
        os.close(null)


class Ending:
    """Runs `end_argv` until it has succeeded, at most TRIES times, each bounded in time."""

    def __init__(self, argv: list[str], env: dict[str, str]) -> None:
        self.argv, self.env = argv, env
        self.pid = 0
        self.until = NEVER
        self.tries = 0
        self.done = False  #: the engine no longer knew it when the last one ended

    def begin(self) -> None:
        """Start one, unless one is at work."""
        if self.pid:
            return
        self.tries += 1
        self.done = False
        try:
            self.pid, self.until = start(self.argv, self.env), time.monotonic() + SECONDS
        except OSError:
            self.pid, self.until = 0, NEVER

    def took(self, pid: int, status: int) -> bool:
        """Whether a process that was waited for is the one; then it has ended."""
        if not pid or pid != self.pid:
            return False
        self.pid, self.until, self.done = 0, NEVER, status == 0
        return True

    def check_time(self) -> None:
        """End one that hangs."""
        if self.pid and time.monotonic() >= self.until:
            self.until = NEVER
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except OSError:
                return

    @property
    def over(self) -> bool:
        """Nothing more will come of it: done, or tried often enough."""
        return not self.pid and (self.done or self.tries >= TRIES)


class Outside:
    """What belongs to one command beside the keeper's tree."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.stop_argv: list[str] = request["stop_argv"]
        self.env: dict[str, str] = request["env"]
        self.ending = Ending(request["end_argv"], self.env)
        self.stopping = 0
        self.asked = self.proves = False  #: an end was begun; one that proves it, as the client was gone before

    def stop(self) -> None:
        """TERM to all in the container. Nobody waits for it."""
        try:
            self.stopping = start(self.stop_argv, self.env)
        except OSError:
            return  # then the grace is all that they have

    def took(self, pid: int, status: int) -> bool:
        """Whether a process that was waited for is one of ours, and none of the command's."""
        return pid == self.stopping or self.ending.took(pid, status)

    def ended(self, *, client_is_gone: bool) -> bool:
        """Whether the engine was asked, for as long as there is patience, to end it; begins that. Then all that is below us may go."""
        self.ending.check_time()
        if not self.asked:
            self.asked, self.proves = True, client_is_gone
            self.ending.begin()
        return not self.ending.pid

    def gone(self) -> bool:
        """Nothing is below us: whether there is nothing more to wait for. `ending.done` says whether it is proved."""
        self.ending.check_time()
        if not self.proves:  # what ran beside the client proves nothing: that could have gone on making the container
            self.asked = self.proves = True
            self.ending.tries, self.ending.done = 0, False
        if self.ending.over:
            return True
        self.ending.begin()
        return self.ending.over
