"""Agents: what an adapter declares, what it needs to build a session's command, and what it reads from the session.

Six of the nine CLIs exit 0 on failures, so what a session did is told by its parser and the workspace, not by a status.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import BaseModel

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import AgentInfo, Usage, no_usage
from pytest_codeprobe.model.transcript import Transcript

if TYPE_CHECKING:
    from pytest_codeprobe.model.capabilities import Capabilities
    from pytest_codeprobe.model.config import AgentConfig
    from pytest_codeprobe.model.context import Context
    from pytest_codeprobe.model.network import Endpoint
    from pytest_codeprobe.model.sandbox import ProcessExit, Sandbox
    from pytest_codeprobe.model.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Which part of a dialog a session is: it goes on with the conversation that earlier ones have led."""

    number: int  #: 1, 2, 3 …
    session_id: str = ""  #: as the last of them reported it; "" in the first
    usage: Usage = field(default_factory=no_usage)  #: of all earlier ones
    transcript_bytes: int = 0  #: that these have taken of the limit on transcripts


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """All that an adapter may use to build a session."""

    trial: Trial
    context: Context
    prompt: str  #: byte for byte what the agent gets; "" where a task has none
    sandbox: Sandbox
    isolates: bool  #: the driver keeps the agent's tools inside
    executable: str | None = None  #: absolute path of the CLI
    exchange: Exchange | None = None  #: None: it is no part of a dialog
    redact: Callable[[str], str] = str  #: takes the trial's secrets out of a text; to be called before any of it is cut off


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCommand:
    """How the session is started. `env` is added to the allowlisted environment; keys never stand in `argv`."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    reads: Sequence[Path] = ()  #: files and folders beside the sandbox that it needs, read-only
    mentions: str = ""  #: text of the task's author in which programs may be named that it needs, see Command
    files: Mapping[Path, bytes] = field(default_factory=dict)  #: written (mode 0600) before the start; in home or tmp
    secrets: frozenset[str] = frozenset()  #: values in `env` and `files` that must not leave the trial


@dataclass(frozen=True, slots=True, kw_only=True)
class CredentialLife:
    """How long a credential that an agent would use holds. Neither field ever has its value in it."""

    name: str  #: the variable or file that it is in
    expires_at: datetime | None = None  #: aware; None: it doesn't expire, unless `unknown` says otherwise
    unknown: str = ""  #: why its lifetime can't be known, as the end of a sentence
    remedy: str = ""  #: how to get a fresh one, or one of known lifetime: a sentence


@dataclass(slots=True)
class Fault:
    """Trouble of the model provider, as the CLI itself reported it."""

    kind: Literal["auth", "unavailable"]
    message: str
    status: int | None = None
    retry_after: float | None = None  #: seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionEnd:
    """What the adapter makes of an ended session. No code = it worked for its money: grade it."""

    code: str | None = None  #: LLM_UNAVAILABLE, AUTH_FAILED, AGENT_BLOCKED, AGENT_CRASHED, …
    reason: str | None = None
    remediation: str | None = None
    retry_after: float | None = None  #: seconds, from the provider
    limit: str | None = None  #: a limit that the CLI itself held: max_turns, max_usd
    detail: Mapping[str, Any] = field(default_factory=dict)  #: of the error, JSON values


class SessionParser(ABC):
    """Reads a session's stdout, line by line, as it grows. One for each session; used from one thread at a time."""

    fault: Fault | None = None  #: unbroken provider trouble at this moment; None again as soon as the model answers
    replied: bool = False  #: the model has begun to answer at least once
    final_seen: bool = False  #: the CLI's own last event: it has nothing more to do
    unpriced: str | None = None  #: a model of which no price is known, so that usage() can't tell a cost while the session runs
    session_id: str = ""  #: as the session reported it; by this its agent can go on with it
    doomed: bool = False  #: something that the session was to work with is not there; end() says what. It is stopped at once

    @property
    def overflowed(self) -> bool:
        """The transcript is over its limit, and the run wants no session to go on then (--codeprobe-trace-overflow fail)."""
        return False

    @abstractmethod
    def feed(self, line: bytes) -> None:
        """One line without its newline. Never raises, whatever is in it."""

    @abstractmethod
    def oversized(self, offset: int, length: int) -> None:
        """A line over the parser's limit, kept in the raw log only: where it begins and how long it is."""

    @abstractmethod
    def usage(self) -> Usage:
        """What is known so far."""

    def cost_at_most(self) -> float | None:
        """What the session has cost at most, US dollars, where usage() can't tell a cost; None: its tokens alone tell that."""
        return None

    @abstractmethod
    def info(self) -> AgentInfo:
        """Name, version and model as the session reported them."""

    @abstractmethod
    def final_message(self) -> str:
        """The agent's last message so far."""

    @abstractmethod
    def end(self, exit: ProcessExit, *, stopped_for: str | None, stderr_tail: str) -> SessionEnd:
        """The process is gone: what became of the session. `stopped_for`: the limit, "final" or reason we ended it for."""

    @abstractmethod
    def transcript(self) -> Transcript:
        """Everything as ATIF; called once, after end()."""

    def capabilities(self) -> Capabilities | None:
        """What the session said at its start that it can use; None as long as it has said nothing, and of agents that never do."""
        return None

    @property
    @abstractmethod
    def warnings(self) -> Sequence[str]:
        """What the user should know: unknown price, truncated transcript, oversized lines."""


class Agent(ABC):
    """An adapter for one agent. Stateless; one instance serves all sessions."""

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    executable: ClassVar[str | None] = None  #: program name looked up on PATH; None = built in
    is_session: ClassVar[bool] = True  #: False: nothing that answers or uses tools (oracle, nop, none)
    calls_model: ClassVar[bool] = True  #: a model is paid for; provider_patience is held
    tells_calls: ClassVar[bool] = True  #: its transcript has the tool calls; False: criteria on these don't apply
    #: its command() goes on with a conversation where the request has an `exchange` after the first: what a simulated user needs
    resumes: ClassVar[bool] = False
    backends: ClassVar[tuple[str, ...]] = ("direct",)  #: values of --codeprobe-backend that it has an environment for
    #: when its parser knows what a session has used: while it runs, so that it can be stopped by it; afterwards; or never
    usage_known: ClassVar[Literal["live", "end", "never"]] = "end"
    #: words in the place of a model's name that the CLI makes a model of: which one shows in the session only
    model_aliases: ClassVar[frozenset[str]] = frozenset()
    holds: ClassVar[frozenset[str]] = frozenset()  #: names of run_limits at which its CLI ends the session itself
    supports: ClassVar[frozenset[str]] = frozenset()  #: names of AgentConfig fields that it honours (beside type, env)
    permission_modes: ClassVar[tuple[str, ...]] = ("auto",)
    tool_names: ClassVar[Mapping[str, tuple[str, ...]]] = {}  #: neutral tool name -> the CLI's own
    #: variable that says where its model is asked; with it the CLI can be started without cost, to say what it can use. None: it can't
    endpoint_variable: ClassVar[str | None] = None
    table: ClassVar[type[BaseModel] | None] = None  #: the model of the agent's own table in AgentConfig
    install_hint: ClassVar[str] = ""  #: how to get the CLI, a sentence
    minimum_version: ClassVar[str | None] = None  #: of the CLI; an older one lacks options that the adapter uses

    def unavailable(self, context: Context, declared: frozenset[str] = frozenset()) -> CodeprobeError | None:
        """NO_BACKENDS_CONFIGURED if its CLI or its credentials are missing here; None if it can start.

        `declared`: names of variables that every trial of this agent gets from its own task, a key perhaps.
        """
        return None

    def credential_lives(self, context: Context, declared: frozenset[str] = frozenset()) -> Sequence[CredentialLife]:
        """Of the credential that its sessions would use here, as far as the adapter knows of one; empty where it needs none.

        `declared`: as for unavailable().
        """
        return ()

    def endpoints(self, trial: Trial, context: Context) -> Sequence[Endpoint]:
        """Where its model is asked in this trial: the base URL that it would get, else its provider's own hosts.

        Under --codeprobe-offline it may go there, and nobody else.
        """
        return ()

    def problems(self, trial: Trial) -> Sequence[tuple[str, str]]:
        """Faults of a task for this agent, found at collection: (dotted path of the field, what is wrong).

        Of a built-in agent they depend on the trial alone: what is found is kept for later runs.
        """
        return ()

    def skip_reason(self, trial: Trial) -> str | None:
        """Why this agent can do nothing with a task, which is nobody's failure: the trial is skipped. None = it can."""
        return None

    def looked_for(self, request: SessionRequest) -> tuple[str, str]:
        """Of a program that could not be started: where it was looked for, as the end of a sentence, and what to do, a sentence."""
        return "", self.install_hint

    def find(self, context: Context) -> str | None:
        """Absolute path of its CLI."""
        return None

    def takes_away(self, config: AgentConfig, tool: str) -> bool:
        """Whether a task's own lists keep this tool (in the CLI's own name) from being offered."""
        allowed = None if config.allowed_tools is None else self._own_names(config.allowed_tools)
        return (allowed is not None and tool not in allowed) or tool in self._own_names(config.disallowed_tools or ())

    def may_write(self, config: AgentConfig) -> bool:
        """Whether its permission mode lets a session write files, where nobody is there to be asked."""
        return config.permission_mode not in ("default", "plan")

    def paid_anyway(self, trial: Trial, context: Context, workspace: Path) -> str | None:
        """Why `endpoint_variable` would not keep a session of this trial from a model that is paid for, as the end of a sentence.

        None: it does. `workspace` is laid out: a project's own settings may count.
        """
        return None

    def _own_names(self, names: Sequence[str]) -> frozenset[str]:
        return frozenset(own for name in names for own in self.tool_names.get(name, (name,)))

    @abstractmethod
    def command(self, request: SessionRequest) -> SessionCommand | None:
        """How to start the session; None = there is nothing to start."""

    @abstractmethod
    def parser(self, request: SessionRequest) -> SessionParser:
        """A fresh parser for the session's output."""
