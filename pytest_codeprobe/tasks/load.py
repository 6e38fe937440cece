"""From a task file to tasks: every fault is TASK_INVALID at its line and column, in words of the file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.model.trial import FileRef
from pytest_codeprobe.model.rows import hidden_fields
from pytest_codeprobe.tasks import sentences
from pytest_codeprobe.tasks.agent_fields import AgentFields
from pytest_codeprobe.tasks.availability import why_no_criterion
from pytest_codeprobe.tasks.checks import check_task
from pytest_codeprobe.tasks.dataset.reading import read_rows
from pytest_codeprobe.tasks.dataset.rows import Row
from pytest_codeprobe.tasks.dataset.spec import Dataset
from pytest_codeprobe.tasks.dataset.substitution import SubstitutionProblem, substituted, with_row, without_row, without_rows
from pytest_codeprobe.tasks.dialect import CODER_EVAL, Dialect, completed_task, dialect_of
from pytest_codeprobe.tasks.discovery import may_hold_tasks, read_bytes
from pytest_codeprobe.tasks.identities import Identities
from pytest_codeprobe.tasks.layers import copied
from pytest_codeprobe.tasks.paths import Sought
from pytest_codeprobe.tasks.problems import FieldPath, Place, Problems, dotted, invalid, relative, shown
from pytest_codeprobe.tasks.resolve import Resolver
from pytest_codeprobe.tasks.settings import LoadSettings
from pytest_codeprobe.tasks.spellings import respelled
from pytest_codeprobe.tasks.task import Task
from pytest_codeprobe.tasks.yaml import Document, parse

#: keys of which a mapping has at least one if it is meant as a task
TASK_KEYS = ("task_id", "initial_prompt", "initial_prompt_file", "success_criteria", "run_limits")
_FIELDS = tuple(Task.model_fields)
#: tables that are layers, in which a null takes a lower value away
LAYERED = ("agent", "sandbox", "run_limits")
#: settings that are layered too
_SINGLE = ("pre_run", "post_run", "repeats", "gateway", "simulation")


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
    dialect: Dialect = "native"
    variables: bool = False  #: whether what it says depends on the environment
    spelled: Mapping[FieldPath, str] = field(default_factory=dict)  #: settings in which variables stood, as the file says them
    row: Row | None = None  #: of the dataset, whose values are in what the task says
    dataset: TaskDataset | None = None

    def place(self, path: FieldPath, *, key: bool = False) -> Place:
        """Where a field of the task stands, or what is nearest to it."""
        return self.document.place((*self.at, *path), key=key)

    def error(self, path: FieldPath, message: str) -> CodeprobeError:
        """TASK_INVALID at a field."""
        return invalid(self.name, self.place(path), message, name=dotted(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDataset:
    """The rows of a task, and how to read the task with the values of one."""

    spec: Dataset
    rows: tuple[Row, ...]
    files: tuple[tuple[Sought, str, str], ...]  #: what the task names, where that leads, and a digest of the content
    read: Callable[[Row], LoadedTask]  #: TASK_INVALID where the task is wrong with that row


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
                tasks.append(self._task(document, at, value))
            elif value is not None:
                place = document.place(at)
                self.warnings.append(f"{self.name}:{place.line}:{place.column}: is no task and is left out")
        self.problems.check()
        return LoadedFile(file=self.path, tasks=tuple(t for t in tasks if t is not None), warnings=tuple(self.warnings))

    def _task(self, document: Document, at: FieldPath, value: dict[str, Any]) -> LoadedTask | None:
        """A mapping, read in our names of its fields."""
        ours = respelled(value, "task", at)
        for path, message in ours.faults:
            self.problems.add(document.place(path), path[len(at) :], message)
        document.stands.update(ours.stands)
        self.warnings += [note for note in ours.notes if note not in self.warnings]
        dialect = dialect_of(ours.value, self.settings.dialect)
        found = _TaskReader(self, document, at, completed_task(ours.value) if dialect == CODER_EVAL else ours.value).read()
        return None if found is None else replace(found, dialect=dialect)


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

    def __init__(
        self,
        reader: _FileReader,
        document: Document,
        at: FieldPath,
        raw: dict[str, Any],
        problems: Problems | None = None,
        row: Row | None = None,
    ) -> None:
        self.reader, self.document, self.at, self.raw, self.row = reader, document, at, raw, row
        self.settings, self.problems = reader.settings, reader.problems if problems is None else problems
        self.faults = 0

    def fault(self, path: FieldPath, words: str, *, key: bool = False) -> None:
        """Words that begin with a verb are put behind the field's name."""
        self.add(path, sentences.about(path, words), key=key)

    def add(self, path: FieldPath, message: str, *, key: bool = False) -> None:
        """A whole sentence."""
        self.faults += 1
        of_row = "" if self.row is None else f" (row {self.row.id!r})"
        self.problems.add(self.document.place((*self.at, *path), key=key), path, message + of_row)

    def read(self) -> LoadedTask | None:
        """The task, with the values of its first row if it has a dataset; None if it has faults, which stand in `problems` then."""
        if "task_id" not in self.raw:
            self._no_id()
            return None
        if self.raw.get("dataset") is not None:
            return self._over_rows()
        try:
            self.raw = without_rows(self.raw)
        except SubstitutionProblem as problem:
            self.fault(problem.path, str(problem))
            return None
        return self._task()

    def _over_rows(self) -> LoadedTask | None:
        raw, at = self.raw["dataset"], ("dataset",)
        try:
            spec = Dataset.model_validate(raw)
        except ValidationError as error:
            sentences.report(error, raw, Dataset, self.problems, self.document, (*self.at, *at), prefix=at)
            return None
        read = read_rows(spec, raw, self.reader.path, self.settings, lambda path, message: self.add((*at, *path), message))
        if read is None:
            return None
        rows, files = read
        for field, variable, other in hidden_fields(dict.fromkeys(key for row in rows for key in row.values)):
            place = self.document.place((*self.at, *at))
            where = f"{self.reader.name}:{place.line}:{place.column}"
            self.reader.warnings.append(f"{where}: field {field!r} of the dataset is in $ROW_JSON alone: ${variable} is {other}")
        found = TaskDataset(spec=spec, rows=rows, files=files, read=self._of_row)
        first = self._with_row(rows[0], self.problems)
        return None if first is None else replace(first, dataset=found)

    def _of_row(self, row: Row) -> LoadedTask:
        problems = Problems(self.reader.name)
        found = self._with_row(row, problems)
        if found is None:
            problems.raise_first()
        return found

    def _with_row(self, row: Row, problems: Problems) -> LoadedTask | None:
        raw = {key: value for key, value in self.raw.items() if key != "dataset"}
        one = _TaskReader(self.reader, self.document, self.at, raw, problems, row)
        try:
            one.raw = with_row(raw, row.values)
        except SubstitutionProblem as problem:
            one.fault(problem.path, str(problem))
            return None
        return one._task()

    def _task(self) -> LoadedTask | None:
        before = len(self.problems.found)
        resolver = Resolver(self.reader.path, self.settings.places, self.settings.environ, self.fault)
        values = resolver.task(self._known())
        task = self._model(values)
        criteria = self._criteria(values.get("success_criteria"), resolver)
        if isinstance(values.get("agent"), dict):
            values["agent"] = AgentFields(self.settings, self.problems, self.document, (*self.at, "agent"), ("agent",)).read(
                values["agent"]
            )
        if isinstance(values.get("simulation"), dict) and isinstance(values["simulation"].get("agent"), dict):
            at: FieldPath = ("simulation", "agent")
            user = AgentFields(self.settings, self.problems, self.document, (*self.at, *at), at).read(values["simulation"]["agent"])
            values["simulation"] = {**values["simulation"], "agent": user}
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
            layer={key: values[key] for key in (*LAYERED, *_SINGLE) if key in values},
            prompt=prompt,
            criteria=tuple(c for c in criteria if c is not None),
            refers_to=tuple(dict.fromkeys(resolver.refers_to)),
            sought=tuple(zip(resolver.sought, (ref.path for ref in resolver.refers_to), strict=True)),
            variables=resolver.variables,
            spelled=resolver.spelled,
            row=self.row,
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
            self.add((*at, "type"), why_no_criterion(kind, known))
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

    def _prompt(self, values: Mapping[str, Any], refers_to: Sequence[FileRef]) -> str | None:
        """Read byte for byte: no newline is translated, nothing is stripped. A file may name fields of the row as the field itself may."""
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
        try:
            return without_row(text) if self.row is None else substituted(text, self.row.values)
        except SubstitutionProblem as problem:
            self.fault(("initial_prompt_file",), str(problem))
            return None


__all__ = ["TASK_KEYS", "Identities", "LoadSettings", "LoadedFile", "LoadedTask", "load_bytes", "load_file"]
