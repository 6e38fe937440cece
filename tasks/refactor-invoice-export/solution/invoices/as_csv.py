"""An invoice as CSV."""

import csv
import io

from invoices.model import Invoice
from invoices.totals import totals


def render(invoice: Invoice) -> str:
    sums = totals(invoice)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["name", "count", "total"])
    for line, total in zip(invoice.lines, sums.lines, strict=True):
        writer.writerow([line.name, line.count, total])
    writer.writerow(["net", "", sums.net])
    writer.writerow(["VAT", "", sums.vat])
    writer.writerow(["total", "", sums.gross])
    return out.getvalue()
