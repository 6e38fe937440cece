"""The arithmetic of an invoice: line totals, net, VAT, gross."""

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal

from invoices.model import Invoice

VAT_RATES = {"standard": 19, "reduced": 7, "none": 0}
CENT = Decimal("0.01")


@dataclass(frozen=True)
class Totals:
    lines: tuple[Decimal, ...]
    net: Decimal
    vat: Decimal

    @property
    def gross(self) -> Decimal:
        return self.net + self.vat


def to_cents(amount: Decimal) -> Decimal:
    return amount.quantize(CENT, ROUND_HALF_UP)


def totals(invoice: Invoice) -> Totals:
    """VAT is rounded once for each rate, as the tax office asks."""
    lines = tuple(to_cents(line.count * line.price) for line in invoice.lines)
    by_rate: dict[str, Decimal] = {}
    for line, total in zip(invoice.lines, lines, strict=True):
        by_rate[line.vat] = by_rate.get(line.vat, Decimal(0)) + total
    vat = sum((to_cents(amount * VAT_RATES[rate] / 100) for rate, amount in by_rate.items()), Decimal("0.00"))
    return Totals(lines, sum(lines, Decimal("0.00")), vat)
