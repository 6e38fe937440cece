"""What the fixtures `codeprobe_session` and `codeprobe_score` hand out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pytest_codeprobe.model.result import CriterionResult, LimitHit, TrialResult, Usage
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.trial.grade import Verdict

if TYPE_CHECKING:
    from pytest_codeprobe.trial.run import TrialRun


class SessionView:
    """The ended session of a trial; all attempts together where usage is meant."""

    def __repr__(self) -> str:
        """For a failed assertion."""
        return f"<session of {self._run.trial.task_id}, exit status {self.exit_status}>"

    def __init__(self, run: TrialRun) -> None:
        self._run = run

    @property
    def transcript(self) -> Transcript | None:
        """ATIF; None for an agent without a session."""
        return self._run.transcript

    @property
    def usage(self) -> Usage:
        """Tokens and money of all attempts, but those before a rerun of the test or in a run that is gone on with."""
        return self._run.usage(own=True)

    @property
    def final_message(self) -> str:
        """The agent's last message."""
        return self._run.outcome.final_message if self._run.outcome else ""

    @property
    def limit_hit(self) -> LimitHit | None:
        """The limit that stopped it."""
        return self._run.outcome.limit_hit if self._run.outcome else None

    @property
    def exit_status(self) -> int | None:
        """Of the agent's process."""
        return self._run.outcome.exit.status if self._run.outcome and self._run.outcome.exit else None

    @property
    def changed_files(self) -> tuple[str, ...]:
        """Paths that the session left different from what it found."""
        return tuple(c.path for c in self._run.frozen_changes())


class ScoreView:
    """The grade of a trial."""

    def __repr__(self) -> str:
        """For a failed assertion."""
        verdict = self._verdict()
        score = "none" if verdict.score is None else f"{verdict.score:.2f}"
        return f"<score {score}, {'passed' if verdict.passed else 'failed'}>"

    def __init__(self, run: TrialRun) -> None:
        self._run = run

    def _verdict(self) -> Verdict:
        return self._run.score()

    @property
    def passed(self) -> bool:
        """The verdict."""
        return self._verdict().passed

    @property
    def score(self) -> float | None:
        """Weighted, 0..1; None if only gates of weight 0 were evaluated."""
        return self._verdict().score

    @property
    def criteria(self) -> tuple[CriterionResult, ...]:
        """In the order of the task."""
        return self._verdict().criteria


class CallView(SessionView):
    """What a call of `codeprobe_run` has come to: the session, the grade, and what is kept of the workspace."""

    def __repr__(self) -> str:
        """For a failed assertion."""
        grade = self._record.verdict or "not graded"
        return f"<trial {self._record.node_id}, {grade}, exit status {self.exit_status}>"

    def __init__(self, run: TrialRun, record: TrialResult, kept: Path) -> None:
        super().__init__(run)
        self._record, self._kept = record, kept

    @property
    def node_id(self) -> str:
        """Of the trial: `tests/test_a.py::test_it#1`."""
        return self._record.node_id

    @property
    def passed(self) -> bool | None:
        """The verdict; None where nothing was graded."""
        return None if self._record.verdict is None else self._record.verdict == "passed"

    @property
    def score(self) -> float | None:
        """Weighted, 0..1; None where nothing was graded, or only gates of weight 0."""
        return self._record.score

    @property
    def criteria(self) -> tuple[CriterionResult, ...]:
        """In the order of the task."""
        return self._record.criteria

    @property
    def path(self) -> Path | None:
        """What is kept of the workspace, as the agent left it; None under --codeprobe-preserve none."""
        return self._kept if self._record.kept != "none" else None
