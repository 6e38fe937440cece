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
# bytes in memory, measured with what build() makes of it: an empty step, call, result; an object or list in a value, a leaf of it
_STEP_HELD, _CALL_HELD, _RESULT_HELD, _OBJECT_HELD, _LEAF_HELD = 2000, 900, 800, 190, 50
_PIECE_HELD = 60  # of a text, beside its letters
#: and at most in the file: what stands around the texts and values of a step, a call, a result
STEP_JSON, _CALL_JSON, _RESULT_JSON = 80, 70, 80
_METRICS_JSON = 170  # of a model's reply: what it has used, which is known later
_LOOSE = 64  # pieces of a text that are held apart
_RAW_STEP = 64 << 10  # bytes of lines that are kept in one step
_MAX_DEPTH = 40  # levels of a tool call's arguments
_MAX_INT = 2**63
_CUT = "..."  # where a text ends for want of room; in ASCII, since one character that is not would make all of it take twice the memory
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
    """Bytes in memory of the parts of such a value."""
    if isinstance(value, str):
        yield _width(value) * len(value) + _LEAF_HELD
    elif isinstance(value, Mapping):
        yield _OBJECT_HELD
        for key, item in value.items():
            yield _width(key) * len(key) + _LEAF_HELD
            yield from _leaves(item)
    elif isinstance(value, list):
        yield _OBJECT_HELD
        for item in value:
            yield from _leaves(item)
    else:
        yield _LEAF_HELD


def _width(text: str) -> int:
    """Bytes that a character takes in memory, at most."""
    return 1 if text.isascii() else 4


def _add(texts: list[str], piece: str) -> None:
    """One more piece of a text. Of very many the last are joined whenever they have grown alike: few objects, few copies."""
    texts.append(piece)
    while len(texts) > _LOOSE and len(texts[-2]) < 2 * len(texts[-1]):
        texts[-2:] = [f"{texts[-2]}\n{texts[-1]}"]


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

    def __init__(self, prompt: str, *, limit: int = MAX_BYTES, off: bool = False, memory: int = MEMORY) -> None:
        self._limit, self._memory, self._off = limit, max(limit, memory), off
        self._used = self._held = 0  # bytes of the file, and in memory
        self._drafts: list[Draft] = []
        self._owners: dict[str, Draft] = {}  # tool call id -> the step that holds the call
        self._raw: tuple[Draft, int] | None = None  # the step of the last lines that were no events, and the bytes that it has room for
        self.over_limit = False  #: the file would have passed its limit
        self.over_memory = False  #: the steps would have taken too much memory, though the file was within its limit
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
        fields = [json_size(value) + 15 for value in (draft.timestamp, draft.model) if value is not None]
        fields.append(_METRICS_JSON if source == "agent" and model is not None else 0)
        fields.append(0 if llm_call_count is None else 24)
        if self._take(STEP_JSON + sum(fields), _STEP_HELD, extra):
            draft.extra = extra
            self._drafts.append(draft)
            if text:
                self.text(draft, text)
        return draft

    def text(self, draft: Draft, text: str) -> None:
        """Add to a step's message."""
        self._piece(draft.texts, text)

    def reasoning(self, draft: Draft, text: str) -> None:
        """Add to what the model thought."""
        if not draft.reasoning:
            self._used += 21  # the field's name
        self._piece(draft.reasoning, text)

    def _piece(self, texts: list[str], text: str) -> None:
        if kept := self._fit(text):
            _add(texts, kept)
            self._held += _PIECE_HELD if len(texts) <= _LOOSE else 2

    def call(self, draft: Draft, call_id: str, name: str, arguments: Any) -> bool:
        """Add a tool call; False if this step has one of that id already."""
        call_id, arguments = storable(call_id), json_value(arguments)
        if call_id in draft.calls:
            return False
        name, values = storable(name), arguments if isinstance(arguments, dict) else {"value": arguments}
        if self._take(_CALL_JSON + json_size(call_id) + json_size(name), _CALL_HELD, values):
            draft.calls[call_id] = ToolCall(tool_call_id=call_id, function_name=name, arguments=values)
            self._owners[call_id] = draft
        return True

    def result(self, call_id: str, content: str, **extra: Any) -> None:
        """Add what a call answered to the step that holds the call; to a step of its own where none does."""
        call_id, extra = storable(call_id), json_value(extra)
        if not self._take(_RESULT_JSON + json_size(call_id), _RESULT_HELD, extra):
            return
        owner = self._owners.get(call_id)
        if owner is None:
            owner = self.step("user")
            extra["call_id"] = call_id
        source = None if "call_id" in extra else call_id
        owner.results.append(ObservationResult(source_call_id=source, content=self._fit(content), extra=extra or None))

    def raw(self, line: bytes) -> None:
        """A line that is no event of the CLI. Those that follow one another are lines of one step."""
        text = decoded(line)
        if self._raw is not None and self._drafts[-1] is self._raw[0] and len(text) <= self._raw[1]:
            draft, room = self._raw
            self.text(draft, text)
        else:
            draft, room = self.step("system", text, raw=True), _RAW_STEP
        self._raw = (draft, room - len(text) - 1) if self._drafts and self._drafts[-1] is draft else None

    def oversized(self, offset: int, length: int) -> None:
        """A line that is in the raw log only."""
        self.step("system", f"[a line of {length} bytes, in the raw log only]", raw=True, offset=offset, length=length)

    def build(self, info: AgentInfo, usage: Usage, *, session_id: str, extra: dict[str, Any] | None = None) -> Transcript:
        """The transcript as it stands."""
        drafts = list(self._drafts)
        if self.truncated:
            note = f"[transcript truncated {self.cut}; the raw log has the rest]"
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

    @property
    def truncated(self) -> bool:
        """Something was left out."""
        return self.over_limit or self.over_memory

    @property
    def cut(self) -> str:
        """Where it was truncated."""
        if self.over_memory:
            return f"after {len(self._drafts)} steps, which take {self._memory >> 20} MiB of memory"
        return f"after {self._limit} bytes" if self._limit else "by the trace budget of the run"

    def _take(self, size: int, held: int, value: Any) -> bool:
        """Whether there is room for a step, call or result: bytes of the file and of memory beside its texts and this value."""
        if self._off or self.truncated:
            return False
        if value:
            size += _value_size(value)
            held += sum(_leaves(value))
        if self._drafts:  # the prompt's own step is kept in any case
            self.over_limit = self._used + size > self._limit
            self.over_memory = not self.over_limit and self._held + held > self._memory
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
        width = _width(text)
        size, room, places = json_size(text), max(0, self._limit - self._used), max(0, self._memory - self._held) // width
        if size > room or len(text) > places:
            self.over_limit, self.over_memory = size > room, size <= room
            room -= len(_CUT)
            text = text[: max(0, min(places - len(_CUT), room))]
            while text and (size := json_size(text)) > room:  # some characters take more than one byte: up to six
                text = text[: min(len(text) - 1, len(text) * room // size)]
            if text:
                text, size = text + _CUT, size + len(_CUT)
        if text:
            self._used += size
            self._held += len(text) * width
        return text
