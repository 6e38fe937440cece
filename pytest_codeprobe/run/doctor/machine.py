"""The machine itself: Python, pytest, git, disks, clock, proxies, certificates, what else is installed."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from pytest_codeprobe.run.doctor.check import Check, Subject, ask
from pytest_codeprobe.sandboxes.base import passed_over

_SCARCE, _TIGHT = 64 << 20, 1 << 30  #: bytes free: below the first a run fails, below the second it may
_TRIED = 1 << 20  #: bytes that are written to see whether they can be
_SKEW = 5.0  #: seconds
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CA_FILES = ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO")


def checks(subject: Subject) -> Iterator[tuple[str, Callable[[], Sequence[Check]]]]:
    """Name and work of each."""
    yield "python", lambda: [_python()]
    for name in ("pytest-codeprobe", "pytest", "pytest-xdist"):
        yield name, lambda name=name: [_distribution(name)]  # type: ignore[misc]  # mypy can't infer a default's type
    yield "codeprobe-beside", _beside
    yield "git", lambda: [_git(subject)]
    yield "tmpdir", lambda: _temporary(subject)
    yield "disk.tmp", lambda: [_disk("disk.tmp", subject.scratch, "TMPDIR", "Free disk space, or point TMPDIR to a place that has more.")]
    remedy = "Free disk space, or choose another place with ini codeprobe_runs_dir or --codeprobe-run-dir."
    yield "disk.runs", lambda: [_disk("disk.runs", subject.runs, "the run directories' place", remedy)]
    yield "clock", lambda: [_clock(subject)]
    yield "proxy", lambda: _proxies(subject)
    yield "certificates", lambda: _certificates(subject)


def _python() -> Check:
    said = f"Python {platform.python_version()} at {sys.executable}, {platform.system()} {platform.release()}"
    if os.name != "posix":
        return Check(name="python", status="fail", message=said, fix="Run tasks on Linux: other systems can only collect and report.")
    return Check(name="python", status="pass", message=said, detail={"version": platform.python_version()})


def _distribution(name: str) -> Check:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        fix = f"Install it into the same environment: {sys.executable} -m pip install {name}"
        return Check(name=name, status="warn", message=f"{name} is not installed as a distribution", fix=fix)
    return Check(name=name, status="pass", message=f"{name} {version}", detail={"version": version})


def _beside() -> list[Check]:
    """Another project's distribution, whose console script has the same name as ours."""
    try:
        version = importlib.metadata.version("codeprobe")
    except importlib.metadata.PackageNotFoundError:
        return []
    return [
        Check(
            name="codeprobe-beside",
            status="warn",
            message=f"distribution codeprobe {version} is installed beside this one, and both bring a script `codeprobe`",
            fix="Uninstall one of the two, or call this one by its other name, pytest-codeprobe.",
        )
    ]


def _git(subject: Subject) -> Check:
    found = shutil.which("git", path=subject.context.environ.get("PATH", os.defpath))
    fix = "Install git, or put it on the PATH of the process that runs pytest."
    if found is None:
        return Check(name="git", status="fail", message="git is not on PATH; diff.patch is made by it", fix=fix)
    answer = ask(subject, [found, "--version"])
    if answer.trouble is not None:
        return Check(
            name="git",
            status="warn" if answer.late else "fail",
            message=f"{found} --version: {answer.trouble}",
            fix="Repair git, or install it anew.",
        )
    return Check(name="git", status="pass", message=f"{answer.first_line} at {found}", detail={"path": found})


def _temporary(subject: Subject) -> list[Check]:
    asked = passed_over(subject.context.environ, subject.scratch)
    if asked is None:
        return []
    try:
        with _file_in(Path(asked)) as fd:
            os.write(fd, b"\0")
        why = "is not used"
    except OSError as error:
        why = f"can't be written: {error.strerror}"
    fix = "Free disk space there, or point TMPDIR to a folder that exists and has some."
    return [Check(name="tmpdir", status="warn", message=f"TMPDIR={asked} {why}; {subject.scratch} is used in its place", fix=fix)]


def _disk(name: str, folder: Path, what: str, fix: str) -> Check:
    """Free space, and whether a file can be written: quotas and read-only mounts show no other way."""
    place = _existing(folder)
    try:
        free = shutil.disk_usage(place).free
        inodes = os.statvfs(place)
        with _file_in(place) as fd:
            data = memoryview(b"\0" * _TRIED)
            while data:
                data = data[os.write(fd, data) :]
    except OSError as error:
        return Check(name=name, status="fail", message=f"{what}, {folder}: {error.strerror}", fix=fix, detail={"path": str(folder)})
    detail = {"path": str(folder), "free_bytes": free}
    said = f"{what}, {folder}: {free / (1 << 30):.1f} GiB free"
    if inodes.f_files and not inodes.f_favail:
        return Check(name=name, status="fail", message=f"{said}, but no file can be made: no inode is left", fix=fix, detail=detail)
    if free < _SCARCE:
        return Check(name=name, status="fail", message=f"{what}, {folder}: only {free >> 20} MiB free", fix=fix, detail=detail)
    return Check(name=name, status="warn" if free < _TIGHT else "pass", message=said, fix=fix if free < _TIGHT else None, detail=detail)


def _existing(folder: Path) -> Path:
    """The folder, or what is there of the way to it."""
    return next((path for path in (folder, *folder.parents) if path.is_dir()), Path("/"))


@contextlib.contextmanager
def _file_in(folder: Path) -> Iterator[int]:
    fd, name = tempfile.mkstemp(prefix=".codeprobe-doctor-", dir=folder)
    try:
        yield fd
    finally:
        os.close(fd)
        Path(name).unlink()


def _clock(subject: Subject) -> Check:
    """Against the file system's, and against the files of this very program: certificates are refused where it is far off."""
    fix = "Set the clock, by NTP for instance."
    newest = max(file.stat().st_mtime for file in Path(__file__).parent.glob("*.py"))
    if time.time() < newest - 86400:
        return Check(name="clock", status="warn", message="the clock is behind the date of this program's own files", fix=fix)
    try:
        with _file_in(_existing(subject.scratch)) as fd:
            skew = os.fstat(fd).st_mtime - time.time()
    except OSError as error:
        return Check(name="clock", status="info", message=f"not compared with the file system's: {error.strerror}")
    if abs(skew) > _SKEW:
        return Check(name="clock", status="warn", message=f"the file system's clock differs by {skew:.0f} s", fix=fix)
    return Check(name="clock", status="pass", message=time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def _proxies(subject: Subject) -> list[Check]:
    """Sessions get these variables; a password in one is never shown."""
    found: dict[str, str] = {}
    wrong: list[str] = []
    for name in (variant for each in _PROXIES for variant in (each, each.lower())):
        value = subject.context.environ.get(name)
        if not value:
            continue
        if name.upper() == "NO_PROXY":
            found[name] = value
            continue
        host = _host(value)
        found[name] = host or "?"
        wrong += [] if host else [name]
    if not found:
        return [Check(name="proxy", status="info", message="no proxy is set")]
    said = ", ".join(f"{name}={value}" for name, value in found.items())
    fix = f"Correct {', '.join(wrong)}: http://HOST:PORT" if wrong else None
    return [Check(name="proxy", status="warn" if wrong else "info", message=f"sessions get {said}", fix=fix, detail=found)]


def _host(url: str) -> str | None:
    """Scheme, host and port of a proxy's URL."""
    try:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return None
    return f"{parts.scheme}://{parts.hostname}{port}" if parts.hostname else None


def _certificates(subject: Subject) -> list[Check]:
    given = {name: subject.context.environ[name] for name in _CA_FILES if subject.context.environ.get(name)}
    folder = subject.context.environ.get("SSL_CERT_DIR")
    wrong = [f"{name}={path}: {why}" for name, path in given.items() if (why := _no_certificates(Path(path)))]
    if folder and not any(Path(part).is_dir() for part in folder.split(os.pathsep)):
        wrong.append(f"SSL_CERT_DIR={folder}: no such folder")
    if wrong:
        fix = "Correct the variable, or unset it: sessions get it too."
        return [Check(name="certificates", status="warn", message="; ".join(wrong), fix=fix)]
    said = ", ".join(f"{name}={path}" for name, path in given.items())
    message = f"sessions get {said}" if said else "no certificate file is set: the system's own are used"
    return [Check(name="certificates", status="info", message=message)]


def _no_certificates(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return None if b"BEGIN" in file.read(1 << 22) else "no certificate in it"
    except OSError as error:
        return error.strerror
