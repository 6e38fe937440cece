"""The short way to read YAML says the same as the long one, or leaves the file to it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.base import SourcedFloat, SourcedInt
from pytest_codeprobe.tasks import yaml as reader
from pytest_codeprobe.tasks.compose import compose
from pytest_codeprobe.tasks.problems import FieldPath, Place
from pytest_codeprobe.tasks.yaml import MAX_DEPTH, Document, parse, scalar

pieces = st.sampled_from(
    ["a", "b: ", "- ", "\n", "\n  ", "\n    ", "[", "]", "{", "}", ", ", ": ", "? ", "|\n  ", ">-\n  ", "'", '"', "# c", "---\n", "...\n",
     "&x ", "*x", "&x", "<<: ", "! ", "!!str ", "!t ", "1", "3.10", "0x1f", "true", "~", "null", ".inf", "\t", "\\0", "\\x41", "é",
     "\u2028", "\x85", "%TAG ! x\n", "'<<': ", "a & b", "a && b", ":", "-", "\ufeff", "\x07"]
)  # fmt: skip
texts = st.lists(pieces, max_size=25).map("".join).map(lambda text: text.lstrip("\ufeff"))  # a byte order mark is taken off before


def spelled(value: Any) -> Any:
    """A value with its types, and numbers with their spelling."""
    if isinstance(value, dict):
        return {key: spelled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [spelled(inner) for inner in value]
    return type(value), value.source if isinstance(value, SourcedInt | SourcedFloat) else value


def long_way(text: str) -> list[Document] | None:
    try:
        return list(reader._documents(text))
    except reader._Fault:
        return None


def paths(value: Any, at: FieldPath = ()) -> list[FieldPath]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(path for key, below in inner for path in paths(below, (*at, key)))]


@given(texts)
@example("a: &x [1]\nb: *x\n")
@example("<<: {a: 1}\n")
@example("'<<': 1\n")
@example('{"a":&x 1, b: *x}')
@example("- 1\n--- [2, {a: 3}]\n---\n")
def test_what_it_reads_is_what_the_long_way_reads(text: str) -> None:
    found = compose(text, scalar, MAX_DEPTH)
    if found is None:
        return
    expected = long_way(text)
    assert expected is not None
    assert [spelled(value) for value, _ in found] == [spelled(document.value) for document in expected]
    for document, whole in zip(parse(text.encode(), "t"), expected, strict=True):
        for path in reversed(paths(document.value)):  # from the inside: the first that is not known yet brings all
            assert document.place(path) == whole.place(path)
            assert document.place(path, key=True) == whole.place(path, key=True)


@pytest.mark.parametrize(
    "text",
    ["a: !!str 1", "a: &x 1", "<<: {a: 1}", "a: 1\na: 2", "a: [", 'a: "\\0"', "[a]: 1", "a: " + "[" * 200 + "]" * 200, "- " * 1200 + "a",
     "a: " + "9" * 5000, "a: " + "x" * 100_001],
    ids=["tag", "anchor", "merge", "duplicate", "fault", "nul", "key", "deep", "deeper", "digits", "long"],
)  # fmt: skip
def test_what_it_leaves_to_the_long_way(text: str) -> None:
    assert compose(text, scalar, MAX_DEPTH) is None


def test_it_reads_the_sample_tasks(pytestconfig: pytest.Config) -> None:
    read = []
    for file in sorted(Path(pytestconfig.rootpath).glob("tasks/*/task.yaml")):
        text = file.read_text()
        found = compose(text, scalar, MAX_DEPTH)
        if found is not None:
            read.append(file)
            assert [spelled(value) for value, _ in found] == [spelled(d.value) for d in reader._documents(text)]
    assert len(read) > 10


def test_where_a_task_stands_is_known_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A valid file is read once: only its faults need to know where everything stands."""
    (document,) = parse(b"- a: 1\n  b: 2\n- c: 3\n", "t")
    with monkeypatch.context() as patch:
        patch.setattr(reader, "_documents", lambda *_: pytest.fail("read again"))
        assert [document.place(()), document.place((0,)), document.place((1,))] == [Place(1, 1), Place(1, 3), Place(3, 3)]
    assert document.place((0, "b")) == Place(2, 6)
    assert document.place((1, "c"), key=True) == Place(3, 3)


def test_without_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pytest_codeprobe.tasks.compose._Composer", None)
    assert parse(b"a: 1\n", "t")[0].value == {"a": 1}
    with pytest.raises(CodeprobeError, match="t:2:1: duplicate key"):
        parse(b"a: 1\na: 2\n", "t")
