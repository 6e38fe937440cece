"""Statements as the bank sends them."""

import csv
from pathlib import Path


def sums(path: Path) -> dict[str, int]:
    """The sum of each account."""
    totals: dict[str, int] = {}
    with open(path, newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            number = row["acct_no"]
            totals[number] = totals.get(number, 0) + int(row["amount"])
    return totals
