"""The price table: what stands in it, how a model is found in it, and what tokens come to."""

from __future__ import annotations

import datetime as dt
import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_codeprobe.model import prices
from pytest_codeprobe.model.prices import Price, Prices, Rates, list_prices
from pytest_codeprobe.model.result import Usage

TABLE = json.loads(Path(prices.__file__).with_name("prices.json").read_text(encoding="utf-8"))


def test_each_price_has_a_date_and_a_source() -> None:
    assert len(list(list_prices())) == len(TABLE["models"]) > 50
    for price in list_prices():
        assert dt.date.fromisoformat(price.date) >= dt.date(2026, 1, 1)
        assert re.match(r"https://[a-z.]+/", price.source)
    for row in TABLE["models"]:
        for rates in (row, *([row["long_prompt"]] if "long_prompt" in row else [])):
            assert 0 < rates["input"] < rates["output"] < 1000
            assert rates.get("cache_read", 0) < rates["input"] <= rates.get("cache_write", rates["input"])


def test_names_are_there_once() -> None:
    names = [name for row in TABLE["models"] for name in (row["model"], *row.get("aliases", ()))]
    assert len(names) == len(set(names))
    assert names == [name.lower() for name in names]


@pytest.mark.parametrize(
    ("model", "found"),
    [
        ("claude-sonnet-4-5", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("claude-sonnet-4-5[1m]", "claude-sonnet-4-5"),
        ("claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("Claude-Sonnet-4-5 ", "claude-sonnet-4-5"),
        ("anthropic/claude-sonnet-4.5", "claude-sonnet-4-5"),
        ("openrouter/anthropic/claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "claude-sonnet-4-5"),
        ("anthropic.claude-opus-4-6-v1", "claude-opus-4-6"),
        ("arn:aws:bedrock:us-east-1:1:inference-profile/us.anthropic.claude-opus-4-1-20250805-v1:0", "claude-opus-4-1"),
        ("claude-opus-4@20250514", "claude-opus-4-0"),
        ("claude-3-5-sonnet-v2@20241022", "claude-3-5-sonnet"),
        ("claude-3-5-haiku-latest", "claude-3-5-haiku"),
        ("gpt-5-2025-08-07", "gpt-5"),
        ("openai/gpt-5-codex", "gpt-5"),
        ("models/gemini-2.5-pro", "gemini-2.5-pro"),
        ("google/gemini-2.5-flash", "gemini-2.5-flash"),
        # similar is not the same
        ("claude-sonnet-4-5-turbo", None),
        ("claude-sonnet-99", None),
        ("gpt-5-ultra", None),
        ("sonnet", None),
        ("some-model-1", None),
        ("", None),
        ("/", None),
        (None, None),
    ],
)
def test_a_model_is_found_by_its_names(model: str | None, found: str | None) -> None:
    price = list_prices().find(model)
    assert (price and price.model) == found


def test_what_tokens_cost() -> None:
    sonnet, haiku = list_prices().find("claude-sonnet-4-5"), list_prices().find("claude-haiku-5-5")
    assert sonnet is not None
    assert haiku is not None
    assert sonnet.cost(input=1_000_000) == 3
    assert sonnet.cost(output=1_000_000) == 15
    assert sonnet.cost(cache_read=1_000_000) == pytest.approx(0.3)
    assert sonnet.cost(cache_write=1_000_000) == 3.75
    assert sonnet.cost(cache_write=1_000_000, cache_write_1h=400_000) == pytest.approx(0.6 * 3.75 + 0.4 * 6)
    # a prompt over 100 000 tokens, whatever it consists of, makes the whole request dearer
    assert haiku.cost(input=50_000, cache_read=50_000, output=1000) == pytest.approx(0.005 + 0.0005 + 0.0005)
    assert haiku.cost(input=50_000, cache_read=50_001, output=1000) == pytest.approx(0.025 + 0.0025 + 0.0025, rel=1e-4)


_AMOUNT = st.floats(min_value=0, max_value=1000)
_TOKENS = st.integers(min_value=0, max_value=10**7)
_RATES = st.builds(Rates, input=_AMOUNT, output=_AMOUNT, cache_read=_AMOUNT, cache_write=_AMOUNT, cache_write_1h=_AMOUNT)
_PRICE = st.builds(
    Price, model=st.just("m"), date=st.just("2026-01-01"), source=st.just("x"), rates=_RATES,
    long_prompt=st.none() | st.tuples(_TOKENS, _RATES),
)  # fmt: skip


@given(
    st.lists(_PRICE, min_size=1, max_size=4).map(lambda prices: Prices([(price, ()) for price in prices])) | st.just(list_prices()),
    *(_TOKENS,) * 4,
    st.floats(min_value=0, max_value=1),
)
def test_the_dearest_is_dearer_than_any(table: Prices, given: int, written: int, read: int, kept: int, hourly: float) -> None:
    """Whatever the table, the kinds of tokens, how long a cache lasts, and how long a prompt is; known or not."""
    used = Usage(input_tokens=given, output_tokens=written, cache_read_tokens=read, cache_write_tokens=kept)
    most, blind = table.dearest(used), table.dearest(Usage(), at_most=given + written + read + kept)
    for price in table:
        cost = price.cost(input=given, output=written, cache_read=read, cache_write=kept, cache_write_1h=int(kept * hourly))
        assert cost <= most * (1 + 1e-9) <= blind * (1 + 1e-8)
    assert table.dearest(Usage()) == 0
