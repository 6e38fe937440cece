"""Building a transcript while a session runs: bounded, and valid whatever the session prints."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from json.encoder import encode_basestring
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

#: bytes of transcript.json, where --codeprobe-trace-max-bytes says nothing; what comes later is in the raw log only
MAX_BYTES = 64 << 20
#: bytes that the steps of one transcript may take in memory, where the limit of its file is smaller
MEMORY = 32 << 20
_STEP_COST = 1000  # bytes that an empty step, call or result takes in memory
_STEP_JSON = 300  # and at most in the file: names of fields, figures, a time
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


def json_size(text: str) -> int:
    """Bytes of a text in transcript.json, with its quotes."""
    escaped = encode_basestring(text)
    return len(escaped) if escaped.isascii() else len(escaped.encode("utf-8", "surrogatepass"))


def _value_size(value: Any) -> int:
    """The same of what json_value() made."""
    return len(json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass"))


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

    Once the bound is reached nothing more is taken (every method answers as before), and the last step says so. `limit`: bytes of
    the file; 0 where the run's budget for transcripts is used up. `off`: no transcript is wanted, and nothing is collected.
    """

    def __init__(self, prompt: str, *, limit: int = MAX_BYTES, off: bool = False) -> None:
        self._limit, self._memory, self._off = limit, max(limit, MEMORY), off
        self._used = self._held = 0  # bytes of the file, and in memory
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
        if self._take(extra):
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
        if self._take(arguments):
            values = arguments if isinstance(arguments, dict) else {"value": arguments}
            draft.calls[call_id] = ToolCall(tool_call_id=call_id, function_name=storable(name), arguments=values)
            self._owners[call_id] = draft
        return True

    def result(self, call_id: str, content: str, **extra: Any) -> None:
        """Add what a call answered to the step that holds the call; to a step of its own where none does."""
        call_id, extra = storable(call_id), json_value(extra)
        if not self._take(extra):
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
            after = f"after {self._limit} bytes" if self._limit else "by the trace budget of the run"
            note = f"[transcript truncated {after}; the raw log has the rest]"
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

    def _take(self, value: Any) -> bool:
        """Whether there is room for a step, call or result that holds this value beside its texts."""
        if self._off or self.truncated:
            return False
        size = _STEP_JSON + (_value_size(value) if value else 0)
        held = _STEP_COST + (sum(_leaves(value)) if value else 0)
        if self._used + size > self._limit or self._held + held > self._memory:
            self.truncated = bool(self._drafts)  # the prompt's own step is kept in any case
        if self.truncated:
            return False
        self._used += size
        self._held += held
        return True

    def _fit(self, text: str) -> str:
        """As much of the text as there is room for."""
        if self._off or self.truncated:
            return ""
        text = storable(text)
        width = 1 if text.isascii() else 4  # bytes of a character in memory, at most
        size, room, places = json_size(text), max(0, self._limit - self._used), max(0, self._memory - self._held) // width
        if size > room or len(text) > places:
            self.truncated = True
            text = text[: min(places, room)]
            while text and (size := json_size(text)) > room:  # some characters take more than one byte: up to six
                text = text[: min(len(text) - 1, len(text) * room // size)]
        if text:
            self._used += json_size(text) if self.truncated else size
            self._held += len(text) * width
        return text
