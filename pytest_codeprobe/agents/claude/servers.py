"""MCP servers of a Claude Code session: those that the task declares, and those of the workspace's own .mcp.json."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_codeprobe.agents.base import json_object, mapping, sequence
from pytest_codeprobe.agents.claude.sources import reads_project
from pytest_codeprobe.errors import did_you_mean
from pytest_codeprobe.model.capabilities import Capabilities
from pytest_codeprobe.model.config import AgentConfig

FILE = "codeprobe-mcp.json"  #: in the session's config dir: the task's servers, with the values of their variables
#: a variable of the session whose value is a dollar sign; set where a value of a server needs it
DOLLAR = "_CODEPROBE_DOLLAR"
#: words of the CLI for a server that does not serve; `pending`: it has not answered in time, and the session goes on without it
NOT_THERE = frozenset({"failed", "needs-auth", "pending"})
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  #: it becomes part of the tools' names
_FIELDS = ("command", "args", "env")
_LATER = ("url", "headers")


def problems(servers: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """What is wrong with `agent.mcp_servers`: (dotted path, words about it)."""
    for name, server in servers.items():
        if not _NAME.fullmatch(name):
            words = f"has the server {name!r}; the name must be made of at most 64 letters, digits, _ and -"
            yield "agent.mcp_servers", words
            continue
        at = f"agent.mcp_servers.{name}"
        for field in server:
            if field in _LATER:
                yield f"{at}.{field}", "is not available yet; only servers with a 'command' are"
            elif field not in _FIELDS:
                yield at, f"has the unknown field {field!r}{did_you_mean(field, _FIELDS)}"
        if not any(field in _LATER for field in server):
            yield from _shape(at, server)


def _shape(at: str, server: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    command, args, env = server.get("command"), server.get("args", ()), server.get("env", {})
    if command is None:
        yield at, "needs a 'command'"
    elif not isinstance(command, str) or not command.strip():
        yield f"{at}.command", "must be the name or path of a program"
    if not isinstance(args, list | tuple):
        yield f"{at}.args", "must be a list of texts"
    else:
        for number, value in enumerate(args):
            if not isinstance(value, str):
                yield f"{at}.args[{number}]", "must be text; quote it"
    if not isinstance(env, dict):
        yield f"{at}.env", "must be a mapping of names to texts"
    else:
        for name, value in env.items():
            if not name or "=" in name:
                yield f"{at}.env", f"has {name!r}, which can't be the name of a variable"
            elif not isinstance(value, str):
                yield f"{at}.env.{name}", "must be text; quote it"


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of one session."""

    own: Mapping[str, Mapping[str, Any]]  #: the task's
    workspace_file: Path | None  #: .mcp.json, where it counts and is there
    in_workspace: frozenset[str]  #: names in it

    @property
    def declared(self) -> frozenset[str]:
        """Names that must be there when the session starts."""
        return self.in_workspace.union(self.own)

    @property
    def tools(self) -> list[str]:
        """Rules that approve all tools of every server."""
        return [f"mcp__{name}" for name in sorted(self.declared) if _NAME.fullmatch(name)]

    def document(self) -> bytes | None:
        """The configuration file of the task's servers; None if it has none."""
        if not self.own:
            return None
        listed = {name: {"type": "stdio", **_literal(server)} for name, server in self.own.items()}
        return json.dumps({"mcpServers": listed}).encode("utf-8", "surrogatepass")


def servers(config: AgentConfig, workspace: Path) -> Servers:
    """What a session in this workspace has; --strict-mcp-config leaves out everything that is not named to the CLI."""
    path = workspace / ".mcp.json"
    found: Mapping[str, Any] | None = None
    if reads_project(config):
        try:
            found = mapping(mapping(json_object(path.read_bytes())).get("mcpServers"))
        except OSError:
            found = None
    return Servers(config.mcp_servers or {}, path if found is not None else None, frozenset(found or ()))


def by_hand(config: AgentConfig, states: Mapping[str, str]) -> str:
    """What to do about servers that are not there; a sentence, with the command of one that the task itself declares."""
    late = "pending" in states.values()
    more = " Or give it more time: run_limits.provider_patience, and MCP_TIMEOUT (in milliseconds) in agent.env." if late else ""
    for name in states:
        server = (config.mcp_servers or {}).get(name)
        if server is not None:
            command = shlex.join((str(server.get("command", "")), *map(str, server.get("args") or ())))
            return f"Start it by hand to see what it says: `{command}`.{more}"
    return f"Correct what the workspace's .mcp.json starts.{more}"


def capabilities_of(agent: str, version: str | None, model: str | None, details: Mapping[str, Any]) -> Capabilities:
    """What the session's first event told, in the details that the parser keeps of it."""
    states = mapping(details.get("mcp_servers"))
    return Capabilities(
        agent=agent,
        version=version,
        model=model,
        tools=tuple(sorted({tool for tool in sequence(details.get("tools")) if tool})),
        mcp_servers=tuple(sorted(name for name, state in states.items() if name and state not in NOT_THERE)),
    )


def _literal(value: Any) -> Any:
    """The same with every `${` made harmless: the CLI would expand it a second time, out of its own environment."""
    if isinstance(value, str):
        return value.replace("${", f"${{{DOLLAR}}}{{")
    if isinstance(value, Mapping):
        return {key: _literal(part) for key, part in value.items()}
    return [_literal(part) for part in value]
