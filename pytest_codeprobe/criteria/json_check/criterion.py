"""A JSON file against a schema and JMESPath assertions."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import jmespath
import jmespath.exceptions
from pydantic import model_validator

from pytest_codeprobe.criteria.base import NotThere, WorkspacePath, broken, compile_pattern, found, read_text
from pytest_codeprobe.criteria.json_check.schema import check_schema, violations
from pytest_codeprobe.model.base import Model, Text
from pytest_codeprobe.model.criterion import Criterion, Grading, Score
from pytest_codeprobe.text import one_line

Operator = Literal["equals", "not_equals", "contains", "gt", "gte", "lt", "lte", "type", "regex", "exists"]
_NUMERIC = ("gt", "gte", "lt", "lte")
_TYPES = ("string", "number", "integer", "boolean", "array", "object", "null")
#: what an expression or a schema raises on a value it was not made for, such as a number that no float can hold
_OF_THE_DOCUMENT = (TypeError, ValueError, ArithmeticError, AttributeError, LookupError, RecursionError)
_SECONDS = 30.0  #: for the schema


class Assertion(Model):
    """What a JMESPath expression must yield. Without an operator: `equals`."""

    expression: Text
    operator: Operator = "equals"
    expected: Any = None

    @model_validator(mode="after")
    def _makes_sense(self) -> Assertion:
        try:
            jmespath.compile(self.expression)
        except jmespath.exceptions.JMESPathError as error:
            raise ValueError(f"{self.expression!r} is not a JMESPath expression: {one_line(str(error))}") from error
        if self.operator != "exists" and "expected" not in self.model_fields_set:
            raise ValueError(f"operator {self.operator!r} needs 'expected'")
        if self.operator in _NUMERIC and not isinstance(self.expected, int | float | str):
            raise ValueError(f"operator {self.operator!r} compares numbers or texts")
        if self.operator == "type" and self.expected not in _TYPES:
            raise ValueError(f"expected must be one of {', '.join(_TYPES)}")
        if self.operator == "exists" and not isinstance(self.expected, bool | None):
            raise ValueError("with operator 'exists', expected is true or false")
        if self.operator == "regex":
            if not isinstance(self.expected, str):
                raise ValueError("with operator 'regex', expected is a pattern")
            compile_pattern(self.expected)
        return self

    def problem(self, document: Any) -> str:
        """Why it does not hold; empty if it does."""
        try:
            value = jmespath.search(self.expression, document)
        except (jmespath.exceptions.JMESPathError, *_OF_THE_DOCUMENT) as error:
            return f"{self.expression}: {one_line(str(error))}"
        if self._holds(value):
            return ""
        wanted = "" if self.operator == "exists" and self.expected is None else f" {_short(self.expected)}"
        return f"{self.expression} is {_short(value)}, expected: {self.operator}{wanted}"

    def _holds(self, value: Any) -> bool:
        wanted = self.expected
        match self.operator:
            case "equals":
                return same(value, wanted)
            case "not_equals":
                return not same(value, wanted)
            case "contains":
                return _contains(value, wanted)
            case "type":
                return wanted in _type_names(value)
            case "regex":
                return isinstance(value, str) and bool(found(compile_pattern(wanted), value))
            case "exists":
                return (value is not None) == (wanted is not False)
        return _compare(self.operator, value, wanted)


class JsonCheck(Criterion):
    """A JSON file of the workspace: that it is JSON, its schema (beside the task, or inline), assertions on its content."""

    type: Literal["json_check"]
    path: WorkspacePath
    json_schema: dict[str, Any] | Text | None = None
    assertions: tuple[Assertion, ...] = ()

    default_timeout: ClassVar[float] = _SECONDS
    task_paths: ClassVar[Mapping[str, str]] = {"json_schema": "schema"}

    @model_validator(mode="after")
    def _schema_is_one(self) -> JsonCheck:
        if isinstance(self.json_schema, dict):
            check_schema(self.json_schema)
        return self

    def evaluate(self, grading: Grading) -> Score:
        """0 if it is no JSON or the schema does not hold, else the share of the assertions that hold."""
        schema = self._schema(grading)
        try:
            document = load(read_text(grading.workspace, self.path))
        except NotThere as error:
            return Score(0.0, str(error))
        except (ValueError, RecursionError) as error:
            return Score(0.0, f"{self.path} is not JSON: {one_line(str(error))}")
        seconds = grading.time_left(self.timeout or _SECONDS)
        if schema is not None and (problems := violations(schema, document, seconds)):
            return Score(0.0, "the schema does not hold: " + "; ".join(problems))
        problems = [p for p in (assertion.problem(document) for assertion in self.assertions) if p]
        value = 1 - len(problems) / len(self.assertions) if self.assertions else 1.0
        return Score(value, "; ".join(problems) or f"{self.path} is as expected")

    def _schema(self, grading: Grading) -> Any:
        if not isinstance(self.json_schema, str):
            return self.json_schema
        file = Path(grading.trial.task_file).parent / self.json_schema  # absolute already where a loader made it so
        try:
            schema = load(file.read_text(encoding="utf-8"))
            check_schema(schema)
        except (OSError, ValueError) as error:
            raise broken(f"the schema {self.json_schema} can't be used: {error}") from error
        return schema


def load(text: str) -> Any:
    """Strict JSON: no NaN, no infinite numbers. ValueError, RecursionError."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is not JSON")

    def finite(digits: str) -> float:
        if math.isinf(value := float(digits)):
            raise ValueError(f"{digits[:20]} is out of range")
        return value

    return json.loads(text, parse_constant=refuse, parse_float=finite)


def same(left: Any, right: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but true is not 1."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(v, right[k]) for k, v in left.items())
    return bool(left == right)


def _contains(value: Any, wanted: Any) -> bool:
    if isinstance(value, str):
        return isinstance(wanted, str) and wanted in value
    if isinstance(value, list):
        return any(same(v, wanted) for v in value)
    return isinstance(value, dict) and wanted in value


def _type_names(value: Any) -> tuple[str, ...]:
    if isinstance(value, bool):
        return ("boolean",)
    if isinstance(value, int):
        return ("number", "integer")
    if isinstance(value, float):
        return ("number", "integer") if value.is_integer() else ("number",)
    return ({str: "string", list: "array", dict: "object", type(None): "null"}[type(value)],)


def _compare(operator: str, value: Any, wanted: Any) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (value, wanted))
    if not numbers and not (isinstance(value, str) and isinstance(wanted, str)):
        return False
    return bool({"gt": value > wanted, "gte": value >= wanted, "lt": value < wanted, "lte": value <= wanted}[operator])


def _short(value: Any) -> str:
    try:
        return one_line(json.dumps(value, ensure_ascii=False, default=str), 120)
    except RecursionError:
        return "nested too deeply"
