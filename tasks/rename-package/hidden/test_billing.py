import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


def billing(*args, **env):
    return subprocess.run(
        [sys.executable, "-m", "billing", *args], capture_output=True, encoding="utf-8", env={**os.environ, **env}, timeout=30, check=True
    ).stdout


def test_the_program():
    assert billing("data/bank.csv") == "DE-1 70 EUR\nDE-2 250 EUR\n"


@pytest.mark.parametrize("currency", ["CHF", "SEK"])
def test_the_variable(currency):
    out = json.loads(billing("--format", "json", "data/bank.csv", BILLING_CURRENCY=currency))
    assert out == {"currency": currency, "sums": {"DE-1": 70, "DE-2": 250}}


def test_the_banks_file_is_as_it_was():
    assert Path("data/bank.csv").read_text(encoding="utf-8").splitlines()[0] == "acct_no,amount"


def test_without_a_listing(tmp_path):
    from billing import registry

    assert registry.load("plain", tmp_path / "none.json")({"A": 1}, "EUR") == "A 1 EUR\n"


def test_there_is_no_alias():
    assert importlib.util.find_spec("acct") is None
