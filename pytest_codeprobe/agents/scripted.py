"""Agent `scripted`: does fixed steps, for tests and docs. The steps are done by `children/scripted.py`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

import pytest_codeprobe
from pytest_codeprobe.agents.base import BaseParser, amount, count, exit_words, last_words, mapping, no_price, text
from pytest_codeprobe.model.agent import Agent, Fault, SessionCommand, SessionEnd, SessionRequest
from pytest_codeprobe.model.base import Flag, Float, Int, Model, Text
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.model.sandbox import ProcessExit

_PROGRAM = Path(pytest_codeprobe.__file__).resolve().parent / "children" / "scripted.py"
_DAY = 86400.0


class WriteStep(Model):
    """A file to write; its folder is made."""

    path: Text = Field(min_length=1)
    content: Text


class CallStep(Model):
    """A tool call that is only said to have been made, and what it answered: nothing is done."""

    tool: Text = Field(min_length=1)  #: a neutral name, or any other, such as `mcp__docs__search`
    arguments: dict[str, Any] = {}
    result: Text = ""
    failed: Flag = False


class UsageStep(Model):
    """What a model reply would have cost. US dollars; None = by the price table, if `model` stands in it."""

    model: Text | None = None
    input_tokens: Int = Field(default=0, ge=0)
    output_tokens: Int = Field(default=0, ge=0)
    cost_usd: Float | None = Field(default=None, ge=0)


class ScriptedStep(Model):
    """Exactly one of these."""

    write: WriteStep | None = None
    delete: Text | None = Field(default=None, min_length=1)
    run: Text | None = None  #: by `/bin/sh -c` in the workspace
    call: CallStep | None = None
    say: Text | None = None
    sleep: Float | None = Field(default=None, ge=0, le=_DAY)  #: seconds
    usage: UsageStep | None = None
    fail: Literal["LLM_UNAVAILABLE", "AUTH_FAILED", "AGENT_BLOCKED", "AGENT_CRASHED"] | None = None  #: ends the session with this code
    exit: Int | None = Field(default=None, ge=0, le=255)  #: ends the session with this exit status

    @model_validator(mode="after")
    def _one(self) -> ScriptedStep:
        if len(self.model_fields_set) != 1 or getattr(self, next(iter(self.model_fields_set))) is None:
            raise ValueError(f"a step is exactly one of {', '.join(type(self).model_fields)}, with a value")
        return self


class ScriptedTable(Model):
    """`agent.scripted`; without steps the session does nothing."""

    steps: tuple[ScriptedStep, ...] = ()


class ScriptedAgent(Agent):
    """Does the steps under `agent.scripted.steps`, one after the other."""

    name = "scripted"
    calls_model = False
    usage_known = "live"
    resumes = True
    supports = frozenset({"model"})
    table = ScriptedTable
    tool_names: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "read": ("read",),
        "write": ("write", "delete"),
        "edit": ("edit",),
        "shell": ("run", "shell"),
        "search": ("search",),
        "web": ("web",),
        "skill": ("skill",),
        "agent": ("agent",),
    }

    def command(self, request: SessionRequest) -> SessionCommand:
        steps = ScriptedTable.model_validate(request.trial.agent.table(self.name)).steps
        if request.exchange is not None:
            steps = _part(steps, request.exchange.number)
        script = [step.model_dump(exclude_unset=True) for step in steps]
        argv = (request.context.python, "-I", "-S", str(_PROGRAM))
        return SessionCommand(argv=argv, stdin=json.dumps(script).encode())

    def parser(self, request: SessionRequest) -> ScriptedParser:
        return ScriptedParser(request)


def _part(steps: Sequence[ScriptedStep], number: int) -> tuple[ScriptedStep, ...]:
    """The steps of one exchange, up to its `say`; none where the script is over."""
    parts: list[list[ScriptedStep]] = [[]]
    for step in steps:
        parts[-1].append(step)
        if step.fail is not None or step.exit is not None:
            break
        if step.say is not None:
            parts.append([])
    return tuple(parts[number - 1]) if number <= len(parts) else ()


class ScriptedParser(BaseParser):
    """Each call is a reply with one tool call, each `say` a reply without one."""

    agent = ScriptedAgent

    def __init__(self, request: SessionRequest) -> None:
        super().__init__(request)
        self._turns = self._replies = 0
        self._input = self._output = 0
        self._cost: float | None = 0.0
        self._priced = False  #: some of it by the price table
        self._code: str | None = None
        self._last = ""

    def event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("event")
        if kind == "call":
            self._turns += 1
            self._reply()
            draft = self.steps.step("agent", model=self.model)
            self.steps.call(draft, text(event.get("id")), text(event.get("tool")), event.get("arguments"))
        elif kind == "result":
            extra = {"failed": True} if event.get("failed") is True else {}
            self.steps.result(text(event.get("id")), text(event.get("content")), **extra)
        elif kind == "say":
            self._reply()
            self._last = text(event.get("text"))
            self.steps.step("agent", self._last, model=self.model)
        elif kind == "usage":
            self._add(mapping(event.get("usage")))
        elif kind == "fail":
            self._fail(text(event.get("code")))
        elif kind == "end":
            self.final_seen = True

    def _reply(self) -> None:
        self._replies += 1
        self.replied = True

    def _add(self, usage: Mapping[str, Any]) -> None:
        self.replied = True
        self.model = text(usage.get("model")) or self.model
        self._input += count(usage.get("input_tokens")) or 0
        self._output += count(usage.get("output_tokens")) or 0
        cost = amount(usage.get("cost_usd"))
        if cost is None:
            cost = self._by_table(count(usage.get("input_tokens")) or 0, count(usage.get("output_tokens")) or 0)
        self._cost = None if cost is None or self._cost is None else self._cost + cost

    def _by_table(self, given: int, written: int) -> float | None:
        price = self.request.context.prices.find(self.model)
        if price is None:
            self.unpriced = self.model or ""
            return None
        self._priced = True
        return price.cost(input=given, output=written)

    def _fail(self, code: str) -> None:
        self._code = code
        if code in ("AUTH_FAILED", "LLM_UNAVAILABLE"):
            self.fault = Fault("auth" if code == "AUTH_FAILED" else "unavailable", f"scripted: {code}")
        self.steps.step("system", f"fail: {code}")

    def usage(self) -> Usage:
        return Usage(
            input_tokens=self._input,
            output_tokens=self._output,
            cache_read_tokens=0,
            cache_write_tokens=0,
            cost_usd=self._cost,
            tokens_source="cli",
            cost_source="unknown" if self._cost is None else "price_table" if self._priced else "cli",
            turns=self._turns,
            replies=self._replies,
            tool_calls=self._turns,
        )

    def final_message(self) -> str:
        return self._last

    @property
    def warnings(self) -> Sequence[str]:
        if self.unpriced is None:
            return super().warnings
        why = no_price(self.unpriced) if self.unpriced else "a usage step without cost_usd and model: the session's cost is unknown"
        return [*super().warnings, why]

    def end(self, exit: ProcessExit, *, stopped_for: str | None, stderr_tail: str) -> SessionEnd:
        if self._code is not None:
            return SessionEnd(code=self._code, reason=f"the script failed with {self._code}")
        did = self.replied or (self.request.exchange is not None and bool(self.request.exchange.usage.replies))
        if stopped_for is None and exit.status != 0 and not did:
            return SessionEnd(code="AGENT_CRASHED", reason=f"ended before any step with {exit_words(exit)}{last_words(stderr_tail)}")
        if stopped_for is None and not self.final_seen:
            self.warn(f"the script did not come to its end: {exit_words(exit)}")
        return SessionEnd()
