"""The transcript of a session in the Agent Trajectory Interchange Format, ATIF 1.8."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import model_validator

from pytest_codeprobe.model.base import Model


class ToolCall(Model):
    """One call of a tool by the model."""

    tool_call_id: str
    function_name: str
    arguments: dict[str, Any]
    extra: dict[str, Any] | None = None


class ObservationResult(Model):
    """What one call answered."""

    source_call_id: str | None = None
    content: str | None = None
    extra: dict[str, Any] | None = None


class Observation(Model):
    """What came back after a step's calls."""

    results: tuple[ObservationResult, ...]


class Metrics(Model):
    """Tokens and money of one step. ATIF counts cached tokens within prompt_tokens."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    cost_usd: float | None = None
    extra: dict[str, Any] | None = None


class Step(Model):
    """One step: a system or user message, or a model reply with its calls and what they answered."""

    step_id: int  #: 1, 2, 3 … without a gap
    timestamp: str | None = None  #: ISO 8601, UTC
    source: Literal["system", "user", "agent"]
    model_name: str | None = None
    message: str = ""
    reasoning_content: str | None = None
    tool_calls: tuple[ToolCall, ...] | None = None
    observation: Observation | None = None
    metrics: Metrics | None = None
    is_copied_context: bool | None = None
    llm_call_count: int | None = None  #: 0 = produced without a model
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _rules(self) -> Step:
        if self.source != "agent":
            for name in ("model_name", "reasoning_content", "tool_calls", "metrics"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is only legal on an agent step")
        calls = {c.tool_call_id for c in self.tool_calls or ()}
        for result in self.observation.results if self.observation else ():
            if result.source_call_id is not None and result.source_call_id not in calls:
                raise ValueError(f"source_call_id {result.source_call_id!r} names no call of this step")
        return self


class TranscriptAgent(Model):
    """Who wrote the transcript."""

    name: str
    version: str
    model_name: str | None = None
    tool_definitions: tuple[dict[str, Any], ...] | None = None
    extra: dict[str, Any] | None = None


class FinalMetrics(Model):
    """Sums over the session, sub-agents included. Prompt tokens include cached ones."""

    total_prompt_tokens: int | None = None
    total_completion_tokens: int | None = None
    total_cached_tokens: int | None = None
    total_cost_usd: float | None = None
    total_steps: int | None = None
    extra: dict[str, Any] | None = None


class Transcript(Model):
    """transcript.json of an attempt."""

    schema_version: Literal["ATIF-v1.8"] = "ATIF-v1.8"
    session_id: str
    trajectory_id: str | None = None
    agent: TranscriptAgent
    steps: tuple[Step, ...]
    notes: str | None = None
    final_metrics: FinalMetrics | None = None
    extra: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _numbered(self) -> Transcript:
        if not self.steps:
            raise ValueError("a transcript has at least one step")
        if any(step.step_id != n for n, step in enumerate(self.steps, 1)):
            raise ValueError("step ids must be 1, 2, 3 …")
        return self
