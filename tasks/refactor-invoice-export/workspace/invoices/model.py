"""What an invoice is."""

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True)
class Line:
    name: str
    count: int
    price: Decimal  # net, for one piece
    vat: str = "standard"


@dataclass(frozen=True)
class Invoice:
    number: str
    lines: tuple[Line, ...]
