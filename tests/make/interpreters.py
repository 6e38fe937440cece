"""Finding the Python interpreters of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13")
_PROBE = "import sys, venv, ensurepip; print('%d.%d.%d' % sys.version_info[:3])"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that can make virtual environments."""

    version: str  #: "3.12.1"
    path: Path

    @property
    def minor(self) -> str:
        """The version without the last part: "3.12"."""
        return self.version.rpartition(".")[0]


def probe(path: Path) -> Interpreter | None:
    """The interpreter at a path, by running it; None where it doesn't run or lacks venv or ensurepip."""
    try:
        done = subprocess.run([path, "-I", "-c", _PROBE], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return Interpreter(done.stdout.strip(), path) if done.returncode == 0 else None


def current() -> Interpreter | None:
    """The interpreter that runs this command."""
    return probe(Path(sys.executable))


def find(minor: str) -> Interpreter | None:
    """An interpreter of that minor version: the running one, on PATH, or of pyenv."""
    for path in _candidates(minor):
        interpreter = probe(path)
        # A shim may be called python3.12 and start something else, or nothing.
        if interpreter is not None and interpreter.minor == minor:
            return interpreter
    return None


def _candidates(minor: str) -> Iterator[Path]:
    if sys.version_info[:2] == tuple(int(part) for part in minor.split(".")):
        yield Path(sys.executable)
    for folder in os.get_exec_path():
        path = Path(folder, f"python{minor}")
        if os.access(path, os.X_OK):
            yield path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted((pyenv / "versions").glob(f"{minor}.*/bin/python{minor}"), reverse=True)
