"""Ledgers for tests."""

from stock import Ledger


def ledger(capacity=None, **counts):
    made = Ledger(capacity=capacity)
    for item, count in counts.items():
        made.add(item, count)
    return made
