"""Install the agent CLIs that the tests run, exactly as locked, into a cache of the user's.

    python tests/install_clis.py

prints the folder that holds the commands (`claude`). The cache entry is named after the hash of package.json, package-lock.json and
.npmrc, so all checkouts with the same lock share it and it is never updated in place: npm works in a temporary folder, which is renamed
when the CLIs have answered. Two processes at once: one installs, the other waits. Needs `npm` for the first run only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MANIFEST = ("package.json", "package-lock.json", ".npmrc")
NPM_SECONDS = 900.0
VERSION_SECONDS = 60.0
# command -> the package that brings it; `COMMAND --version` must name the locked version.
COMMANDS = {"claude": "@anthropic-ai/claude-code"}


class InstallError(Exception):
    """The CLIs can't be installed; the message says why and what npm said."""


def cache_root() -> Path:
    """The folder that holds all installs: $XDG_CACHE_HOME (if absolute) or ~/.cache, then pytest-codeprobe/clis."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    parent = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return parent / "pytest-codeprobe" / "clis"


def install_folder() -> Path:
    """Where the CLIs of this checkout's lock file are or will be."""
    digest = hashlib.sha256()
    for name in MANIFEST:
        digest.update((ROOT / name).read_bytes() + b"\0")
    return cache_root() / digest.hexdigest()[:16]


def bin_folder() -> Path:
    """The folder to put on PATH; it exists once `install` has returned."""
    return install_folder() / "node_modules" / ".bin"


def locked_version(package: str) -> str:
    """The exact version of a package in package-lock.json."""
    lock = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))
    return str(lock["packages"][f"node_modules/{package}"]["version"])


def installed() -> Path | None:
    """The bin folder when the locked CLIs are there and answer, else None; installs nothing."""
    return bin_folder() if _broken(install_folder()) is None else None


def install() -> Path:
    """Make sure that the locked CLIs are there and answer, and return their bin folder. Raises InstallError."""
    target = install_folder()
    target.parent.mkdir(parents=True, exist_ok=True)
    with _lock(target.with_suffix(".lock")):
        if _broken(target) is not None:
            _install_into(target)
    return target / "node_modules" / ".bin"


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    # flock ends with its process, so a killed installer never leaves the next one waiting.
    with path.open("a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _install_into(target: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        raise InstallError("npm is not on PATH; install Node.js 20 or newer")
    # The lock is held, so a folder of this name is what a killed installer left.
    for leftover in target.parent.glob(f".{target.name}-*"):
        shutil.rmtree(leftover)
    work = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    try:
        for name in MANIFEST:
            shutil.copy(ROOT / name, work / name)
        _npm_ci(npm, work)
        problem = _broken(work)
        if problem is not None:
            raise InstallError(problem)
        if target.exists():
            shutil.rmtree(target)
        work.chmod(0o755)
        work.rename(target)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _npm_ci(npm: str, work: Path) -> None:
    # include=optional: the native binary is an optional package for each platform, and a user's npm settings may omit those.
    argv = [npm, "ci", "--include=optional", "--omit=dev", "--ignore-scripts=false", "--engine-strict=false", "--no-audit", "--no-fund"]
    try:
        done = subprocess.run(
            argv, check=False, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=NPM_SECONDS
        )
    except subprocess.TimeoutExpired as error:
        raise InstallError(f"npm ci did not end within {NPM_SECONDS:.0f} s") from error
    if done.returncode != 0:
        raise InstallError(f"npm ci ended with code {done.returncode}:\n{done.stderr[-4000:]}")


def _broken(folder: Path) -> str | None:
    """What is wrong with an install; None when every command names its locked version."""
    for command, package in COMMANDS.items():
        path = folder / "node_modules" / ".bin" / command
        if not path.is_file():
            return f"{command} is not in {path.parent}"
        said = _version(path)
        wanted = locked_version(package)
        if wanted not in said.split():
            return f"{command} --version says {said[:200]!r}, the lock file {wanted}"
    return None


def _version(command: Path) -> str:
    # A HOME of its own: asking for the version must not write into the user's.
    with tempfile.TemporaryDirectory() as home:
        environ = {"PATH": os.environ.get("PATH", os.defpath), "HOME": home, "DISABLE_AUTOUPDATER": "1"}
        try:
            done = subprocess.run(
                [command, "--version"],
                check=False,
                env=environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=VERSION_SECONDS,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"nothing ({error})"
    return done.stdout.strip()


def main() -> int:
    """Install and print the bin folder."""
    try:
        folder = install()
    except InstallError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
