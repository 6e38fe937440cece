import inspect
from decimal import Decimal

from invoices import as_csv, as_html, as_text
from invoices.model import Invoice, Line

INVOICE = Invoice(
    "2024-17",
    (
        Line("Screws <M4>", 3, Decimal("0.335")),
        Line("Book", 1, Decimal("12.50"), "reduced"),
        Line("Stamp, large", 10, Decimal("0.85"), "none"),
        Line("Screws M5", 1, Decimal("0.125")),
    ),
)
EMPTY = Invoice("0", ())

TEXT = """\
Invoice 2024-17
   3 x Screws <M4>               1.01
   1 x Book                     12.50
  10 x Stamp, large              8.50
   1 x Screws M5                 0.13
net                             22.14
VAT                              1.10
total                           23.24
"""

CSV = """\
name,count,total
Screws <M4>,3,1.01
Book,1,12.50
"Stamp, large",10,8.50
Screws M5,1,0.13
net,,22.14
VAT,,1.10
total,,23.24
"""

HTML = (
    "<table><caption>2024-17</caption>"
    "<tr><td>Screws &lt;M4&gt;</td><td>3</td><td>1.01</td></tr>"
    "<tr><td>Book</td><td>1</td><td>12.50</td></tr>"
    "<tr><td>Stamp, large</td><td>10</td><td>8.50</td></tr>"
    "<tr><td>Screws M5</td><td>1</td><td>0.13</td></tr>"
    "<tr><th colspan=2>net</th><td>22.14</td></tr>"
    "<tr><th colspan=2>VAT</th><td>1.10</td></tr>"
    "<tr><th colspan=2>total</th><td>23.24</td></tr></table>\n"
)


def test_text():
    assert as_text.render(INVOICE) == TEXT


def test_csv():
    assert as_csv.render(INVOICE) == CSV


def test_html():
    assert as_html.render(INVOICE) == HTML


def test_an_invoice_without_lines():
    assert as_text.render(EMPTY).splitlines()[-1].split() == ["total", "0.00"]
    assert as_csv.render(EMPTY).splitlines()[-1] == "total,,0.00"
    assert "<td>0.00</td>" in as_html.render(EMPTY)


def test_signatures():
    for module in (as_text, as_csv, as_html):
        assert list(inspect.signature(module.render).parameters) == ["invoice"]
