"""What a Claude Code session has used: by its replies as they come, and by the CLI's last line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pytest_codeprobe.agents.base import amount, count, mapping, text
from pytest_codeprobe.agents.base.transcripts import Draft
from pytest_codeprobe.model.prices import Price, Prices, Rates
from pytest_codeprobe.model.result import Source, Usage
from pytest_codeprobe.model.transcript import Metrics

_HELD = 10_000
_LETTERS = 4  # that a token has, where the CLI does not tell how many tokens a text has
_HOUR = "ephemeral_1h_input_tokens"  # cache writes that last, and cost more
#: name in an Anthropic usage object, in modelUsage -> in ours
_KINDS = {
    "input_tokens": ("input_tokens", "inputTokens"),
    "output_tokens": ("output_tokens", "outputTokens"),
    "cache_read_tokens": ("cache_read_input_tokens", "cacheReadInputTokens"),
    "cache_write_tokens": ("cache_creation_input_tokens", "cacheCreationInputTokens"),
}


@dataclass(slots=True)
class Reply:
    """One message of the model. Its numbers only grow: each report of them is a sum so far."""

    price: Price | None
    dearest: Rates  #: what its tokens cost at most
    tokens: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))
    hourly: int = 0  #: of the cache writes
    letters: int = 0  #: of what a sub-agent's reply says: how many tokens that is, the CLI tells in its last line only
    called: bool = False
    draft: Draft | None = None
    cost: float | None = None  #: US dollars, by the price table
    most: float = 0.0  #: the same where there is a price, else what it can have cost at most

    def add(self, usage: Mapping[str, Any]) -> None:
        """A further report."""
        for ours, (theirs, _) in _KINDS.items():
            self.tokens[ours] = max(self.tokens[ours], count(usage.get(theirs)) or 0)
        self.hourly = max(self.hourly, count(mapping(usage.get("cache_creation")).get(_HOUR)) or 0)
        if self.draft is not None:
            self.draft.metrics = self._metrics()
        spent = {
            "input": self.tokens["input_tokens"],
            "output": max(self.tokens["output_tokens"], self.letters // _LETTERS),
            "cache_read": self.tokens["cache_read_tokens"],
            "cache_write": self.tokens["cache_write_tokens"],
            "cache_write_1h": min(self.hourly, self.tokens["cache_write_tokens"]),
        }
        if self.price is not None:
            self.cost = self.most = self.price.cost(**spent)
        else:
            self.most = self.dearest.cost(**spent)

    def write(self, block: Mapping[str, Any]) -> None:
        """A block of a sub-agent's message."""
        self.letters += (
            len(text(block.get("text"))) + len(text(block.get("thinking"))) + (len(str(block["input"])) if "input" in block else 0)
        )

    def _metrics(self) -> Metrics:
        read, write = self.tokens["cache_read_tokens"], self.tokens["cache_write_tokens"]
        return Metrics(
            prompt_tokens=self.tokens["input_tokens"] + read + write,
            completion_tokens=self.tokens["output_tokens"],
            cached_tokens=read,
            extra={"cache_write_tokens": write} if write else None,
        )


class Replies:
    """The replies of a session, by message id. Of very many the old ones are kept as sums."""

    def __init__(self, prices: Prices) -> None:
        self._prices = prices
        self._held: dict[str, Reply] = {}
        self._settled = dict.fromkeys(_KINDS, 0)
        self._settled_cost = self._settled_most = 0.0
        self.number = 0
        self.unpriced: str | None = None  #: the first model that has no price

    def get(self, message_id: str) -> Reply | None:
        """One that is known."""
        return self._held.get(message_id)

    def begin(self, message_id: str, model: str) -> Reply:
        """One that may be new."""
        reply = self._held.get(message_id)
        if reply is None:
            reply = self._held[message_id] = Reply(self._price(model), self._prices.dearest_rates)
            self.number += 1
            if len(self._held) > _HELD:
                old = self._held.pop(next(iter(self._held)))
                for kind, number in old.tokens.items():
                    self._settled[kind] += number
                self._settled_cost += old.cost or 0.0
                self._settled_most += old.most
        return reply

    def compacted(self, model: str, before: int, after: int) -> None:
        """The model was asked to sum the conversation up: its tokens before and after.

        What that has used, the CLI tells in its last line only; until then it costs as much as reading and writing these.
        """
        price = self._price(model)
        self._settled_cost += price.cost(cache_read=before, output=after) if price is not None else 0.0
        self._settled_most += self._prices.dearest_rates.cost(cache_read=before, output=after)

    def _price(self, model: str) -> Price | None:
        price = self._prices.find(model)
        if price is None and self.unpriced is None:
            self.unpriced = model
        return price

    def tokens(self) -> dict[str, int]:
        """All so far, by the names that Usage has for them."""
        tokens = dict(self._settled)
        for reply in self._held.values():
            for kind, number in reply.tokens.items():
                tokens[kind] += number
        return tokens

    def cost(self) -> tuple[float | None, Source]:
        """Of all so far, by the price table."""
        if not self.number or self.unpriced is not None:
            return None, "unknown"
        return self._settled_cost + sum(reply.cost or 0.0 for reply in self._held.values()), "price_table"

    def cost_at_most(self) -> float:
        """Of all so far: where no price is known, as if the model were the dearest."""
        return self._settled_most + sum(reply.most for reply in self._held.values())

    def final_cost_at_most(self, line: Mapping[str, Any]) -> float:
        """The same of what the CLI counts in its last line, sub-agents too."""
        models = mapping(line.get("modelUsage"))
        return sum(self._rates(model).cost(**_counted(mapping(used))) for model, used in models.items())

    def _rates(self, model: str) -> Rates:
        price = self._prices.find(model)
        return self._prices.dearest_rates if price is None else price.rates

    def final_cost(self, line: Mapping[str, Any]) -> tuple[float | None, Source]:
        """What the CLI says in its last line, unless it made the price up: then what the price table knows."""
        told, models = amount(line.get("total_cost_usd")), mapping(line.get("modelUsage"))
        if told is not None and not any(mapping(used).get("costBasis") == "unknown" for used in models.values()):
            return told, "cli"
        costs = [self._by_table(model, mapping(used)) for model, used in models.items()]
        known = [cost for cost in costs if cost is not None]
        return (sum(known), "price_table") if known and len(known) == len(costs) else (None, "unknown")

    def _by_table(self, model: str, used: Mapping[str, Any]) -> float | None:
        price = self._price(model)
        return None if price is None else price.rates.cost(**_counted(used))


def _counted(used: Mapping[str, Any]) -> dict[str, int]:
    """The tokens of one model in modelUsage, by the names that a price has for them."""
    return {ours.removesuffix("_tokens"): count(used.get(theirs)) or 0 for ours, (_, theirs) in _KINDS.items()}


def final_tokens(line: Mapping[str, Any]) -> dict[str, int]:
    """What the CLI says in its last line, with what sub-agents used where it tells that: `usage` leaves it out."""
    models = mapping(line.get("modelUsage"))
    if models:
        return {k: sum(count(mapping(m).get(theirs)) or 0 for m in models.values()) for k, (_, theirs) in _KINDS.items()}
    return {k: count(mapping(line.get("usage")).get(theirs)) or 0 for k, (theirs, _) in _KINDS.items()}


def since(earlier: Usage, tokens: Mapping[str, int], cost: float | None) -> tuple[dict[str, int], float | None]:
    """Of what a conversation has used as a whole, the part after its earlier exchanges. An unknown cost stays unknown."""
    rest = {kind: max(0, number - (getattr(earlier, kind) or 0)) for kind, number in tokens.items()}
    if cost is None or earlier.cost_usd is None:
        return rest, None
    return rest, max(0.0, cost - earlier.cost_usd)
