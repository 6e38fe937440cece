"""What a budget demands of a plan before anything starts, and what it says once it is used up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pytest_codeprobe.amounts import dollars, span
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import CENT_FRACTION, Balance, Registry
from pytest_codeprobe.model.prices import Prices
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.text import one_line

if TYPE_CHECKING:
    from pytest_codeprobe.run.ledger import Refused

_LISTED = 20
#: limits by which a session that nobody can watch counts in a budget
_BOUNDS = ("max_usd", "max_total_tokens")


def refuse(plan: Iterable[PlannedTrial], registry: Registry, prices: Prices, limit: float) -> CodeprobeError | None:
    """Why the run can't be held to its budget of so many US dollars; None: go on."""
    problems = _problems(plan, registry, lambda trial, agent: _unbounded(trial, agent, prices))
    if not problems:
        return None
    problem, trials = next(iter(problems.items()))
    return CodeprobeError(
        "USAGE_ERROR",
        f"--codeprobe-max-cost-usd {limit:g} can't be held: {_names(trials)}: {problem}",
        remediation="Set run_limits.max_total_tokens for these tasks (max_usd where the model has a price), or run without a budget.",
        detail={"trials": trials[:_LISTED]},
    )


def unheld(plan: Iterable[PlannedTrial], registry: Registry) -> list[str]:
    """Limits in money or tokens that nobody holds in a run without a budget, as warnings; with one, a session counts as its limit."""
    return [f"{_names(trials)}: {problem}" for problem, trials in _problems(plan, registry, _unheld).items()]


def _problems(
    plan: Iterable[PlannedTrial], registry: Registry, problem_of: Callable[[PlannedTrial, Agent], str | None]
) -> dict[str, list[str]]:
    """What is wrong with trials that would start -> their node ids."""
    found: dict[str, list[str]] = {}
    for trial in plan:
        if trial.starts and trial.agent is not None:
            problem = problem_of(trial, registry.agent(trial.agent))
            if problem is not None:
                found.setdefault(problem, []).append(trial.node_id)
    return found


def _names(trials: Sequence[str]) -> str:
    return trials[0] + (f" and {len(trials) - 1} more" if len(trials) > 1 else "")


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
    limits = " and ".join(f"run_limits.{name}" for name in found)
    return f"{limits} can't be held: agent {agent.name} never tells what a session uses" if found else None


@dataclass(frozen=True, slots=True)
class Fates:
    """What became of the trials that a budget ended: how many began and were not graded, and how many never started."""

    ended: int
    unstarted: int

    def __str__(self) -> str:
        parts = [(self.ended, "ended early and not graded"), (self.unstarted, "not started")]
        said = [f"{number} trial{'s' * (number != 1)} {words}" for number, words in parts if number]
        return "".join(f"; {words}" for words in said)


def money_used_up(balance: Balance, refused: Iterable[Refused], fates: Fates, assumed: float) -> CodeprobeError | None:
    """BUDGET_EXCEEDED where the budget was passed, or a trial was not started for it; None where it held.

    `assumed`: US dollars of what is spent that nobody knows, and that count as the most that it can be.
    """
    first_of: dict[str, Refused] = {}
    for refusal in refused:
        first_of.setdefault(refusal.node_id, refusal)
    refusals = list(first_of.values())
    if not refusals and not balance.is_gone and not (fates.ended or fates.unstarted):
        return None
    left_over = [r for r in refusals if r.why == "fit" and not replace(balance, spent=r.spent).is_used_up]
    prices: dict[str, list[Refused]] = {}
    for refusal in refusals:
        if refusal.why == "price":
            prices.setdefault(_model(refusal), []).append(refusal)
    message = f"{dollars(balance.spent)} of {dollars(balance.limit)} are spent"
    if assumed > CENT_FRACTION:
        message += f" ({dollars(assumed)} of it at most: what some sessions cost is unknown)"
    message += str(fates)
    if left_over:
        first, more = left_over[0], len(left_over) - 1
        left = dollars(balance.limit - first.spent)
        message += f"; {first.node_id} did not fit (its reservation of {dollars(first.wanted)} is more than the {left} that were left)"
        message += f", nor did {more} more" if more else ""
    for model, trials in prices.items():
        were = "were" if len(trials) > 1 else "was"
        message += f"; no price is known for {model}, so {_names([t.node_id for t in trials])} {were} not started"
    remedies = ["A human has to raise --codeprobe-max-cost-usd, or to accept what there is."]
    if prices:
        by_price = "A human has to choose: a model whose price is known, or run_limits.max_total_tokens, which bounds its sessions."
        only = len(refusals) == sum(map(len, prices.values())) and not balance.is_used_up
        remedies = [by_price] if only else [*remedies, by_price]
    return CodeprobeError(
        "BUDGET_EXCEEDED",
        message,
        remediation=" ".join(remedies),
        detail={
            "kind": "cost",
            "limit": balance.limit,
            "spent": round(balance.spent, 6),
            "reserved": round(left_over[0].wanted if left_over else balance.reserved, 6),
        },
    )


def _model(refusal: Refused) -> str:
    return f"model {one_line(refusal.model, 100)!r}" if refusal.model else f"the model of agent {refusal.agent}"


def ledger_lost(limit: float, spent: float, fates: Fates, trouble: CodeprobeError) -> CodeprobeError:
    """BUDGET_EXCEEDED of a run whose ledger can't be read at its end; `spent`: by the records."""
    return CodeprobeError(
        "BUDGET_EXCEEDED",
        f"{dollars(spent)} of {dollars(limit)} are spent, by the records{fates}; {trouble.message}",
        detail={"kind": "cost", "limit": limit, "spent": round(spent, 6), "reserved": 0.0},
    )


def time_used_up(limit: float, spent: float, fates: Fates) -> CodeprobeError:
    """BUDGET_EXCEEDED of a run that took too long; seconds."""
    return CodeprobeError(
        "BUDGET_EXCEEDED",
        f"the run has taken {span(spent)} of {span(limit)}{fates}",
        remediation="A human has to raise --codeprobe-max-duration, or to accept what there is.",
        detail={"kind": "time", "limit": limit, "spent": round(spent, 3), "reserved": None},
    )
