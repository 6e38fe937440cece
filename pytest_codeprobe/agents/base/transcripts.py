"""Building a transcript while a session runs: bounded, and valid whatever the session prints."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_codeprobe.model.result import AgentInfo, Usage
from pytest_codeprobe.model.transcript import (
    FinalMetrics,
    Metrics,
    Observation,
    ObservationResult,
    Step,
    ToolCall,
    Transcript,
    TranscriptAgent,
)

#: bytes of step text that one transcript holds; what comes later is in the raw log only
STEP_BYTES = 32 << 20
_STEP_COST = 1000  # bytes that an empty step, call or result takes in memory
_MAX_DEPTH = 40  # levels of a tool call's arguments
_MAX_INT = 2**63
_SURROGATES = re.compile(r"[\ud800-\udfff]")


def storable(text: str) -> str:
    """The text with each lone surrogate spelt out (`\\udcff`), since neither UTF-8 nor strict JSON can hold one.

    Everything else stays as it is: NUL, controls and escape sequences are data.
    """
    return text if text.isascii() else _SURROGATES.sub(lambda m: f"\\u{ord(m[0]):04x}", text)


def decoded(line: bytes) -> str:
    """Bytes of unknown encoding as text; what isn't UTF-8 is spelt out (`\\xff`)."""
    return line.decode("utf-8", "backslashreplace")


def json_value(value: Any, depth: int = 0) -> Any:
    """A value from the session's JSON that any reader takes back: finite, not deep, without lone surrogates."""
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, dict | list) and depth >= _MAX_DEPTH:
        return "[nested too deeply]"
    if isinstance(value, dict):
        return {storable(str(k)): json_value(v, depth + 1) for k, v in value.items()}
    if isinstance(value, list):
        return [json_value(v, depth + 1) for v in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int) and not isinstance(value, bool):
        return value if -_MAX_INT <= value < _MAX_INT else str(value)
    return value if value is None or isinstance(value, bool) else storable(str(value))


def _leaves(value: Any) -> Iterator[int]:
    if isinstance(value, str):
        yield len(value) + 50
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield len(key) + 50
            yield from _leaves(item)
    elif isinstance(value, list):
        yield 50
        for item in value:
            yield from _leaves(item)
    else:
        yield 30


@dataclass(slots=True)
class Draft:
    """A step that may still grow. Change its texts through the builder, which keeps count of them."""

    source: Literal["system", "user", "agent"]
    timestamp: str | None = None
    model: str | None = None
    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[str, ToolCall] = field(default_factory=dict)
    results: list[ObservationResult] = field(default_factory=list)
    metrics: Metrics | None = None
    copied: bool = False
    llm_call_count: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    def step(self, number: int) -> Step:
        """The finished step."""
        agent = self.source == "agent"
        return Step(
            step_id=number,
            timestamp=self.timestamp,
            source=self.source,
            model_name=self.model if agent else None,
            message="\n".join(self.texts),
            reasoning_content="\n".join(self.reasoning) if agent and self.reasoning else None,
            tool_calls=tuple(self.calls.values()) if agent and self.calls else None,
            observation=Observation(results=tuple(self.results)) if self.results else None,
            metrics=self.metrics if agent else None,
            is_copied_context=True if self.copied else None,
            llm_call_count=self.llm_call_count,
            extra=self.extra or None,
        )


class TranscriptBuilder:
    """Collects steps up to a bound; the first one is always the user's prompt.

    Once the bound is reached nothing more is taken (every method answers as before), and the last step says so.
    """

    def __init__(self, prompt: str, *, limit: int = STEP_BYTES) -> None:
        self._limit = limit
        self._used = 0
        self._drafts: list[Draft] = []
        self._owners: dict[str, Draft] = {}  # tool call id -> the step that holds the call
        self.truncated = False
        self.text(self.step("user"), prompt)

    def step(
        self,
        source: Literal["system", "user", "agent"],
        text: str = "",
        *,
        timestamp: str | None = None,
        model: str | None = None,
        llm_call_count: int | None = None,
        **extra: Any,
    ) -> Draft:
        """Begin a step."""
        draft = Draft(source, None if timestamp is None else storable(timestamp), None if model is None else storable(model))
        draft.llm_call_count = llm_call_count
        extra = json_value(extra)
        if self._take(_STEP_COST + sum(_leaves(extra)) if extra else _STEP_COST):
            draft.extra = extra
            self._drafts.append(draft)
            if text:
                self.text(draft, text)
        return draft

    def text(self, draft: Draft, text: str) -> None:
        """Add to a step's message."""
        if kept := self._fit(text):
            draft.texts.append(kept)

    def reasoning(self, draft: Draft, text: str) -> None:
        """Add to what the model thought."""
        if kept := self._fit(text):
            draft.reasoning.append(kept)

    def call(self, draft: Draft, call_id: str, name: str, arguments: Any) -> bool:
        """Add a tool call; False if this step has one of that id already."""
        call_id, arguments = storable(call_id), json_value(arguments)
        if call_id in draft.calls:
            return False
        if self._take(_STEP_COST + sum(_leaves(arguments))):
            values = arguments if isinstance(arguments, dict) else {"value": arguments}
            draft.calls[call_id] = ToolCall(tool_call_id=call_id, function_name=storable(name), arguments=values)
            self._owners[call_id] = draft
        return True

    def result(self, call_id: str, content: str, **extra: Any) -> None:
        """Add what a call answered to the step that holds the call; to a step of its own where none does."""
        call_id, extra = storable(call_id), json_value(extra)
        if not self._take(_STEP_COST + sum(_leaves(extra))):
            return
        owner = self._owners.get(call_id)
        if owner is None:
            owner = self.step("user")
            extra["call_id"] = call_id
        source = None if "call_id" in extra else call_id
        owner.results.append(ObservationResult(source_call_id=source, content=self._fit(content), extra=extra or None))

    def raw(self, line: bytes) -> None:
        """A line that is no event of the CLI."""
        self.step("system", decoded(line), raw=True)

    def oversized(self, offset: int, length: int) -> None:
        """A line that is in the raw log only."""
        self.step("system", f"[a line of {length} bytes, in the raw log only]", raw=True, offset=offset, length=length)

    def build(self, info: AgentInfo, usage: Usage, *, session_id: str, extra: dict[str, Any] | None = None) -> Transcript:
        """The transcript as it stands."""
        drafts = list(self._drafts)
        if self.truncated:
            note = f"[transcript truncated after {self._limit} bytes; the raw log has the rest]"
            drafts.append(Draft("system", texts=[note], extra={"truncated": True}))
        prompt_tokens = [usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens]
        known = [n for n in prompt_tokens if n is not None]
        return Transcript(
            session_id=storable(session_id),
            agent=TranscriptAgent(
                name=storable(info.name),
                version=storable(info.version or "unknown"),
                model_name=None if info.model is None else storable(info.model),
                extra=json_value(extra) if extra else None,
            ),
            steps=tuple(draft.step(n) for n, draft in enumerate(drafts, 1)),
            final_metrics=FinalMetrics(
                total_prompt_tokens=sum(known) if known else None,
                total_completion_tokens=usage.output_tokens,
                total_cached_tokens=usage.cache_read_tokens,
                total_cost_usd=usage.cost_usd,
                total_steps=len(drafts),
            ),
        )

    def _take(self, size: int) -> bool:
        if not self.truncated and self._used + size > self._limit:
            self.truncated = bool(self._drafts)  # the prompt's own step is kept in any case
        if self.truncated:
            return False
        self._used += size
        return True

    def _fit(self, text: str) -> str:
        """As much of the text as there is room for."""
        if self.truncated:
            return ""
        text = storable(text)
        # a character outside Latin-1 takes two or four bytes in memory, and more in JSON
        width = 1 if text.isascii() else 4
        room = max(0, self._limit - self._used) // width
        if len(text) > room:
            self.truncated = True
            text = text[:room]
        self._used += len(text) * width
        return text
