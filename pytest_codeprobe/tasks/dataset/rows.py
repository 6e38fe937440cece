"""The rows of a dataset: from the task's YAML, or from JSON Lines and CSV files."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_codeprobe.model.base import SourcedFloat, SourcedInt

MAX_ID = 100  #: characters
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LINES = (".jsonl", ".ndjson")
_TABLES = {".csv": ",", ".tsv": "\t"}
_MARK = "\N{ZERO WIDTH NO-BREAK SPACE}"


class RowProblem(ValueError):
    """What is wrong with a row or a file of rows, as a sentence; `row` is the number of an inline one."""

    def __init__(self, message: str, row: int | None = None) -> None:
        super().__init__(message)
        self.row = row


@dataclass(frozen=True, slots=True)
class Row:
    """One row. Numbers remember how they were written."""

    id: str
    values: Mapping[str, Any]
    where: str  #: `rows[3]`, `data.jsonl:4`


def inline_rows(rows: Sequence[Mapping[str, Any]], id_field: str) -> list[Row]:
    """Rows that stand in the task. RowProblem for the first fault."""
    return _checked(((f"dataset.rows[{number}]", number, values) for number, values in enumerate(rows)), id_field)


def rows_of_files(files: Sequence[Path], names: Sequence[str], id_field: str) -> list[Row]:
    """Rows of JSON Lines (.jsonl, .ndjson) and CSV files (.csv, .tsv), one file after the other; `names` is what messages call them."""
    read = ((f"{name}:{line}", None, values) for file, name in zip(files, names, strict=True) for line, values in _read(file, name))
    return _checked(read, id_field)


def _checked(found: Iterator[tuple[str, int | None, Mapping[str, Any]]], id_field: str) -> list[Row]:
    rows: list[Row] = []
    seen: dict[str, Row] = {}
    for where, number, values in found:
        row = Row(_id(values, id_field, where, number), values, where)
        other = seen.setdefault(row.id.casefold(), row)
        if other is not row:
            same = f"{id_field} {row.id!r} stands twice" if other.id == row.id else f"{id_field} {row.id!r} and {other.id!r} are too alike"
            raise RowProblem(f"{where}: {same}: here and in {other.where}", number)
        rows.append(row)
    if not rows:
        raise RowProblem("the dataset has no rows")
    return rows


def _id(values: Mapping[str, Any], id_field: str, where: str, number: int | None) -> str:
    if id_field not in values:
        known = ", ".join(map(str, values)) or "none"
        raise RowProblem(
            f"{where}: the row has no field {id_field!r} to be known by; name another with dataset.id_field (it has: {known})", number
        )
    value = values[id_field]
    text = getattr(value, "source", value)
    if not isinstance(text, str) or not _ID.fullmatch(text) or len(text) > MAX_ID:
        shown = json.dumps(text, default=str)[:80]
        rule = f"letters, digits, _ - and ., not . or - first, at most {MAX_ID} of them"
        raise RowProblem(f"{where}: {id_field} must be made of {rule}, not {shown}", number)
    return text


# ---- files


def _read(file: Path, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    suffix = file.suffix.lower()
    if suffix not in (*_LINES, *_TABLES):
        raise RowProblem(f"{name} must be JSON Lines ({', '.join(_LINES)}) or CSV ({', '.join(_TABLES)})")
    try:
        text = file.read_bytes().decode().removeprefix(_MARK)
    except OSError as error:
        raise RowProblem(f"{name} can't be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise RowProblem(f"{name}:{line}: byte 0x{error.object[error.start]:02x} is not UTF-8") from error
    yield from _json_lines(text, name) if suffix in _LINES else _table(text, name, _TABLES[suffix])


def _json_lines(text: str, name: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            value = json.loads(line, parse_int=_int, parse_float=_float, parse_constant=_no_number, object_pairs_hook=_once)
        except (ValueError, RecursionError) as error:
            words = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
            raise RowProblem(f"{name}:{number}: {words}") from error
        if not isinstance(value, dict):
            raise RowProblem(f"{name}:{number}: a row must be a JSON object")
        if "\\u" in line and any("\ud800" <= character <= "\udfff" for character in json.dumps(value, ensure_ascii=False)):
            raise RowProblem(f"{name}:{number}: half of a surrogate pair is no text")  # no prompt and no file can hold it
        yield number, value


def _int(text: str) -> Any:
    value = SourcedInt(text)
    value.source = text
    return value


def _float(text: str) -> Any:
    value = SourcedFloat(text)
    value.source = text
    return value


def _no_number(text: str) -> Any:
    raise ValueError(f"{text} is no JSON number")


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(key for n, (key, _) in enumerate(pairs) if key in [k for k, _ in pairs[:n]])
        raise ValueError(f"field {twice!r} stands twice")
    return values


def _table(text: str, name: str, delimiter: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    header: list[str] | None = None
    first = 1
    try:
        for cells in reader:
            line, first = first, reader.line_num + 1  # a quoted cell may go over several lines
            if not cells or cells == [""]:
                continue
            if header is None:
                header = [cell.strip() for cell in cells]
                if "" in header or len(set(header)) < len(header):
                    raise RowProblem(f"{name}:{line}: each column needs a name of its own, not {header}")
            elif len(cells) != len(header):
                raise RowProblem(f"{name}:{line}: {len(cells)} cells under {len(header)} columns")
            else:
                yield line, dict(zip(header, cells, strict=True))
    except csv.Error as error:
        raise RowProblem(f"{name}:{reader.line_num}: {error}") from error
