from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_codeprobe.criteria.json_check import JsonCheck, same
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.criterion import Score
from tests.fake_grading import FakeGrading, write

DOCUMENT = {"name": "Ada", "age": 36, "tags": ["x", "y"], "ok": True, "none": None, "rate": 1.0, "deep": {"a": [1, {"b": 2}]}}


@pytest.fixture
def grading(tmp_path: Path) -> FakeGrading:
    made = FakeGrading(folder=tmp_path)
    write(made.workspace, {"d.json": json.dumps(DOCUMENT)})
    return made


def check(grading: FakeGrading, content: str | None = None, **fields: Any) -> Score:
    if content is not None:
        write(grading.workspace, {"d.json": content})
    return JsonCheck.model_validate({"type": "json_check", "path": "d.json", **fields}).evaluate(grading)


@pytest.mark.parametrize(
    ("expression", "operator", "expected", "holds"),
    [
        ("name", "equals", "Ada", True),
        ("age", "equals", 36.0, True),
        ("ok", "equals", 1, False),
        ("ok", "equals", True, True),
        ("deep", "equals", {"a": [1, {"b": 2}]}, True),
        ("deep", "equals", {"a": [True, {"b": 2}]}, False),
        ("nope", "equals", None, True),
        ("name", "not_equals", "Bob", True),
        ("name", "contains", "d", True),
        ("tags", "contains", "x", True),
        ("tags", "contains", "z", False),
        ("deep", "contains", "a", True),
        ("age", "contains", "3", False),
        ("age", "gt", 35, True),
        ("age", "gte", 36, True),
        ("age", "lt", 36, False),
        ("age", "lte", 36, True),
        ("name", "gt", 1, False),
        ("ok", "gte", 0, False),
        ("name", "lt", "Bob", True),
        ("name", "type", "string", True),
        ("age", "type", "integer", True),
        ("rate", "type", "number", True),
        ("ok", "type", "number", False),
        ("none", "type", "null", True),
        ("tags", "type", "array", True),
        ("deep", "type", "object", True),
        ("name", "regex", "^A", True),
        ("age", "regex", "3", False),
        ("name", "exists", None, True),
        ("none", "exists", None, False),
        ("nope", "exists", False, True),
        ("length(tags)", "equals", 2, True),
        ("length(age)", "equals", 2, False),
    ],
)
def test_operators(grading: FakeGrading, expression: str, operator: str, expected: Any, holds: bool) -> None:
    score = check(grading, assertions=[{"expression": expression, "operator": operator, "expected": expected}])
    assert score.value == float(holds), score.explanation


def test_the_score_is_the_share_of_assertions(grading: FakeGrading) -> None:
    score = check(grading, assertions=[{"expression": "age", "expected": e} for e in (36, 1, 2, 36)])
    assert score.value == 0.5
    assert "age is 36, expected: equals 1" in score.explanation


def test_a_schema_that_does_not_hold_is_zero_whatever_the_assertions_say(grading: FakeGrading) -> None:
    score = check(grading, json_schema={"required": ["email"]}, assertions=[{"expression": "age", "expected": 36}])
    assert score.value == 0
    assert "email" in score.explanation


def test_a_schema_lies_beside_the_task(grading: FakeGrading) -> None:
    write(grading.task, {"schema.json": json.dumps({"properties": {"age": {"maximum": 30}}})})
    write(grading.workspace, {"schema.json": "{}"})
    assert "$.age" in check(grading, json_schema="schema.json").explanation
    assert check(grading, json_schema=str(grading.task / "schema.json")).value == 0


@pytest.mark.parametrize("content", ["", "{", "NaN", '{"a": Infinity}', "[" * 100_000, "\ud7ff\0"])
def test_what_is_no_json_is_zero(grading: FakeGrading, content: str) -> None:
    score = check(grading, content)
    assert score.value == 0
    assert "is not JSON" in score.explanation


def test_a_document_too_deep_for_the_schema_is_zero(grading: FakeGrading) -> None:
    schema = {"$defs": {"n": {"items": {"$ref": "#/$defs/n"}}}, "$ref": "#/$defs/n"}
    assert check(grading, "[" * 600 + "]" * 600, json_schema=schema).value == 0


@pytest.mark.parametrize("content", [None, "{", '{"type": "nosuch"}'])
def test_a_broken_schema_file_is_an_error_not_a_zero(grading: FakeGrading, content: str | None) -> None:
    if content is not None:
        write(grading.task, {"schema.json": content})
    with pytest.raises(CodeprobeError) as caught:
        check(grading, json_schema="schema.json")
    assert caught.value.code == "VERIFIER_FAILED"


def test_a_reference_elsewhere_is_an_error_and_nothing_is_fetched(grading: FakeGrading) -> None:
    with pytest.raises(CodeprobeError, match="nothing is fetched"):
        check(grading, json_schema={"$ref": "http://127.0.0.1:9/schema.json"})


@pytest.mark.parametrize(
    "fields",
    [
        {"json_schema": {"type": "nosuch"}},
        {"assertions": [{"expression": "a[", "expected": 1}]},
        {"assertions": [{"expression": "a"}]},
        {"assertions": [{"expression": "a", "operator": "like", "expected": 1}]},
        {"assertions": [{"expression": "a", "operator": "gt", "expected": []}]},
        {"assertions": [{"expression": "a", "operator": "type", "expected": "int"}]},
        {"assertions": [{"expression": "a", "operator": "regex", "expected": "("}]},
        {"assertions": [{"expression": "a", "operator": "exists", "expected": 1}]},
    ],
)
def test_what_makes_no_sense_is_refused_at_load(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JsonCheck.model_validate({"type": "json_check", "path": "d.json", **fields})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.text(max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=1), inner, max_size=2),
)


@given(JSON, JSON)
def test_same_is_equality_of_what_is_written(left: Any, right: Any) -> None:
    assert same(left, right) == (json.dumps(left, sort_keys=True) == json.dumps(right, sort_keys=True))


def doubling(levels: int) -> dict[str, Any]:
    """A schema that looks at a document 2 ** levels times."""
    parts = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(levels)}
    return {"$ref": "#/$defs/d0", "$defs": {**parts, f"d{levels}": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "document", "told"),
    [
        (doubling(60), '"x"', "looking took longer than 0.2 s"),
        ({"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(.*?,){25}P", "items": {"$ref": "#"}},
         json.dumps(["1,2,3,4,5,6,7,8,9,10," * 20] * 3), "0.2 s|does not match"),
        ({"$defs": {"a": {"$schema": "https://json-schema.org/draft/2020-12/schema", "pattern": "^(.*?,){25}P"}},
          "items": {"$ref": "#/$defs/a"}}, json.dumps(["1,2,3,4,5,6,7,8,9,10," * 20] * 3), "0.2 s|does not match"),
        ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, json.dumps({"a" * 40 + "!": 1}), ""),
        ({"patternProperties": {"^(.*?,){25}P": {}}}, json.dumps({"1,2,3,4,5,6,7,8,9,10," * 20: 1}), "0.2 s|in time"),
        ({"items": {"pattern": "^(.*?,){25}P"}}, json.dumps(["1,2,3,4,5,6,7,8,9,10," * 20] * 3), "0.2 s|does not match"),
        ({"uniqueItems": True}, json.dumps([[n, {"a": n}] for n in range(2000)] + [[1, {"a": 1.0}]]), "more than once"),
        ({"uniqueItems": True}, "[1, true, \"1\", 1.5, [1], [true], 0, false]", ""),
        ({"patternProperties": {"^x": {"type": "integer"}}}, '{"xa": "b", "c": "d"}', "is not of type"),
        ({"properties": {"a": {}}, "patternProperties": {"^x": {}}, "additionalProperties": False}, '{"a": 1, "xa": 1, "b": 2}', "'b'"),
        ({"properties": {"a": {}}, "additionalProperties": {"type": "integer"}}, '{"a": "t", "b": "t"}', "is not of type"),
        ({"additionalProperties": True, "uniqueItems": False}, "[1, 1]", ""),
    ],
)  # fmt: skip
def test_a_schema_is_held_to_a_time(grading: FakeGrading, schema: dict[str, Any], document: str, told: str) -> None:
    score = check(grading, document, json_schema=schema, timeout=0.2)
    if told or "patternProperties" in schema:
        assert score.value == 0
        assert re.search(told, score.explanation), score.explanation
    else:
        assert score.value == 1, score.explanation


def test_a_schema_that_has_no_end_is_no_fault_of_the_document(grading: FakeGrading) -> None:
    with pytest.raises(CodeprobeError, match="refers to itself without end"):
        check(grading, "1", json_schema={"allOf": [{"$ref": "#"}]})
    assert check(grading, "[1]", json_schema={"items": {"$ref": "#"}}).value == 1
    with pytest.raises(ValidationError, match="can't be held to a time"):
        check(grading, "{}", json_schema={"allOf": [{"patternProperties": {}}], "unevaluatedProperties": False})
