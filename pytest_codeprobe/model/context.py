"""What a trial needs from outside, in one value, so that tests need no monkeypatching."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.network import Network, Unheld
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.text import Redactor

if TYPE_CHECKING:
    from pytest_codeprobe.model.agent import Agent
    from pytest_codeprobe.model.capabilities import Capabilities
    from pytest_codeprobe.model.criterion import Criterion
    from pytest_codeprobe.model.prices import Prices
    from pytest_codeprobe.model.sandbox import Driver, ProcessStarter
    from pytest_codeprobe.model.trial import Trial


class Clock(Protocol):
    """Time, so that tests can do without waiting."""

    def now(self) -> datetime:
        """UTC, aware."""

    def monotonic(self) -> float:
        """Seconds that never run backwards."""

    def sleep(self, seconds: float) -> None:
        """Wait."""


class EventSink(Protocol):
    """Where a process says what happens in its trials; the controller numbers and publishes it."""

    def emit(self, event: str, **fields: Any) -> None:
        """Append one event; JSON values only. Never raises for a full disk: the record on the report is the proof."""


class StopFlags(Protocol):
    """What one process of a run tells all others: empty files in the run dir's folder `stop/`."""

    @property
    def folder(self) -> Path:
        """The folder, for keepers; it may not exist yet."""

    def forbids_start(self, agent: str) -> str | None:
        """Why no trial of this agent may start any more, as a record's reason (`interrupted`, `maxfail`, `auth`, …); None = go on."""

    def raise_flag(self, reason: str, agent: str = "") -> None:
        """Tell every process."""

    def is_raised(self, reason: str) -> bool:
        """Whether a flag of that name stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a session asks of the run's budget before it starts."""

    node_id: str
    attempt: int
    agent: str
    model: str  #: as the task asks for it; "" where the CLI chooses
    max_usd: float | None = None  #: the task's own bound, in US dollars
    max_tokens: int | None = None  #: its max_total_tokens
    live: bool = True  #: what it spends is known while it runs


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """The money of a run at one moment, in US dollars."""

    limit: float
    spent: float  #: by all sessions so far, running ones too
    reserved: float  #: kept back for running sessions, beside what these have spent

    @property
    def is_gone(self) -> bool:
        """More is spent than there was: what runs has to end."""
        return self.spent > self.limit + CENT_FRACTION

    @property
    def is_used_up(self) -> bool:
        """There is nothing left: no session may start."""
        return self.spent > self.limit - CENT_FRACTION


#: US dollars that are too little to tell; sums of many prices are not exact
CENT_FRACTION = 1e-7


class Ledger(Protocol):
    """The budget of a run, shared by all of its processes. From any thread. CodeprobeError where it can't be written."""

    def reserve(self, claim: Claim) -> int | Literal["wait", "no"]:
        """Keep back what the session may spend; the number of its entry.

        `wait`: it does not fit, but would if another session cost less than is kept back for it. `no`: it never will.
        """

    def book(self, entry: int, spent: float, *, at_most: bool = False) -> Balance:
        """What a running session has spent by now, in US dollars; `at_most`: nobody knows, but no more than that."""

    def settle(self, entry: int, spent: float | None, *, assumed: float | None = None) -> Balance:
        """The session is over; nothing is kept back for it any more.

        Where nobody knows what it has `spent`, it counts with what is `assumed`, else with its reservation.
        """

    def unpriced(self, agent: str, asked: str, model: str) -> None:
        """No price is known for the model that an agent used where a task asked for this one, "" for the agent's own choice.

        No further session of the two without a bound in tokens starts.
        """

    def balance(self) -> Balance:
        """As of now."""


#: flag -> the reason of a record that it keeps from starting; in this order the first that stands is named
FORBID: Mapping[str, str] = {
    "interrupt": "interrupted",
    "maxfail": "maxfail",
    "budget": "budget",
    "time": "time",
    "canary": "canary",
    "trace": "trace",
    "now": "interrupted",
}


#: flag: the transcripts of the run are over their budget, and those to come are truncated at once; it stops nothing
TRUNCATE = "truncate"


def reason_of(flag: str) -> str:
    """The reason in a record, from a flag's name or a keeper's `stopped:<flag>`."""
    name = flag.removeprefix("stopped:").partition("@")[0]
    return FORBID.get(name, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """What the hooks brought: built-ins and the user's own, by name."""

    agents: Mapping[str, Agent]
    drivers: Mapping[str, Driver]
    criteria: Mapping[str, type[Criterion]]
    later: frozenset[str] = frozenset()  #: names of agents that are known, and not there yet

    def agent(self, name: str) -> Agent:
        """By name or alias; CodeprobeError UNKNOWN_BACKEND with the known names and a did-you-mean."""
        for agent in self.agents.values():
            if name == agent.name or name in agent.aliases:
                return agent
        if name in self.later:
            raise CodeprobeError(
                "UNKNOWN_BACKEND",
                f"agent {name!r} is not available yet",
                remediation=f"Choose one of: {', '.join(sorted(self.agents))}.",
                detail={"agent": name, "known": []},
            )
        known = sorted({n for a in self.agents.values() for n in (a.name, *a.aliases)})
        raise CodeprobeError(
            "UNKNOWN_BACKEND",
            f"unknown agent {name!r}{did_you_mean(name, known)}",
            remediation=f"Choose one of: {', '.join(sorted(self.agents))}.",
            detail={"agent": name, "known": sorted(self.agents)},
        )


def _list_prices() -> Prices:
    from pytest_codeprobe.model.prices import list_prices  # not at import: what only collects needs no models

    return list_prices()


class Proportions(Protocol):
    """Gates over the repeats of tasks, which several processes judge together. From any thread."""

    def decided(self, trial: Trial) -> bool:
        """Whether nothing that this repeat does can change its gate: then it need not start."""

    def take(self, trial: Trial, verdict: Literal["passed", "failed"]) -> int | None:
        """Note a verdict; which miss of its gate it is, None for a pass or without a gate. CodeprobeError where that can't be noted."""

    def miss_of(self, trial: Trial) -> int | None:
        """Which miss of its gate the trial has noted; None where it has noted none, or has no gate."""

    def give_back(self, trial: Trial) -> None:
        """The verdict that was noted is none after all."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A capability snapshot that sessions are held to."""

    path: str  #: as the user named it
    content: Capabilities
    bare: bool = False  #: the session has nothing of a task's own: MCP servers are not compared, and more than the snapshot is no matter


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One for each process of a run."""

    run_id: str
    run_dir: Path
    rootdir: Path
    options: RunOptions
    registry: Registry
    environ: Mapping[str, str]  #: the harness's own environment
    clock: Clock
    events: EventSink
    stops: StopFlags
    processes: ProcessStarter
    redactor: Redactor  #: knows the secrets of `environ`
    python: str  #: interpreter that runs pytest
    worker: str = "main"
    prices: Prices = field(default_factory=_list_prices)
    ledger: Ledger | None = None  #: None: the run has no budget
    snapshot: Snapshot | None = None
    scratch: Path | None = None  #: folder for the trials' private folders; None: the system's temporary folder
    random: random.Random = field(default_factory=random.Random)
    proportions: Proportions | None = None  #: gates over repeats; None: each repeat stands for itself
    network: Network = field(default_factory=Unheld)  #: holds trials to where they may go
    warn: Callable[[str], None] = lambda _: None  #: says something once, in the summary and the envelope. From any thread
