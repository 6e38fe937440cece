"""How many pieces of each item there are."""

import csv
from pathlib import Path

from stock.errors import OutOfStock, OverCapacity


class Ledger:
    def __init__(self, capacity: int | None = None) -> None:
        self.capacity = capacity
        self._counts: dict[str, int] = {}

    @property
    def total(self) -> int:
        return sum(self._counts.values())

    def count(self, item: str) -> int:
        return self._counts.get(item, 0)

    def add(self, item: str, count: int) -> None:
        if self.capacity is not None and self.total + count > self.capacity:
            raise OverCapacity(f"{count} {item} do not fit")
        self._counts[item] = self.count(item) + count

    def remove(self, item: str, count: int) -> None:
        if count > self.count(item):
            raise OutOfStock(f"{count} {item} asked for, {self.count(item)} in stock")
        self._counts[item] = self.count(item) - count

    def move(self, item: str, count: int, target: "Ledger") -> None:
        self.remove(item, count)
        try:
            target.add(item, count)
        except OverCapacity:
            self._counts[item] += count
            raise

    def load(self, path: Path) -> None:
        loaded = Ledger(self.capacity)
        with open(path, newline="", encoding="utf-8") as file:
            for row in csv.DictReader(file):
                loaded.add(row["item"], int(row["count"]))
        self._counts = loaded._counts
