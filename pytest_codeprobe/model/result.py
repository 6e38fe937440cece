"""What a trial yields: result.json, and the parts of it that travel in events and reports."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field
from pydantic_core import PydanticSerializationError

from pytest_codeprobe.model.base import Model
from pytest_codeprobe.text import json_line

Status = Literal["passed", "failed", "error", "skipped", "not_run"]
FINAL_MESSAGE = 4000  #: characters of an agent's last message in a record; a longer one lies whole in its attempt's answer.txt
VERDICTS: frozenset[str] = frozenset({"passed", "failed"})
DRY_RUN = "dry run"  #: reason of a trial that a dry run found nothing wrong with
DECIDED = "decided"  #: reason of a repeat that did not start, since nothing that it does could change the gate
#: where a number comes from, best first
Source = Literal["gateway", "cli", "session_file", "price_table", "unknown"]
Phase = Literal["prepare", "session", "freeze", "grade", "preserve", "set-up"]


class Usage(Model):
    """Tokens and money of a session, normalised: input excludes cache reads and writes. None = unknown, never 0 for it."""

    input_tokens: int | None = None  #: uncached input
    output_tokens: int | None = None
    cache_read_tokens: int | None = None
    cache_write_tokens: int | None = None
    cost_usd: float | None = None
    tokens_source: Source = "unknown"
    cost_source: Source = "unknown"
    turns: int | None = None  #: model replies that called at least one tool
    replies: int | None = None  #: model replies
    tool_calls: int | None = None

    @property
    def total_tokens(self) -> int | None:
        """Everything the model read and wrote, cache included; None if nothing is known."""
        known = [n for n in (self.input_tokens, self.output_tokens, self.cache_read_tokens, self.cache_write_tokens) if n is not None]
        return sum(known) if known else None

    def plus(self, other: Usage) -> Usage:
        """The sum; a number that is unknown on one side is unknown in it."""

        def add(a: float | None, b: float | None) -> Any:
            return None if a is None or b is None else a + b

        worst: list[Source] = ["gateway", "cli", "session_file", "price_table", "unknown"]
        return Usage(
            **{n: add(getattr(self, n), getattr(other, n)) for n in _NUMBERS},
            tokens_source=max(self.tokens_source, other.tokens_source, key=worst.index),
            cost_source=max(self.cost_source, other.cost_source, key=worst.index),
        )


_NUMBERS = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens", "cost_usd", "turns", "replies", "tool_calls")


def no_usage() -> Usage:
    """The usage of an agent that calls no model: known to be zero."""
    return Usage(**dict.fromkeys(_NUMBERS, 0), tokens_source="cli", cost_source="cli")


class CriterionResult(Model):
    """One evaluated criterion, or one that was left out (`score` None, `explanation` says why)."""

    type: str
    description: str = ""
    weight: float
    gate: bool  #: its miss fails the trial
    threshold: float
    score: float | None = Field(ge=0, le=1)
    verdict: Literal["passed", "failed", "left out"]
    explanation: str = ""
    duration_seconds: float = 0.0
    cost_usd: float | None = 0.0
    evidence: dict[str, Any] = {}  #: bounded, JSON values


class LimitHit(Model):
    """The limit that stopped a session, and the value it was set to."""

    name: str  #: as in run_limits or sandbox.limits: task_timeout, turn_timeout, max_turns, output_mb, …
    value: float


class AgentInfo(Model):
    """Which agent did it, as it reported itself."""

    name: str
    version: str | None = None
    model: str | None = None


class Attempt(Model):
    """One try of a trial."""

    number: int
    cause: Literal["first", "retry", "rerun"] = "first"
    code: str | None = None  #: why it ended without a verdict
    reason: str | None = None
    started_at: str
    duration_seconds: float
    exit_status: int | None = None
    exit_cause: str | None = None
    usage: Usage = Usage()
    user_usage: Usage | None = None  #: of the simulated user; None without one

    @property
    def bill(self) -> Usage:
        """Of both sides."""
        return self.usage if self.user_usage is None else self.usage.plus(self.user_usage)


class ExchangeResult(Model):
    """A message of the user's, and what the agent made of it."""

    number: int
    usage: Usage  #: of the agent in it
    score: float | None = None  #: where the criteria were looked at after it
    passed: bool | None = None


class DialogResult(Model):
    """How the dialog with a simulated user went, in the last attempt."""

    stop: Literal["stop_token", "criteria_passed", "max_turns", "max_total_tokens", "silence", "limit", "stopped", "error"]
    user: AgentInfo  #: who played it
    exchanges: tuple[ExchangeResult, ...]
    usage: Usage  #: of the user, over all attempts


class Fingerprint(Model):
    """What a result depends on: by part, a digest of it."""

    session: dict[str, str] = {}  #: what shapes the agent's work
    grade: dict[str, str] = {}  #: what is made of it


class TrialResult(Model):
    """The one final record of a trial: result.json, and the event trial_finished is made from it."""

    schema_version: Literal["1"] = "1"
    run_id: str
    node_id: str
    task_id: str
    variant_id: str | None
    row_id: str | None
    repeat: int
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}  #: as the task gives it
    status: Status
    verdict: Literal["passed", "failed"] | None = None
    code: str | None = None
    reason: str | None = None
    remediation: str | None = None
    phase: Phase | None = None  #: where an error arose
    detail: dict[str, Any] = {}
    score: float | None = None
    pass_score: float | None = None
    miss: int | None = None  #: which of the misses of its repeats this verdict is, where a proportion of them must pass
    criteria: tuple[CriterionResult, ...] = ()
    limit_hit: LimitHit | None = None
    expected_turns_overage: int | None = None
    agent: AgentInfo | None = None
    driver: str | None = None
    attempts: tuple[Attempt, ...] = ()
    usage: Usage = Usage()
    cost_usd: float | None = None  #: over all attempts; a simulated user's part, too
    dialog: DialogResult | None = None  #: with a simulated user
    final_message: str = ""
    stderr_tail: str = ""
    changed_files: tuple[str, ...] = ()  #: `A path`, `M path`, `D path`; at most 200
    changed_total: int = 0
    kept: Literal["whole", "partial", "none"] = "none"
    warnings: tuple[str, ...] = ()
    timings: dict[str, float] = {}  #: seconds of each phase
    fingerprint: Fingerprint = Fingerprint()
    cached: bool = False  #: it is an earlier run's, taken over when that was resumed
    regraded: bool = False  #: its session is an earlier one, and was graded again
    worker: str = "main"
    folder: str | None = None  #: relative to the run dir; None if the trial never began
    started_at: str
    ended_at: str
    duration_seconds: float


_UNSAFE = ("NaN", "Infinity", "\x7f")  #: may be no JSON to every reader


def result_text(result: TrialResult) -> str:
    """A record as one line of pure ASCII JSON and a newline, for a file or a report."""
    try:
        text = result.model_dump_json()
    except PydanticSerializationError:  # a lone surrogate
        text = ""
    if not text.isascii() or not text or any(part in text for part in _UNSAFE):
        text = json_line(result.model_dump(mode="json"))
    return text + "\n"
