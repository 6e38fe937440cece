"""From a task file to tasks: every fault is TASK_INVALID at its line and column, in words of the file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.config import AgentConfig
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.model.trial import FileRef
from pytest_codeprobe.tasks import sentences
from pytest_codeprobe.tasks.availability import KNOWN_AGENTS, KNOWN_CRITERIA
from pytest_codeprobe.tasks.checks import check_task
from pytest_codeprobe.tasks.discovery import may_hold_tasks, read_bytes
from pytest_codeprobe.tasks.identities import Identities
from pytest_codeprobe.tasks.layers import copied
from pytest_codeprobe.tasks.paths import Sought
from pytest_codeprobe.tasks.problems import FieldPath, Place, Problems, dotted, invalid, relative, shown
from pytest_codeprobe.tasks.resolve import Resolver
from pytest_codeprobe.tasks.settings import LoadSettings
from pytest_codeprobe.tasks.task import Task
from pytest_codeprobe.tasks.yaml import Document, parse

#: keys of which a mapping has at least one if it is meant as a task
TASK_KEYS = ("task_id", "initial_prompt", "initial_prompt_file", "success_criteria", "run_limits")
_FIELDS = tuple(Task.model_fields)
_AGENT_FIELDS = tuple(AgentConfig.model_fields)
#: tables that are layers, in which a null takes a lower value away
LAYERED = ("agent", "sandbox", "run_limits")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTask:
    """One valid task and where it stands."""

    task: Task  #: paths in it are absolute, variables expanded
    file: Path
    name: str  #: the file as messages show it
    line: int
    document: Document
    at: FieldPath  #: of the task in the document: empty, or its number in a list
    layer: Mapping[str, Any]  #: agent, sandbox, run_limits, pre_run, post_run as plain data, nulls included
    prompt: str | None  #: byte for byte what the file or the field says
    criteria: tuple[Criterion, ...]
    refers_to: tuple[FileRef, ...]
    sought: tuple[tuple[Sought, str], ...] = ()  #: what the file names, and the paths that it led to
    variables: bool = False  #: whether what it says depends on the environment

    def place(self, path: FieldPath, *, key: bool = False) -> Place:
        """Where a field of the task stands, or what is nearest to it."""
        return self.document.place((*self.at, *path), key=key)

    def error(self, path: FieldPath, message: str) -> CodeprobeError:
        """TASK_INVALID at a field."""
        return invalid(self.name, self.place(path), message, name=dotted(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedFile:
    """A file's tasks in their order; none if it only matches a pattern and is no task file."""

    file: Path
    tasks: tuple[LoadedTask, ...] = ()
    warnings: tuple[str, ...] = ()


def load_file(path: Path, settings: LoadSettings) -> LoadedFile:
    """Read a file. CodeprobeError TASK_INVALID for the first fault by position; its detail lists all of the file."""
    path = path.absolute()
    try:
        data = read_bytes(path)
    except OSError as error:
        name = relative(path, settings.rootdir)
        raise invalid(name, Place(), f"the file can't be read: {error.strerror}") from error
    return load_bytes(path, data, settings)


def load_bytes(path: Path, data: bytes, settings: LoadSettings) -> LoadedFile:
    """As load_file(), of a file (absolute) whose content is known."""
    if not may_hold_tasks(data):
        return LoadedFile(file=path)  # somebody else's YAML, which need not even be valid for us
    name = relative(path, settings.rootdir)
    return _FileReader(path, name, settings).read(parse(data, name))


class _FileReader:
    """Collects tasks, faults and warnings of one file."""

    def __init__(self, path: Path, name: str, settings: LoadSettings) -> None:
        self.path, self.name, self.settings = path, name, settings
        self.problems = Problems(name)
        self.warnings: list[str] = []

    def read(self, documents: Sequence[Document]) -> LoadedFile:
        entries = [entry for document in documents for entry in _entries(document)]
        if not any(_is_sign(value) for _, _, value in entries):
            return LoadedFile(file=self.path)
        tasks = []
        for document, at, value in entries:
            if _is_sign(value):
                tasks.append(_TaskReader(self, document, at, value).read())
            elif value is not None:
                place = document.place(at)
                self.warnings.append(f"{self.name}:{place.line}:{place.column}: is no task and is left out")
        self.problems.check()
        return LoadedFile(file=self.path, tasks=tuple(t for t in tasks if t is not None), warnings=tuple(self.warnings))


def _entries(document: Document) -> Iterator[tuple[Document, FieldPath, Any]]:
    if isinstance(document.value, list):
        for number, value in enumerate(document.value):
            yield document, (number,), value
    else:
        yield document, (), document.value


def _is_sign(value: Any) -> bool:
    return isinstance(value, dict) and any(key in value for key in TASK_KEYS)


class _TaskReader:
    """Checks one mapping."""

    def __init__(self, reader: _FileReader, document: Document, at: FieldPath, raw: dict[str, Any]) -> None:
        self.reader, self.document, self.at, self.raw = reader, document, at, raw
        self.settings, self.problems = reader.settings, reader.problems
        self.faults = 0

    def fault(self, path: FieldPath, words: str, *, key: bool = False) -> None:
        """Words that begin with a verb are put behind the field's name."""
        self.add(path, sentences.about(path, words), key=key)

    def add(self, path: FieldPath, message: str, *, key: bool = False) -> None:
        """A whole sentence."""
        self.faults += 1
        self.problems.add(self.document.place((*self.at, *path), key=key), path, message)

    def read(self) -> LoadedTask | None:
        """The task; None if it has faults, which stand in `problems` then."""
        if "task_id" not in self.raw:
            self._no_id()
            return None
        before = len(self.problems.found)
        resolver = Resolver(self.reader.path, self.settings.places, self.settings.environ, self.fault)
        values = resolver.task(self._known())
        task = self._model(values)
        criteria = self._criteria(values.get("success_criteria"), resolver)
        agent = self._agent(values.get("agent"))
        if agent is not None:
            values["agent"] = agent
        prompt = self._prompt(values, resolver.refers_to)
        if task is not None:
            check_task(task, criteria, self.settings.registry, self.add)
        if task is None or len(self.problems.found) > before:
            return None
        return LoadedTask(
            task=task,
            file=self.reader.path,
            name=self.reader.name,
            line=self.document.place(self.at).line,
            document=self.document,
            at=self.at,
            layer={key: values[key] for key in (*LAYERED, "pre_run", "post_run") if key in values},
            prompt=prompt,
            criteria=tuple(c for c in criteria if c is not None),
            refers_to=tuple(dict.fromkeys(resolver.refers_to)),
            sought=tuple(zip(resolver.sought, (ref.path for ref in resolver.refers_to), strict=True)),
            variables=resolver.variables,
        )

    def _no_id(self) -> None:
        unknown = [key for key in self.raw if key not in _FIELDS]
        for key in unknown:
            if did_you_mean(key, ["task_id"]):
                self.add((key,), f"unknown field {key!r} (did you mean 'task_id'?)", key=True)
                return
        hint = next((hint for key in unknown if (hint := f"; unknown field {key!r}{did_you_mean(key, _FIELDS)}")), "")
        self.add((), f"a task needs the field 'task_id'{hint}")

    def _known(self) -> dict[str, Any]:
        """The mapping without what codeprobe_unknown_fields = warn forgives; fields without a value are faults."""
        known = {}
        for key, value in self.raw.items():
            if key not in _FIELDS and self.settings.unknown_fields == "warn":
                place = self.document.place((*self.at, key), key=True)
                hint = did_you_mean(key, _FIELDS)
                where = f"{self.reader.name}:{place.line}:{place.column}"
                self.reader.warnings.append(f"{where}: unknown field {key!r}{hint} is ignored")
            elif value is None and key in _FIELDS and key not in LAYERED:
                self.fault((key,), "has no value (null); give it one or leave the field out")
            else:
                known[key] = value
        return known

    def _model(self, values: dict[str, Any]) -> Task | None:
        data = {k: copied(v) if k in LAYERED else v for k, v in values.items()}
        try:
            return Task.model_validate(data)
        except ValidationError as error:
            sentences.report(error, data, Task, self.problems, self.document, self.at, skip=self._already(data))
            return None

    def _already(self, data: Mapping[str, Any]) -> frozenset[str]:
        """Fields whose absence is no fault of its own: they were there without a value."""
        return frozenset(self.raw) - frozenset(data)

    def _criteria(self, entries: Any, resolver: Resolver) -> list[Criterion | None]:
        if not isinstance(entries, list):
            return []  # the model of the task says so
        return [self._criterion(n, entry, resolver) if isinstance(entry, dict) else None for n, entry in enumerate(entries)]

    def _criterion(self, number: int, entry: dict[str, Any], resolver: Resolver) -> Criterion | None:
        at: FieldPath = ("success_criteria", number)
        if not isinstance(kind := entry.get("type"), str):
            self._no_type(entry, at)
            return None
        known = self.settings.registry.criteria
        if (model := known.get(kind)) is None:
            message = (
                f"criterion {kind!r} is not available yet"
                if kind in KNOWN_CRITERIA
                else f"unknown criterion {kind!r}{did_you_mean(kind, {*known, *KNOWN_CRITERIA})}"
            )
            self.add((*at, "type"), message)
            return None
        entry = resolver.beside_task(entry, model.task_paths, at)
        try:
            return model.model_validate(entry)
        except ValidationError as error:
            sentences.report(error, entry, model, self.problems, self.document, (*self.at, *at), prefix=at)
            return None

    def _no_type(self, entry: dict[str, Any], at: FieldPath) -> None:
        near = next((key for key in entry if key != "type" and did_you_mean(key, ["type"])), None)
        if "type" in entry:
            self.fault((*at, "type"), f"must be the name of a criterion, not {shown(entry['type'])}")
        elif near is not None:
            self.add((*at, near), f"unknown field {near!r} (did you mean 'type'?) in '{dotted(at)}'", key=True)
        else:
            self.add(at, f"field 'type' is missing in '{dotted(at)}'")

    def _agent(self, values: Any) -> dict[str, Any] | None:
        """The agent's table with the own tables of agents under their names, in the spelling that their models read."""
        if not isinstance(values, dict):
            return None
        by_name = self.settings.agents_by_name
        result: dict[str, Any] = {}
        for key, value in values.items():
            at: FieldPath = ("agent", key)
            if key in _AGENT_FIELDS:
                result[key] = value
            elif (agent := by_name.get(key)) is None:
                later = key in KNOWN_AGENTS
                unknown = f"unknown field {key!r}{did_you_mean(key, [*_AGENT_FIELDS, *by_name])} in 'agent'"
                self.add(at, f"agent {key!r} is not available yet" if later else unknown, key=True)
            elif agent.table is None:
                self.add(at, f"agent {agent.name!r} has no settings of its own", key=True)
            elif value is None:
                result[agent.name] = None  # takes a lower layer's away
            elif not isinstance(value, dict):
                self.fault(at, f"must be a mapping, not {shown(value)}")
            elif agent.name in result:
                self.add(at, f"{key!r} and {agent.name!r} are one agent; use one of the two", key=True)
            else:
                result[agent.name] = self._table(agent.table, value, at)
        name = values.get("type")
        if isinstance(name, str) and name not in by_name and name not in KNOWN_AGENTS:
            self.add(("agent", "type"), f"unknown agent {name!r}{did_you_mean(name, {*by_name, *KNOWN_AGENTS})}")
        return result

    def _table(self, model: Any, value: dict[str, Any], at: FieldPath) -> dict[str, Any]:
        try:
            dumped: dict[str, Any] = model.model_validate(value).model_dump(mode="json", exclude_unset=True)
        except ValidationError as error:
            sentences.report(error, value, model, self.problems, self.document, (*self.at, *at), prefix=at)
            return {}
        return dumped

    def _prompt(self, values: Mapping[str, Any], refers_to: Sequence[FileRef]) -> str | None:
        """Read byte for byte: no newline is translated, nothing is stripped."""
        inline, file = values.get("initial_prompt"), values.get("initial_prompt_file")
        if not isinstance(file, str) or not any(ref.role == "prompt" for ref in refers_to):
            return None if inline is None else str(getattr(inline, "source", inline))
        try:
            text = Path(file).read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            self.fault(("initial_prompt_file",), f"must name a file in UTF-8: byte {error.start} of it is not")
            return None
        except OSError as error:
            self.fault(("initial_prompt_file",), f"names a file that can't be read: {error.strerror}")
            return None
        if not text:
            self.fault(("initial_prompt_file",), "names an empty file")
        return text


__all__ = ["TASK_KEYS", "Identities", "LoadSettings", "LoadedFile", "LoadedTask", "load_bytes", "load_file"]
