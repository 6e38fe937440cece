"""Anthropic Messages: POST /v1/messages (streamed or whole) and POST /v1/messages/count_tokens."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from tests.model_server.protocol import Answer, Conversation, Event, Operation, Protocol, pieces
from tests.model_server.scenario import NOTHING, Usage

ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}
# How agents tell their working directory in the system prompt or in a reminder beside the first message.
WORKING_DIRECTORY = re.compile(r"(?:primary |current )?working directory:\s*(\S[^\n]*)", re.IGNORECASE)


class AnthropicMessages(Protocol):
    """The protocol of api.anthropic.com, version 2023-06-01."""

    name = "anthropic"

    def operation(self, method: str, path: str) -> Operation | None:
        if method != "POST":
            return None
        if path.endswith("/v1/messages"):
            return "generate"
        return "count" if path.endswith("/v1/messages/count_tokens") else None

    def read(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Conversation:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages or not isinstance(body.get("model"), str):
            raise ValueError("model and a non-empty list of messages are required")
        system = _text(body.get("system"))
        # Newer Claude Code puts role "system" turns between the others; they are no replies and no prompt.
        system += "".join("\n" + _text(message.get("content")) for message in messages if message.get("role") == "system")
        first = next((_text(message.get("content")) for message in messages if message.get("role") == "user"), "")
        found = WORKING_DIRECTORY.search(system) or WORKING_DIRECTORY.search(first)
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        return Conversation(
            model=body["model"],
            system=system,
            first_message=first,
            replies=_replies(messages),
            tools=tuple(str(tool.get("name")) for tool in body.get("tools") or []),
            stream=bool(body.get("stream")),
            session=headers.get("x-claude-code-session-id", ""),
            cwd=found.group(1).strip() if found else "",
            credential=headers.get("x-api-key", bearer),
            messages=json.dumps(messages),
        )

    def whole(self, answer: Answer) -> dict[str, Any]:
        message = _message(answer)
        message["content"] = _blocks(answer)
        message["stop_reason"] = _stop_reason(answer)
        message["usage"]["output_tokens"] = answer.usage.output
        return message

    def events(self, answer: Answer) -> Iterator[Event]:
        usage = answer.usage
        # The output count of message_start is a first guess of 1; message_delta corrects it with the sum.
        start = Usage(usage.input, min(1, usage.output), usage.cache_read, usage.cache_write)
        yield _event({"type": "message_start", "message": _message(answer)}, start)
        for index, block in enumerate(_blocks(answer)):
            if block["type"] == "text":
                empty, deltas = {**block, "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            else:
                arguments = json.dumps(block["input"])
                empty, deltas = {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(arguments)]
            yield _event({"type": "content_block_start", "index": index, "content_block": empty})
            for delta in deltas:
                yield _event({"type": "content_block_delta", "index": index, "delta": delta})
            yield _event({"type": "content_block_stop", "index": index})
        stop = {"stop_reason": _stop_reason(answer), "stop_sequence": None}
        end = {"type": "message_delta", "delta": stop, "usage": _usage(usage, usage.output)}
        yield _event(end, Usage(0, usage.output - start.output, 0, 0))
        yield _event({"type": "message_stop"})

    def error(self, status: int, message: str) -> dict[str, Any]:
        return {"type": "error", "error": {"type": ERROR_TYPES.get(status, "api_error"), "message": message}, "request_id": _id("req")}

    def error_event(self, message: str) -> Event:
        return _event({"type": "error", "error": {"type": "overloaded_error", "message": message}})

    def malformed_event(self) -> Event:
        return Event(b'event: content_block_start\ndata: {"type": "content_block_start", "index": \n\n')

    def count(self, tokens: int) -> dict[str, Any]:
        return {"input_tokens": tokens}


def _text(content: Any) -> str:
    """The text of a content field: a string, or a list of blocks of which the text blocks count."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(str(block.get("text", "")) for block in content if isinstance(block, dict) and block.get("type") == "text")


def _replies(messages: list[dict[str, Any]]) -> int:
    """How many replies the conversation shows; neighbouring assistant messages are parts of one reply."""
    roles = [message.get("role") for message in messages if message.get("role") != "system"]
    return sum(role == "assistant" and (at == 0 or roles[at - 1] != "assistant") for at, role in enumerate(roles))


def _blocks(answer: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if answer.text or not answer.calls:
        blocks.append({"type": "text", "text": answer.text})
    blocks += [{"type": "tool_use", "id": _id("toolu"), "name": call.tool, "input": call.arguments} for call in answer.calls]
    return blocks


def _message(answer: Answer) -> dict[str, Any]:
    return {
        "id": _id("msg"),
        "type": "message",
        "role": "assistant",
        "model": answer.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(answer.usage, min(1, answer.usage.output)),
    }


def _usage(usage: Usage, output: int) -> dict[str, int]:
    return {
        "input_tokens": usage.input,
        "cache_creation_input_tokens": usage.cache_write,
        "cache_read_input_tokens": usage.cache_read,
        "output_tokens": output,
    }


def _stop_reason(answer: Answer) -> str:
    return "tool_use" if answer.calls else "end_turn"


def _event(data: dict[str, Any], told: Usage = NOTHING) -> Event:
    return Event(f"event: {data['type']}\ndata: {json.dumps(data)}\n\n".encode(), told)


def _id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex[:24]}"
