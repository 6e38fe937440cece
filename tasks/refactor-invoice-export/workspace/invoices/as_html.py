"""An invoice as an HTML table."""

from decimal import ROUND_HALF_UP, Decimal
from html import escape

from invoices.model import Invoice

VAT_RATES = {"standard": 19, "reduced": 7, "none": 0}


def render(invoice: Invoice) -> str:
    line_totals = []
    for line in invoice.lines:
        line_totals.append((line.count * line.price).quantize(Decimal("0.01"), ROUND_HALF_UP))
    net = sum(line_totals, Decimal("0.00"))
    net_by_rate: dict[str, Decimal] = {}
    for line, total in zip(invoice.lines, line_totals, strict=True):
        net_by_rate[line.vat] = net_by_rate.get(line.vat, Decimal(0)) + total
    vat = Decimal("0.00")
    for rate, amount in net_by_rate.items():
        vat += (amount * VAT_RATES[rate] / 100).quantize(Decimal("0.01"), ROUND_HALF_UP)
    rows = []
    for line, total in zip(invoice.lines, line_totals, strict=True):
        rows.append(f"<tr><td>{escape(line.name)}</td><td>{line.count}</td><td>{total}</td></tr>")
    for label, amount in (("net", net), ("VAT", vat), ("total", net + vat)):
        rows.append(f"<tr><th colspan=2>{label}</th><td>{amount}</td></tr>")
    return f"<table><caption>{escape(invoice.number)}</caption>{''.join(rows)}</table>\n"
