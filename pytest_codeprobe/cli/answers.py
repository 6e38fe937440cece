"""What a command of `codeprobe` says: text for people, or one line of JSON in the envelope's form."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.run.envelope import ErrorEntry, answer
from pytest_codeprobe.text import json_line


def json_by_environment() -> bool:
    """Whether CODEPROBE_JSON asks for it; what it says wrong is for `run` to refuse."""
    return os.environ.get("CODEPROBE_JSON", "").strip().lower() not in ("", "0")


def open_standard_streams() -> None:
    """Where the caller closed stdin, stdout or stderr: pytest can't do without, and what we open first would take their numbers."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free; inherited, as these are
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, mode, closefd=False))


class _Taken:
    """The real stdout, once fd 1 leads to stderr."""

    fd: int | None = None


def take_stdout() -> int:
    """Let nothing but JSON reach stdout from here on, to the end of the process: plugins of pytest's may print before ours is loaded.

    The descriptor of the real one.
    """
    sys.stdout.flush()
    if _Taken.fd is None:
        _Taken.fd = os.dup(1)
    os.dup2(2, 1)
    return _Taken.fd


def say(line: str) -> None:
    """A line on stdout; a reader that has gone is nobody's trouble."""
    if _Taken.fd is not None:
        with contextlib.suppress(OSError), os.fdopen(os.dup(_Taken.fd), "wb") as stdout:
            stdout.write(line.encode() + b"\n")
        return
    if sys.stdout is None:
        return
    try:
        click.echo(line)
        sys.stdout.flush()
    except OSError:
        sys.stdout = None  # nothing is left to be flushed


def envelope_line(
    command: str | None, data: Mapping[str, Any], errors: Sequence[ErrorEntry] = (), warnings: Sequence[str] = ()
) -> tuple[str, int]:
    """The line, and the exit code that it says: that of the first error."""
    code = error_codes()[errors[0].code].exit_code if errors else 0
    return json_line(answer(command, data, code, errors=errors, warnings=warnings)), code


def complain(error: CodeprobeError | ErrorEntry) -> None:
    """An error on stderr, as pytest shows one."""
    click.echo(f"ERROR: {error.code}: {error.message}\n  {error.remediation}", err=True)
