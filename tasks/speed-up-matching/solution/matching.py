"""Pairs payments with the invoices that they pay."""

from collections import defaultdict, deque
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
    waiting: defaultdict[tuple[str, int], deque[Invoice]] = defaultdict(deque)
    for invoice in sorted(invoices, key=lambda invoice: invoice.due):  # stable: first come, first served
        waiting[invoice.customer, invoice.amount].append(invoice)
    pairs, rest = [], []
    for payment in payments:
        fitting = waiting.get((payment.customer, payment.amount))
        if fitting:
            pairs.append((payment, fitting.popleft()))
        else:
            rest.append(payment)
    return pairs, rest
