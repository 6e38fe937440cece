"""Ask installed programs what they are, bounded in time, and the CLIs of agents for their versions."""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import ProcessLimits
from pytest_codeprobe.text import one_line
from pytest_codeprobe.trial.environment import XDG, allowlisted

_MAX_ANSWER = 1 << 16  # bytes
#: what stands first in a version's line: `2.1.332 (Claude Code)`, `codex-cli 0.171.0`, `v1.2.3-beta.1`
_VERSION = re.compile(r"\bv?(\d+(?:\.\d+)+[\w.+-]*)")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a program said."""

    text: str  #: both streams, stdout first
    trouble: str | None = None  #: why it can't be relied on: `exit status 1`, `no answer within 2 s`
    late: bool = False  #: the trouble is that it took its time

    @property
    def first_line(self) -> str:
        """The first that is not blank."""
        return next((line.strip() for line in self.text.splitlines() if line.strip()), "")

    @property
    def version(self) -> str | None:
        """The version that its first line names; None where it names none, or can't be relied on."""
        match = _VERSION.search(self.first_line) if self.trouble is None else None
        return one_line(match[1], 100) if match else None


def ask(context: Context, argv: Sequence[str], *, env: Mapping[str, str], seconds: float) -> Answer:
    """Run a program under a keeper, which ends its whole tree once the time is over. From any thread."""
    try:
        out, err = _anonymous("out"), _anonymous("err")
    except OSError as error:
        return Answer("", f"could not be asked: {error.strerror}")
    with os.fdopen(out, "rb") as stdout, os.fdopen(err, "rb") as stderr, Path(os.devnull).open("rb") as nothing:
        try:
            process = context.processes.start(
                argv, env=env, cwd="/", stdin=nothing.fileno(), stdout=stdout.fileno(), stderr=stderr.fileno(),
                limits=ProcessLimits(timeout=seconds, grace=0.0, output_bytes=_MAX_ANSWER), role="setup",
            )  # fmt: skip
            ended = process.wait(seconds + 2.0) or process.destroy()
        except OSError as error:
            return Answer("", f"could not be started: {error.strerror or error}")
        stdout.seek(0)
        stderr.seek(0)
        text = (stdout.read(_MAX_ANSWER) + b"\n" + stderr.read(_MAX_ANSWER)).decode("utf-8", "replace").strip()
    if ended.cause == "timeout":
        return Answer(text, f"no answer within {seconds:g} s", late=True)
    if ended.status is not None and ended.status < 0:
        return Answer(text, f"signal {-ended.status}")
    return Answer(text, None if ended.status == 0 else f"exit status {ended.status}")


def _anonymous(name: str) -> int:
    """A file that is on no disk, which may be full."""
    if sys.platform == "linux":
        return os.memfd_create(f"codeprobe-{name}", os.MFD_CLOEXEC)
    fd, path = tempfile.mkstemp(prefix="codeprobe-")
    Path(path).unlink()
    return fd


def private(context: Context, home: str) -> dict[str, str]:
    """The environment of a program that is asked: what it writes at its start must not lie in the user's own HOME."""
    folders = {name: f"{home}/{below}" for name, below in XDG.items()}
    return {"PATH": os.defpath, "TERM": "dumb", **allowlisted(context.environ), "HOME": home, "TMPDIR": home, **folders}


def ask_versions(agents: Iterable[Agent], context: Context, seconds: float) -> dict[str, Answer]:
    """What each agent's CLI says to `--version`, by the agents' names; all are asked at once. Those without a CLI are left out."""
    programs = {agent.name: found for agent in agents if (found := agent.find(context)) is not None}
    if not programs:
        return {}
    try:
        folder = tempfile.TemporaryDirectory(prefix="codeprobe-version-", ignore_cleanup_errors=True)
    except OSError as error:
        return dict.fromkeys(programs, Answer("", f"could not be asked: {error.strerror or error}"))
    with folder as home:
        env = private(context, home)
        with ThreadPoolExecutor(len(programs), thread_name_prefix="codeprobe-version") as pool:
            said = pool.map(lambda program: ask(context, [program, "--version"], env=env, seconds=seconds), programs.values())
            return dict(zip(programs, said, strict=True))
