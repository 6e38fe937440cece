"""YAML: core scalars, places, and every way in which a file can't be read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.base import Text
from pytest_codeprobe.tasks.problems import Place
from pytest_codeprobe.tasks.yaml import MAX_ALIASED, load_documents, parse, scalar


def value_of(text: str) -> Any:
    (document,) = parse(text.encode(), "t.yaml")
    return document.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((word, True) for word in ("true", "True", "TRUE")),
        *((word, False) for word in ("false", "False", "FALSE")),
        *((word, None) for word in ("null", "Null", "NULL", "~")),
        *((word, word) for word in ("yes", "no", "on", "off", "Yes", "y", "N", "1:30", "2024-01-01", "12_000", "0b1", "017a", "1e", ".")),
        ("017", 17),
        ("0o17", 15),
        ("0xFf", 255),
        ("-12", -12),
        ("+3", 3),
        ("3.10", 3.1),
        (".5", 0.5),
        ("5.", 5.0),
        ("1e3", 1000.0),
        (".inf", math.inf),
        ("-.INF", -math.inf),
        ("!!str 12", "12"),
        ("! 12", "12"),
        ("'12'", "12"),
        ("!!int 12", 12),
        ("!!float 12", 12.0),
        ('"true"', "true"),
    ],
)
def test_scalars_of_the_core_schema(text: str, expected: Any) -> None:
    value = value_of(f"a: {text}")["a"]
    assert value == expected
    assert isinstance(value, bool) == isinstance(expected, bool)
    assert isinstance(value, str) == isinstance(expected, str)


def test_nan() -> None:
    assert math.isnan(value_of("a: .nan")["a"])


numbers = st.one_of(
    st.from_regex(r"[-+]?[0-9]{1,50}", fullmatch=True),
    st.from_regex(r"[-+]?[0-9]{1,20}\.[0-9]{0,20}", fullmatch=True),
    st.from_regex(r"[-+]?\.?[0-9]{1,9}[eE][-+]?[0-9]{1,3}", fullmatch=True),
    st.from_regex(r"0x[0-9a-fA-F]{1,20}|0o[0-7]{1,20}", fullmatch=True),
    st.sampled_from([".inf", "-.inf", ".nan"]),
).filter(str.isascii)


@given(numbers)
def test_text_keeps_the_spelling_of_any_number(text: str) -> None:
    value = scalar(text)
    assert isinstance(value, int | float)
    assert not isinstance(value, bool)
    assert TypeAdapter(Text).validate_python(value) == text
    assert TypeAdapter(Text).validate_python(value_of(f"a: {text}\n")["a"]) == text


plain_data: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0\x85"), max_size=12),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abc<", min_size=1, max_size=4).filter(lambda k: k != "<<"), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(plain_data)
def test_what_was_dumped_is_read_back(data: Any) -> None:
    assert value_of(yaml.safe_dump(data, allow_unicode=False)) == data


@given(st.binary(max_size=80) | st.text("ab:- \n\t{}[]&*!|>'\"%@#?,<", max_size=60).map(str.encode))
def test_whatever_the_bytes_it_is_read_or_one_error_with_a_place(data: bytes) -> None:
    error = error_of(data)
    if error is not None:
        assert error.code == "TASK_INVALID"
        assert error.message.startswith("t.yaml:")
        assert "\n" not in error.message
        assert error.detail["line"] >= 1
        assert error.detail["column"] >= 1


def error_of(data: bytes) -> CodeprobeError | None:
    try:
        parse(data, "t.yaml")
    except CodeprobeError as error:
        return error
    return None


BOMB = "a: &a [1,1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{x}: &{x} [{','.join([f'*{y}'] * 10)}]\n" for x, y in zip("bcdefghi", "abcdefgh", strict=True)
)


@pytest.mark.parametrize(
    ("data", "place", "words"),
    [
        (b"a: 1\nb: 2\na: 3\n", "3:1", "duplicate key 'a' (first in line 1)"),
        (b"x:\n  - {k: 1, k: 2}\n", "2:12", "duplicate key 'k' (first in line 2)"),
        (b"1: a\n'1': b\n", "2:1", "duplicate key '1'"),
        (b"a:\n\tb: 1\n", "2:1", "a tab where YAML wants spaces"),
        (b"a: |\n  x\n\ty\n", "3:1", "a tab where YAML wants spaces"),
        (b"a: 1\n\tfoo\n", "2:1", "a tab where YAML wants spaces"),
        ("ä: ü\nb: ".encode() + b"\xff\n", "2:4", "byte 0xff is not UTF-8"),
        (b"\xef\xbb\xbfa: b\n\xc3\xa4x\xe4: 1", "2:3", "byte 0xe4 is not UTF-8"),
        ("a: 1".encode("utf-16"), "1:1", "is not UTF-8"),
        ("ää: \x01\n".encode(), "1:5", "the character U+0001 is not allowed"),
        (b'a: "x\\0"\n', "1:4", "a NUL character"),
        (b"a: b: c\n", "1:5", "a ':' where no key can stand"),
        (b"a: @x\n", "1:4", "'@' can't begin a value: put the text in quotes"),
        (b"a: [1\nb: 2\n", "2:2", "did not find expected ',' or ']' (it began in line 1)"),
        (b"a: !vault x\n", "1:4", "unknown tag !vault"),
        (b"a: !!python/object/apply:os.system [ls]\n", "1:4", "unknown tag !!python/object/apply:os.system"),
        (b"a: *nope\n", "1:4", "no anchor &nope stands above"),
        (b"a: &x [*x]\n", "1:8", "alias *x stands inside what it names"),
        (b"? [a]\n: 1\n", "1:3", "a key must be text"),
        (b"a: 1\n<<: 3\n", "2:1", "'<<' takes a mapping or a list of mappings"),
        (b"a: " + b"9" * 5000, "1:4", "a number of 5000 digits"),
        (b"[" * 300, "1:101", "more than 100 levels"),
        (BOMB.encode(), "1:", f"aliases expand to more than {MAX_ALIASED} values"),
        (b"a: 1\n" * 1_000_001, "1000001:1", "the file is over 5 MB"),
    ],
)
def test_a_file_that_cant_be_read_is_an_error_with_its_place(data: bytes, place: str, words: str) -> None:
    with pytest.raises(CodeprobeError) as caught:
        parse(data, "tasks/t.yaml")
    assert caught.value.code == "TASK_INVALID"
    assert caught.value.message.startswith(f"tasks/t.yaml:{place}")
    assert words in caught.value.message


def test_tabs_inside_of_text_are_fine() -> None:
    assert value_of("a: |\n  x\ty\n  \tz\nb: 'p\tq'\n") == {"a": "x\ty\n\tz\n", "b": "p\tq"}


def test_aliases_are_copies_and_mean_what_stood_above_them() -> None:
    value = value_of("a: &a {x: &b 1, y: *b}\nb: &b 2\nc: *a\nd: *b\n")
    assert value == {"a": {"x": 1, "y": 1}, "b": 2, "c": {"x": 1, "y": 1}, "d": 2}
    assert value["a"] is not value["c"]


def test_merge_keys_yield_to_explicit_ones() -> None:
    (document,) = parse(b"base: &b\n  p: 1\n  q: {z: 2}\nother: &o {p: 7, r: 8}\nm:\n  <<: [*b, *o]\n  r: 3\n", "t.yaml")
    assert document.value["m"] == {"r": 3, "p": 1, "q": {"z": 2}}
    assert document.place(("m", "q", "z")) == Place(3, 10)
    assert document.place(("m", "p"), key=True) == Place(2, 3)


def test_places_of_values_keys_and_what_is_missing() -> None:
    (document,) = parse("# ü\nä:\n  - x: [1, zwei]\n    y: |\n      t\n".encode(), "t.yaml")
    assert document.place(()) == Place(2, 1)
    assert document.place(("ä", 0)) == Place(3, 5)
    assert document.place(("ä", 0, "x", 1)) == Place(3, 12)
    assert document.place(("ä", 0, "y"), key=True) == Place(4, 5)
    assert document.place(("ä", 0, "z")) == Place(3, 5)
    assert document.place(("nothing", "here")) == Place(2, 1)


def test_documents_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "sub" / "t.yaml"
    file.parent.mkdir()
    file.write_bytes(b"\xef\xbb\xbfa: 1\r\n---\r\n---\r\nb: |\r\n  x\r\n  y\r\n")
    assert [d.value for d in load_documents(file, rootdir=tmp_path)] == [{"a": 1}, None, {"b": "x\ny\n"}]
    file.write_text("a: 1\nb")
    with pytest.raises(CodeprobeError, match=r"TASK_INVALID: sub/t\.yaml:3:1: "):
        load_documents(file, rootdir=tmp_path)
    with pytest.raises(CodeprobeError, match=r"sub/no\.yaml:1:1: the file can't be read: No such file"):
        load_documents(tmp_path / "sub" / "no.yaml", rootdir=tmp_path)
