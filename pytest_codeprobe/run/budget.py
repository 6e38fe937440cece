"""What a budget demands of a plan before anything starts, and what it says once it is used up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import Balance, Registry
from pytest_codeprobe.model.prices import Prices
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.text import dollars, span

if TYPE_CHECKING:
    from pytest_codeprobe.run.ledger import Refused

_LISTED = 20
#: limits by which a session that nobody can watch counts in a budget
_BOUNDS = ("max_usd", "max_total_tokens")


def refuse(plan: Iterable[PlannedTrial], registry: Registry, prices: Prices, limit: float | None) -> CodeprobeError | None:
    """Why the run can't be held to its budget of so many US dollars; without one, limits that nobody would hold. None: go on."""
    problems: dict[str, list[str]] = {}
    for trial in plan:
        if trial.starts and trial.agent is not None:
            agent = registry.agent(trial.agent)
            problem = _unbounded(trial, agent, prices) if limit is not None else _unheld(trial, agent)
            if problem is not None:
                problems.setdefault(problem, []).append(trial.node_id)
    for problem, trials in problems.items():
        more = f" and {len(trials) - 1} more" if len(trials) > 1 else ""
        if limit is None:
            remedy = "Leave the limit out, or give the run a budget by --codeprobe-max-cost-usd: a session of this agent counts as it then."
            return CodeprobeError("TASK_INVALID", f"{trials[0]}{more}: {problem}", remediation=remedy, detail={"trials": trials[:_LISTED]})
        return CodeprobeError(
            "USAGE_ERROR",
            f"--codeprobe-max-cost-usd {limit:g} can't be held: {trials[0]}{more}: {problem}",
            remediation="Set run_limits.max_total_tokens for these tasks (max_usd where the model has a price), or run without a budget.",
            detail={"trials": trials[:_LISTED]},
        )
    return None


def _unbounded(trial: PlannedTrial, agent: Agent, prices: Prices) -> str | None:
    if not agent.is_session or not agent.calls_model or trial.limits.get("max_total_tokens") is not None:
        return None
    if agent.usage_known != "live" and trial.limits.get("max_usd") is None:
        when = "never tells what a session costs" if agent.usage_known == "never" else "tells what a session costs at its end only"
        return f"agent {agent.name} {when}, and neither run_limits.max_usd nor max_total_tokens bounds it"
    model = trial.model
    if agent.usage_known == "never" or model is None or model in agent.model_aliases or prices.find(model) is not None:
        return None  # the session tells the model, and what it costs
    return f"no price is known for model {model!r}, and run_limits.max_total_tokens does not bound the session"


def _unheld(trial: PlannedTrial, agent: Agent) -> str | None:
    found = [name for name in _BOUNDS if trial.limits.get(name) is not None] if agent.usage_known == "never" else []
    return f"run_limits.{found[0]} can't be held for agent {agent.name}, which never tells what a session uses" if found else None


def money_used_up(balance: Balance, refused: Sequence[Refused], stopped: int) -> CodeprobeError | None:
    """BUDGET_EXCEEDED where the budget was passed, or a trial was not started for it; `stopped`: trials that were not run, or ended."""
    if not refused and not balance.is_gone and not stopped:
        return None
    first = refused[0] if refused else None
    message = f"{dollars(balance.spent)} of {dollars(balance.limit)} are spent"
    if first is not None and first.why == "price":
        message += f"; no price is known for the model of {first.node_id}: no further session of it was started"
    elif first is not None and first.wanted:
        message += f"; {first.node_id} did not fit: {dollars(first.wanted)} are kept back for it, and {dollars(first.spent)} were spent"
    if stopped:
        message += f"; {stopped} trial{'s' * (stopped != 1)} not run, or ended before the end"
    remedy = "A human has to raise --codeprobe-max-cost-usd, or to accept what there is."
    if first is not None and first.why == "price" and not balance.is_gone:
        remedy = "A human has to choose: a model whose price is known, or run_limits.max_total_tokens, which bounds its sessions."
    return CodeprobeError(
        "BUDGET_EXCEEDED",
        message,
        remediation=remedy,
        detail={
            "kind": "cost",
            "limit": balance.limit,
            "spent": round(balance.spent, 6),
            "reserved": round(first.wanted if first is not None else balance.reserved, 6),
        },
    )


def ledger_lost(limit: float, spent: float, stopped: int, trouble: CodeprobeError) -> CodeprobeError:
    """BUDGET_EXCEEDED of a run whose ledger can't be read at its end; `spent`: by the records."""
    return CodeprobeError(
        "BUDGET_EXCEEDED",
        f"{dollars(spent)} of {dollars(limit)} are spent, by the records; {stopped} trial{'s' * (stopped != 1)} not run, or ended before "
        f"the end; {trouble.message}",
        detail={"kind": "cost", "limit": limit, "spent": round(spent, 6), "reserved": 0.0},
    )


def time_used_up(limit: float, spent: float, stopped: int) -> CodeprobeError:
    """BUDGET_EXCEEDED of a run that took too long; seconds."""
    return CodeprobeError(
        "BUDGET_EXCEEDED",
        f"the run has taken {span(spent)} of {span(limit)}; {stopped} trial{'s' * (stopped != 1)} not run, or ended before the end",
        remediation="A human has to raise --codeprobe-max-duration, or to accept what there is.",
        detail={"kind": "time", "limit": limit, "spent": round(spent, 3), "reserved": None},
    )
