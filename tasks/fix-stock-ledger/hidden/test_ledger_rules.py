from pathlib import Path

import pytest
import stock

from .factories import ledger

OPENING = Path(__file__).parent.parent / "data" / "opening.csv"


def test_stock_never_goes_negative():
    shelf = ledger(bolt=3)
    with pytest.raises(stock.OutOfStock) as caught:
        shelf.remove("bolt", 5)
    assert isinstance(caught.value, ValueError)
    assert shelf.count("bolt") == 3
    with pytest.raises(stock.OutOfStock):
        shelf.remove("unheard-of", 1)
    shelf.remove("bolt", 3)
    assert shelf.count("bolt") == 0


def test_a_failed_move_changes_nothing():
    shelf, box = ledger(bolt=10), ledger(capacity=4, nut=2)
    with pytest.raises(stock.OverCapacity):
        shelf.move("bolt", 3, box)
    assert (shelf.count("bolt"), box.count("bolt"), box.count("nut")) == (10, 0, 2)
    with pytest.raises(stock.OutOfStock):
        box.move("nut", 3, shelf)
    assert (shelf.count("nut"), box.count("nut")) == (0, 2)


def test_loading_replaces(tmp_path):
    shelf = ledger(bolt=7, glue=1)
    shelf.load(OPENING)
    shelf.load(OPENING)
    assert (shelf.count("bolt"), shelf.count("glue"), shelf.total) == (150, 0, 530)


def test_a_move_carries_goods_over():
    shelf, box = ledger(bolt=10), ledger(capacity=4)
    shelf.move("bolt", 4, box)
    assert (shelf.count("bolt"), box.count("bolt")) == (6, 4)


def test_capacity_is_kept():
    box = ledger(capacity=4, nut=4)
    with pytest.raises(stock.OverCapacity):
        box.add("nut", 1)
    assert box.total == 4


def test_opening_stock():
    shelf = ledger()
    shelf.load(OPENING)
    assert [shelf.count(item) for item in ("bolt", "nut", "washer")] == [150, 80, 300]
