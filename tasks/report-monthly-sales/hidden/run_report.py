"""Runs a query on a database made here: `run_report.py report.sql shop|other`. The workspace's own files are not used."""

import sqlite3
import sys
from pathlib import Path

SCHEMA = """
CREATE TABLE customers (id INTEGER PRIMARY KEY, name TEXT, country TEXT);
CREATE TABLE orders (id INTEGER PRIMARY KEY, customer_id INTEGER, ordered_on TEXT, status TEXT);
CREATE TABLE order_lines (order_id INTEGER, quantity INTEGER, unit_price INTEGER, discount INTEGER DEFAULT 0);
"""

DATA = {
    "shop": (
        [(1, "Ada", "DE"), (2, "Bo", "AT"), (3, "Cem", "FR")],
        [
            (10, 1, "2024-01-03", "paid"),
            (11, 1, "2024-01-31", "paid"),
            (12, 2, "2024-01-15", "open"),
            (13, 3, "2024-01-20", "cancelled"),
            (14, 2, "2024-02-01", "paid"),
            (15, 1, "2024-02-29", "paid"),
            (16, 3, "2024-03-10", "open"),
            (17, 3, "2024-04-01", "cancelled"),
        ],
        [
            (10, 2, 1500, 0),
            (10, 1, 999, 15),
            (11, 3, 627, 0),
            (12, 1, 2000, 0),
            (13, 9, 9999, 0),
            (14, 1, 5000, 0),
            (15, 2, 2500, 0),
            (17, 1, 100, 0),
        ],
    ),
    "other": (
        [(1, "P", "PL"), (2, "C", "CZ"), (3, "D", "CZ"), (4, "E", "PL"), (5, "N", "NO")],
        [
            (1, 1, "2022-12-31", "open"),
            (2, 1, "2023-01-01", "cancelled"),
            (3, 2, "2023-02-01", "paid"),
            (4, 3, "2023-02-02", "paid"),
            (5, 4, "2023-02-28", "open"),
            (6, 5, "2023-02-28", "cancelled"),
        ],
        [(1, 1, 65, 49), (2, 1, 1, 0), (3, 1, 300, 0), (4, 1, 500, 10), (5, 1, 750, 0), (6, 100, 100, 0)],
    ),
}


def main() -> int:
    customers, orders, lines = DATA[sys.argv[2]]
    db = sqlite3.connect(":memory:")
    db.executescript(SCHEMA)
    db.executemany("INSERT INTO customers VALUES (?, ?, ?)", customers)
    db.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", orders)
    db.executemany("INSERT INTO order_lines VALUES (?, ?, ?, ?)", lines)
    db.execute("PRAGMA query_only = on")
    try:
        rows = db.execute(Path(sys.argv[1]).read_text(encoding="utf-8"))
    except (OSError, sqlite3.Error, sqlite3.Warning) as error:
        sys.stderr.write(f"{sys.argv[1]}: {error}\n")
        return 1
    names = [column[0] for column in rows.description or ()]
    for row in [names, *rows]:
        sys.stdout.write("|".join(map(str, row)) + "\n")
    return 0


sys.exit(main())
