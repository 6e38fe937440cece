"""The stock of a small warehouse."""

from stock.errors import OutOfStock, OverCapacity
from stock.ledger import Ledger

__all__ = ["Ledger", "OutOfStock", "OverCapacity"]
