"""suite.toml: which of the tasks run. Keys AND, values in one key OR, upper and lower case mean the same."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.tasks.discovery import read_bytes
from pytest_codeprobe.tasks.problems import shown

#: key -> what of a task it looks at; in this order they are asked
_FILTERS = ("task_ids", "tags", "task_types", "difficulties", "exclude_tags")
_OTHERS = ("name", "description", "task_dir", "eval_goal")  #: the last two for files of other systems
_TOLD, _LISTED = 5, 100  #: names in a sentence, and in a list
_METADATA = {"task_types": "task_type", "difficulties": "difficulty"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What a suite looks at of one task."""

    task_id: str
    tags: Sequence[str]
    metadata: Mapping[str, Any]

    def of(self, key: str) -> set[str]:
        """The values that a filter is held against, in lower case."""
        if key == "task_ids":
            return {self.task_id.casefold()}
        value = self.metadata.get(_METADATA[key]) if key in _METADATA else self.tags
        values = value if isinstance(value, list | tuple) else () if value is None else (value,)
        return {str(v).casefold() for v in values}


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """One file, read."""

    name: str
    file: str  #: as messages name it
    filters: Mapping[str, frozenset[str]]  #: only those that are given; values in lower case
    ids: Sequence[str] = ()  #: `task_ids` as they are written

    @property
    def needs_metadata(self) -> bool:
        """Whether it asks for more than ids and tags."""
        return not self.filters.keys().isdisjoint(_METADATA)

    def leaves_out(self, facts: Facts) -> str | None:
        """The first filter that leaves a task out; None if it is in the suite."""
        for key in _FILTERS:
            wanted = self.filters.get(key)
            if wanted is not None and bool(wanted & facts.of(key)) == (key == "exclude_tags"):
                return key
        return None

    def unknown_ids(self, all_facts: Iterable[Facts]) -> list[str]:
        """Those of its task ids that are no collected task's."""
        there = {facts.task_id.casefold() for facts in all_facts}
        return [name for name in self.ids if name.casefold() not in there]

    def no_such_ids(self, unknown: Sequence[str], all_facts: Iterable[Facts]) -> CodeprobeError:
        """NO_SUITE_MATCH for ids that are nobody's: a suite that has silently lost a task measures something else."""
        there = sorted(facts.task_id for facts in all_facts)
        named = ", ".join(f"{name!r}{did_you_mean(name, there)}" for name in unknown[:_TOLD])
        more = f" and {len(unknown) - _TOLD} more" if len(unknown) > _TOLD else ""
        return CodeprobeError(
            "NO_SUITE_MATCH",
            f"suite {self.name!r} ({self.file}): no task has the id {named}{more}",
            remediation=f"Correct task_ids in {self.file}, or take out what is gone.",
            detail={"suite": self.name, "file": self.file, "unknown": list(unknown[:_LISTED]), "unknown_count": len(unknown)},
        )

    def no_match(self, removed: Mapping[str, int], all_facts: Iterable[Facts]) -> CodeprobeError:
        """NO_SUITE_MATCH for a suite that leaves nothing of what was collected."""
        total = sum(removed.values())
        counts = {key: removed[key] for key in _FILTERS if removed.get(key)}
        told = ", ".join(f"{key} removed {count}" for key, count in counts.items())
        first = next(iter(counts))
        there = sorted({value for facts in all_facts for value in facts.of(first)})
        known = f"{', '.join(there[:20])}{' …' if len(there) > 20 else ''}" if there else "none"
        what = {"exclude_tags": "tags", "task_ids": "task ids"}.get(first, first.replace("_", " "))
        return CodeprobeError(
            "NO_SUITE_MATCH",
            f"suite {self.name!r} ({self.file}) matches none of {total} task{'s' * (total != 1)}: {told}",
            remediation=f"Change {first} in {self.file}, or name other paths; the {what} there are: {known}.",
            detail={"suite": self.name, "file": self.file, "tasks": total, "removed": counts},
        )


def read_suite(path: Path, file: str) -> Suite:
    """The suite in a file; `file` is how messages name it. NO_SUITE_MATCH where it is missing or wrong."""
    try:
        table = tomllib.loads(read_bytes(path).decode()).get("suite")
    except OSError as error:
        raise _wrong(file, error.strerror or str(error), "Name a file that exists with --codeprobe-suite.") from error
    except UnicodeDecodeError as error:
        raise _wrong(file, "it is not UTF-8") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise _wrong(file, f"it is no TOML: {error}") from error
    if not isinstance(table, dict):
        raise _wrong(file, "it has no table [suite]")
    for key in table:
        if key not in (*_FILTERS, *_OTHERS):
            raise _wrong(file, f"unknown key {key!r} in [suite]{did_you_mean(key, (*_FILTERS, *_OTHERS))}")
    name = table.get("name", path.stem)
    if not isinstance(name, str):
        raise _wrong(file, f"'name' must be text, not {shown(name)}")
    values = {key: _values(file, key, table[key]) for key in _FILTERS if key in table}
    filters = {key: frozenset(each.casefold() for each in given) for key, given in values.items()}
    return Suite(name=name, file=file, filters=filters, ids=tuple(values.get("task_ids", ())))


def _values(file: str, key: str, value: Any) -> list[str]:
    values = value if isinstance(value, list) else [value]
    for each in values:
        if isinstance(each, bool) or not isinstance(each, str | int | float):
            raise _wrong(file, f"{key!r} must be text or a list of texts, not {shown(each)}")
    return list(dict.fromkeys(map(str, values)))


def _wrong(file: str, why: str, remediation: str | None = None) -> CodeprobeError:
    return CodeprobeError(
        "NO_SUITE_MATCH", f"suite file {file}: {why}", remediation=remediation or f"Correct {file}.", detail={"file": file}
    )
