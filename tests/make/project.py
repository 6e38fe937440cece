"""Facts about this checkout that the make commands share."""

from __future__ import annotations

import functools
import os
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
CONSTRAINTS = ROOT / "requirements" / "constraints.txt"
LOWEST = ROOT / "requirements" / "lowest.txt"
#: Variables that would change a test run or a session: ours, pytest's, coverage's, Python's search path, providers' keys.
_FOREIGN = re.compile(
    r"^(PYTEST_|_?CODEPROBE_|COV_|COVERAGE_|ANTHROPIC_|OPENAI_|GEMINI_|GOOGLE_|CLAUDE)|^(PYTHONPATH|PYTHONHOME|PYTHONSAFEPATH|API_BACKEND)$"
)


class MakeError(Exception):
    """A command can't do its job; the message says why and what to do."""


@functools.cache
def pyproject() -> dict[str, Any]:
    """The parsed pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def runtime_requirements() -> list[str]:
    """What the package itself needs."""
    return list(pyproject()["project"]["dependencies"])


def extra(name: str) -> list[str]:
    """The requirements of one extra."""
    return list(pyproject()["project"]["optional-dependencies"][name])


def build_requirements() -> list[str]:
    """The build backend."""
    return list(pyproject()["build-system"]["requires"])


def group(name: str) -> list[str]:
    """The requirements of one dependency group: what work on the package needs, and its users don't."""
    return list(pyproject()["dependency-groups"][name])


def canonical(name: str) -> str:
    """A distribution's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(path: Path) -> dict[str, str]:
    """The `name==version` lines of a constraints file, by canonical name."""
    found = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            name, _, version = line.partition("==")
            found[canonical(name)] = version
    return found


def clean_environ() -> dict[str, str]:
    """This process's environment without what would reach into a test run."""
    return {name: value for name, value in os.environ.items() if not _FOREIGN.match(name)}


def on_ci() -> bool:
    """Whether a missing part is a failure instead of a reason to do without."""
    return os.environ.get("CI", "").lower() == "true"


def say(line: str) -> None:
    """One line for the person who ran make, in order with what child processes print."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
