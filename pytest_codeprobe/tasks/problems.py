"""Faults of a task file, collected with their places and raised as one error of one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.base import SourcedFloat, SourcedInt
from pytest_codeprobe.tasks.paths import relative
from pytest_codeprobe.text import one_line

#: where something stands in a document: keys of mappings and indexes of lists, from the top
FieldPath = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A line and a column, both counted from 1."""

    line: int = 1
    column: int = 1


def dotted(path: Iterable[str | int]) -> str:
    """`success_criteria[2].path` for ("success_criteria", 2, "path")."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def undotted(text: str) -> FieldPath:
    """The inverse of dotted(), for field names that agents and drivers report."""
    parts: list[str | int] = []
    for piece in text.replace("[", ".[").split("."):
        if piece.startswith("[") and piece.endswith("]") and piece[1:-1].isdigit():
            parts.append(int(piece[1:-1]))
        elif piece:
            parts.append(piece)
    return tuple(parts)


def shown(value: Any, limit: int = 60) -> str:
    """A value as the author of the file wrote it, short enough for a message."""
    if isinstance(value, SourcedInt | SourcedFloat):
        return value.source
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    return one_line(repr(value), limit)


def invalid(file: str, place: Place, message: str, *, name: str = "", more: Sequence[dict[str, Any]] = ()) -> CodeprobeError:
    """TASK_INVALID at one place; `file` is the name that messages show, `name` the dotted field."""
    here = {"line": place.line, "column": place.column, "field": name, "message": message}
    errors = list(more) or [here]
    rest = f" (and {len(errors) - 1} more in this file)" if len(errors) > 1 else ""
    detail = {"file": file, **here, "errors": errors}
    return CodeprobeError("TASK_INVALID", f"{file}:{place.line}:{place.column}: {message}{rest}", detail=detail)


@dataclass(slots=True)
class Problems:
    """The faults found so far in one file."""

    file: str  #: as messages show it
    found: list[tuple[Place, str, str, str]] = field(default_factory=list)  #: place, dotted field, message, file

    def add(self, place: Place, path: Iterable[str | int], message: str, *, file: str | None = None) -> None:
        """Note a fault; the same one at the same place counts once. `file` is another one that the fault lies in."""
        entry = (place, dotted(path), one_line(message, 400), file or self.file)
        if entry not in self.found:
            self.found.append(entry)

    def __bool__(self) -> bool:
        return bool(self.found)

    def raise_first(self) -> NoReturn:
        """TASK_INVALID for the first by position; all of them stand in its detail."""
        ordered = sorted(self.found, key=lambda entry: (entry[3] != self.file, entry[3], entry[0]))
        place, name, message, file = ordered[0]
        more = [
            {"line": p.line, "column": p.column, "field": n, "message": m, **({"file": f} if f != file else {})} for p, n, m, f in ordered
        ]
        raise invalid(file, place, message, name=name, more=more)

    def check(self) -> None:
        """Raise if there is any."""
        if self.found:
            self.raise_first()


__all__ = ["FieldPath", "Place", "Problems", "dotted", "invalid", "relative", "shown", "undotted"]
