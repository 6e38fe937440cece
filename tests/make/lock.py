"""`make lock`: write requirements/constraints.txt and package-lock.json (newest versions that fit) and requirements/lowest.txt."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.make import interpreters
from tests.make.project import (
    CONSTRAINTS,
    LOWEST,
    ROOT,
    MakeError,
    build_requirements,
    canonical,
    clean_environ,
    extra,
    group,
    runtime_requirements,
    say,
)

OLDEST = interpreters.SUPPORTED[0]
_BOUND = re.compile(r"([A-Za-z0-9._-]+)>=([0-9.]+)")
_HEADER = """\
# {what}
# Written by `make lock` on Python {version}, not by hand.
"""


def lock() -> None:
    """Write all lock files. Asks the registries; changes no environment."""
    interpreter = interpreters.find(OLDEST)
    if interpreter is None:
        raise MakeError(f"Python {OLDEST}, the oldest supported version, is needed to lock: what it can install, the newer ones can too")
    with tempfile.TemporaryDirectory(prefix="codeprobe-lock-") as scratch:
        _call([str(interpreter.path), "-m", "venv", scratch])
        python = Path(scratch, "bin", "python")
        _call([str(python), "-m", "pip", "install", "--quiet", "--upgrade", "pip"])
        extras, groups = (*extra("report"), *extra("test")), (*group("lint"), *group("reference"))
        everything = [*runtime_requirements(), *extras, *groups, *build_requirements(), "pip"]
        newest = resolve(python, everything)
        lowest = resolve(python, [*map(at_its_bound, runtime_requirements()), *extra("test"), "pip"])
    _write(CONSTRAINTS, "What CI installs, on every Python: the package, its extras, the tests, the linters, the build backend.", newest)
    _write(LOWEST, "The lower bounds of pyproject.toml, with what else they need.", lowest)
    lock_npm()


def at_its_bound(requirement: str) -> str:
    """`name>=1.2` as `name==1.2`. Raises MakeError for a requirement without one plain lower bound."""
    match = _BOUND.fullmatch(requirement)
    if match is None:
        raise MakeError(f"{requirement!r} in pyproject.toml must be of the form name>=version: its bound is what the lowest set tests")
    return f"{match[1]}=={match[2]}"


def resolve(python: Path, requirements: Sequence[str]) -> dict[str, str]:
    """The versions that pip would install for these requirements, by canonical name."""
    said = _call(
        [
            str(python),
            "-m",
            "pip",
            "install",
            "--dry-run",
            "--ignore-installed",
            "--quiet",
            "--only-binary=:all:",
            "--report=-",
            *requirements,
        ]
    )
    packages = [row["metadata"] for row in json.loads(said)["install"]]
    return {canonical(package["name"]): package["version"] for package in packages}


def lock_npm() -> None:
    """Move each CLI of package.json to its newest version and lock what that needs."""
    npm = shutil.which("npm")
    if npm is None:
        raise MakeError("npm is needed to lock the agents' command-line tools; install Node.js 20 or newer")
    names = json.loads((ROOT / "package.json").read_text("utf-8"))["dependencies"]
    _call([npm, "install", "--package-lock-only", "--ignore-scripts", "--save-exact", *(f"{name}@latest" for name in names)])
    text = (ROOT / "package-lock.json").read_text("utf-8")
    if '"resolved"' in text:
        raise MakeError("package-lock.json names a registry; .npmrc must say omit-lockfile-registry-resolved=true")
    say(f"wrote package-lock.json ({len(json.loads(text)['packages']) - 1} packages)")


def _write(path: Path, what: str, versions: dict[str, str]) -> None:
    lines = [f"{name}=={version}\n" for name, version in sorted(versions.items())]
    header = _HEADER.format(what=what, version=OLDEST)
    scratch = path.with_suffix(".tmp")
    scratch.write_text(header + "".join(lines), encoding="utf-8")
    scratch.replace(path)
    say(f"wrote {path.relative_to(ROOT)} ({len(lines)} packages)")


def _call(argv: Sequence[str]) -> str:
    done = subprocess.run(
        argv, cwd=ROOT, env=clean_environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode != 0:
        raise MakeError(f"exit code {done.returncode}: {' '.join(argv)}\n{done.stderr[-4000:]}")
    return done.stdout
