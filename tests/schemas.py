"""The JSON Schemas that the package ships, and result.json's, made from the model."""

from __future__ import annotations

import functools
import importlib.resources
import json
from typing import Any

from jsonschema import Draft202012Validator
from pydantic.json_schema import GenerateJsonSchema

from pytest_codeprobe.model.result import TrialResult

NAMES = ("event", "envelope", "result")
ALL = (*NAMES, "capabilities")


def shipped(name: str) -> dict[str, Any]:
    """A schema as the package holds it."""
    file = importlib.resources.files("pytest_codeprobe.run").joinpath("schemas", f"{name}.json")
    return dict(json.loads(file.read_text(encoding="utf-8")))


@functools.cache
def validator(name: str) -> Draft202012Validator:
    """Of a shipped schema."""
    schema = shipped(name)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def check(name: str, value: Any) -> None:
    """Fail with every fault of the value."""
    faults = [f"{e.json_path}: {e.message[:300]}" for e in validator(name).iter_errors(value)]
    assert not faults, "\n".join(faults)


class _Written(GenerateJsonSchema):
    """What we write: every field is there, also one that has its default."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True


def result_schema() -> str:
    """schemas/result.json as it has to be."""
    schema = TrialResult.model_json_schema(mode="serialization", schema_generator=_Written)
    for part in (schema, *schema["$defs"].values()):
        part.pop("default", None)
        for value in part["properties"].values():
            value.pop("default", None)
            value.pop("title", None)
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "pytest-codeprobe result"}
    schema["title"] = head["title"]
    schema["description"] = "result.json: the one final record of a trial."
    return json.dumps({**head, **schema}, indent=2, ensure_ascii=False) + "\n"
