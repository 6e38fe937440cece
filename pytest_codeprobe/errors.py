"""The one exception that carries a code of the contract, and the table of those codes.

Raised where the fact is known, turned into output in one place. Standard library only.
"""

from __future__ import annotations

import difflib
import functools
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorCode:
    """One row of `error_codes.json`."""

    code: str
    kind: Literal["diagnostic", "prescriptive"]
    retryable: Literal["no", "after_fix", "bounded"]
    terminal: bool
    exit_code: int  #: the exit code of a run in which only this happened
    summary: str
    remediation: str  #: what to do about it, where the raiser knows nothing better


@functools.cache
def error_codes() -> Mapping[str, ErrorCode]:
    """All codes that this version can raise, by name, in the order of their rank within an exit code."""
    rows = json.loads((Path(__file__).with_name("error_codes.json")).read_text(encoding="utf-8"))
    return {row["code"]: ErrorCode(**row) for row in rows}


def with_frames(error: BaseException) -> str:
    """An exception and its causes with where each was raised, innermost last.

    As `traceback` tells it but without the marks below a line, for which CPython 3.11 and 3.12 parse it: trials run in threads, and two
    threads must not build syntax trees at once.
    """
    import traceback

    chain: list[BaseException] = []
    seen: BaseException | None = error
    while seen is not None and seen not in chain:
        chain.append(seen)
        seen = seen.__cause__ or (None if seen.__suppress_context__ else seen.__context__)
    told = []
    for one in reversed(chain):
        frames = traceback.StackSummary.extract(traceback.walk_tb(one.__traceback__)).format()
        told.append("".join(["Traceback (most recent call last):\n", *frames, *traceback.format_exception_only(one)]).rstrip("\n"))
    return "\n\n".join(told)


class CodeprobeError(Exception):
    """Trouble of the harness or of the user's configuration; never an agent's failure to do its task.

    `message` says what is wrong in one line, `remediation` what to do (None: the code's own), `command` an argv that does
    it when run as printed, `detail` machine-readable facts (JSON values only).
    """

    def __init__(
        self,
        code: str,
        message: str,
        *,
        remediation: str | None = None,
        command: tuple[str, ...] | None = None,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        row = error_codes()[code]  # a code that is not in the table is a fault of ours: KeyError
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.command = code, message, command
        self.remediation = row.remediation if remediation is None else remediation
        self.detail: dict[str, Any] = dict(detail or {})


class Stopped(Exception):
    """The run told this trial to end or not to start. `reason` is the one of the record: interrupted, maxfail, auth, …"""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Skipped(Exception):
    """Nothing is wrong, but this trial says nothing with this agent; the argument is the reason of the record."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)` for the nearest known name, or an empty string."""
    near = difflib.get_close_matches(name.lower(), {k.lower(): k for k in known}, n=1, cutoff=0.6)
    original = {k.lower(): k for k in known}
    return f" (did you mean {original[near[0]]!r}?)" if near else ""
