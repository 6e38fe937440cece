"""Grading: protected files back, criteria one after another, score and verdict."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic

from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import Context, reason_of
from pytest_codeprobe.model.criterion import Criterion, NotApplicable, Score
from pytest_codeprobe.model.result import CriterionResult
from pytest_codeprobe.model.sandbox import Change, Command, CommandResult, Process, ProcessLimits, Sandbox
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.trial.environment import with_host
from pytest_codeprobe.trial.graders import GradersPlace
from pytest_codeprobe.trial.protect import put_back
from pytest_codeprobe.trial.session import SessionOutcome
from pytest_codeprobe.trial.setup import Setup, setup_of
from pytest_codeprobe.trial.standins import lay_calls

_EPSILON = 1e-9  #: a mean of thirds must reach a threshold that is written as 0.9999…
DEFAULT_TIMEOUT = 300.0
NO_SESSION = "every criterion that decides needs a session, and this agent has none"
_SCALARS = (str, int, float, bool, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the criteria say together."""

    passed: bool
    score: float | None
    criteria: tuple[CriterionResult, ...]
    skipped: str | None = None  #: why nothing could be judged, where that is nobody's fault


def grading_timeout(trial: Trial, criteria: Sequence[Criterion]) -> float:
    """Seconds for all criteria: as set, else 300 or the sum of their own time-outs if that is more."""
    if trial.limits.grading_timeout is not None:
        return trial.limits.grading_timeout
    return max(DEFAULT_TIMEOUT, sum(c.timeout or c.default_timeout for c in criteria))


def pointless(agent: Agent, trial: Trial, criteria: Sequence[Criterion]) -> str | None:
    """Why nothing could be learnt from the trial, which is nobody's fault: it is skipped. None = it can run."""
    if reason := agent.skip_reason(trial):
        return reason
    deciding = [c for c in criteria if c.enabled and c.gates]
    return NO_SESSION if not agent.is_session and deciding and all(c.needs_session for c in deciding) else None


class _TimeIsUp(CodeprobeError):
    """grading_timeout, not the criterion's own trouble."""


class TrialGrading:
    """The Grading that criteria see (model/criterion.py)."""

    def __init__(
        self,
        *,
        trial: Trial,
        context: Context,
        sandbox: Sandbox,
        place: GradersPlace,
        outcome: SessionOutcome | None,
        transcript: Transcript | None,
        changes: Sequence[Change],
        timeout: float,
        redact: Callable[[str], str],
        cli_calls: bytes | None = None,
        untouched: Callable[[], None] = lambda: None,
    ) -> None:
        self.trial, self.context, self.workspace, self.template = trial, context, sandbox.workspace, sandbox.template
        self.final_message = outcome.final_message if outcome is not None else None
        self.usage = outcome.usage if outcome is not None else None
        self.session_seconds = outcome.duration if outcome is not None else None
        self.transcript, self.changes, self.cli_calls = transcript, changes, cli_calls
        self._sandbox, self._place, self._number = sandbox, place, 0
        self._deadline, self._redact = monotonic() + timeout, redact
        self._live: list[Process] = []
        self._used, self._has_calls = False, False
        self._untouched = untouched

    @property
    def environment(self) -> Mapping[str, str]:
        """See the protocol."""
        return self._place.environment

    @property
    def command_environment(self) -> Mapping[str, str]:
        """See the protocol."""
        return with_host(self.trial, self.context, self.environment)

    @property
    def python(self) -> str:
        """See the protocol."""
        made = self._setup.python
        return self.context.python if made is None else str(made.folder / "bin" / "python")

    @property
    def installed(self) -> Path | None:
        """See the protocol."""
        return self._setup.installed(self._sandbox)

    @property
    def _setup(self) -> Setup:
        return setup_of(self.trial, self.context)

    @property
    def scratch(self) -> Path:
        """The running criterion's own folder."""
        return self._place.scratch(self._number)

    def redact(self, text: str) -> str:
        """See the protocol."""
        return self._redact(text)

    def begin(self, number: int) -> None:
        """A criterion is about to look: what it finds has not been in the hands of another grader's process, which may have run the
        agent's code. VERIFIER_FAILED where what grades is no longer what it was before the session.
        """
        self._untouched()
        self._open_up()
        if self._used:
            put_back(self._sandbox, self.trial.sandbox.protected)
            self._place.lay_anew()
            self._used = self._has_calls = False
        if self.cli_calls is not None and not self._has_calls:
            self._has_calls = True
            with contextlib.suppress(OSError):  # the session can have left no room for it; cli_called does not need it
                lay_calls(self.workspace, self.cli_calls)
        self._number = number

    def end(self) -> None:
        """A criterion has looked: nothing that it started outlives it."""
        while self._live:
            self._live.pop().destroy()
        self.context.network.settle(self.trial, "grader")

    def time_left(self, wanted: float | None = None) -> float:
        """Seconds; a CodeprobeError where grading_timeout is used up."""
        left = self._deadline - monotonic()
        if left <= 0:
            raise _TimeIsUp("VERIFIER_FAILED", "grading_timeout is used up", remediation="Raise run_limits.grading_timeout.")
        return left if wanted is None else min(left, wanted)

    def run(self, command: Command, *, timeout: float, output_bytes: int = 1 << 20) -> CommandResult:
        """See the protocol."""
        self._used = True
        self._open_up()
        result = self._sandbox.run(self._shown(command), role="grader", timeout=self.time_left(timeout), output_bytes=output_bytes)
        if result.exit.stopped is not None:
            raise Stopped(result.exit.stopped)
        return result

    def _open_up(self) -> None:
        """The agent, or its code in a grader's process, may have taken everybody's right to enter the workspace away."""
        with contextlib.suppress(OSError):
            mode = os.lstat(self.workspace).st_mode
            if stat.S_ISDIR(mode) and mode & stat.S_IRWXU != stat.S_IRWXU:
                self.workspace.chmod(stat.S_IMODE(mode) | stat.S_IRWXU)

    def start(self, command: Command, *, stdout: Path, stderr: Path, limits: ProcessLimits) -> Process:
        """See the protocol."""
        self._used = True
        self._open_up()
        process = self._sandbox.start(self._shown(command), role="grader", stdout=stdout, stderr=stderr, limits=limits)
        self._live.append(process)
        return process

    def _shown(self, command: Command) -> Command:
        places = self._setup.places(self._sandbox)
        return replace(command, reads=[*command.reads, *places]) if places else command


def judge(criteria: Sequence[Criterion], grading: TrialGrading, *, has_session: bool, log: logging.Logger) -> Verdict:
    """Evaluate all criteria in order; the first that can't be evaluated ends it as VERIFIER_FAILED.

    Once a gate is missed the verdict stands, and a criterion for which no time is left is left out: code of the agent's that
    hangs while it is graded must not turn its failure into an error.
    """
    results: list[CriterionResult] = []
    for number, criterion in enumerate(criteria, 1):
        try:
            results.append(_evaluate(number, criterion, grading, has_session, log))
        except _TimeIsUp:
            if not any(r.gate and r.verdict == "failed" for r in results):
                raise
            results.append(_left_out(criterion, "grading_timeout was used up"))
    deciding = [c for c in criteria if c.enabled and c.gates]
    unsessioned = not has_session and bool(deciding) and all(c.needs_session for c in deciding)
    return verdict(results, grading.trial.pass_score, unsessioned=unsessioned)


def verdict(results: Sequence[CriterionResult], pass_score: float | None, *, unsessioned: bool) -> Verdict:
    """spec criteria.md, "Scores and verdicts": Σ weight·score / Σ weight over what was evaluated; every gate must hold.

    VERIFIER_FAILED if nothing that decides was evaluated, unless the only reason is that the agent has no session (`unsessioned`),
    and if there is a pass_score but nothing of any weight that it could be compared with.
    """
    looked = [r for r in results if r.score is not None]
    if not any(r.gate for r in looked):
        if unsessioned:
            return Verdict(passed=False, score=None, criteria=tuple(results), skipped=NO_SESSION)
        raise CodeprobeError(
            "VERIFIER_FAILED", "no criterion that decides could be evaluated: all are disabled, not applicable or of weight 0"
        )
    weight = math.fsum(r.weight for r in looked)
    score = math.fsum(r.weight * (r.score or 0.0) for r in looked) / weight if weight > 0 else None
    if pass_score is not None and score is None:
        raise CodeprobeError("VERIFIER_FAILED", "pass_score is set, but no criterion of a weight above 0 could be evaluated")
    held = all(r.verdict == "passed" for r in looked if r.gate)
    reached = pass_score is None or (score is not None and score >= pass_score - _EPSILON)
    return Verdict(passed=held and reached, score=score, criteria=tuple(results))


def _evaluate(number: int, criterion: Criterion, grading: TrialGrading, has_session: bool, log: logging.Logger) -> CriterionResult:
    if not criterion.enabled:
        return _left_out(criterion, "disabled")
    if criterion.needs_session and not has_session:
        return _left_out(criterion, "needs a session, and this agent has none")
    began = monotonic()
    what = f"criterion {number} ({criterion.type})"
    grading.begin(number)
    try:
        grading.time_left()
        with grading.context.network.acting(grading.trial, "criterion", what):
            score = criterion.evaluate(grading)
        return _result(criterion, score, monotonic() - began)
    except NotApplicable as why:
        return _left_out(criterion, str(why) or "not applicable")
    except Stopped as stop:
        raise Stopped(reason_of(stop.reason)) from stop
    except CodeprobeError as error:
        raise type(error)(error.code, f"{what}: {error.message}", remediation=error.remediation, detail=error.detail) from error
    except (Exception, SystemExit, GeneratorExit) as error:
        log.exception("%s", what)
        raise CodeprobeError("VERIFIER_FAILED", f"{what}: {type(error).__name__}: {error}") from error
    finally:
        grading.end()


def _result(criterion: Criterion, score: Score, duration: float) -> CriterionResult:
    """What a criterion answered, checked: one of the user's own may answer anything."""
    if not isinstance(score, Score):
        raise CodeprobeError("VERIFIER_FAILED", f"evaluate() answered {type(score).__name__}, not a Score")
    if not (math.isfinite(score.value) and -_EPSILON <= score.value <= 1 + _EPSILON):
        raise CodeprobeError("VERIFIER_FAILED", f"a score of {score.value} is not in 0..1")
    value = min(1.0, max(0.0, score.value))
    return CriterionResult(
        type=criterion.type,
        description=criterion.description,
        weight=criterion.weight,
        gate=criterion.gates,
        threshold=criterion.threshold,
        score=value,
        verdict="passed" if value >= criterion.threshold - _EPSILON else "failed",
        explanation=score.explanation,
        duration_seconds=round(duration, 4),
        cost_usd=score.cost_usd,
        evidence={str(k): _json_value(v) for k, v in score.evidence.items()},
    )


def _json_value(value: object) -> object:
    """Evidence as it can be stored. TypeError for what is no JSON value."""
    if isinstance(value, Mapping):
        return {str(k): _json_value(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_json_value(v) for v in value]
    if isinstance(value, _SCALARS):
        return value
    raise TypeError(f"evidence holds a {type(value).__name__}, which is no JSON value")


def _left_out(criterion: Criterion, why: str) -> CriterionResult:
    return CriterionResult(
        type=criterion.type,
        description=criterion.description,
        weight=criterion.weight,
        gate=criterion.gates,
        threshold=criterion.threshold,
        score=None,
        verdict="left out",
        explanation=why,
    )
