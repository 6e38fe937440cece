"""YAML as task files use it: one safe reader with C speed that knows where everything stands.

Scalars follow the YAML 1.2 core schema (`yes`, `on`, dates and `1:30` stay text). Values are built from the parser's events,
so that nothing in a file can name a Python object. Merge keys (`<<`) are supported, although 1.2 has dropped them: files
written for other tools use them, and explicit keys win as there.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from pytest_codeprobe.model.base import SourcedFloat, SourcedInt
from pytest_codeprobe.tasks.compose import compose
from pytest_codeprobe.tasks.discovery import MAX_BYTES, read_bytes
from pytest_codeprobe.tasks.problems import FieldPath, Place, invalid, relative

MAX_DEPTH = 100  #: of mappings and lists within each other
MAX_ALIASED = 100_000  #: values that aliases may add to a file
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_INT = re.compile(r"[-+]?[0-9]+")
_OCTAL_OR_HEX = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_INFINITE = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_WORDS: dict[str, bool | None] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_NUMERIC = frozenset("0123456789+-.")  #: what a number begins with
_MARK = b"\xef\xbb\xbf"  #: byte order mark
_MAX_DIGITS = 4000  #: of an integer; Python itself refuses to read more than 4300
_CORE = "tag:yaml.org,2002:"


@dataclass(slots=True)
class Document:
    """One document of a file, as plain dicts, lists and scalars, and where each part stands."""

    value: Any
    values: dict[FieldPath, Place] = field(default_factory=dict)
    keys: dict[FieldPath, Place] = field(default_factory=dict)
    moved: dict[FieldPath, FieldPath] = field(default_factory=dict)  #: what a merge key brought -> where it stands
    stands: dict[FieldPath, FieldPath] = field(default_factory=dict)  #: what is read in another place than it stands -> where it stands
    complete: Callable[[], Document] | None = None  #: the same document with all places; None: they are known already

    def place(self, path: FieldPath, *, key: bool = False) -> Place:
        """Where the value (or its key) stands; of what is not in the document, the nearest thing around it."""
        path = self._written(path)
        if self.complete is not None and (key or path not in self.values):
            whole = self.complete()
            self.values, self.keys, self.moved, self.complete = whole.values, whole.keys, whole.moved, None
        path = self._origin(path)
        if key and path in self.keys:
            return self.keys[path]
        while path and path not in self.values:
            path = path[:-1]
            if path in self.keys:  # a field that is missing: the name of what it is missing from says more than its content
                return self.keys[path]
        return self.values.get(path, Place())

    def _written(self, path: FieldPath) -> FieldPath:
        for length in range(len(path), 0, -1) if self.stands else ():
            if (origin := self.stands.get(path[:length])) is not None:
                return (*origin, *path[length:])
        return path

    def _origin(self, path: FieldPath) -> FieldPath:
        done = 0
        while self.moved and done < len(path):
            done += 1
            if path[:done] in self.moved:
                path, done = self.moved[path[:done]] + path[done:], 0
        return path


class _Fault(Exception):
    """A fault at a place of the file that is being read."""

    def __init__(self, place: Place, message: str) -> None:
        super().__init__(message)
        self.place, self.message = place, message


def load_documents(path: Path, *, rootdir: Path | None = None) -> list[Document]:
    """All documents of a file. CodeprobeError TASK_INVALID with file:line:column if it can't be read as YAML."""
    name = path.as_posix() if rootdir is None else relative(path, rootdir)
    try:
        data = read_bytes(path)
    except OSError as error:
        raise invalid(name, Place(), f"the file can't be read: {error.strerror}") from error
    return parse(data, name)


def parse(data: bytes, name: str) -> list[Document]:
    """The documents in `data`; `name` is what errors call the file."""
    try:
        text = _decode(data)
        return _composed(text) or list(_documents(text))
    except _Fault as fault:
        raise invalid(name, fault.place, fault.message) from fault


def _composed(text: str) -> list[Document]:
    """The documents as far as a valid file needs them: where its parts stand is looked up when somebody asks. Empty: not this way."""
    documents = []
    for number, (value, (first, *entries)) in enumerate(compose(text, scalar, MAX_DEPTH) or ()):
        values: dict[FieldPath, Place] = {(): _place(first), **{(n,): _place(mark) for n, mark in enumerate(entries)}}
        documents.append(Document(value, values, complete=functools.partial(_nth, text, number)))
    return documents


def _nth(text: str, number: int) -> Document:
    return next(itertools.islice(_documents(text), number, None))


def scalar(text: str) -> Any:
    """What a plain (unquoted) scalar means in the core schema; a number keeps its source text."""
    if text in _WORDS:
        return _WORDS[text]
    if text[0] not in _NUMERIC:
        return text
    if _INT.fullmatch(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a number of {len(text)} digits; put it in quotes if text is meant")
        return _sourced(SourcedInt(text), text)
    if _OCTAL_OR_HEX.fullmatch(text):
        return _sourced(SourcedInt(text, 0), text)
    if _FLOAT.fullmatch(text):
        return _sourced(SourcedFloat(text), text)
    if _INFINITE.fullmatch(text):
        return _sourced(SourcedFloat(text.replace(".", "")), text)
    return text


def _sourced(number: Any, text: str) -> Any:
    number.source = text
    return number


def _decode(data: bytes) -> str:
    if len(data) > MAX_BYTES:
        line = data.count(b"\n", 0, MAX_BYTES) + 1
        raise _Fault(Place(line, 1), f"the file is over {MAX_BYTES // 1_000_000} MB, which is more than a task file may have")
    try:
        return data.removeprefix(_MARK).decode()
    except UnicodeDecodeError as error:
        # the error counts from behind a byte order mark
        start = error.start + (len(_MARK) if data.startswith(_MARK) else 0)
        before = data[:start].decode("utf-8-sig", "replace")
        message = f"byte 0x{data[start]:02x} is not UTF-8, which task files are written in"
        raise _Fault(_place_after(before), message) from error


def _place_after(text: str) -> Place:
    return Place(text.count("\n") + 1, len(text) - (text.rfind("\n") + 1) + 1)


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def _documents(text: str) -> Iterator[Document]:
    try:
        builder = _Builder(text)
        while (document := builder.document()) is not None:
            yield document
    except yaml.reader.ReaderError as error:
        code = error.character if isinstance(error.character, int) else ord(error.character[:1] or "\0")
        # the C parser counts bytes
        before = text.encode()[: error.position].decode(errors="ignore") if _LOADER is not yaml.SafeLoader else text[: error.position]
        raise _Fault(_place_after(before), f"the character U+{code:04X} is not allowed in YAML") from error
    except yaml.MarkedYAMLError as error:
        raise _readable(error, text) from error


def _readable(error: yaml.MarkedYAMLError, text: str) -> _Fault:
    mark = error.problem_mark or error.context_mark
    place = Place() if mark is None else _place(mark)
    lines = text.splitlines()
    line = lines[place.line - 1] if place.line <= len(lines) else ""
    if line[place.column - 1 : place.column] == "\t" or "tab character" in (error.problem or ""):
        return _Fault(place, "a tab where YAML wants spaces: indent with spaces only")
    problem = error.problem or "this is not YAML"
    if problem == "mapping values are not allowed in this context":
        problem = "a ':' where no key can stand: put the text in quotes, or check the indentation"
    elif "found character that cannot start any token" in problem:
        problem = f"{line[place.column - 1 : place.column]!r} can't begin a value: put the text in quotes"
    context = error.context_mark
    began = f" (it began in line {context.line + 1})" if context is not None and context.line + 1 < place.line else ""
    return _Fault(place, f"YAML: {problem}{began}")


class _Builder:
    """Makes documents from the events of one file."""

    def __init__(self, text: str) -> None:
        self._parsed: Iterator[Any] = yaml.parse(text, Loader=_LOADER)
        self._replays: list[Iterator[Any]] = []  # innermost last
        self._recordings: list[tuple[str, list[Any]]] = []  # anchors whose node is being read, innermost last
        self._anchors: dict[str, list[Any]] = {}
        self._aliased = 0
        self._depth = 0
        self._document = Document(None)

    def document(self) -> Document | None:
        """The next one; None at the end."""
        for event in self._parsed:
            if isinstance(event, yaml.DocumentStartEvent):
                self._anchors = {}
                self._document = Document(None)
                self._document.value = self._node(self._next(), ())
                return self._document
        return None

    def _next(self) -> Any:
        while self._replays:
            event = next(self._replays[-1], None)
            if event is not None:
                self._aliased += 1
                break
            self._replays.pop()
        else:
            event = next(self._parsed)
        if self._aliased > MAX_ALIASED:
            raise _Fault(_place(event.start_mark), f"aliases expand to more than {MAX_ALIASED} values")
        for _, recording in self._recordings:
            recording.append(event)
        return event

    def _node(self, event: Any, path: FieldPath) -> Any:
        if isinstance(event, yaml.AliasEvent):
            event = self._expand(event)
        self._document.values[path] = _place(event.start_mark)
        if event.anchor is None:
            return self._content(event, path)
        anchor, event.anchor = event.anchor, None  # events are kept without it, so that an alias is the same as a copy
        self._anchors.pop(anchor, None)
        recording = [event]
        self._recordings.append((anchor, recording))
        value = self._content(event, path)
        self._recordings.pop()
        self._anchors[anchor] = recording
        return value

    def _expand(self, alias: Any) -> Any:
        """The first event of what the alias names; the others follow from _next()."""
        recorded = self._anchors.get(alias.anchor)
        if recorded is None:
            if any(name == alias.anchor for name, _ in self._recordings):
                raise _Fault(_place(alias.start_mark), f"alias *{alias.anchor} stands inside what it names")
            raise _Fault(_place(alias.start_mark), f"no anchor &{alias.anchor} stands above this alias")
        for _, recording in self._recordings:
            recording.pop()  # the alias itself; its expansion is recorded in its place
        self._replays.append(iter(recorded))
        return self._next()

    def _content(self, event: Any, path: FieldPath) -> Any:
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _Fault(_place(event.start_mark), f"more than {MAX_DEPTH} levels within each other")
        if isinstance(event, yaml.SequenceStartEvent):
            self._tag(event, "seq")
            value: Any = self._sequence(path)
        else:
            self._tag(event, "map")
            value = self._mapping(path)
        self._depth -= 1
        return value

    def _tag(self, event: Any, expected: str) -> None:
        if event.tag not in (None, "!", _CORE + expected):
            name = event.tag.replace(_CORE, "!!")
            raise _Fault(_place(event.start_mark), f"unknown tag {name}: a task file holds plain values only")

    def _scalar(self, event: Any) -> Any:
        text: str = event.value
        place = _place(event.start_mark)
        if "\0" in text:
            raise _Fault(place, "a NUL character can't be used in a task file")
        if event.tag is None:
            plain = event.implicit[0]
        elif event.tag in ("!", _CORE + "str"):
            plain = False
        elif event.tag in (_CORE + "int", _CORE + "float", _CORE + "bool", _CORE + "null"):
            plain = True
        else:
            self._tag(event, "str")
        try:
            value = scalar(text) if plain else text
        except ValueError as error:
            raise _Fault(place, str(error)) from error
        if event.tag == _CORE + "float" and isinstance(value, SourcedInt):
            value = _sourced(SourcedFloat(value), text)
        return value

    def _sequence(self, path: FieldPath) -> list[Any]:
        values: list[Any] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            values.append(self._node(event, (*path, len(values))))
        return values

    def _mapping(self, path: FieldPath) -> dict[str, Any]:
        values: dict[str, Any] = {}
        merged: list[tuple[Place, FieldPath, Any]] = []
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            place = _place(event.start_mark)
            key = self._key(event)
            if key == "<<" and isinstance(event, yaml.ScalarEvent) and event.implicit[0]:
                inner = (*path, f"<<{len(merged)}")
                merged.append((place, inner, self._node(self._next(), inner)))
                continue
            here = (*path, key)
            if key in values:
                first = self._document.keys[here].line
                raise _Fault(place, f"duplicate key {key!r} (first in line {first})")
            self._document.keys[here] = place
            values[key] = self._node(self._next(), here)
        for place, inner, value in merged:
            self._merge(values, path, place, inner, value)
        return values

    def _key(self, event: Any) -> str:
        """Keys are names, so each is taken as its text, whatever it would be as a value."""
        if isinstance(event, yaml.AliasEvent):
            event = self._expand(event)
        if not isinstance(event, yaml.ScalarEvent):
            raise _Fault(_place(event.start_mark), "a key must be text")
        if event.anchor is not None:
            self._anchors[event.anchor], event.anchor = [event], None
        return str(event.value)

    def _merge(self, values: dict[str, Any], path: FieldPath, place: Place, inner: FieldPath, value: Any) -> None:
        listed = enumerate(value) if isinstance(value, list) else ()
        sources = [(inner, value)] if isinstance(value, dict) else [((*inner, n), v) for n, v in listed]
        if not sources or not all(isinstance(v, dict) for _, v in sources):
            raise _Fault(place, "'<<' takes a mapping or a list of mappings")
        for origin, source in sources:
            for key in source:
                if key not in values:
                    values[key] = source[key]
                    self._document.moved[(*path, key)] = (*origin, key)
