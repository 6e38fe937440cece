"""Virtual environments that hold the locked packages and the built wheel.

They live in `.venvs/`, named after what is in them (Python, pinned versions, requirements), so that a second run finds them ready
and a changed lock makes a new one. Any number of runs may go on at once: set-up is one at a time, and an environment in use is
never changed. A run whose wheel is another than the one installed there takes the next copy ("slot") of that environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.make.interpreters import Interpreter
from tests.make.project import ROOT, MakeError, canonical, clean_environ, pins, say

PIP_SECONDS = 1200.0
UNUSED_DAYS = 14
# "venv" refuses a folder with the separator of PATH in its name; a checkout in such a folder keeps its environments in the user's cache.
_HOME = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
VENVS = (
    ROOT / ".venvs"
    if os.pathsep not in str(ROOT)
    else _HOME / "pytest-codeprobe" / "venvs" / hashlib.sha256(str(ROOT).encode()).hexdigest()[:12]
)


@dataclass(frozen=True, slots=True)
class Environment:
    """What to install: `requirements` at the versions of `constraints`, on `interpreter`, then the wheel."""

    name: str
    interpreter: Interpreter
    constraints: Path
    requirements: tuple[str, ...]

    @property
    def key(self) -> str:
        """The folder's name without the slot."""
        content = json.dumps([self.interpreter.version, str(self.interpreter.path), self.constraints.read_text("utf-8"), self.requirements])
        return f"{self.name}-{hashlib.sha256(content.encode()).hexdigest()[:12]}"


@contextmanager
def use(environment: Environment, wheel: Path | None) -> Iterator[Path]:
    """Set an environment up and hold it as it is; gives its Python. Without a wheel the package itself may be there or not.

    Raises MakeError with pip's words when something can't be installed.
    """
    with tempfile.TemporaryFile() as nothing:
        handle: IO[bytes] = nothing
        with _setting_up():
            _prune(environment)
            for slot in itertools.count():
                folder = VENVS / f"{environment.key}-{slot}"
                handle = folder.with_suffix(folder.suffix + ".lock").open("ab")
                if _fits(folder, wheel):
                    break
                if _lock_now(handle, fcntl.LOCK_EX):
                    _fill(environment, folder, wheel)
                    break
                handle.close()
            # Only a run that sets up takes the exclusive lock, so this never waits.
            fcntl.flock(handle, fcntl.LOCK_SH)
            os.utime(handle.name)
        with handle:
            yield _python(folder)


def build_wheel(python: Path, target: Path) -> Path:
    """Build the wheel of this checkout into a folder, with the backend that is installed beside `python`."""
    _pip(python, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(target), str(ROOT))
    (wheel,) = target.glob("*.whl")
    return wheel


@contextmanager
def _setting_up() -> Iterator[None]:
    VENVS.mkdir(parents=True, exist_ok=True)
    with (VENVS / "set-up.lock").open("ab") as handle:
        if not _lock_now(handle, fcntl.LOCK_EX):
            say("set-up: waiting for another run's set-up")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _lock_now(handle: IO[bytes], kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"


def _digest(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def _fits(folder: Path, wheel: Path | None) -> bool:
    if not (folder / "requirements.done").exists():
        return False
    stamp = folder / "wheel.done"
    return wheel is None or (stamp.exists() and stamp.read_text("ascii") == _digest(wheel))


def _fill(environment: Environment, folder: Path, wheel: Path | None) -> None:
    done = folder / "requirements.done"
    python = _python(folder)
    if not done.exists():
        say(f"set-up: {environment.name} on Python {environment.interpreter.version}, packages of {environment.constraints.name}")
        if folder.exists():
            shutil.rmtree(folder)
        _run([str(environment.interpreter.path), "-m", "venv", str(folder)])
        _pip(python, "uninstall", "--yes", "--quiet", "setuptools")  # which venv brings before Python 3.12
        _pip(python, "install", "--quiet", "--constraint", str(environment.constraints), "pip", *environment.requirements)
        _refuse_unpinned(python, environment.constraints)
        done.touch()
    if wheel is not None:
        stamp = folder / "wheel.done"
        stamp.unlink(missing_ok=True)
        _pip(python, "install", "--quiet", "--no-deps", "--no-index", "--force-reinstall", str(wheel))
        _pip(python, "check")
        stamp.write_text(_digest(wheel), encoding="ascii")


def _refuse_unpinned(python: Path, constraints: Path) -> None:
    listed = json.loads(_pip(python, "list", "--format=json"))
    unpinned = sorted({canonical(row["name"]) for row in listed} - pins(constraints).keys())
    if unpinned:
        raise MakeError(f"{constraints.name} pins no version of {', '.join(unpinned)}; run: make lock")


def _prune(environment: Environment) -> None:
    """Remove environments of this name that no run has used for a while."""
    for path in VENVS.glob(f"{environment.name}-*.lock"):
        if path.name.startswith(environment.key) or time.time() - path.stat().st_mtime < UNUSED_DAYS * 86400:
            continue
        with path.open("ab") as handle:
            if _lock_now(handle, fcntl.LOCK_EX):
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)
                path.unlink()


def _pip(python: Path, *arguments: str) -> str:
    return _run([str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", *arguments])


def _run(argv: Sequence[str]) -> str:
    try:
        done = subprocess.run(
            argv,
            cwd=VENVS,
            env=clean_environ(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PIP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise MakeError(f"not done within {PIP_SECONDS:.0f} s: {' '.join(argv)}") from error
    if done.returncode != 0:
        raise MakeError(f"exit code {done.returncode}: {' '.join(argv)}\n{(done.stdout + done.stderr)[-4000:]}")
    return done.stdout
