"""Which versions of the agents' CLIs are installed: `--version`, asked of all at once and bounded in time."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.text import one_line
from pytest_codeprobe.trial.environment import allowlisted

#: what stands first in the answer: `2.1.332 (Claude Code)`, `codex-cli 0.171.0`, `v1.2.3-beta.1`
_VERSION = re.compile(r"\bv?(\d+(?:\.\d+)+[\w.+-]*)")
_MOST = 4096  #: characters of an answer that are looked at


def installed_versions(agents: Iterable[Agent], context: Context, seconds: float) -> dict[str, str | None]:
    """By the agents' names; None where a CLI is not there, or says nothing that is a version, within these seconds."""
    found: dict[str, str | None] = {}
    asked: dict[str, subprocess.Popen[bytes]] = {}
    # what the CLI writes at its start must not lie in the user's own HOME
    with tempfile.TemporaryDirectory(prefix="codeprobe-version-", ignore_cleanup_errors=True) as home:
        environment = {"PATH": os.defpath, "TERM": "dumb", **allowlisted(context.environ), "HOME": home, "TMPDIR": home}
        try:
            for agent in agents:
                found[agent.name] = None
                with contextlib.suppress(OSError):
                    if (program := agent.find(context)) is not None:
                        asked[agent.name] = _ask(program, environment, Path(home, f"{agent.name}.out"))
            until = monotonic() + seconds
            for name, process in asked.items():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, until - monotonic()))
                    found[name] = _version(Path(home, f"{name}.out"))
        finally:
            for process in asked.values():
                _end(process)
    return found


def _ask(program: str, environment: dict[str, str], output: Path) -> subprocess.Popen[bytes]:
    with output.open("wb") as stream:  # not a pipe: nobody reads while others are waited for
        return subprocess.Popen(
            [program, "--version"],
            cwd=output.parent,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of it stays, whatever it has started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _version(output: Path) -> str | None:
    try:
        with output.open("rb") as stream:
            words = stream.read(_MOST).decode("utf-8", "replace")
    except OSError:
        return None
    first = next((line for line in words.splitlines() if line.strip()), "")
    match = _VERSION.search(first)
    return one_line(match[1], 100) if match else None
