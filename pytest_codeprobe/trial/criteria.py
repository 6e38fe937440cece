"""The criteria of one trial: read from it, tried before its session, and asked for the verdict on a sandbox."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.model.sandbox import Change, Sandbox
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.trial import setup
from pytest_codeprobe.trial.exposed import copied, exposed
from pytest_codeprobe.trial.grade import TrialGrading, Verdict, grading_timeout, judge, pointless
from pytest_codeprobe.trial.graders import GradersPlace
from pytest_codeprobe.trial.protect import put_back
from pytest_codeprobe.trial.session import SessionOutcome
from pytest_codeprobe.trial.untouched import Untouched

_PREFLIGHT = 60.0  #: seconds, for all criteria


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What there is to judge."""

    sandbox: Sandbox
    changes: Sequence[Change] = ()
    outcome: SessionOutcome | None  #: of the session, so far as it has gone
    transcript: Transcript | None
    cli_calls: bytes | None = None  #: what stand-ins were called with


class TrialCriteria:
    """`agent`: the adapter, once it is needed; `redact`: takes the trial's secrets out of a text."""

    def __init__(self, trial: Trial, context: Context, agent: Callable[[], Agent], redact: Callable[[str], str]) -> None:
        self._trial, self._context, self._agent, self._redact = trial, context, agent, redact
        self._all: tuple[Criterion, ...] = ()
        self._untouched = Untouched(trial)

    def read(self) -> None:
        """Make them of what the trial says."""
        self._all = tuple(self._context.registry.criteria[c["type"]].model_validate(c) for c in self._trial.criteria)

    def pointless(self) -> str | None:
        """Why they could find nothing out, which is nobody's fault; None = they can."""
        return pointless(self._agent(), self._trial, self._all)

    def preflight(self, evidence: Evidence) -> None:
        """Find out before anything is paid what would go wrong in grading. Raises it."""
        wanted = [c for c in self._all if c.enabled]
        grading = self._grading(evidence, _PREFLIGHT)
        for criterion in wanted:
            criterion.preflight(grading)

    def before_session(self) -> None:
        """pre_run is over: what grades is from now on to stay as it is."""
        self._untouched.look()

    def judge(self, evidence: Evidence, log: logging.Logger) -> Verdict:
        """The verdict, on a sandbox in which protected files are as they were."""
        workspace = evidence.sandbox.workspace
        if workspace.is_symlink() or not workspace.is_dir():
            workspace.unlink(missing_ok=True)
            workspace.mkdir()  # what the agent put in its place is nothing that it made here
        put_back(evidence.sandbox, self._trial.sandbox.protected)
        setup.put_back(self._trial, self._context, evidence.sandbox)
        grading = self._grading(evidence, grading_timeout(self._trial, self._all))
        return judge(self._all, grading, has_session=self._agent().is_session, log=log)

    def exposed(self, changes: Sequence[Change]) -> Iterator[str]:
        """A sentence for each program of theirs that an agent could steer; `changes`: of the task's own solution."""
        yield from exposed(self._trial.task_id, self._all, self._trial.sandbox.protected, changes)
        yield from copied(self._trial.task_id, self._trial.sandbox)

    def _grading(self, evidence: Evidence, timeout: float) -> TrialGrading:
        outcome = evidence.outcome if self._agent().is_session else None
        message = outcome.final_message if outcome else None
        return TrialGrading(
            trial=self._trial,
            context=self._context,
            sandbox=evidence.sandbox,
            place=GradersPlace(self._trial, self._context, evidence.sandbox, message, evidence.transcript),
            outcome=outcome,
            transcript=evidence.transcript if outcome else None,
            changes=evidence.changes,
            timeout=timeout,
            redact=self._redact,
            cli_calls=evidence.cli_calls,
            untouched=self._untouched.check,
        )
