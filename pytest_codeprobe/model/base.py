"""The base of all models, and the string type of task files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field


class Model(BaseModel):
    """A frozen value whose unknown fields are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=False, ser_json_inf_nan="null")


class SourcedInt(int):
    """An integer from a plain YAML scalar that remembers how it was written (`3.10`, a commit hash of digits)."""

    source: str


class SourcedFloat(float):
    """A float from a plain YAML scalar that remembers how it was written."""

    source: str


def _text(value: Any) -> Any:
    if isinstance(value, SourcedInt | SourcedFloat):
        return value.source
    if value is None or isinstance(value, bool):
        word = "null" if value is None else str(value).lower()
        raise ValueError(f"is {word}, not text; put it in quotes if the text {word!r} is meant")
    return value


def is_number(text: str) -> bool:
    """Whether a text reads as a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise ValueError("is a boolean, not a number")
    if isinstance(value, str):
        raise ValueError(f"is text, not a number{'; write it without quotes' if is_number(value) else ''}")
    return value


def _flag(value: Any) -> Any:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


#: text in a task file: a number keeps its spelling, a bool or null is an error that says to quote it
Text = Annotated[str, BeforeValidator(_text)]
#: an integer that is neither a bool nor text
Int = Annotated[int, BeforeValidator(_number)]
#: a finite number that is neither a bool nor text: no bound holds, or falls, by what is none, and no sum survives it
Float = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
#: true or false and nothing that merely looks like it
Flag = Annotated[bool, BeforeValidator(_flag)]


def plain(value: Any) -> Any:
    """A plain value without the numbers that remember their spelling, in containers of its own."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, SourcedInt):
        return int(value)
    return float(value) if isinstance(value, SourcedFloat) else value
