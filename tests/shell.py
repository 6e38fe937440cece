"""What a person at a shell has: the commands of this interpreter's environment, whatever is on PATH, and whole command lines."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.front_door import Project, clean_environment

_OURS = "from pytest_codeprobe.cli import main; main()"
_STARTS = {"python": "", "python3": "", "pytest": "-P -m pytest", "codeprobe": f"-P -c '{_OURS}'"}


def make_commands(folder: Path) -> Path:
    """`python`, `pytest` and `codeprobe` in a folder for PATH."""
    folder.mkdir(exist_ok=True)
    for name, start in _STARTS.items():
        file = folder / name
        file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {start} "$@"\n')
        file.chmod(0o755)
    return folder


def type_in(
    project: Project, argv: Sequence[str], *, env: Mapping[str, str] | None = None, seconds: float = 90.0
) -> subprocess.CompletedProcess[str]:
    """Run a command line as printed, in the project's folder."""
    environment = clean_environment(CP_TEST_MARK=project.mark_text, **project.environment, **(env or {}))
    environment["PATH"] = f"{make_commands(project.scratch / 'bin')}:{environment['PATH']}"
    return subprocess.run(
        list(argv),
        cwd=project.path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
