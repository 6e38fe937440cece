"""An invoice as an HTML table."""

from html import escape

from invoices.model import Invoice
from invoices.totals import totals


def render(invoice: Invoice) -> str:
    sums = totals(invoice)
    rows = []
    for line, total in zip(invoice.lines, sums.lines, strict=True):
        rows.append(f"<tr><td>{escape(line.name)}</td><td>{line.count}</td><td>{total}</td></tr>")
    for label, amount in (("net", sums.net), ("VAT", sums.vat), ("total", sums.gross)):
        rows.append(f"<tr><th colspan=2>{label}</th><td>{amount}</td></tr>")
    return f"<table><caption>{escape(invoice.number)}</caption>{''.join(rows)}</table>\n"
