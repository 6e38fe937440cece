"""Makes what a task refers to absolute and puts variables in, before the strict models see it."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_codeprobe.model.base import SourcedFloat, SourcedInt
from pytest_codeprobe.model.trial import FileRef, FileRole
from pytest_codeprobe.tasks.paths import Kind, PathProblem, Places, Sought, expand_variables
from pytest_codeprobe.tasks.problems import FieldPath


@dataclass(frozen=True, slots=True, kw_only=True)
class PathField:
    """One kind of path in a task. `*` in `at` is each entry of a list."""

    at: tuple[str, ...]
    role: FileRole
    kind: Kind = "any"
    variables: bool = False
    anywhere: bool = False  #: may lead out of the repository
    below_rootdir: bool = False  #: also looked for below rootdir


_FIELDS: tuple[PathField, ...] = (
    PathField(at=("initial_prompt_file",), role="prompt", kind="file"),
    PathField(at=("sandbox", "template_sources", "*", "path"), role="template", kind="folder", variables=True),
    PathField(at=("sandbox", "docker", "dockerfile"), role="docker", kind="file", variables=True),
    PathField(at=("reference", "file"), role="reference", kind="file"),
    PathField(at=("reference", "directory"), role="reference", kind="folder"),
    PathField(at=("solution", "directory"), role="solution", kind="folder"),
    PathField(at=("solution", "patch"), role="solution", kind="file"),
    PathField(at=("dataset", "paths", "*"), role="dataset", kind="file", variables=True),
    PathField(at=("agent", "system_prompt_file"), role="system_prompt", kind="file"),
    PathField(at=("simulation", "agent", "system_prompt_file"), role="system_prompt", kind="file"),
    PathField(at=("agent", "skills", "*"), role="skill", variables=True, anywhere=True),
    PathField(at=("agent", "plugins", "*", "path"), role="plugin", kind="folder", variables=True, anywhere=True, below_rootdir=True),
)
#: fields in whose strings variables are expanded, at any depth
_VARIABLES: tuple[tuple[str, ...], ...] = (
    ("agent", "env"),
    ("agent", "mcp_servers"),
    ("simulation", "agent", "env"),
    ("simulation", "agent", "mcp_servers"),
    ("sandbox", "docker", "build"),
    ("sandbox", "docker", "mounts"),
)
#: packages, some of which may be paths
_PACKAGES: tuple[tuple[str, ...], ...] = (
    ("sandbox", "setup", "python", "packages", "*"),
    ("sandbox", "setup", "node", "packages", "*"),
)
_OF_PATHS = re.compile(r"(~|\.\.?)(/.*?)?(\[.*\])?")  #: what can't be a package's name, and its extras
#: the tables in which something may be replaced
_CHANGED = frozenset(at[0] for at in (*(spec.at for spec in _FIELDS), *_VARIABLES, *_PACKAGES) if len(at) > 1)


@dataclass(slots=True)
class Resolver:
    """Resolves the fields of one mapping; faults go to `fault`, what is referred to is collected."""

    file: Path  #: whose paths these are, absolute
    places: Places
    environ: Mapping[str, str]
    fault: Callable[[FieldPath, str], None]  #: (where in the mapping, words about the field)
    refers_to: list[FileRef] = field(default_factory=list)
    sought: list[Sought] = field(default_factory=list)  #: what led to them, one by one
    variables: bool = False  #: what it says depends on the environment
    spelled: dict[FieldPath, str] = field(default_factory=dict)  #: settings in which variables stood, as they were

    def task(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of a task (or of one layer) with absolute paths and without variables."""
        result: dict[str, Any] = {key: _copy(value) if key in _CHANGED else value for key, value in raw.items()}
        for spec in _FIELDS:
            if _may_stand(result, spec.at):
                self._each(result, spec.at, (), functools.partial(self._path, spec))
        for at in _VARIABLES:
            if _may_stand(result, at):
                self._each(result, at, (), self._expanded)
        for at in _PACKAGES:
            if _may_stand(result, at):
                self._each(result, at, (), self._package)
        return result

    def beside_task(self, raw: Mapping[str, Any], fields: Mapping[str, str], path: FieldPath) -> dict[str, Any]:
        """A copy of a criterion with absolute paths in the fields that name files beside the task; other values than text are content."""
        values = dict(raw)
        for name, role in fields.items():
            if isinstance(values.get(name), list):
                values[name] = list(values[name])
            known: FileRole = "schema" if role == "schema" else "reference" if role == "reference" else "hidden"
            at = (name, "*") if isinstance(values.get(name), list) else (name,)
            spec = PathField(at=at, role=known)
            self._each(values, at, path, functools.partial(self._path, spec))
        return values

    def _each(self, holder: Any, at: tuple[str, ...], path: FieldPath, change: Callable[[Any, FieldPath], Any]) -> None:
        """Replace what stands at `at`; entries that are missing or of another shape are the models' business."""
        head, rest = at[0], at[1:]
        if head == "*":
            keys: list[Any] = list(range(len(holder))) if isinstance(holder, list) else []
        else:
            keys = [head] if isinstance(holder, dict) and holder.get(head) is not None else []
        for key in keys:
            if rest:
                self._each(holder[key], rest, (*path, key), change)
            else:
                holder[key] = change(holder[key], (*path, key))

    def _expanded(self, value: Any, path: FieldPath) -> Any:
        if isinstance(value, dict):
            return {k: self._expanded(v, (*path, k)) for k, v in value.items()}
        if isinstance(value, list):
            return [self._expanded(v, (*path, n)) for n, v in enumerate(value)]
        if isinstance(value, SourcedInt | SourcedFloat) and path[3:4] in (("env",), ("args",), ("headers",)):
            return value.source  # of an MCP server, whose model leaves the shape to the agent's CLI
        if not isinstance(value, str):
            return value
        if "$" in value:
            self.spelled[path] = value
        try:
            return self._without_variables(value)
        except PathProblem as problem:
            self.fault(path, str(problem))
            return value

    def _package(self, value: Any, path: FieldPath) -> Any:
        """Where it is a path, from the file's own folder: an absolute one. It is not one of the task's files: it may hold these."""
        match = _OF_PATHS.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            return value
        place, extras = f"{match[1]}{match[2] or ''}", match[3] or ""
        found = os.path.normpath(self.file.parent / os.path.expanduser(place))  # noqa: PTH111
        if not os.path.exists(found):  # noqa: PTH110
            self.fault(path, f"names a path that is not there: {value!r}")
        return f"{found}{extras}"

    def _without_variables(self, text: str) -> str:
        self.variables = self.variables or "$" in text
        return expand_variables(text, self.environ)

    def _path(self, spec: PathField, value: Any, path: FieldPath) -> Any:
        if not isinstance(value, str):
            return value
        try:
            text = self._without_variables(value) if spec.variables else value
            sought = Sought(text=text, kind=spec.kind, anywhere=spec.anywhere, below_rootdir=spec.below_rootdir)
            found = str(self.places.find(self.file, sought))
        except PathProblem as problem:
            self.fault(path, str(problem))
            return value
        self.refers_to.append(FileRef(path=found, role=spec.role))
        self.sought.append(sought)
        return found


def _may_stand(values: Mapping[str, Any], at: tuple[str, ...]) -> bool:
    """By the first two steps of the way: most tasks have few of the fields."""
    table = values.get(at[0])
    return table is not None and (len(at) == 1 or (isinstance(table, dict) and at[1] in table))


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value
