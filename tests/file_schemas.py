"""schemas/task.json and schemas/experiment.json, for editors: made from the models that read such files.

python -m tests.file_schemas    writes them anew

They know less than the loader: what a task refers to, and how its fields go together, only that can say.
"""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from pytest_codeprobe import agents, criteria
from pytest_codeprobe.model import base
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.tasks.experiment_file import ExperimentFile
from pytest_codeprobe.tasks.load import LAYERED
from pytest_codeprobe.tasks.task import _ID, _TAG, MAX_ID, Task

#: what editors take: a later draft is unknown to many
DRAFT = "http://json-schema.org/draft-07/schema#"
_NULL = {"type": "null"}
_BOUNDS = {"gt": "exclusiveMinimum", "ge": "minimum", "lt": "exclusiveMaximum", "le": "maximum"}


class _Yaml(GenerateJsonSchema):
    """What a file may say, before our validators."""

    def function_before_schema(self, schema: core_schema.BeforeValidatorFunctionSchema) -> dict[str, Any]:
        made = super().function_before_schema(schema)
        if schema["function"].get("function") is base._text and made == {"type": "string"}:
            return {"type": ["string", "number"]}  # a number keeps its spelling
        return made


def task_schema() -> dict[str, Any]:
    """One task, or a list of them. Criteria and tables of agents that other plugins bring are let through."""
    tables = {agent.name: agent.table for agent in agents.BUILTIN if agent.table is not None}
    definitions = _definitions(Task, *tables.values(), *criteria.BUILTIN)
    task = definitions["Task"]
    for name, field in task["properties"].items():
        if name not in LAYERED:
            task["properties"][name] = _without_null(field)
    task["properties"]["success_criteria"] = {**task["properties"]["success_criteria"], "items": _criterion()}
    task["properties"]["task_id"] = {"type": ["string", "number"], "pattern": f"^{_ID.pattern}$", "maxLength": MAX_ID}
    task["properties"]["tags"]["items"] = {"type": ["string", "number"], "pattern": f"^{_TAG.pattern}$"}
    task["not"] = {"required": ["initial_prompt", "initial_prompt_file"]}
    _open_layers(definitions)
    _open_agent(definitions)
    one = {"$ref": "#/$defs/Task"}
    return _whole("task", "A task file: one task, or a list of tasks.", definitions) | {
        "if": {"type": "array"},
        "then": {"items": one, "minItems": 1},
        "else": one,
    }


def experiment_schema() -> dict[str, Any]:
    """An experiment file."""
    definitions = _definitions(ExperimentFile, AgentConfig, SandboxConfig, RunLimits)
    for owner in ("Defaults", "Variant"):
        for name, model in (("agent", AgentConfig), ("sandbox", SandboxConfig), ("run_limits", RunLimits)):
            definitions[owner]["properties"][name] = {"anyOf": [{"$ref": f"#/$defs/{model.__name__}"}, _NULL]}
    _open_layers(definitions)
    _open_agent(definitions)
    return _whole("experiment", "An experiment file.", definitions) | {"anyOf": [{"$ref": "#/$defs/ExperimentFile"}, _NULL]}


def _definitions(*models: type[BaseModel]) -> dict[str, Any]:
    _, made = models_json_schema([(model, "validation") for model in models], by_alias=True, schema_generator=_Yaml)
    found: dict[str, Any] = made["$defs"]
    for definition in found.values():
        for part in _parts(definition):
            part.pop("title", None)
            part.pop("default", None)
            for ours, theirs in _BOUNDS.items():  # as pydantic leaves them on what may be null
                if ours in part and not isinstance(part[ours], dict):
                    part[theirs] = part.pop(ours)
    return found


def _parts(value: Any) -> Iterator[dict[str, Any]]:
    """Every schema in a schema, but not what is only called like a keyword."""
    if isinstance(value, dict):
        yield value
        for key, inner in value.items():
            for each in inner.values() if key == "properties" else (inner,):
                yield from _parts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _parts(each)


def _without_null(field: dict[str, Any]) -> dict[str, Any]:
    kinds = [kind for kind in field.get("anyOf", ()) if kind != _NULL]
    if not kinds or len(kinds) == len(field["anyOf"]):
        return field
    rest = {key: value for key, value in field.items() if key != "anyOf"}
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, "anyOf": kinds}


def _open_layers(definitions: dict[str, Any]) -> None:
    """In the tables of a layer null takes away what a lower layer says."""
    for name in ("AgentConfig", "SandboxConfig", "SandboxLimits", "RunLimits"):
        fields = definitions[name]["properties"]
        for key, field in fields.items():
            if _NULL not in field.get("anyOf", ()):
                fields[key] = {"anyOf": [field, _NULL]}


def _open_agent(definitions: dict[str, Any]) -> None:
    """An agent's own settings stand under its name."""
    config = definitions["AgentConfig"]
    for agent in agents.BUILTIN:
        if agent.table is None:
            continue
        known = agent.table.__name__ in definitions
        own = {"$ref": f"#/$defs/{agent.table.__name__}"} if known else {"type": "object"}
        for name in (agent.name, *agent.aliases):
            config["properties"][name] = {"anyOf": [own, _NULL]}
    config["additionalProperties"] = {"type": ["object", "null"]}


def _criterion() -> dict[str, Any]:
    """By its type."""
    branches = []
    for model in criteria.BUILTIN:
        (kind,) = get_args(model.model_fields["type"].annotation)
        branches.append(
            {"if": {"properties": {"type": {"const": kind}}, "required": ["type"]}, "then": {"$ref": f"#/$defs/{model.__name__}"}}
        )
    return {"type": "object", "required": ["type"], "properties": {"type": {"type": "string"}}, "allOf": branches}


def _whole(name: str, description: str, definitions: dict[str, Any]) -> dict[str, Any]:
    return {"$schema": DRAFT, "title": f"pytest-codeprobe {name}", "description": description, "$defs": definitions}


MADE = {"task": task_schema, "experiment": experiment_schema}


def text_of(name: str) -> str:
    """As the package holds it."""
    return json.dumps(MADE[name](), indent=1, ensure_ascii=False, sort_keys=False) + "\n"


if __name__ == "__main__":
    for each in MADE:
        Path(str(importlib.resources.files("pytest_codeprobe.run").joinpath("schemas", f"{each}.json"))).write_text(text_of(each))
