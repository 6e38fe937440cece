"""run_command: a shell command in the grading copy, judged by exit code, output and the report that it writes."""

from __future__ import annotations

import math
import os
import re
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from pytest_codeprobe.criteria.base import NotThere, WorkspacePath, broken, compile_pattern, found, listing, locate, read_bytes, read_text
from pytest_codeprobe.criteria.command.programs import programs_of
from pytest_codeprobe.criteria.command.reports import BadReport, Report, read_junit, read_tap
from pytest_codeprobe.criteria.command.runners import CONFIGURATION, runners_of
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.base import Flag, Float, Int, Model, Text
from pytest_codeprobe.model.criterion import Criterion, Grading, Score
from pytest_codeprobe.model.hints import not_shown
from pytest_codeprobe.model.sandbox import RESOURCES, Command, CommandResult
from pytest_codeprobe.text import ending, one_line, shorten

_SECONDS = 30.0
#: runners that no agent brings along, where a command starts with one; behind `cd …` and variables that don't say where to find it
_START = re.compile(
    r"\s*(?:cd [^\s;&|]+ *(?:&&|;)\s*)?(?:(?!PATH=|PYTHON(?:HOME|PATH)=(?!(?:\.|src) ))[A-Za-z_]\w*=[^\s;&|$`]* +)*"
    r"(?:(?P<python>python3?)(?: +-[BEIsuOv]+)* +-m +(?P<module>pytest|coverage|mypy|ruff|tox|nox|pip)"
    r"|(?P<program>pytest|node|npm|cargo|go|make))"
    r"(?![\w./-])"
)
_PLAIN_PYTHON = "`python` in a grader is the interpreter that runs pytest, without its packages"
_MISSING = 86  #: exit status of the probe
_PROBE = "{program} -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec(\"{module}\") is None and 86)'"
_NO_MODULE = re.compile(r"No module named '?([\w.]+)")
_KEPT = 4000  #: characters of stdout and of stderr in the evidence


class ReportFile(Model):
    """A test report that the command writes into the workspace."""

    path: WorkspacePath
    format: Literal["junit", "tap"]

    def read(self, grading: Grading) -> Report:
        """What it says; NotThere or BadReport."""
        if self.format == "junit":
            return read_junit(read_bytes(grading.workspace, self.path))
        return read_tap(read_text(grading.workspace, self.path))

    def remove(self, grading: Grading) -> str:
        """Delete what the agent may have left under that name, so that only this command can have written it.

        Why something of that name is still there; empty if nothing is.
        """
        folder = str(PurePosixPath(self.path).parent)
        try:
            file = locate(grading.workspace, folder) / PurePosixPath(self.path).name
        except NotThere:
            return ""  # the command may make the folder; a link that leaves the workspace is refused when it is read
        try:
            if not stat.S_ISDIR(file.lstat().st_mode):
                file.unlink()
        except (FileNotFoundError, NotADirectoryError):
            return ""  # as it should be
        except OSError as error:  # in a folder without the right to write, say: the agent's doing, so no fault of the criterion
            return f"an old {self.path} can't be removed: {error.strerror}"
        return ""


class RunCommand(Criterion):
    """A command, run by `/bin/sh -c` in the grading copy. `timeout` in seconds."""

    type: Literal["run_command"]
    command: Text = Field(min_length=1)
    timeout: Float | None = Field(default=_SECONDS, gt=0)
    expected_exit_code: Int = 0
    expected_stdout: Text | None = None
    stdout_match: Literal["exact", "contains", "regex"] = "exact"
    score_from_stdout: Flag = False
    report: ReportFile | None = None
    min_tests: Int | None = Field(default=None, ge=1)
    expected_tests: tuple[Text, ...] = ()

    default_timeout: ClassVar[float] = _SECONDS

    @model_validator(mode="after")
    def _fits_together(self) -> RunCommand:
        if self.report is None and (self.min_tests is not None or self.expected_tests):
            raise ValueError("'min_tests' and 'expected_tests' need a 'report' to count in")
        if self.score_from_stdout and self.expected_stdout is not None:
            raise ValueError("'score_from_stdout' and 'expected_stdout' exclude each other")
        if self.expected_stdout is None and "stdout_match" in self.model_fields_set:
            raise ValueError("'stdout_match' needs 'expected_stdout'")
        if self.expected_stdout is not None and self.stdout_match == "regex":
            compile_pattern(self.expected_stdout)
        return self

    def programs(self) -> Sequence[str]:
        """As far as the text of the command tells."""
        return programs_of(self.command)

    def steered_by(self) -> Mapping[str, Sequence[str]]:
        """As far as the text of the command tells."""
        return {name: CONFIGURATION[name] for name in runners_of(self.command)}

    def preflight(self, grading: Grading) -> None:
        """Before the session: a runner that graders don't have would fail every agent alike, and no agent can bring it.

        Only what the command starts with is looked at, and nothing where `pre_run` may bring it. CodeprobeError VERIFIER_FAILED.
        """
        if grading.trial.pre_run or (start := _START.match(self.command)) is None:
            return
        program, module = start["program"] or start["python"], start["module"]
        probe = _PROBE.format(program=program, module=module) if module else f"command -v {program}"
        try:
            result = grading.run(self._shell(probe, grading), timeout=_SECONDS)
        except OSError as error:
            raise broken(f"the command could not be started: {error}") from error
        if result.exit.status in (_MISSING, 127) or (not module and result.exit.status == 1):
            raise _no_runner(program, module, grading.trial.sandbox.driver)

    def evaluate(self, grading: Grading) -> Score:
        """1 or 0, or the number that it printed; 0 after a time-out or with an unexpected exit code.

        CodeprobeError VERIFIER_FAILED where the command could not be started at all.
        """
        if not grading.workspace.is_dir() or grading.workspace.is_symlink():
            return Score(0.0, "the workspace is gone, so nothing can be run in it")
        if self.report is not None and (stale := self.report.remove(grading)):
            return Score(0.0, stale)
        command = self._shell(self.command, grading)
        seconds = grading.time_left(self.timeout or _SECONDS)
        if seconds <= 0:
            return Score(0.0, "nothing was left of the time for grading")
        try:
            result = grading.run(command, timeout=seconds)
        except OSError as error:
            raise broken(f"the command could not be started: {error}") from error
        if not result.exit.proved:
            raise broken("it can't be shown that the command's processes have ended", result.stderr)
        shown = replace(result, stdout=grading.redact(result.stdout), stderr=grading.redact(result.stderr))  # before any of it is cut
        problem = self._ended_badly(shown, seconds, grading) or self._output_is_wrong(result, shown) or self._report_is_wrong(grading)
        evidence = _evidence(shown)
        if problem:
            return Score(0.0, problem, evidence)
        if not self.score_from_stdout:
            return Score(1.0, f"exit code {result.exit.status}", evidence)
        value = printed_score(result.stdout)
        if value is None:
            return Score(0.0, f"the last line of output is no number from 0 to 1: {_last_line(shown.stdout)!r}", evidence)
        return Score(value, f"it printed {_last_line(result.stdout)}", evidence)

    def _shell(self, command: str, grading: Grading) -> Command:
        """A line for the shell that may start what `command` of the criterion does."""
        return Command(
            argv=["/bin/sh", "-c", command],
            env=grading.command_environment,
            reads=grading.trial.places(),
            mentions=self.command,
        )

    def _ended_badly(self, result: CommandResult, seconds: float, grading: Grading) -> str:
        if result.exit.cause == "timeout":
            return f"it took longer than {seconds:.3g} s"
        if result.exit.cause == "output":
            return "it wrote more output than is allowed"
        if result.exit.cause in RESOURCES:
            return f"it hit {grading.trial.sandbox.limits.said(result.exit.cause)}"
        if result.exit.cause != "exit":
            return f"it was ended: {result.exit.cause}"
        if result.exit.status == self.expected_exit_code:
            return ""
        hint = ""
        if result.exit.status == 1 and (missing := _NO_MODULE.findall(result.stderr)) and re.match(r"\s*python3?\b", self.command):
            hint = f" ({_PLAIN_PYTHON}; it has no {one_line(missing[-1], 80)})"
        hint = hint or not_shown(result.stderr, grading.context.environ.get("PATH", os.defpath), grading.trial.sandbox.driver)
        tail = ending(one_line(ending(result.stderr.strip() or result.stdout.strip(), 10_000), 10_000), 300)
        return f"exit code {result.exit.status}, expected {self.expected_exit_code}" + (f": {tail}" if tail else "") + hint

    def _output_is_wrong(self, result: CommandResult, shown: CommandResult) -> str:
        wanted = self.expected_stdout
        if wanted is None:
            return ""
        output = result.stdout.replace("\r\n", "\n")
        if self.stdout_match == "contains":
            return "" if wanted in output else f"the output does not contain {one_line(wanted, 120)!r}"
        if self.stdout_match == "regex":
            hit = found(compile_pattern(wanted), output)
            return "" if hit else f"pattern {wanted!r} {'took too long' if hit is None else 'does not match the output'}"
        if output.rstrip("\n") == wanted.rstrip("\n"):  # newlines at the end are hardly ever meant
            return ""
        return f"the output is {one_line(shown.stdout, 120)!r}, expected {one_line(wanted, 120)!r}"

    def _report_is_wrong(self, grading: Grading) -> str:
        if self.report is None:
            return ""
        try:
            report = self.report.read(grading)
        except NotThere as error:
            return f"no report: {error}"
        except BadReport as error:
            return f"{self.report.path} is no {self.report.format} report: {error}"
        passed, wanted = report.count("passed"), self.min_tests or 1
        problems = report.problems[:3]
        if failed := report.count("failed"):
            problems.append(f"{failed} tests failed: {listing([t.names[0] for t in report.tests if t.outcome == 'failed'])}")
        if passed < wanted:
            problems.append(f"{passed} tests passed, at least {wanted} expected")
        if absent := [name for name in self.expected_tests if report.not_passed(name)]:
            problems.append(f"not passed: {listing(absent)}")
        return "; ".join(problems)


def _no_runner(program: str, module: str | None, driver: str) -> CodeprobeError:
    if module is None and driver == "docker":
        error = broken(f"the command starts {program}, which the image does not have")
        return CodeprobeError(error.code, error.message, remediation=f"Install {program} in the image.")
    if module is None:
        error = broken(f"the command starts {program}, which graders don't find on PATH")
        return CodeprobeError(
            error.code, error.message, remediation=f"Install {program}, or put it on the PATH of the process that runs pytest."
        )
    instead = "the criterion `pytest`, which needs none" if module == "pytest" else "a program on PATH"
    return CodeprobeError(
        "VERIFIER_FAILED",
        f"`{program} -m {module}` can't run: {_PLAIN_PYTHON}",
        remediation=f"Use {instead}, or call {module} by the path of an environment that has it.",
    )


def printed_score(output: str) -> float | None:
    """The number on the last non-empty line, None unless it lies in 0..1."""
    try:
        value = float(_last_line(output))
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= 1 else None


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return one_line(lines[-1], 80) if lines else ""


def _evidence(result: CommandResult) -> dict[str, Any]:
    return {
        "exit_code": result.exit.status,
        "cause": result.exit.cause,
        "stdout": shorten(result.stdout, _KEPT),
        "stderr": shorten(result.stderr, _KEPT),
        "left_processes": result.exit.left,
    }
