"""What a keeper is told of its command, and what its refusal means."""

# ruff: noqa: PTH113, PTH118
# (on the way to every session and grader: plain calls)
from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_codeprobe.model.sandbox import ProcessLimits, Role

#: reasons of a stop of the run (names of flags in its stop folder) that end a running process of this role
STOPPED_BY: Mapping[Role, frozenset[str]] = {
    "session": frozenset({"interrupt", "maxfail", "budget", "time", "trace"}),
    "grader": frozenset({"interrupt", "maxfail"}),
    "setup": frozenset({"interrupt", "maxfail"}),
    "post_run": frozenset(),
}
#: seconds that a process of this role has left once the flag `now` is there; the others are killed at once
NOW_AFTER: Mapping[Role, float] = {"post_run": 5.0}


def make_request(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    outputs: tuple[int, int],
    limits: ProcessLimits,
    role: Role,
    agent: str,
    stop_dir: str,
) -> dict[str, Any]:
    """The request as JSON values. OSError if there is no such program, or these descriptors can't be held to the limits."""
    folder = _absolute(cwd)
    return {
        "program": _find_program(argv[0], env, folder),
        "argv": list(argv),
        "env": dict(env),
        "cwd": folder,
        "held": _held(*outputs, limits),
        "merged": outputs[0] == outputs[1],
        "timeout": limits.timeout,
        "grace": limits.grace,
        "output_bytes": limits.output_bytes,
        "rlimits": {name: list(pair) for name, pair in limits.rlimits.items()},
        "wrapper": limits.wrapper,
        "groups": list(limits.groups),
        "outside": {"stop_argv": list(limits.outside.stop_argv), "end_argv": list(limits.outside.end_argv), "env": dict(limits.outside.env)}
        if limits.outside is not None
        else None,
        "agent": agent,
        "stop_dir": _absolute(stop_dir) if stop_dir else "",
        "stopped_by": sorted(STOPPED_BY[role]),
        "now_after": NOW_AFTER.get(role, 0.0),
    }


def _absolute(path: str) -> str:
    return path if path.startswith("/") else str(Path(path).absolute())


def _find_program(name: str, env: Mapping[str, str], cwd: str) -> str:
    """The file to run, searched for as the command's own shell would."""
    if "\0" in name or "\0" in cwd:
        raise OSError(errno.EINVAL, "NUL in a program's or folder's name")
    if "/" in name:
        return os.path.join(cwd, name)
    for folder in env.get("PATH", os.defpath).split(os.pathsep):
        candidate = os.path.join(cwd, folder, name)
        if name and os.path.isfile(candidate) and os.access(candidate, os.X_OK):
            return candidate
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), name)


def _held(stdout: int, stderr: int, limits: ProcessLimits) -> list[int]:
    """The outputs (1, 2) that the keeper writes: those to regular files. A pipe could block it."""
    regular = [index for index, fd in ((1, stdout), (2, stderr)) if stat.S_ISREG(os.fstat(fd).st_mode)]
    if limits.output_bytes is not None and len(regular) < 2:
        raise OSError(errno.EINVAL, "a limit of output needs regular files for stdout and stderr")
    return regular[:1] if stdout == stderr else regular


def as_os_error(message: Mapping[str, Any]) -> OSError:
    """The keeper's `error` message as the exception that it stands for."""
    number, filename = message["errno"], message["filename"]
    if number == errno.EINVAL and not filename:
        return OSError(number, message["text"])
    return OSError(number, os.strerror(number), filename) if filename else OSError(number, os.strerror(number))
