"""What a provider's protocol has to do for the server; each protocol is one module with one subclass of `Protocol`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tests.model_server.scenario import NOTHING, Usage

Operation = Literal["generate", "count"]


@dataclass(frozen=True)
class Conversation:
    """A model request, in words that all protocols share.

    `first_message` is the text of the first user message, `replies` the number of model replies that the request shows, `session` an
    id that stays the same for one run of the agent ("" where the protocol has none), `cwd` the working directory that the agent told
    ("" if none), `credential` the key that came with the request, `messages` all of them as JSON ("" where no script asks for it).
    """

    model: str
    system: str
    first_message: str
    replies: int
    tools: tuple[str, ...]
    stream: bool
    session: str
    cwd: str
    credential: str
    messages: str = ""


@dataclass(frozen=True)
class Call:
    """A tool call with its arguments filled in."""

    tool: str
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A reply to send: text, then calls, and the tokens to claim."""

    model: str
    text: str
    calls: tuple[Call, ...]
    usage: Usage


@dataclass(frozen=True)
class Event:
    """One event of a stream, and the tokens that are told once it is sent (the sum over a stream is the answer's usage)."""

    data: bytes
    told: Usage = NOTHING


class Protocol(ABC):
    """One provider's protocol over HTTP."""

    name: str

    @abstractmethod
    def operation(self, method: str, path: str) -> Operation | None:
        """What a request asks for; None when it isn't one of this protocol's."""

    @abstractmethod
    def read(self, path: str, headers: Mapping[str, str], body: dict[str, Any]) -> Conversation:
        """Understand a request (header names in lower case). Raises ValueError for a body that the real provider would refuse."""

    @abstractmethod
    def whole(self, answer: Answer) -> dict[str, Any]:
        """The reply's JSON body, for a request that doesn't stream."""

    @abstractmethod
    def events(self, answer: Answer) -> Iterator[Event]:
        """The reply as server-sent events."""

    @abstractmethod
    def error(self, status: int, message: str) -> dict[str, Any]:
        """The JSON body of an HTTP error."""

    @abstractmethod
    def error_event(self, message: str) -> Event:
        """The event by which the provider says "overloaded" inside a stream."""

    @abstractmethod
    def malformed_event(self) -> Event:
        """An event as the protocol frames it, with data that can't be parsed."""

    @abstractmethod
    def count(self, tokens: int) -> dict[str, Any]:
        """The reply to a request that only counts tokens."""


def pieces(text: str, size: int = 48) -> list[str]:
    """Cut a text as providers stream it; at least one piece, even of an empty text."""
    return [text[start : start + size] for start in range(0, len(text), size)] or [""]
