"""`make test` and `make lint`: every suite and every linter, in the environments that the lock files describe."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.make import interpreters
from tests.make.interpreters import Interpreter
from tests.make.project import (
    CONSTRAINTS,
    LOWEST,
    ROOT,
    MakeError,
    build_requirements,
    clean_environ,
    extra,
    group,
    on_ci,
    runtime_requirements,
    say,
)
from tests.make.venvs import Environment, build_wheel, use

#: Seconds for one test; none of them may take long, whatever pyproject.toml allows a task.
TEST_SECONDS = 300
INSTALL_SECONDS = 1200
#: program that tests need -> the package that has it; python3 is what the tests' image is made of
DEBIAN = {"bwrap": "bubblewrap", "podman": "podman", "runc": "runc", "/usr/bin/python3": "python3", "git": "git"}


@dataclass(slots=True)
class Count:
    """What the suites have come to."""

    passed: int = 0
    failed: int = 0
    skipped: int = 0
    problems: list[str] = field(default_factory=list)  #: one line for each suite that isn't green

    def add_report(self, suite: str, code: int, report: Path) -> None:
        """Add one pytest run by its exit code and JUnit file."""
        if report.exists():
            cases = list(ET.parse(report).getroot().iter("testcase"))
            failed = sum(1 for case in cases if case.find("failure") is not None or case.find("error") is not None)
            # An xfail is a "skipped" too, of another type, and a result like any other.
            skips = [mark for case in cases if (mark := case.find("skipped")) is not None and mark.get("type") == "pytest.skip"]
            self.failed += failed
            self.skipped += len(skips)
            self.passed += len(cases) - failed - len(skips)
            if on_ci() and skips:
                reasons = sorted({mark.get("message", "") for mark in skips})
                self.problems.append(f"{suite}: {len(skips)} skipped, where nothing may be missing: {'; '.join(reasons)}")
        if code != 0:
            self.problems.append(f"{suite}: pytest ended with code {code}")


@dataclass(frozen=True, slots=True)
class Suite:
    """One pytest run: which tests, where."""

    title: str
    environment: Environment
    arguments: tuple[str, ...]


def locked(interpreter: Interpreter) -> Environment:
    """The locked set with all tools: for tests, linters, benchmarks, demo, and for building the wheel."""
    requirements = (*runtime_requirements(), *extra("test"), *group("lint"), *group("reference"), *build_requirements())
    return Environment(f"py{interpreter.minor}", interpreter, CONSTRAINTS, requirements)


@contextmanager
def project_python() -> Iterator[Path]:
    """The Python of the locked environment, with the package installed from a freshly built wheel."""
    environment = locked(running_interpreter())
    with built_wheel(environment) as wheel, use(environment, wheel) as python:
        yield python


@contextmanager
def built_wheel(environment: Environment) -> Iterator[Path]:
    """The wheel of this checkout, as it is now."""
    with tempfile.TemporaryDirectory(prefix="codeprobe-wheel-") as scratch:
        # Let go of the environment before the wheel is used: installing it there needs the environment for itself.
        with use(environment, None) as python:
            wheel = build_wheel(python, Path(scratch))
        yield wheel


def running_interpreter() -> Interpreter:
    """The interpreter that make found. Raises MakeError when it can't make environments."""
    interpreter = interpreters.current()
    if interpreter is None and debian_packages(f"python{sys.version_info.major}.{sys.version_info.minor}-venv"):
        interpreter = interpreters.current()
    if interpreter is None:
        raise MakeError(f"{sys.executable} has no venv or ensurepip module; Debian and Ubuntu: apt-get install python3-venv")
    return interpreter


def debian_packages(*names: str) -> bool:
    """Install packages where that is possible: on Debian and its kin, as root. Raises MakeError with apt's words when it fails."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    say(f"set-up: Debian packages {' '.join(names)}")
    environ = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for argv in (["apt-get", "update"], ["apt-get", "install", "--yes", "--no-install-recommends", *names]):
        # The lock's timeout makes apt wait for another one that is at work.
        whole = [argv[0], "-o", "DPkg::Lock::Timeout=300", *argv[1:]]
        done = subprocess.run(whole, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS)
        if done.returncode != 0:
            raise MakeError(f"exit code {done.returncode}: {' '.join(whole)}\n{done.stderr[-2000:]}")
    return True


def test() -> int:
    """Run every suite, print the sum as the last line, and return the exit code."""
    started = time.monotonic()
    count = Count()
    install_clis(count)
    if sys.platform == "linux" and any(shutil.which(name) is None for name in DEBIAN):
        debian_packages(*DEBIAN.values())
    environment = locked(running_interpreter())
    with built_wheel(environment) as wheel:
        for suite in suites(environment):
            run(suite, wheel, count)
    for problem in count.problems:
        say(f"problem: {problem}")
    say(f"{'FAILED' if count.problems else 'OK'} after {time.monotonic() - started:.0f} s")
    # CI systems read this form, alone on its line.
    say(f"test: {count.passed} passed, {count.failed} failed" + (f", {count.skipped} skipped" if count.skipped else ""))
    return 1 if count.problems else 0


def suites(main: Environment) -> Iterator[Suite]:
    """All tests on one Python; those marked joint on the others and on the lowest versions."""
    yield Suite(f"all tests, locked set, Python {main.interpreter.version}", main, ())
    requirements = (*runtime_requirements(), *extra("test"))
    joint = ("-m", "joint", "-p", "no:cacheprovider")
    found = {main.interpreter.minor: main.interpreter}
    for minor in interpreters.SUPPORTED:
        interpreter = found.get(minor) or interpreters.find(minor)
        if interpreter is None:
            say(f"Python {minor}: not found on this machine, not tested")
            continue
        found[minor] = interpreter
        if interpreter != main.interpreter:
            other = Environment(f"py{minor}-joint", interpreter, CONSTRAINTS, requirements)
            yield Suite(f"joint tests, locked set, Python {interpreter.version}", other, joint)
    oldest = found[min(found, key=lambda minor: tuple(map(int, minor.split("."))))]
    lowest = Environment(f"py{oldest.minor}-lowest", oldest, LOWEST, requirements)
    yield Suite(f"joint tests, lowest versions, Python {oldest.version}", lowest, joint)


def run(suite: Suite, wheel: Path, count: Count) -> None:
    """Run one suite and add it to the count."""
    say(f"\n== {suite.title}")
    with tempfile.TemporaryDirectory(prefix="codeprobe-suite-") as scratch, use(suite.environment, wheel) as python:
        report = Path(scratch, "junit.xml")
        # -P: what this folder holds is not on the search path, so the tests meet the installed wheel.
        argv = [
            str(python),
            "-P",
            "-m",
            "pytest",
            f"--junitxml={report}",
            f"--timeout={TEST_SECONDS}",
            "--durations=10",
            "--costs",
            *workers(),
            *suite.arguments,
        ]
        done = subprocess.run(argv, cwd=ROOT, env=clean_environ(), stdin=subprocess.DEVNULL, check=False)
        count.add_report(suite.title, done.returncode, report)


def soak() -> int:
    """What takes too long for every day: kills at many random points, other ones each time, and one long run of many trials at once."""
    kills = {"CP_KILL_ROUNDS": "200", "CP_KILL_SEED": str(int(time.time()))}
    kills |= {name: os.environ[name] for name in kills if name in os.environ}
    with project_python() as python:
        for argv in (
            ["-P", "-m", "pytest", f"--timeout={TEST_SECONDS}", *workers(), "tests/test_random_kills.py"],
            ["benchmarks/soak.py", "--minutes", "10"],
        ):
            say(f"\n== {' '.join(f'{name}={value}' for name, value in kills.items())} {' '.join(argv)}")
            environ = clean_environ() | kills
            if subprocess.run([str(python), *argv], cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, check=False).returncode != 0:
                say("soak: FAILED")
                return 1
    say("soak: OK")
    return 0


def workers() -> Sequence[str]:
    """pytest-xdist's flag; TEST_WORKERS says how many. By default one more than there are cores, as some tests wait, and four at most."""
    number = int(os.environ.get("TEST_WORKERS") or min(4, (os.cpu_count() or 1) + 1))
    return ("-n", str(number)) if number > 1 else ()


def install_clis(count: Count) -> None:
    """Install the agents' command-line tools; without them their tests skip, which CI doesn't allow."""
    say("set-up: the agents' command-line tools of package-lock.json")
    argv = [sys.executable, "-m", "tests.install_clis"]
    done = subprocess.run(
        argv, cwd=ROOT, env=clean_environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False
    )
    if done.returncode != 0:
        say(f"set-up: not installed: {done.stderr.strip()}")
        if on_ci():
            count.problems.append("the agents' command-line tools could not be installed")


def lint() -> int:
    """Run every linter, all of them even after one has failed, and return the exit code."""
    failed = []
    with use(locked(running_interpreter()), None) as python:
        commands = {
            "ruff check": [str(python), "-m", "ruff", "check"],
            "ruff format": [str(python), "-m", "ruff", "format", "--check"],
            "mypy": [str(python), "-m", "mypy"],
            "import-linter": [str(python), "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"],
        }
        for name, argv in commands.items():
            say(f"== {name}")
            if subprocess.run(argv, cwd=ROOT, env=clean_environ(), stdin=subprocess.DEVNULL, check=False).returncode != 0:
                failed.append(name)
    say(f"lint: FAILED: {', '.join(failed)}" if failed else "lint: OK")
    return 1 if failed else 0


def bench() -> int:
    """Run each program of benchmarks/ in the locked environment."""
    with project_python() as python:
        for path in sorted((ROOT / "benchmarks").glob("[a-z]*.py")):
            say(f"== {path.name}")
            code = subprocess.run(
                [str(python), str(path)],  # no -P: they share measure.py, which lies beside them
                cwd=ROOT,
                env=clean_environ(),
                stdin=subprocess.DEVNULL,
                check=False,
            ).returncode
            if code != 0:
                say(f"bench: FAILED: {path.name} ended with code {code}")
                return 1
    say("bench: OK")
    return 0
