"""Before a run under --codeprobe-offline starts: every credential that it will use must hold until it is over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import CredentialLife
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.network import Endpoint
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.sandboxes.sources import not_allowed

EXPECTED = 3600.0  #: seconds that a run is expected to take where nobody says it


def check_credentials(trials: Iterable[PlannedTrial], context: Context) -> CodeprobeError | None:
    """OFFLINE_PREFLIGHT_FAILED if some credential expires too soon, or can't be known to hold; None if all do."""
    expected = context.options.offline_expected_run_duration or EXPECTED
    now = context.clock.now()
    wrong = [(agent, life) for agent, life in _lives(trials, context) if _left(life, now) <= expected]
    if not wrong:
        return None
    first = wrong[0][1]
    remedies = dict.fromkeys(life.remedy for _, life in wrong if life.remedy)
    return CodeprobeError(
        "OFFLINE_PREFLIGHT_FAILED",
        "; ".join(f"{agent}: {_words(life, now)}" for agent, life in wrong) + f"; the run is expected to take {words(expected)}",
        remediation=" ".join([*remedies, *_shorter(first), "Or leave --codeprobe-offline out."]),
        detail={"expected_seconds": expected, "failures": [_facts(agent, life, now) for agent, life in wrong]},
    )


def check_fetches(trials: Iterable[PlannedTrial], context: Context) -> CodeprobeError | None:
    """OFFLINE_PREFLIGHT_FAILED if a workspace needs a commit of a server that may not be reached."""
    wanted = dict.fromkeys((shown, Endpoint(host, port)) for trial in trials if trial.starts for shown, host, port in trial.fetches)
    wrong = [(shown, place) for shown, place in wanted if not context.network.allows(place.host, place.port)]
    return not_allowed("OFFLINE_PREFLIGHT_FAILED", wrong) if wrong else None


def _lives(trials: Iterable[PlannedTrial], context: Context) -> Iterator[tuple[str, CredentialLife]]:
    """Agent and credential, each once. Trials of one agent may be given different ones by their tasks."""
    starting = [t for t in trials if t.agent is not None and t.starts]
    both = [pair for t in starting for pair in ((t.agent, t.variables), (t.user, t.users_variables))]
    sets = dict.fromkeys((name, frozenset(variables)) for name, variables in both if name is not None)
    seen = set[tuple[str, CredentialLife]]()
    for name, declared in sets:
        agent = context.registry.agent(name)
        for life in agent.credential_lives(context, declared):
            if (agent.name, life) not in seen:
                seen.add((agent.name, life))
                yield agent.name, life


def _left(life: CredentialLife, now: datetime) -> float:
    """Seconds; 0 where it can't be known."""
    if life.unknown:
        return 0.0
    return float("inf") if life.expires_at is None else (life.expires_at - now).total_seconds()


def _words(life: CredentialLife, now: datetime) -> str:
    if life.unknown or life.expires_at is None:
        return f"how long {life.name} holds can't be known: {life.unknown}"
    left = _left(life, now)
    return f"{life.name} " + (
        f"expires at {stamp(life.expires_at)}, in {words(left)}" if left > 0 else f"expired at {stamp(life.expires_at)}"
    )


def _shorter(life: CredentialLife) -> tuple[str, ...]:
    return () if life.unknown else ("If the run takes less time, say so with --codeprobe-offline-expected-run-duration.",)


def _facts(agent: str, life: CredentialLife, now: datetime) -> dict[str, Any]:
    expires = None if life.expires_at is None else stamp(life.expires_at)
    left = None if life.expires_at is None else round(_left(life, now), 3)
    return {"agent": agent, "credential": life.name, "expires_at": expires, "left_seconds": left, "unknown": life.unknown or None}


def words(seconds: float) -> str:
    """A duration as a person reads it: the two largest units."""
    left, parts = int(seconds), list[str]()
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2]) or "0 s"
