"""A trial and the run's budget: what is kept back for an attempt, booked while it runs, and settled at its end."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable

from pytest_codeprobe.errors import Stopped
from pytest_codeprobe.model.agent import Agent, SessionParser
from pytest_codeprobe.model.context import Claim, Context
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.model.trial import Trial

_LOOK = 0.25  #: seconds between two tries to get what does not fit yet
#: seconds that a session has to come to its own end after the reply that used up the budget, if that was its last
LAST_WORDS = 0.1
_FLAG = "budget"


def costs_money(agent: Agent) -> bool:
    """Whether its sessions may have a price: `scripted` calls no model and can pretend to."""
    return agent.is_session and (agent.calls_model or agent.usage_known == "live")


def usage_of(parser: SessionParser, context: Context) -> Usage:
    """What a session has used so far. Where its agent tells tokens and no price, the price table does."""
    usage = parser.usage()
    if usage.cost_usd is not None or not usage.total_tokens or parser.unpriced is not None:
        return usage
    price = context.prices.find(parser.info().model)
    if price is None:
        return usage
    cost = price.rates.cost(
        input=usage.input_tokens or 0,
        output=usage.output_tokens or 0,
        cache_read=usage.cache_read_tokens or 0,
        cache_write=usage.cache_write_tokens or 0,
    )
    return usage.model_copy(update={"cost_usd": cost, "cost_source": "price_table"})


def cost_at_most(parser: SessionParser, usage: Usage, context: Context) -> float | None:
    """What a session whose cost nobody knows has cost at most, US dollars; None where it is known, or not even its tokens are."""
    if usage.cost_usd is not None or not usage.total_tokens:
        return None
    own = parser.cost_at_most()
    return context.prices.dearest(usage) if own is None else own


def model_without_price(parser: SessionParser, usage: Usage, context: Context) -> str | None:
    """The model that makes the cost of a session unknown; None if it is known, or for another reason it is not."""
    if usage.cost_usd is not None:
        return None
    model = parser.unpriced if parser.unpriced is not None else parser.info().model
    return model if usage.total_tokens and model and context.prices.find(model) is None else parser.unpriced


class Spending:
    """Of one trial; used from one thread at a time. Does nothing in a run without a budget, and for agents that cost nothing."""

    def __init__(self, trial: Trial, context: Context, agent: Callable[[], Agent], may_start: Callable[[], None]) -> None:
        self._trial, self._context, self._agent, self._may_start = trial, context, agent, may_start
        self._ledger = context.ledger
        self._entry: int | None = None  #: of the attempt that comes or runs
        self.attempt = 0  #: its number
        self.waited = 0.0  #: seconds in which others had the money, of all attempts
        self._booked = 0.0
        self._gone_since: float | None = None
        self._told_unpriced = False
        self._unsettled: list[tuple[int, float | None, float | None]] = []  #: what the ledger has not taken: entry, cost, assumed cost

    def reserve(self, attempt: int) -> None:
        """Have money kept back for an attempt, waiting for others to end where that may help; Stopped if it won't.

        The wait counts in no time limit: nothing of the attempt has begun.
        """
        ledger, agent = self._ledger, self._agent()
        if ledger is None or self._entry is not None or not costs_money(agent):
            return
        self._settle_rest()  # it would wait for what its own last attempt holds
        limits = self._trial.limits
        claim = Claim(
            node_id=self._trial.node_id,
            attempt=attempt,
            agent=agent.name,
            model=self._trial.agent.model or "",
            max_usd=limits.max_usd,
            max_tokens=limits.max_total_tokens,
            live=agent.usage_known == "live",
        )
        began = self._context.clock.monotonic()
        try:
            while (answer := ledger.reserve(claim)) == "wait":
                self._context.clock.sleep(_LOOK)
                self._may_start()
        finally:
            self.waited += self._context.clock.monotonic() - began
        if answer == "no":
            raise Stopped("budget")
        assert isinstance(answer, int)
        self._entry, self.attempt, self._booked, self._gone_since = answer, attempt, 0.0, None

    @property
    def watches(self) -> bool:
        """Whether the session that runs must be looked at often."""
        return self._entry is not None

    def look(self, parser: SessionParser, *, read: bool) -> str | None:
        """Book what is new; `stopped:budget` once the run's budget is gone and the session goes on nevertheless.

        Where nobody knows what it costs, it counts as the most that it can be, which its `max_usd` bounds too.
        """
        if self._entry is None or self._ledger is None:
            return None
        now = self._context.clock.monotonic()
        if read:
            usage = usage_of(parser, self._context)
            self._note_unpriced(model_without_price(parser, usage, self._context))
            at_most = cost_at_most(parser, usage, self._context)
            spent = at_most if usage.cost_usd is None else usage.cost_usd
            if spent is not None and spent != self._booked:
                self._booked = spent
                if self._ledger.book(self._entry, spent, at_most=at_most is not None).is_gone:
                    self._gone_since = self._gone_since or now
            if at_most is not None and at_most > (self._trial.limits.max_usd or math.inf) and not parser.final_seen:
                return "max_usd"  # as much was kept back for it, and no more
        if self._gone_since is None or now - self._gone_since < LAST_WORDS:
            return None
        self._stop_run()
        return f"stopped:{_FLAG}"

    @property
    def waits_for_end(self) -> bool:
        """The budget is gone, and the session has a moment to end by itself."""
        return self._gone_since is not None

    def _note_unpriced(self, model: str | None) -> None:
        if model is not None and not self._told_unpriced and self._ledger is not None:
            self._ledger.unpriced(self._agent().name, self._trial.agent.model or "", model)
            self._told_unpriced = True

    def settle(self, usage: Usage, unpriced: str | None = None, *, at_most: float | None = None) -> None:
        """The attempt is over. `unpriced`: the model that makes its cost unknown; `at_most`: see cost_at_most().

        Can be called again. CodeprobeError where the ledger can't be written now: the next call tries it once more.
        """
        if self._ledger is None:
            return
        if self._entry is not None:
            limits = self._trial.limits
            assumed = at_most if self._agent().usage_known == "live" else None  # else a part of its tokens may be all that is known
            if assumed is None and limits.max_usd is None and limits.max_total_tokens is not None:
                assumed = self._context.prices.dearest(usage, at_most=limits.max_total_tokens)
            self._unsettled.append((self._entry, usage.cost_usd, assumed))
            self._entry = None
        self._settle_rest()
        self._note_unpriced(unpriced)

    def _settle_rest(self) -> None:
        assert self._ledger is not None
        while self._unsettled:
            entry, spent, assumed = self._unsettled[0]
            is_gone = self._ledger.settle(entry, spent, assumed=assumed).is_gone
            del self._unsettled[0]
            if is_gone:
                self._stop_run()

    def _stop_run(self) -> None:
        with contextlib.suppress(OSError):  # a full disk: the ledger itself tells the other processes
            self._context.stops.raise_flag(_FLAG)
