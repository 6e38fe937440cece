"""An invoice as plain text."""

from invoices.model import Invoice
from invoices.totals import totals


def render(invoice: Invoice) -> str:
    sums = totals(invoice)
    out = [f"Invoice {invoice.number}"]
    for line, total in zip(invoice.lines, sums.lines, strict=True):
        out.append(f"{line.count:>4} x {line.name:<20}{total:>10}")
    out.append(f"{'net':<27}{sums.net:>10}")
    out.append(f"{'VAT':<27}{sums.vat:>10}")
    out.append(f"{'total':<27}{sums.gross:>10}")
    return "\n".join(out) + "\n"
