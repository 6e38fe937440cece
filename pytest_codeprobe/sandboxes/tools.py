"""Programs of the system that the harness itself runs on files: cp, rm, git, its own redactor."""

from __future__ import annotations

import errno
from collections.abc import Mapping, Sequence
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired  # these, not subprocess.run(): tests that run beside trials replace it
from typing import IO, NamedTuple


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
) -> ToolResult:
    """Run a program to its end; `timeout` in seconds. OSError if it can't be started, TimeoutError once it is killed for its time."""
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
            output, complaints = process.communicate(stdin or None, timeout)
        except BaseException as error:
            process.kill()
            if isinstance(error, TimeoutExpired):
                raise TimeoutError(errno.ETIMEDOUT, f"{argv[0]!r} took longer than {timeout:.0f} s") from error
            raise
    return ToolResult(process.returncode, output or b"", complaints)
