"""The stock of a small warehouse."""

from stock.errors import OverCapacity
from stock.ledger import Ledger

__all__ = ["Ledger", "OverCapacity"]
