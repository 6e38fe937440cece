"""Pairs payments with the invoices that they pay."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Invoice:
    number: str
    customer: str
    amount: int
    due: str  # ISO date


@dataclass(frozen=True)
class Payment:
    customer: str
    amount: int


def match(invoices: Iterable[Invoice], payments: Iterable[Payment]) -> tuple[list[tuple[Payment, Invoice]], list[Payment]]:
    """Pairs, in the order of the payments, and the payments that fit no invoice.

    A payment pays an open invoice of the same customer over the same amount: the one that is due first, and of
    several with one date the one that came first.
    """
    still_open = list(invoices)
    pairs, rest = [], []
    for payment in payments:
        best = None
        for position, invoice in enumerate(still_open):
            if invoice.customer == payment.customer and invoice.amount == payment.amount:
                if best is None or invoice.due < still_open[best].due:
                    best = position
        if best is None:
            rest.append(payment)
        else:
            pairs.append((payment, still_open.pop(best)))
    return pairs, rest
