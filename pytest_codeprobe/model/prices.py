"""What models cost: the price table of the package, and what tokens come to by it.

The figures stand in `prices.json`, each with its date and source, in US dollars per million tokens.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_codeprobe.model.result import Usage

_MILLION = 1e6
_DATED = re.compile(r"[-@](20\d{6}|20\d\d-\d\d-\d\d|latest|default)$")
_VERSION = re.compile(r"-v\d+(:\d+)?$")  # Bedrock's
_REGION = re.compile(r"^(?:[a-z]{2,8}\.)?(?:anthropic|openai|google)\.")  # likewise
_KINDS = ("input", "output", "cache_read", "cache_write", "cache_write_1h")
_WINDOW = re.compile(r"\[\w+\]$")  # Claude Code's word for a longer context


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """US dollars per million tokens of each kind. Cache writes are those that last for minutes, and those that last for an hour."""

    input: float
    output: float
    cache_read: float
    cache_write: float
    cache_write_1h: float

    def cost(self, *, input: int = 0, output: int = 0, cache_read: int = 0, cache_write: int = 0, cache_write_1h: int = 0) -> float:
        """Of so many tokens, in US dollars; `cache_write_1h` are some of `cache_write`."""
        return (
            input * self.input
            + output * self.output
            + cache_read * self.cache_read
            + (cache_write - cache_write_1h) * self.cache_write
            + cache_write_1h * self.cache_write_1h
        ) / _MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of one model. Above a length of the prompt in tokens some models cost more, the reply too."""

    model: str
    date: str  #: when it was looked up, ISO
    source: str
    rates: Rates
    long_prompt: tuple[int, Rates] | None = None

    def cost(self, *, input: int = 0, output: int = 0, cache_read: int = 0, cache_write: int = 0, cache_write_1h: int = 0) -> float:
        """Of one request, in US dollars."""
        rates = self.rates
        if self.long_prompt is not None and input + cache_read + cache_write > self.long_prompt[0]:
            rates = self.long_prompt[1]
        return rates.cost(input=input, output=output, cache_read=cache_read, cache_write=cache_write, cache_write_1h=cache_write_1h)


class Prices:
    """A price table. Finds a model by its own name, by a dated one, and by what Bedrock, Vertex and routers make of it."""

    def __init__(self, prices: Sequence[tuple[Price, Sequence[str]]]) -> None:
        self._listed = tuple(prices)
        self._by_name = {name: price for price, aliases in prices for name in (price.model, *aliases)}
        found = [rates for price, _ in prices for rates in (price.rates, *(price.long_prompt[1:] if price.long_prompt else ()))]
        most = {kind: max((getattr(r, kind) for r in found), default=0.0) for kind in _KINDS}
        write = max(most["cache_write"], most["cache_write_1h"])  # a usage does not tell them apart
        #: the most that a token of each kind costs, whatever the model
        self.dearest_rates = Rates(**{**most, "cache_write": write, "cache_write_1h": write})

    def with_own(self, rates: Mapping[str, Mapping[str, float | None]], source: str) -> Prices:
        """The table with prices of the user's own above it: model -> US dollars per million tokens of each kind.

        A kind that is left out costs as much as plain input.
        """
        own = [
            (Price(model=model.strip().lower(), date="", source=source, rates=_rates({k: v for k, v in row.items() if v is not None})), ())
            for model, row in rates.items()
        ]
        return Prices([*self._listed, *own])

    def __iter__(self) -> Iterator[Price]:
        return iter(dict.fromkeys(self._by_name.values()))

    def find(self, model: str | None) -> Price | None:
        """The price of a model; None if it is not known. A name that is merely similar is not taken for it."""
        return next((self._by_name[name] for name in _names(model) if name in self._by_name), None) if model else None

    def dearest(self, usage: Usage, *, at_most: int | None = None) -> float:
        """What the tokens cost at most, whatever the model. Where they are not known, `at_most` is their number."""
        if usage.total_tokens is None:
            most: float = max(getattr(self.dearest_rates, kind) for kind in _KINDS)
            return (at_most or 0) * most / _MILLION
        return self.dearest_rates.cost(
            input=usage.input_tokens or 0,
            output=usage.output_tokens or 0,
            cache_read=usage.cache_read_tokens or 0,
            cache_write=usage.cache_write_tokens or 0,
        )


def _names(model: str) -> Iterator[str]:
    """What a model may be called in the table, the likeliest first."""
    name = model.strip().lower().rpartition("/")[2]
    name = _WINDOW.sub("", _REGION.sub("", name))
    while True:
        yield name
        if name.startswith("claude-") and "." in name:
            yield name.replace(".", "-")  # as routers spell it
        shorter = _DATED.sub("", _VERSION.sub("", name))
        if shorter == name:
            return
        name = shorter


def _rates(row: Mapping[str, Any]) -> Rates:
    """Where a provider has no price of its own for a kind, it is plain input."""
    given = float(row["input"])
    write = float(row.get("cache_write", given))
    return Rates(
        input=given,
        output=float(row["output"]),
        cache_read=float(row.get("cache_read", given)),
        cache_write=write,
        cache_write_1h=float(row.get("cache_write_1h", write)),
    )


def _price(row: Mapping[str, Any], sources: Mapping[str, str]) -> tuple[Price, Sequence[str]]:
    above = row.get("long_prompt")
    return (
        Price(
            model=row["model"],
            date=row["date"],
            source=sources[row["source"]],
            rates=_rates(row),
            long_prompt=(int(above["above_tokens"]), _rates(above)) if above else None,
        ),
        row.get("aliases", ()),
    )


@functools.cache
def list_prices() -> Prices:
    """The table that the package brings along."""
    table = json.loads(Path(__file__).with_name("prices.json").read_text(encoding="utf-8"))
    return Prices([_price(row, table["sources"]) for row in table["models"]])
