"""`make demo`: the sample tasks with `oracle` and with `nop`, then one with the real Claude Code CLI and a local model server."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import install_clis, netns
from tests.make.project import ROOT, MakeError, clean_environ, on_ci, say
from tests.make.suites import project_python

#: Seconds for one pytest run of the demo.
RUN_SECONDS = 1200


@dataclass(frozen=True, slots=True)
class Run:
    """A finished pytest run: its exit code and its envelope."""

    exit_code: int
    envelope: dict[str, Any]

    def count(self, status: str) -> int:
        """How many trials ended so; "total" counts all."""
        return int(self.envelope["data"][f"tasks_{status}"])

    @property
    def folder(self) -> Path:
        """The run directory."""
        return ROOT / str(self.envelope["data"]["run_dir"])


def demo() -> int:
    """Run the demo, print its result as the last line, and return the exit code. Raises MakeError when a part doesn't end as it should."""
    with project_python() as python:
        solved = _everyone_passes(python)
        _nobody_passes(python)
        try:
            last = _real_cli(python)
        except install_clis.InstallError as error:
            if on_ci():
                raise MakeError(f"Claude Code can't be installed: {error}") from error
            last = f"Claude Code was not run, since it can't be installed: {error}"
    say(f"\ndemo: OK: {solved} tasks passed with oracle, all failed with nop, {last}")
    return 0


def pytest_run(python: Path, arguments: list[str], environ: dict[str, str], wrapper: list[str] | None = None) -> Run:
    """Run pytest in this checkout, its report on our output, and read the envelope from its stdout."""
    say(f"\n$ pytest {shlex.join(arguments)}")
    # -P: the installed package is used, not the folder of that name here.
    argv = [*(wrapper or []), str(python), "-P", "-m", "pytest", *arguments, "--codeprobe-json"]
    done = subprocess.run(argv, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=RUN_SECONDS, check=False)
    try:
        return Run(done.returncode, json.loads(done.stdout))
    except ValueError as error:
        raise MakeError(f"pytest ended with code {done.returncode} and printed no envelope: {done.stdout[:200]!r}") from error


def require(run: Run, exit_code: int, **counts: int) -> None:
    """Raise MakeError unless a run ended with this exit code and these counts, and its harness had no trouble."""
    wrong = [f"tasks_{name} is {run.count(name)}, not {count}" for name, count in counts.items() if run.count(name) != count]
    if run.exit_code != exit_code:
        wrong.append(f"the exit code is {run.exit_code}, not {exit_code}")
    wrong.extend(f"{error['code']}: {error['message']}" for error in run.envelope["errors"])
    if wrong:
        raise MakeError("\n".join(wrong))


def _everyone_passes(python: Path) -> int:
    say("\n== oracle applies each task's solution: every task passes")
    run = pytest_run(python, ["tasks/", "--codeprobe-agent", "oracle", "-n", "2"], clean_environ())
    total = run.count("total")
    require(run, 0, passed=total)
    if total == 0:
        raise MakeError("no task was found in tasks/")
    return total


def _nobody_passes(python: Path) -> None:
    say("\n== nop does nothing: every task fails, and none of them by a fault of the harness")
    run = pytest_run(python, ["tasks/", "--codeprobe-agent", "nop", "-n", "2", "--tb=no", "-rN"], clean_environ())
    require(run, 1, failed=run.count("total"), error=0)


def _real_cli(python: Path) -> str:
    """Run the real CLI in a namespace where only loopback exists, where the machine allows that; give what to say about it."""
    say("\n== the real Claude Code CLI; the model is a scripted server on 127.0.0.1")
    path = install_clis.install()
    reason = netns.why_no_netns()
    say("its only network is loopback" if reason is None else f"it is not cut off from the network here: {reason}")
    argv = [sys.executable, "-m", "tests.make.real_cli", str(python)]
    environ = clean_environ()
    environ["PATH"] = os.pathsep.join((str(path), environ.get("PATH", os.defpath)))
    command = argv if reason is not None else netns.netns_argv(argv)
    done = subprocess.run(command, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, timeout=RUN_SECONDS, check=False)
    if done.returncode != 0:
        raise MakeError("Claude Code did not solve its task")
    return "1 solved by Claude Code"
