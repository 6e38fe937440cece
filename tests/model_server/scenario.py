"""What the server says, as data: scripts made of turns, and faults. Nothing here knows a provider's protocol.

The JSON form is the same as the classes, field by field; fields with a default may be left out, unknown fields are errors:

    {"scripts": [{"key": "fix the parser",
                  "turns": [{"text": "I look first.", "calls": [{"tool": "Bash", "arguments": {"command": "ls"}}], "usage": {"input": 900}},
                            {"text": "Done."}],
                  "faults": [{"kind": "status", "status": 429, "times": 1, "retry_after": 1}]}],
     "faults": []}
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

FaultKind = Literal["status", "error_event", "cut", "malformed", "empty", "slow", "refused"]


class ScenarioError(ValueError):
    """A script file that can't be used; the message names the place in it."""


@dataclass(frozen=True)
class Usage:
    """The tokens that a reply claims, each kind counted apart (input excludes both cache kinds)."""

    input: int = 1000
    output: int = 50
    cache_read: int = 0
    cache_write: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write + other.cache_write,
        )


NOTHING = Usage(0, 0, 0, 0)


@dataclass(frozen=True)
class ToolCall:
    """One call of a tool of the agent. `{cwd}` in any string of the arguments becomes the agent's working directory, and `{nonce}`, there
    and in a turn's text, what the prompts of the built-in canary and of doctor's probe ask for.

    A tool that the request doesn't offer is a mistake of the script and answered with 400, unless `offered` is false.
    """

    tool: str
    arguments: dict[str, Any] = field(default_factory=dict)
    offered: bool = True


@dataclass(frozen=True)
class Turn:
    """One reply of the model: a text, then tool calls. A turn without calls ends the session.

    `delay` is the wait before the first byte, `event_delay` the wait between two events of a stream, both in seconds.
    """

    text: str = ""
    calls: Sequence[ToolCall] = ()
    usage: Usage = Usage()
    delay: float = 0.0
    event_delay: float = 0.0


@dataclass(frozen=True)
class Fault:
    """A failure in place of, or on top of, a reply.

    kind         what happens
    status       HTTP `status` with the provider's error body; `retry_after` seconds in the header of that name, absent when None
    error_event  status 200, then an error event (overloaded) as the stream's only event
    cut          the stream breaks off after `after_events` events, the connection is closed
                 (`event_delay` before that lets the client see them first)
    malformed    the stream's first event, then one whose data is no JSON
    empty        status 200 and a stream without events
    slow         the right reply, but `delay` seconds before the first byte and `event_delay` between events
    refused      nobody listens; only in a scenario's faults, for the server's whole life

    It strikes `times` times (None = always) after `skip` requests went well, counted for the whole server or, with per="session", for
    each session of the agent; with `turn` only at that turn of the script. `where` says which requests it looks at: the agent's main
    ones, side requests (without tools), or both.
    """

    kind: FaultKind
    status: int = 500
    times: int | None = 1
    skip: int = 0
    turn: int | None = None
    where: Literal["main", "side", "all"] = "main"
    per: Literal["server", "session"] = "server"
    retry_after: float | None = None
    after_events: int = 3
    delay: float = 0.0
    event_delay: float = 0.0

    @property
    def name(self) -> str:
        """How the statistics call it: the kind, or the HTTP status."""
        return str(self.status) if self.kind == "status" else self.kind


@dataclass(frozen=True)
class Script:
    """The model's side of one conversation.

    `key` is looked for in the first user message, then in the system prompt; the first script whose key is there answers, and the one with
    an empty key answers the rest. Which turn is due follows from the number of replies that the request already shows, so a retried request
    gets the same answer. After the last turn a script ends with its last text, or starts again with `loop`.
    Without `tools` it is for requests that offer none, such as those of a simulated user.
    """

    turns: Sequence[Turn]
    key: str = ""
    faults: Sequence[Fault] = ()
    loop: bool = False
    tools: bool = True

    def turn(self, replies: int) -> Turn:
        """The turn for a conversation that already shows this many replies of the model."""
        if self.loop:
            return self.turns[replies % len(self.turns)]
        if replies < len(self.turns):
            return self.turns[replies]
        last = self.turns[-1]
        return dataclasses.replace(last, text=last.text or "Done.", calls=())


@dataclass(frozen=True)
class Scenario:
    """All that one server is told: scripts, faults for every script, and the reply to side requests (those without tools)."""

    scripts: Sequence[Script]
    faults: Sequence[Fault] = ()
    side: Turn = Turn(text="A short title", usage=Usage(input=20, output=5))

    def __post_init__(self) -> None:
        for place, script in enumerate(self.scripts):
            if not script.turns:
                raise ScenarioError(f"scripts[{place}]: a script needs at least one turn")
            if any(fault.kind == "refused" for fault in script.faults):
                raise ScenarioError(f"scripts[{place}]: refused is a fault of the whole server, not of a script")

    @property
    def refuses(self) -> bool:
        """Whether the server must not listen at all."""
        return any(fault.kind == "refused" for fault in self.faults)

    def script_for(self, first_message: str, system: str, *, tools: bool = True) -> Script | None:
        """The script whose key is in the first user message, else in the system prompt, else the one without a key."""
        scripts = [script for script in self.scripts if script.tools == tools]
        for text in (first_message, system):
            for script in scripts:
                if script.key and script.key in text:
                    return script
        return next((script for script in scripts if not script.key), None)


def load(path: Path) -> Scenario:
    """Read a scenario from a JSON file. Raises ScenarioError with the place in the file."""
    try:
        return parse(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError) as error:
        raise ScenarioError(f"{path}: {error}") from error


def parse(data: Any) -> Scenario:
    """Build a scenario from decoded JSON. Raises ScenarioError."""
    scenario = _fields(data, "scenario", Scenario)
    return Scenario(
        **scenario
        | {"scripts": tuple(_script(item, f"scripts[{at}]") for at, item in enumerate(_list(scenario.get("scripts", []), "scripts")))}
        | {"faults": _faults(scenario.get("faults", []), "faults")}
        | ({"side": _turn(scenario["side"], "side")} if "side" in scenario else {})
    )


def _script(data: Any, place: str) -> Script:
    script = _fields(data, place, Script)
    turns = tuple(_turn(item, f"{place}.turns[{at}]") for at, item in enumerate(_list(script.get("turns", []), f"{place}.turns")))
    return Script(**script | {"turns": turns, "faults": _faults(script.get("faults", []), f"{place}.faults")})


def _turn(data: Any, place: str) -> Turn:
    turn = _fields(data, place, Turn)
    listed = _list(turn.get("calls", []), f"{place}.calls")
    calls = tuple(ToolCall(**_fields(item, f"{place}.calls[{at}]", ToolCall)) for at, item in enumerate(listed))
    usage = Usage(**_fields(turn["usage"], f"{place}.usage", Usage)) if "usage" in turn else Usage()
    return Turn(**turn | {"calls": calls, "usage": usage})


def _faults(data: Any, place: str) -> tuple[Fault, ...]:
    faults = []
    for at, item in enumerate(_list(data, place)):
        fields = _fields(item, f"{place}[{at}]", Fault)
        if fields.get("kind") not in get_args(FaultKind):
            raise ScenarioError(f"{place}[{at}].kind: one of {', '.join(get_args(FaultKind))}")
        faults.append(Fault(**fields))
    return tuple(faults)


def _list(data: Any, place: str) -> list[Any]:
    if not isinstance(data, list):
        raise ScenarioError(f"{place}: a list is needed")
    return data


def _fields(data: Any, place: str, shape: type[Any]) -> dict[str, Any]:
    """The object's fields, checked to be known ones and to hold every field that has no default."""
    if not isinstance(data, dict):
        raise ScenarioError(f"{place}: an object is needed")
    known = {each.name: each for each in dataclasses.fields(shape)}
    unknown = sorted(set(data) - set(known))
    if unknown:
        raise ScenarioError(f"{place}: unknown field {unknown[0]!r}; known are {', '.join(known)}")
    for name, each in known.items():
        if name not in data and each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING:
            raise ScenarioError(f"{place}: {name} is missing")
    return dict(data)
