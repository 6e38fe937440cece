"""Budgets without a run: what is refused beforehand, and what is said at the end."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from pytest_codeprobe.agents.builtin import Nop
from pytest_codeprobe.agents.claude import Claude
from pytest_codeprobe.agents.claude.usage import Replies
from pytest_codeprobe.agents.command import CommandAgent
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Balance, Registry
from pytest_codeprobe.model.prices import list_prices
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.options import BUILT, INIS, resolve
from pytest_codeprobe.run.budget import Fates, money_used_up, refuse, time_used_up, unheld
from pytest_codeprobe.run.ledger import Refused
from pytest_codeprobe.run.plan import PlannedTrial


class Late(Claude):
    name = "late"
    usage_known = "end"  # type: ignore[assignment]  # the only difference


REGISTRY = Registry(agents={a.name: a for a in (Claude(), Late(), CommandAgent(), Nop())}, drivers={}, criteria={})
PRICED, UNKNOWN = "claude-sonnet-4-5-20250929", "nobodys-model-1"


def planned(agent: str, model: str | None = None, *, starts: bool = True, name: str = "b", **limits: float) -> PlannedTrial:
    return PlannedTrial(
        node_id=f"tasks/{name}.yaml::{name}", task_id=name, variant_id=None, row_id=None, repeat=1, folder="default/b/r001",
        task_file="x", agent=agent, model=model, driver="auto", limits=dict(limits), starts=starts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("trial", "says"),
    [
        (planned("command"), "never tells what a session costs"),
        (planned("late", PRICED), "at its end only"),
        (planned("late", UNKNOWN, max_usd=1), "no price is known"),
        (planned("claude", UNKNOWN), f"no price is known for model '{UNKNOWN}'"),
        (planned("claude", UNKNOWN, max_usd=1), "no price is known"),
    ],
)
def test_what_could_not_be_held_is_refused(trial: PlannedTrial, says: str) -> None:
    error = refuse([planned("claude", PRICED, name="a"), trial, trial], REGISTRY, list_prices(), 1.0)
    assert error is not None
    assert (error.code, error.detail["trials"]) == ("USAGE_ERROR", [trial.node_id] * 2)
    assert says in error.message
    assert "tasks/b.yaml::b and 1 more" in error.message
    assert "max_total_tokens" in error.remediation


def test_what_is_bounded_is_not_refused() -> None:
    trials = [
        planned("command", max_usd=0.1),
        planned("command", max_total_tokens=1000),
        planned("late", PRICED, max_usd=0.5),
        planned("late", UNKNOWN, max_total_tokens=1000),
        planned("claude", PRICED),
        planned("claude", UNKNOWN, max_total_tokens=1000),
        planned("claude", "sonnet"),
        planned("claude"),
        planned("nop"),
        planned("command", starts=False),
    ]
    assert refuse(trials, REGISTRY, list_prices(), 1.0) is None


def test_a_limit_that_nobody_holds_is_a_warning_without_a_budget() -> None:
    """The same file serves runs with a budget, where its sessions count as that limit, and runs without one."""
    bounded = [planned("command", max_usd=0.1), planned("command", max_usd=0.2, name="c"), planned("claude", max_usd=1)]
    assert unheld(bounded, REGISTRY) == [
        "tasks/b.yaml::b and 1 more: run_limits.max_usd can't be held: agent command never tells what a session uses"
    ]
    both = planned("command", max_usd=0.1, max_total_tokens=5)
    assert "run_limits.max_usd and run_limits.max_total_tokens can't be held" in unheld([both], REGISTRY)[0]
    assert unheld([planned("command"), planned("command", starts=False, max_usd=1)], REGISTRY) == []


# ---- what a session costs at most


def test_only_what_has_no_price_counts_as_the_dearest() -> None:
    """A sub-agent's model that nobody knows makes the cost unknown; the other replies cost what they cost."""
    table = list_prices()
    known = table.find(PRICED)
    assert known is not None
    replies = Replies(table)
    usage = {"input_tokens": 1000, "output_tokens": 100, "cache_read_input_tokens": 5000, "cache_creation_input_tokens": 400}
    hourly = {"cache_creation": {"ephemeral_1h_input_tokens": 300}}
    replies.begin("a", PRICED).add(usage | hourly)
    by_table = known.cost(input=1000, output=100, cache_read=5000, cache_write=400, cache_write_1h=300)
    cost, source = replies.cost()
    assert (cost, source) == (replies.cost_at_most(), "price_table")
    assert replies.cost_at_most() == pytest.approx(by_table)
    replies.begin("b", UNKNOWN).add(usage)
    dearest = table.dearest(Usage(input_tokens=1000, output_tokens=100, cache_read_tokens=5000, cache_write_tokens=400))
    assert (replies.cost(), replies.unpriced) == ((None, "unknown"), UNKNOWN)
    assert replies.cost_at_most() == pytest.approx(by_table + dearest)
    counted = {"inputTokens": 1000, "outputTokens": 100, "cacheReadInputTokens": 5000, "cacheCreationInputTokens": 400}
    line = {"total_cost_usd": 0.01, "modelUsage": {PRICED: counted, UNKNOWN: counted | {"costBasis": "unknown"}}}
    assert replies.final_cost(line) == (None, "unknown")
    plain = known.rates.cost(input=1000, output=100, cache_read=5000, cache_write=400)
    assert replies.final_cost_at_most(line) == pytest.approx(plain + dearest)


# ---- what is said at the end


def refused(name: str, why: Literal["fit", "price"] = "fit", *, wanted: float = 1.0, spent: float = 0.0, **more: Any) -> Refused:
    return Refused(
        **{"node_id": name, "why": why, "agent": "claude", "model": "m", "wanted": wanted, "spent": spent, "reserved": 0.0, **more}
    )


def said(spent: float, *refusals: Refused, ended: int = 0, unstarted: int = 0, assumed: float = 0.0) -> CodeprobeError:
    error = money_used_up(Balance(limit=2.5, spent=spent, reserved=0.0), refusals, Fates(ended, unstarted), assumed)
    assert error is not None
    return error


def test_nothing_is_said_where_the_budget_held() -> None:
    """Sums of prices are not exact: the last bit is no more money."""
    balance = Balance(limit=3.0, spent=sum([0.1] * 30), reserved=0.0)
    assert balance.spent != 3
    assert money_used_up(balance, [], Fates(0, 0), 0.0) is None


def test_the_sentence_is_true_whoever_was_refused_first() -> None:
    crossed = said(2.75, ended=2, unstarted=7)
    assert crossed.message == "$2.75 of $2.50 are spent; 2 trials ended early and not graded; 7 trials not started"
    assert crossed.detail == {"kind": "cost", "limit": 2.5, "spent": 2.75, "reserved": 0.0}

    # the first that asked found nothing left: it is no example of one that did not fit into what was
    empty = said(2.5, refused("a", wanted=0.0, spent=2.5), refused("b", wanted=1.0, spent=2.5), unstarted=2)
    assert empty.message == "$2.50 of $2.50 are spent; 2 trials not started"

    fits = said(1.8004, refused("a", spent=1.8), refused("b", spent=1.8004), refused("a", spent=1.8004), unstarted=2)
    assert fits.message == (
        "$1.80 of $2.50 are spent; 2 trials not started; a did not fit (its reservation of $1.00 is more than the $0.70 that were left), "
        "nor did 1 more"
    )
    assert fits.detail["reserved"] == 1.0

    mixed = said(
        1.8,
        refused("p", "price", model="new-1"),
        refused("f", wanted=0.7004, spent=1.8),
        refused("q", "price", model="new-1"),
        refused("r", "price", model=""),
        unstarted=4,
        assumed=0.0004,
    )
    assert mixed.message == (
        "$1.80 of $2.50 are spent ($0.0004 of it at most: what some sessions cost is unknown); 4 trials not started; "
        "f did not fit (its reservation of $0.7004 is more than the $0.70 that were left); "
        "no price is known for model 'new-1', so p and 1 more were not started; "
        "no price is known for the model of agent claude, so r was not started"
    )
    assert "max-cost-usd" in mixed.remediation
    assert "price is known" in mixed.remediation
    price = said(0.1, refused("p", "price"), unstarted=1)
    assert "max-cost-usd" not in price.remediation
    assert "A human has to choose: a model whose price is known" in price.remediation


def test_time_is_told_in_units_of_people() -> None:
    error = time_used_up(1800.0, 1834.2, Fates(ended=1, unstarted=0))
    assert error.message == "the run has taken 30 min 34 s of 30 min; 1 trial ended early and not graded"
    assert (error.code, error.detail["kind"], error.detail["spent"]) == ("BUDGET_EXCEEDED", "time", 1834.2)


@pytest.mark.parametrize("name", ["max-cost-usd", "max-duration"])
def test_junk_is_no_budget(name: str) -> None:
    dest = next(option.dest for option in BUILT if option.name == name)
    ini = {key.name: key.default for key in INIS}
    for value in ["0", "-1", "-0.0", "nan", "inf", "1e400", "1,5", "1h30m", "$", "€1", "1 2", "0x10", "0s", "1w"]:
        for command_line, environ in (({dest: value}, {}), ({}, {dest.upper(): value})):
            with pytest.raises(CodeprobeError, match=rf"(?i)codeprobe.{name.replace('-', '.')}") as caught:
                resolve(command_line, environ, lambda key: ini.get(key, ""))
            assert caught.value.code == "USAGE_ERROR", value
