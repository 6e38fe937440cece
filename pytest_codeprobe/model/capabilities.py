"""What an agent can use, as its own first event reports it: a snapshot of that, and how a session differs from one."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pytest_codeprobe.model.base import Model

_SHOWN = 12  #: names in a sentence
_OF_A_SERVER = "mcp__"  #: how the names of its tools begin


class Capabilities(Model):
    """A snapshot; schema: schemas/capabilities.json."""

    schema_version: Literal["1"] = "1"
    agent: str
    version: str | None  #: of the CLI
    model: str | None
    asked_model: str | None = None  #: that of the recording; None: whichever the CLI takes
    tools: tuple[str, ...]  #: the CLI's own names
    mcp_servers: tuple[str, ...]  #: those that were there

    def without_servers(self) -> Capabilities:
        """The same without MCP servers and their tools."""
        own = tuple(tool for tool in self.tools if not tool.startswith(_OF_A_SERVER))
        return self.model_copy(update={"tools": own, "mcp_servers": ()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A session held against a snapshot."""

    missing_tools: tuple[str, ...] = ()
    missing_servers: tuple[str, ...] = ()
    model: tuple[str | None, str | None] | None = None  #: (snapshot, session), where they differ
    version: tuple[str | None, str | None] | None = None  #: the same
    added_tools: tuple[str, ...] = ()
    added_servers: tuple[str, ...] = ()

    @property
    def drifted(self) -> bool:
        """Whether the session has less than the snapshot, or another model or version."""
        return bool(self.missing_tools or self.missing_servers or self.model or self.version)

    def drift(self) -> str:
        """The differences in a sentence."""
        return "; ".join(self._drift())

    def _drift(self) -> Iterator[str]:
        for name, pair in (("version", self.version), ("model", self.model)):
            if pair is not None:
                yield f"{name} {pair[0] or 'unknown'} -> {pair[1] or 'unknown'}"
        for what, names in (("tools", self.missing_tools), ("MCP servers", self.missing_servers)):
            if names:
                yield f"{what} gone: {_some(names)}"

    def additions(self) -> str:
        """What the session has and the snapshot has not; empty if nothing."""
        parts = [f"{what} {_some(names)}" for what, names in (("tools", self.added_tools), ("MCP servers", self.added_servers)) if names]
        return " and ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """For the detail of an error."""
        found: dict[str, Any] = {"missing_tools": list(self.missing_tools), "missing_mcp_servers": list(self.missing_servers)}
        for name, pair in (("version", self.version), ("model", self.model)):
            if pair is not None:
                found[name] = {"old": pair[0], "new": pair[1]}
        return found


def compare(
    snapshot: Capabilities,
    now: Capabilities,
    *,
    removed: Callable[[str], bool],
    own_servers: Collection[str] = (),
    asked_model: str | None = None,
) -> Comparison:
    """`removed`: whether the task's own lists take a tool away; `own_servers`: what the task itself adds.

    A session that was asked for another model than the recording was, by `asked_model`, has another one for that reason: no drift.
    """
    comparable = asked_model is None or asked_model == snapshot.asked_model
    tools, servers = frozenset(now.tools), frozenset(now.mcp_servers)
    return Comparison(
        missing_tools=tuple(tool for tool in snapshot.tools if tool not in tools and not removed(tool)),
        missing_servers=tuple(server for server in snapshot.mcp_servers if server not in servers),
        model=(snapshot.model, now.model) if comparable and snapshot.model != now.model else None,
        version=(snapshot.version, now.version) if snapshot.version != now.version else None,
        added_tools=tuple(
            t for t in now.tools if t not in snapshot.tools and not any(t.startswith(f"{_OF_A_SERVER}{s}__") for s in own_servers)
        ),
        added_servers=tuple(server for server in now.mcp_servers if server not in snapshot.mcp_servers and server not in own_servers),
    )


def _some(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"
