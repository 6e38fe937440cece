"""The base of every criterion, and what it may look at while it grades."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from pydantic import ConfigDict, Field

from pytest_codeprobe.model.base import Flag, Float, Model, Text

if TYPE_CHECKING:
    from pytest_codeprobe.model.context import Context
    from pytest_codeprobe.model.result import Usage
    from pytest_codeprobe.model.sandbox import Change, Command, CommandResult, Process, ProcessLimits
    from pytest_codeprobe.model.transcript import Transcript
    from pytest_codeprobe.model.trial import Trial


@dataclass(frozen=True, slots=True)
class Score:
    """What a criterion found: a number in 0..1, why, and bounded evidence (JSON values)."""

    value: float
    explanation: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    cost_usd: float | None = 0.0


class NotApplicable(Exception):
    """Raised by a criterion that can't say anything about this trial; it is left out, never counted as 1 or 0."""


class Grading(Protocol):
    """What a criterion sees. The agent is gone; nothing of its session is alive."""

    @property
    def trial(self) -> Trial:
        """What was asked."""

    @property
    def context(self) -> Context:
        """The run."""

    @property
    def workspace(self) -> Path:
        """The grading copy: what the agent left, `protected` files put back."""

    @property
    def template(self) -> Path:
        """The workspace as the templates alone make it; read-only."""

    @property
    def scratch(self) -> Path:
        """A folder of this criterion alone, empty, that the agent never could write."""

    @property
    def final_message(self) -> str | None:
        """The agent's last message; None where there was no session."""

    @property
    def transcript(self) -> Transcript | None:
        """None where there was no session."""

    @property
    def usage(self) -> Usage | None:
        """Tokens, money and turns of the session that is graded; None where there was none."""

    @property
    def session_seconds(self) -> float | None:
        """How long it took; None where there was none."""

    @property
    def cli_calls(self) -> bytes | None:
        """What the programs of `sandbox.record_cli` were called with, a JSON object on each line; None where there are none.

        From the harness itself: no process of the session or of a grader could change it.
        """

    @property
    def changes(self) -> Sequence[Change]:
        """Paths the session left different from the baseline."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The clean environment of graders, with TASK_DIR, WORKSPACE, AGENT_OUTPUT, TRANSCRIPT, REFERENCE_DIR."""

    @property
    def python(self) -> str:
        """The interpreter of tests that nobody may have changed: of the task's `sandbox.setup.python`, else the one that runs pytest."""

    @property
    def installed(self) -> Path | None:
        """Where the session has put Python packages into the environment of `sandbox.setup.python`; None where it has none."""

    @property
    def command_environment(self) -> Mapping[str, str]:
        """The same, of commands that stand in the task: with the host's variables where the task sees them."""

    def redact(self, text: str) -> str:
        """The text without the trial's secrets; to be called before any of it is cut off or put on one line."""

    def time_left(self, wanted: float | None = None) -> float:
        """Seconds that may still be used: the smaller of `wanted` and what is left of grading_timeout."""

    def run(self, command: Command, *, timeout: float, output_bytes: int = 1 << 20) -> CommandResult:
        """Run a grader's command to its end. Raises Stopped where the run ended it."""

    def start(self, command: Command, *, stdout: Path, stderr: Path, limits: ProcessLimits) -> Process:
        """Start a grader's command; the caller ends it."""


class Criterion(Model):
    """One check. A subclass is a strict model of its YAML and says how it scores.

    `evaluate` returns a Score, or raises NotApplicable. Any other exception makes the trial an error (VERIFIER_FAILED),
    never a 0: raise CodeprobeError("VERIFIER_FAILED", …) where the reason is known.
    """

    model_config = ConfigDict(allow_inf_nan=False)

    type: Text
    description: Text = ""
    weight: Float = Field(default=1.0, ge=0)
    pass_threshold: Float | None = Field(default=None, ge=0, le=1)
    gate: Flag = False
    timeout: Float | None = Field(default=None, gt=0)
    suite_thresholds: dict[str, Float] | None = None
    enabled: Flag = True

    default_threshold: ClassVar[float] = 1.0
    default_timeout: ClassVar[float] = 0.0  #: seconds that it may need where `timeout` is not set; 0 = next to none
    classifies: ClassVar[bool] = False  #: its evidence has `expected_label` and `observed_label`
    needs_session: ClassVar[bool] = False  #: looks at the answer, the transcript or usage
    #: fields that name files or folders beside the task, and what for; the loader makes them absolute and checks them
    task_paths: ClassVar[Mapping[str, str]] = {}

    @property
    def threshold(self) -> float:
        """The score from which it passes."""
        return self.default_threshold if self.pass_threshold is None else self.pass_threshold

    @property
    def gates(self) -> bool:
        """Whether missing the threshold fails the trial."""
        return self.gate or self.weight > 0

    def labels(self) -> Sequence[str] | None:
        """Of one that classifies: the classes that there are; None where any text is one."""
        return None

    def evaluate(self, grading: Grading) -> Score:
        """Look and score."""
        raise NotImplementedError(f"{type(self).__name__}.evaluate")

    def programs(self) -> Sequence[str]:
        """Names of programs that it is sure to start out of the PATH: a dry run warns of those that are not there."""
        return ()

    def steered_by(self) -> Mapping[str, Sequence[str]]:
        """Programs that it is known to start, each with globs of the workspace's files that can tell it to succeed.

        Agent `oracle` warns of those that are not protected.
        """
        return {}

    def preflight(self, grading: Grading) -> None:
        """Called before the session, with the workspace as the templates make it: find what would fail every agent alike.

        CodeprobeError VERIFIER_FAILED where that is so. The default looks at nothing.
        """
