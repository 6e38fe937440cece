"""A row of a dataset, as commands find it in their environment."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

MAX_VARIABLE = 100 << 10  #: bytes of a field that becomes a variable: the system takes no longer ones
ROW_FILE = "row.json"  #: what ROW_JSON names


def variable_name(field: str) -> str:
    """What commands find a field as: `ROW_EXPECTED_LABEL`."""
    return "ROW_" + re.sub(r"[^A-Za-z0-9]", "_", field).upper()


def hidden_fields(fields: Iterable[str]) -> Iterator[tuple[str, str, str]]:
    """Fields that no variable of their own tells, since another one has its name: field, variable, and what that holds instead."""
    taken = {variable_name("json"): f"the name of the file {ROW_FILE}"}
    for field in fields:
        other = taken.setdefault(variable_name(field), f"field {field!r}")
        if other != f"field {field!r}":
            yield field, variable_name(field), other


def row_variables(row: Mapping[str, Any]) -> dict[str, str]:
    """`ROW_<FIELD>` for each field: texts as they are, null as nothing, other values as JSON.

    Values of more than MAX_VARIABLE bytes, or with a NUL byte, are left out: they stand in the file that ROW_JSON names.
    """
    found: dict[str, str] = {}
    for name, value in row.items():
        text = "" if value is None else value if isinstance(value, str) else json.dumps(value)
        if len(text.encode("utf-8", "surrogatepass")) <= MAX_VARIABLE and "\0" not in text:
            found.setdefault(variable_name(name), text)
    return found
