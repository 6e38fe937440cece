"""What a Claude Code session's stream of JSON lines says: steps, usage, provider trouble, and how it ended."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_codeprobe.agents.base import BaseParser, amount, count, exit_words, last_words, mapping, no_price, sequence, text
from pytest_codeprobe.agents.base.transcripts import Draft
from pytest_codeprobe.agents.claude import access
from pytest_codeprobe.agents.claude.servers import NOT_THERE, by_hand, capabilities_of
from pytest_codeprobe.agents.claude.usage import Replies, Reply, final_tokens, since
from pytest_codeprobe.model.agent import Agent, Fault, SessionEnd, SessionRequest
from pytest_codeprobe.model.capabilities import Capabilities
from pytest_codeprobe.model.result import Source, Usage
from pytest_codeprobe.model.sandbox import ProcessExit
from pytest_codeprobe.text import one_line

_SYNTHETIC = "<synthetic>"  # the model of a message that the CLI wrote itself
#: tools whose success is no work yet, and whose refusal blocks none
_LOOKING = frozenset(
    {"AskUserQuestion", "BashOutput", "EnterPlanMode", "ExitPlanMode", "Glob", "Grep", "LS", "NotebookRead", "Read", "ToolSearch"}
    | {"WebFetch", "WebSearch", "Agent", "ListAgents", "Skill", "Task", "TodoWrite"}
    | {"TaskCreate", "TaskGet", "TaskList", "TaskOutput", "TaskUpdate"}
)
_AUTH_WORDS = frozenset({"authentication_failed", "billing_error", "oauth_org_not_allowed"})
_REQUEST_WORDS = frozenset({"invalid_request", "max_output_tokens", "model_not_found"})
_TRANSIENT = frozenset({408, 409, 425, 429})
_CALLS_HELD = 10_000
_NAME = 200  # letters of a tool's or server's name that are kept
_LONG_WAIT = 60.0  #: seconds; of a 429 that asks for more the CLI tells nothing but that it gives up
_LIMITS = {"error_max_turns": "max_turns", "error_max_budget_usd": "max_usd"}


@dataclass(frozen=True, slots=True)
class _Result:
    """The CLI's last line."""

    subtype: str
    is_error: bool
    message: str
    tokens: Mapping[str, int]
    cost: float | None
    cost_source: Source
    most: float  #: US dollars; what the session can have cost at most where `cost` is unknown


class ClaudeParser(BaseParser):
    """Takes lines with and without `--include-partial-messages`; only with it is usage known before the end."""

    def __init__(self, request: SessionRequest, agent: type[Agent], *, declared: frozenset[str] = frozenset()) -> None:
        self.agent = agent  # type: ignore[misc]  # handed in: the adapter imports the parser, not the other way round
        super().__init__(request)
        self.version = None
        self._declared = declared
        self._replies = Replies(request.context.prices)
        self._turns = self._tool_calls = 0
        self._open: dict[str, str] = {}  #: conversation (id of the call that began it, "" = main) -> message being streamed
        self._tools: dict[str, str] = {}  #: call id -> tool
        self._refused: dict[str, str] = {}
        self._earlier = None if request.exchange is None else request.exchange.usage  #: of this conversation, whose work counts as done
        self._ran = self._worked = self._earlier is not None and bool(self._earlier.tool_calls)
        self._requested = False
        self._mode = ""
        self._last = ""
        self._result: _Result | None = None
        self._rejection: str | None = None  #: why the provider would not take a request, where that is no outage
        self._servers: dict[str, str] = {}  #: declared MCP servers that were not there

    # reading

    def event(self, event: Mapping[str, Any]) -> None:
        kind = event.get("type")
        if kind == "stream_event":
            self._stream(event)
        elif kind == "assistant":
            self._assistant(event)
        elif kind == "user":
            self._user(event)
        elif kind == "system":
            self._system(event)
        elif kind == "result":
            self._end(event)

    def _answering(self) -> None:
        self.replied, self.fault, self._rejection = True, None, None
        self.final_seen = False  # a background task of the session may wake it after a result

    def _stream(self, line: Mapping[str, Any]) -> None:
        event = mapping(line.get("event"))
        conversation = text(line.get("parent_tool_use_id"))
        if event.get("type") == "message_start":
            message = mapping(event.get("message"))
            self._answering()
            if message_id := text(message.get("id")):
                self._open[conversation] = message_id
                self._replies.begin(message_id, text(message.get("model"))).add(mapping(message.get("usage")))
        elif event.get("type") == "message_delta":
            message_id = text(line.get("api_message_id")) or self._open.get(conversation, "")
            if reply := self._replies.get(message_id):
                reply.add(mapping(event.get("usage")))
        elif event.get("type") == "message_stop":
            self._open.pop(conversation, None)

    def _assistant(self, line: Mapping[str, Any]) -> None:
        message = mapping(line.get("message"))
        if message.get("model") == _SYNTHETIC or line.get("is_api_error_message") is True:
            self._synthetic(line, message)
            return
        self._answering()
        model = text(message.get("model"))
        reply = self._replies.begin(text(message.get("id")) or text(line.get("uuid")), model)
        if reply.draft is None:
            reply.draft = self._step("agent", line, model=model or None)
        main = not line.get("parent_tool_use_id")
        for block in map(mapping, sequence(message.get("content"))):
            self._block(reply, reply.draft, block, main=main)
            if not main:
                reply.write(block)
        reply.add(mapping(message.get("usage")))

    def _block(self, reply: Reply, draft: Draft, block: Mapping[str, Any], *, main: bool) -> None:
        kind = block.get("type")
        if kind == "text":
            self.steps.text(draft, text(block.get("text")))
            if main and text(block.get("text")).strip():
                self._last = text(block.get("text"))
        elif kind == "thinking":
            self.steps.reasoning(draft, text(block.get("thinking")))
        elif kind in ("tool_use", "server_tool_use"):
            call_id, name = text(block.get("id")), text(block.get("name"))
            if self.steps.call(draft, call_id, name, block.get("input")) and kind == "tool_use" and call_id not in self._tools:
                self._tool_calls += 1
                self._turns += not reply.called
                reply.called = True
                _put(self._tools, call_id, name)
        elif text(block.get("tool_use_id")):  # what a tool of the provider's answered
            self.steps.result(text(block.get("tool_use_id")), _content(block.get("content")))

    def _user(self, line: Mapping[str, Any]) -> None:
        content = mapping(line.get("message")).get("content")
        for meta in map(mapping, sequence(line.get("tool_result_meta"))):
            if mapping(meta.get("permission_decision")).get("decision") == "reject":
                self._refuse(text(meta.get("id")))
        said = [content] if isinstance(content, str) else []
        for block in map(mapping, sequence(content)):
            if block.get("type") == "tool_result":
                self._tool_result(block)
            elif block.get("type") == "text":
                said.append(text(block.get("text")))
        if said:
            self._step("user", line, "\n".join(said))

    def _tool_result(self, block: Mapping[str, Any]) -> None:
        call_id = text(block.get("tool_use_id"))
        failed = block.get("is_error") is True
        name = self._tools.get(call_id, "")
        if not failed:
            self._ran = True
            self._worked = self._worked or name not in _LOOKING
        extra = {"failed": True} if failed else {}
        if call_id in self._refused:
            extra["refused"] = True
        self.steps.result(call_id, _content(block.get("content")), **extra)

    def _refuse(self, call_id: str, name: str = "") -> None:
        _put(self._refused, call_id, name or self._tools.get(call_id, ""))

    def _system(self, line: Mapping[str, Any]) -> None:
        subtype = line.get("subtype")
        if subtype == "init":
            self._init(line)
        elif subtype == "status":
            self._requested = self._requested or line.get("status") == "requesting"
        elif subtype == "api_retry":
            self._retry(line)
        elif subtype == "permission_denied":
            self._refuse(text(line.get("tool_use_id")), text(line.get("tool_name")))
        elif subtype == "compact_boundary":
            self._step("system", line, "[the conversation was compacted]")
            sizes = mapping(line.get("compact_metadata"))
            self._replies.compacted(self.model or "", *(count(sizes.get(name)) or 0 for name in ("pre_tokens", "post_tokens")))

    def _init(self, line: Mapping[str, Any]) -> None:
        self.session_id = text(line.get("session_id")) or self.session_id
        self.version = text(line.get("claude_code_version")) or self.version
        self.model = text(line.get("model")) or self.model
        self._mode = text(line.get("permissionMode"))
        states = {text(s.get("name")): text(s.get("status")) for s in map(mapping, sequence(line.get("mcp_servers")))}
        self._servers = {name: state for name, state in states.items() if state in NOT_THERE}
        self._servers |= dict.fromkeys(self._declared - states.keys(), "missing")
        self.doomed = bool(self._servers)
        self.details = {
            "tools": [text(tool)[:_NAME] for tool in sequence(line.get("tools"))][:1000],
            "mcp_servers": _some(states),
            "permission_mode": self._mode,
        }

    def _step(self, source: Any, line: Mapping[str, Any], message: str = "", *, model: str | None = None, **extra: Any) -> Draft:
        if conversation := text(line.get("parent_tool_use_id")):
            extra["parent_tool_use_id"] = conversation
            if kind := text(line.get("subagent_type")):
                extra["subagent_type"] = kind
        draft = self.steps.step(source, message, timestamp=text(line.get("timestamp")) or None, model=model, **extra)
        draft.copied = line.get("isReplay") is True
        return draft

    # trouble

    def _trouble(self, status: int | None, word: str, message: str, retry_after: float | None = None, *, retrying: bool = False) -> None:
        """Take what the CLI says of a failed request. Its own events alone do that, never text in a tool's output."""
        if status in (401, 402, 403) or word in _AUTH_WORDS:
            self.fault = Fault("auth", message, status)
        elif (status is not None and 400 <= status < 500 and status not in _TRANSIENT) or word in _REQUEST_WORDS:
            self.fault, self._rejection = None, message
        else:
            if self.fault is not None:
                retry_after = retry_after or self.fault.retry_after
            elif status == 429 and not retrying:
                retry_after = _LONG_WAIT
            self.fault = Fault("unavailable", message, status, retry_after)

    def _retry(self, line: Mapping[str, Any]) -> None:
        status, word = count(line.get("error_status")), text(line.get("error"))
        attempt, delay = count(line.get("attempt")) or 1, (amount(line.get("retry_delay_ms")) or 0) / 1000
        what = " ".join(str(part) for part in (status, word) if part) or "no answer"
        self._step("system", line, f"[the model's provider: {what}; retry {attempt} of {count(line.get('max_retries'))}]", llm_call_count=0)
        # The CLI's own delays double from 0.5 s, give or take a quarter; a longer one is what the provider asked for.
        named = delay if delay > 1.5 * 0.5 * 2 ** min(attempt - 1, 10) else None
        self._trouble(status, word, f"the model's provider answered {what}", named, retrying=True)

    def _synthetic(self, line: Mapping[str, Any], message: Mapping[str, Any]) -> None:
        said = _content(message.get("content"))
        self._step("system", line, said, llm_call_count=0, synthetic=True)
        if line.get("is_api_error_message") is True or text(line.get("error")):
            self._trouble(count(line.get("api_error_status")), text(line.get("error")), one_line(self.request.redact(said), 500))

    def _end(self, line: Mapping[str, Any]) -> None:
        self.final_seen = True
        for denial in map(mapping, sequence(line.get("permission_denials"))):
            self._refuse(text(denial.get("tool_use_id")), text(denial.get("tool_name")))
        said = text(line.get("result")) or "; ".join(text(e) for e in sequence(line.get("errors")))
        cost, source = self._replies.final_cost(line)
        most, tokens = self._replies.final_cost_at_most(line), final_tokens(line)
        if self._earlier is not None:  # the CLI's last line counts the whole conversation
            (tokens, cost), most = since(self._earlier, tokens, cost), 0.0
        self._result = _Result(text(line.get("subtype")), line.get("is_error") is True, said, tokens, cost, source, most)
        if not self._result.is_error:
            self.fault = self._rejection = None
            if said.strip():
                self._last = said
        elif line.get("terminal_reason") == "api_error" and self.fault is None and self._rejection is None:
            self._trouble(count(line.get("api_error_status")), "", one_line(self.request.redact(said), 500))

    # what is known

    @property
    def unpriced(self) -> str | None:  # type: ignore[override]  # a plain attribute elsewhere
        """See SessionParser."""
        return self._replies.unpriced

    def usage(self) -> Usage:
        tokens = self._result.tokens if self._result is not None and self.final_seen else self._replies.tokens()
        cost, source = self._cost()
        return Usage(
            **tokens,
            cost_usd=cost,
            tokens_source="cli",
            cost_source=source,
            turns=self._turns,
            replies=self._replies.number,
            tool_calls=self._tool_calls,
        )

    def cost_at_most(self) -> float | None:
        so_far = self._replies.cost_at_most()
        return max(self._result.most, so_far) if self._result is not None else so_far

    def _cost(self) -> tuple[float | None, Source]:
        """The CLI tells it in its last line; until then, and where that never came, its replies are priced by the table."""
        if self._result is not None and self.final_seen:
            return self._result.cost, self._result.cost_source
        if not self.replied and (self.fault is not None or not self._requested):
            return 0.0, "cli"  # every request failed, or none was made
        return self._replies.cost()

    def final_message(self) -> str:
        return self._last

    def capabilities(self) -> Capabilities | None:
        return capabilities_of(self.agent.name, self.version, self.model, self.details) if self.details else None

    # the end

    def end(self, exit: ProcessExit, *, stopped_for: str | None, stderr_tail: str) -> SessionEnd:
        if self.unpriced is not None and self.usage().cost_usd is None:
            self.warn(no_price(self.unpriced))
        if self._refused:
            names = ", ".join(sorted({name or "?" for name in self._refused.values()}))
            self.warn(f"tool calls were refused for want of permission: {len(self._refused)} ({one_line(names)})")
        if stopped_for is not None and stopped_for.startswith("stopped:"):
            return SessionEnd()
        by_limit = stopped_for not in (None, "final", "auth", "patience")
        if self.fault is not None and not (by_limit and self._ran):
            return self._provider_end(self.fault)
        if stopped_for == "patience":
            return self._silent_end()
        if (fault := self._set_up_wrong()) is not None:
            return fault
        return SessionEnd() if by_limit else self._own_end(exit, stderr_tail)

    def _provider_end(self, fault: Fault) -> SessionEnd:
        if fault.kind == "auth":
            return SessionEnd(code="AUTH_FAILED", reason=fault.message, remediation=access.refused_remedy(self.request))
        # without a status nobody answered that speaks the provider's language
        way = "Check the way to the model's provider: the network, ANTHROPIC_BASE_URL, proxies, NODE_EXTRA_CA_CERTS. Then run again."
        remedy = None if fault.status is not None else way
        return SessionEnd(code="LLM_UNAVAILABLE", reason=fault.message, remediation=remedy, retry_after=fault.retry_after)

    def _silent_end(self) -> SessionEnd:
        """Nothing was heard for as long as `provider_patience` allows."""
        if self.details:
            return SessionEnd(code="LLM_UNAVAILABLE", reason="the model's provider did not answer")
        waits = f"; it waits for its MCP servers first: {', '.join(sorted(self._declared))}" if self._declared else ""
        reason = f"claude said nothing at all within {self.request.trial.limits.provider_patience:g} s of its start{waits}"
        return SessionEnd(code="AGENT_CRASHED", reason=one_line(reason), remediation=self._remedy())

    def _set_up_wrong(self) -> SessionEnd | None:
        """What the agent never had a chance against, whether it came to its end or a limit ended it."""
        if self._servers:
            names = ", ".join(f"{name} ({state})" for name, state in self._servers.items())
            reason = f"{self._program()}: a declared MCP server was not there at the start: {names}"
            wanted = self.request.redact(by_hand(self.request.trial.agent, self._servers))
            return SessionEnd(
                code="AGENT_CRASHED", reason=one_line(reason), remediation=wanted, detail={"mcp_servers": _some(self._servers)}
            )
        if self._blocked():
            names = ", ".join(sorted({name for name in self._refused.values() if name}))
            return SessionEnd(code="AGENT_BLOCKED", reason=one_line(f"refused for want of permission: {names}; nothing else was done"))
        return None

    def _own_end(self, exit: ProcessExit, stderr_tail: str) -> SessionEnd:
        """The CLI came to its end by itself."""
        result = self._result
        if result is None:
            return self._bad_end(f"{self._program()} ended without a result: {exit_words(exit)}{last_words(stderr_tail)}")
        if limit := _LIMITS.get(result.subtype):
            return SessionEnd(limit=limit)
        if result.is_error or not self.replied:
            why = self._rejection or one_line(self.request.redact(result.message), 500) or result.subtype or "no reply of the model"
            how = "ended with an error" if result.is_error else "ended without asking the model"
            return self._bad_end(f"{self._program()} {how}: {why}")
        return SessionEnd()

    def _bad_end(self, reason: str) -> SessionEnd:
        """An end that is the agent's own if it had done something, and a crash if it had not."""
        if self._ran:
            self.warn(reason)
            return SessionEnd()
        return SessionEnd(code="AGENT_CRASHED", reason=reason, remediation=self._remedy())

    def _program(self) -> str:
        return f"claude {self.version}" if self.version else "claude"

    def _remedy(self) -> str | None:
        """What to do about a request that the provider refuses, and a CLI that did not even say what it is: it may be too old."""
        if self._rejection is not None:
            return "The provider refuses the request itself: choose another model (--codeprobe-model), or correct the agent's settings."
        if self.details:
            return None
        program = shlex.quote(self.request.executable or "claude")
        oldest = self.agent.minimum_version
        return f"See what `{program} --version` says: {oldest} or later is needed. {self.agent.install_hint} Then run again."

    def _blocked(self) -> bool:
        """Tools that do work were refused, and none did any. In plan mode that is what was asked for."""
        return self._mode != "plan" and not self._worked and any(name not in _LOOKING for name in self._refused.values())


def _put(held: dict[str, str], key: str, value: str) -> None:
    """Remember, up to a number that no honest session comes near."""
    if key and (key in held or len(held) < _CALLS_HELD):
        held[key] = value


def _some(states: Mapping[str, str]) -> dict[str, str]:
    """States of servers, as many as any session has."""
    return {name[:_NAME]: state[:_NAME] for name, state in list(states.items())[:1000]}


def _content(content: Any) -> str:
    """The text of a message's or a tool result's content; what is no text by its kind."""
    if isinstance(content, str):
        return content
    return "\n".join(
        text(block.get("text")) if block.get("type") == "text" else f"[{text(block.get('type')) or 'unknown'}]"
        for block in map(mapping, sequence(content))
    )
