"""contacts.csv to contacts.json, in the current folder."""

import csv
import json
import re
from pathlib import Path

EMAIL = re.compile(r"[^@\s]+@[^@\s]+\.[^@\s]+")


def phone_of(text: str) -> str | None:
    digits = re.sub(r"\D", "", text)
    if not digits:
        return None
    if text.strip().startswith("+"):
        return "+" + digits
    if digits.startswith("00"):
        return "+" + digits[2:]
    return "+49" + digits.removeprefix("0")


def date_of(text: str) -> str:
    day, dot, rest = text.strip().partition(".")
    if dot:
        month, year = rest.split(".")
        return f"{year}-{month}-{day}"
    return text.strip().replace("/", "-")


people: dict[str, dict[str, str | None]] = {}
with open("contacts.csv", newline="", encoding="utf-8") as file:
    rows = sorted(csv.DictReader(file), key=lambda row: date_of(row["Joined"]))
for row in rows:  # oldest first, so that the latest row and the latest number win
    email = row["E-Mail"].strip().lower()
    if EMAIL.fullmatch(email):
        older = people.get(email, {})
        people[email] = {
            "name": " ".join(row["Name"].split()),
            "email": email,
            "phone": phone_of(row["Phone"]) or older.get("phone"),
            "joined": date_of(row["Joined"]),
        }

text = json.dumps([people[email] for email in sorted(people)], indent=2, ensure_ascii=False)
Path("contacts.json").write_text(text + "\n", encoding="utf-8")
