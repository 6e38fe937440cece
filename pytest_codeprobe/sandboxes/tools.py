"""Programs of the system that the harness itself runs on files: cp, rm, git, its own redactor."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired  # these, not subprocess.run(): tests that run beside trials replace it
from time import monotonic
from typing import IO, NamedTuple

from pytest_codeprobe.errors import Stopped

_LOOK_EVERY = 0.25  #: seconds


class ToolResult(NamedTuple):
    """What is left of a tool: its exit status, its output where that was to be read, its complaints."""

    status: int
    output: bytes
    complaints: bytes


def run_tool(
    argv: Sequence[str | bytes],
    *,
    env: Mapping[str, str],
    timeout: float,
    cwd: str = "/",  # ours may be changed, or gone
    stdin: bytes = b"",
    stdout: int | IO[bytes] = DEVNULL,
    stopped: Callable[[], str | None] | None = None,
) -> ToolResult:
    """Run a program to its end; `timeout` in seconds. OSError if it can't be started, TimeoutError once it is killed for its time.

    `stopped`: why it is not to go on, as a record's reason, asked now and then: Stopped. What it has started is killed with it.
    """
    with Popen(
        argv,
        cwd=cwd,
        env=env,
        stdin=PIPE if stdin else DEVNULL,
        stdout=stdout,
        stderr=PIPE,
        start_new_session=True,  # a Ctrl-C is ours to act on
    ) as process:
        try:
            output, complaints = _watched(process, stdin, timeout, stopped)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, TimeoutExpired):
                raise TimeoutError(errno.ETIMEDOUT, f"{argv[0]!r} took longer than {timeout:.0f} s") from error
            raise
    return ToolResult(process.returncode, output or b"", complaints)


def _watched(process: Popen[bytes], stdin: bytes, timeout: float, stopped: Callable[[], str | None] | None) -> tuple[bytes | None, bytes]:
    """Output and complaints once it has ended. TimeoutExpired, Stopped."""
    if stopped is None:
        return process.communicate(stdin or None, timeout)
    until = monotonic() + timeout
    while True:
        if (reason := stopped()) is not None:
            raise Stopped(reason)
        try:
            return process.communicate(stdin or None, min(_LOOK_EVERY, max(0.0, until - monotonic())))
        except TimeoutExpired:
            if monotonic() >= until:
                raise
