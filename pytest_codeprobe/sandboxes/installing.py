"""How a set of packages is installed: by pip of the interpreter that was asked for, by npm. Each program runs under a keeper.

It is the user's own pip and npm, so their configuration, credentials and proxies count; nothing of these is left in what they make.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import ProcessLimits
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.trees import failed, open_regular
from pytest_codeprobe.text import REDACTED, one_line

_ASK_SECONDS = 20.0  #: for an interpreter to say which one it is
_PATIENCE = 60.0  #: seconds beyond its limit that a keeper gets to say that all is over
_OUTPUT_BYTES = 64 << 20
_TAIL_BYTES = 16_000
_SHOWN, _SHOWN_OF_NPM = 3, 6  #: lines of a failed installation
LIMIT = "limit"  #: in the detail of an error: the limit that was hit
_LOGIN = re.compile(r"(?<=://)[^/@\s]+(?=@)")
_NOISE = (
    "[notice]",
    "WARNING: Running pip as",
    "npm error A complete log",
    "npm error Log files",
    "npm notice",
    "npm error code",
    "npm error errno",
)
_WHICH = """
import json, sys
print(json.dumps([getattr(sys, "_base_executable", sys.executable), sys.base_prefix, list(sys.version_info[:3])]))
"""
_WHERE = "import json, sysconfig; print(json.dumps(sysconfig.get_path('purelib')))"


class Interpreter(NamedTuple):
    """A Python of this machine."""

    program: str  #: its real file
    prefix: str  #: what it is made of lies below
    version: str  #: 3.12.1


class Ended(NamedTuple):
    """A program that has ended by itself, or by its time (`status` None), and the end of what it said."""

    status: int | None
    said: str


@dataclass(frozen=True, slots=True)
class Installer:
    """Runs programs for one trial, with all that they leave behind in `folder`. `env` is theirs; `until` (monotonic) bounds them all."""

    context: Context
    trial: Trial
    env: Mapping[str, str]
    folder: Path
    until: float

    def run(self, *argv: str, cwd: Path, seconds: float | None = None) -> Ended:
        """One program to its end. SANDBOX_FAILED where nobody knows its end; Stopped; OSError where it can't be started."""
        left = max(0.001, self.until - monotonic())
        limits = ProcessLimits(timeout=left if seconds is None else min(left, seconds), grace=0.0, output_bytes=_OUTPUT_BYTES)
        env = self.context.network.environment(self.trial, "setup", {**self.env, "TMPDIR": str(self.folder)})
        log = self.folder / "output.log"
        with log.open("wb") as out, Path(os.devnull).open("rb") as nothing:
            process = self.context.processes.start(
                argv, env=env, cwd=str(cwd), stdin=nothing.fileno(), stdout=out.fileno(), stderr=out.fileno(), limits=limits,
                role="setup", stop_dir=str(self.context.stops.folder),
            )  # fmt: skip
            try:
                ended = process.wait((limits.timeout or 0.0) + _PATIENCE)
            except BaseException:
                process.destroy()
                raise
            ended = process.destroy() if ended is None else ended
        if ended.stopped is not None:
            raise Stopped(ended.stopped)
        if ended.trouble is not None:
            raise CodeprobeError("SANDBOX_FAILED", f"sandbox.setup: {argv[0]}: {ended.trouble}", detail={"cause": ended.cause})
        return Ended(ended.status if ended.cause == "exit" else None, _tail(log))

    def make(self, what: str, *argv: str, cwd: Path, remedy: str) -> None:
        """The same of a step of an installation: SANDBOX_FAILED, with the program's own last words, if it does not succeed."""
        try:
            ended = self.run(*argv, cwd=cwd)
        except OSError as error:
            raise failed(f"{what}: {argv[0]} could not be started:", error, cwd) from error
        if ended.status == 0:
            return
        said = _clean(ended.said)
        over = ended.status is None and monotonic() >= self.until
        if ended.status is None:
            why = f"took longer than setup_timeout = {self.trial.limits.setup_timeout:g} s, or wrote without end"
            remedy = "Raise run_limits.setup_timeout."
        else:
            why = one_line(" ".join(_last_words(said)), 600) or f"{Path(argv[0]).name} ended with status {ended.status}"
        raise CodeprobeError(
            "SANDBOX_FAILED",
            f"{_clean(what)}: {why}",
            remediation=remedy,
            detail={"output": said[-4000:], **({LIMIT: "setup_timeout"} if over else {})},
        )


def _tail(log: Path) -> str:
    with os.fdopen(open_regular(str(log)), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
        return file.read(_TAIL_BYTES).decode("utf-8", "replace")


def _clean(text: str) -> str:
    """Without whoever logs in at an index."""
    return _LOGIN.sub(REDACTED, text)


def _last_words(said: str) -> Sequence[str]:
    lines = [line.strip() for line in said.splitlines() if line.strip() and not line.strip().startswith(_NOISE)]
    if told := [line for line in lines if line.startswith("npm error ")]:  # the reason first, then advice
        return [told[0], *(line.removeprefix("npm error").strip() for line in told[1:_SHOWN_OF_NPM])]
    errors = [line for line in lines if re.match(r"(ERROR|error)\b", line)]
    return (errors or lines)[-_SHOWN:]


# ---- Python


def own_interpreter() -> Interpreter:
    """The one that runs pytest, without its virtual environment."""
    program = os.path.realpath(getattr(sys, "_base_executable", sys.executable))
    return Interpreter(program, sys.base_prefix, ".".join(map(str, sys.version_info[:3])))


def find_interpreter(version: str | None, installer: Installer) -> Interpreter:
    """A Python of that version (`3`, `3.12`, `3.12.1`), ours if it fits, else from PATH. SANDBOX_FAILED if there is none."""
    own = own_interpreter()
    if version is None or _fits(own.version, version):
        return own
    tried = []
    for candidate in _candidates(version, installer.env.get("PATH", os.defpath)):
        found = _asked(candidate, installer)
        if found is not None and _fits(found.version, version):
            return found
        tried.append(candidate)
    shown = f": {', '.join(tried)} {'is' if len(tried) == 1 else 'are'} none" if tried else ""
    raise CodeprobeError(
        "SANDBOX_FAILED",
        f"sandbox.setup.python.version: there is no Python {version} on PATH{shown}",
        remediation=f"Install it, so that `python{version} --version` works; or take a `version` that is here: {own.version} is.",
        detail={"version": version, "tried": tried},
    )


def _fits(version: str, wanted: str) -> bool:
    parts = wanted.split(".")
    return version.split(".")[: len(parts)] == parts


def _candidates(version: str, path: str) -> Iterator[str]:
    names = dict.fromkeys((f"python{version}", "python" + ".".join(version.split(".")[:2]), "python3", "python"))
    for name in names:
        for folder in dict.fromkeys(path.split(os.pathsep)):
            if folder and (found := shutil.which(name, path=folder)) is not None:
                yield found


def _asked(program: str, installer: Installer) -> Interpreter | None:
    try:
        ended = installer.run(program, "-I", "-c", _WHICH, cwd=installer.folder, seconds=_ASK_SECONDS)
        executable, prefix, version = json.loads(ended.said.strip().splitlines()[-1]) if ended.status == 0 else ("", "", [])
    except (OSError, ValueError, IndexError):
        return None
    return Interpreter(os.path.realpath(executable), prefix, ".".join(map(str, version))) if executable else None


def make_python(python: Interpreter, place: Path, installer: Installer) -> str:
    """Make a virtual environment with pip at `place`, which does not exist; its site-packages, relative to it."""
    what = "sandbox.setup.python"
    remedy = (
        "On Debian the package python3-venv has what is missing." if python.prefix == "/usr" else "Repair it, or take another `version`."
    )
    installer.make(what, python.program, "-I", "-m", "venv", str(place), cwd=installer.folder, remedy=remedy)
    inside = str(place / "bin" / "python")
    asked = installer.run(inside, "-I", "-c", _WHERE, cwd=installer.folder, seconds=_ASK_SECONDS)
    try:
        site = Path(os.path.realpath(json.loads(asked.said)))
        return site.relative_to(os.path.realpath(place)).as_posix()
    except (ValueError, TypeError) as error:
        message = f"{what}: {inside} does not say where its packages are: {one_line(asked.said, 200)}"
        raise CodeprobeError("SANDBOX_FAILED", message) from error


def install_python(packages: Sequence[str], place: Path, installer: Installer) -> None:
    """Put the packages into the virtual environment at `place`, by its own pip."""
    retries = ["--retries=0"] if installer.context.options.offline else []
    options = ["--no-input", "--disable-pip-version-check", "--no-warn-script-location", "--progress-bar=off", *retries]
    secret = [package for package in packages if _LOGIN.search(package)]
    told = installer.folder / "requirements.txt"
    if secret:  # command lines are seen by all users of a machine
        told.touch(0o600)
        told.write_text("\n".join(secret), encoding="utf-8")
        options.append(f"--requirement={told}")
    try:
        installer.make(
            f"sandbox.setup.python: pip could not install {', '.join(packages)}",
            *(str(place / "bin" / "python"), "-I", "-m", "pip", "install", *options, "--", *(p for p in packages if p not in secret)),
            cwd=installer.folder,
            remedy="Correct `packages`, or what pip goes by: `python -m pip config list` shows it, and PIP_* variables count.",
        )
    finally:
        told.unlink(missing_ok=True)


# ---- Node


def find_npm(installer: Installer) -> tuple[str, str]:
    """npm, and the node that it finds. SANDBOX_FAILED if there is none."""
    path = installer.env.get("PATH", os.defpath)
    found = [shutil.which(name, path=path) for name in ("npm", "node")]
    for name, program in zip(("npm", "node"), found, strict=True):
        if program is None:
            raise CodeprobeError(
                "SANDBOX_FAILED",
                f"sandbox.setup.node: there is no program `{name}` on PATH",
                remediation=f"Install Node.js, so that `{name} --version` works.",
            )
    return str(found[0]), str(found[1])


def install_node(npm: str, packages: Sequence[str], place: Path, installer: Installer) -> None:
    """Fill `place`, which does not exist, with a `node_modules` that holds the packages."""
    place.mkdir()
    retries = ["--fetch-retries=0"] if installer.context.options.offline else []
    options = ["--global=false", "--no-audit", "--no-fund", "--install-links", "--loglevel=error", *retries]
    installer.make(
        f"sandbox.setup.node: npm could not install {', '.join(packages)}",
        *(npm, "install", f"--prefix={place}", *options, "--", *packages),
        cwd=place,
        remedy="Correct `packages`, or what npm goes by: `npm config list` shows it, and npm_config_* variables count.",
    )
    (place / "node_modules").mkdir(exist_ok=True)
