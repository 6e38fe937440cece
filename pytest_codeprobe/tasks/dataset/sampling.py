"""Which rows of a dataset run: a part of them, the same on every run, machine and release of Python.

A row is taken by the digest of seed and id, not by its place: rows that join or leave a dataset change a sample by as little as can be.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_codeprobe.tasks.dataset.rows import Row

STRATIFY_FIELD = "expected_skill"  #: where the rows have it


class SamplingProblem(ValueError):
    """Why a sample can't be drawn, as a sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How many rows, drawn how. All of them where neither number is given."""

    rows: int | None = None  #: of all
    per_stratum: int | None = None  #: of each; `rows` beats it
    field: str | None = None  #: its values are the strata
    seed: int = 0


def sampled(rows: Sequence[Row], sampling: Sampling) -> list[Row]:
    """The rows that run, in their order. SamplingProblem where there is nothing to stratify by."""
    if sampling.rows is not None:
        chosen = _draw(rows, sampling.rows, sampling.seed)
    elif sampling.per_stratum is not None:
        strata: dict[str, list[Row]] = defaultdict(list)
        name = _stratify_field(rows, sampling.field)
        for row in rows:
            strata[_stratum(row.values, name)].append(row)
        chosen = {row.id for members in strata.values() for row in _rows(members, _draw(members, sampling.per_stratum, sampling.seed))}
    else:
        return [*rows]
    return _rows(rows, chosen)


def _rows(rows: Sequence[Row], ids: set[str]) -> list[Row]:
    return [row for row in rows if row.id in ids]


def _draw(rows: Sequence[Row], count: int, seed: int) -> set[str]:
    ordered = sorted(rows, key=lambda row: hashlib.sha256(f"{seed}:{row.id}".encode()).digest())
    return {row.id for row in ordered[:count]}


def _stratify_field(rows: Sequence[Row], named: str | None) -> str:
    if named is not None:
        if not any(named in row.values for row in rows):
            raise SamplingProblem(f"dataset.stratify_field: no row has a field {named!r}")
        return named
    if not any(STRATIFY_FIELD in row.values for row in rows):
        raise SamplingProblem(f"a sample per stratum needs dataset.stratify_field: no row has {STRATIFY_FIELD!r}, which it is without one")
    return STRATIFY_FIELD


def _stratum(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return "" if value is None else str(getattr(value, "source", value))
