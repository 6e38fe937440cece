"""Makes shop.db from schema.sql and the CSV files in data/."""

import csv
import sqlite3
from pathlib import Path

Path("shop.db").unlink(missing_ok=True)
db = sqlite3.connect("shop.db")
db.executescript(Path("schema.sql").read_text(encoding="utf-8"))
for table in ("customers", "orders", "order_lines"):
    with open(f"data/{table}.csv", newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    db.executemany(f"INSERT INTO {table} ({', '.join(header)}) VALUES ({', '.join('?' * len(header))})", rows)
db.commit()
db.close()
