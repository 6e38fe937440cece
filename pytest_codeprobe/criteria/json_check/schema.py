"""JSON Schemas with a clock: an agent can write a document on which a schema takes for ever."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from time import monotonic
from typing import Any, cast

from pytest_codeprobe.criteria.base import PATTERN_SECONDS, broken, compile_pattern, found
from pytest_codeprobe.text import one_line

_MAX_PROBLEMS = 5  #: that are shown
_SHALLOW = 100  #: levels of a document that no schema needs a deep recursion for, unless it refers to itself without end
Keyword = Callable[[Any, Any, Any, Any], Iterable[Any] | None]


def check_schema(schema: Any) -> None:
    """ValueError if it is none, or has keywords that can't be held to a time."""
    import jsonschema.validators

    kind = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    try:
        kind.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise ValueError(f"is not a JSON Schema: {error.json_path}: {one_line(error.message)}") from error
    words = {word for part in _parts(schema) if isinstance(part, dict) for word in part}
    if {"unevaluatedProperties", "patternProperties"} <= words:
        raise ValueError("has unevaluatedProperties beside patternProperties, which can't be held to a time; use additionalProperties")


def violations(schema: Any, document: Any, seconds: float) -> list[str]:
    """The first few places where the schema does not hold; that it took longer than so many seconds is one.

    CodeprobeError VERIFIER_FAILED where the schema itself can't be used.
    """
    import jsonschema.validators
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    kind: Any = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    clock = _Clock(monotonic() + seconds)
    keywords = {name: clock.held(keyword) for name, keyword in {**kind.VALIDATORS, **clock.keywords()}.items()}
    bounded = cast(Any, jsonschema.validators).extend(kind, keywords)
    bounded.evolve = _unnamed(kind.evolve)
    registry: Any = Registry()  # an empty one: a `$ref` elsewhere is an error, never a download
    try:
        errors = list(islice(bounded(schema, registry=registry).iter_errors(document), _MAX_PROBLEMS))
    except Unresolvable as error:
        raise broken(f"the schema refers to {error.ref!r}, which is not in it; nothing is fetched") from error
    except RecursionError as error:
        if _depth(document) < _SHALLOW:
            raise broken("the schema refers to itself without end") from error
        return ["the document is nested too deeply"]
    except ArithmeticError as error:
        return [f"a number can't be compared: {error}"]
    except _TimeIsUp:
        return [f"looking took longer than {seconds:.3g} s"]
    return [f"{error.json_path}: {one_line(error.message)}" for error in errors]


def _unnamed(evolve: Callable[..., Any]) -> Callable[..., Any]:
    """A validator's way to one for a part of the schema, which stays the one with the clock where that part names its `$schema`."""

    def evolved(validator: Any, **changes: Any) -> Any:
        schema = changes.get("schema", validator.schema)
        if isinstance(schema, dict) and "$schema" in schema:
            changes["schema"] = {name: value for name, value in schema.items() if name != "$schema"}
        return evolve(validator, **changes)

    return evolved


class _TimeIsUp(Exception):
    """The schema is looked at no longer."""


class _Clock:
    """Keywords that stop in time: each looks at the clock, and those that run a pattern or compare all with all do it in a bounded way."""

    def __init__(self, until: float) -> None:
        self._until = until

    def held(self, keyword: Keyword) -> Keyword:
        """The keyword, not begun once the time is up."""

        def begin(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
            self._left()
            yield from keyword(validator, value, instance, schema) or ()

        return begin

    def keywords(self) -> Mapping[str, Keyword]:
        """In the place of jsonschema's own."""
        return {
            "pattern": self._pattern,
            "patternProperties": self._pattern_properties,
            "additionalProperties": self._additional_properties,
            "uniqueItems": self._unique_items,
        }

    def _left(self) -> float:
        if (left := self._until - monotonic()) <= 0:
            raise _TimeIsUp
        return left

    def _found(self, pattern: str, text: str) -> bool | None:
        return found(compile_pattern(pattern), text, min(PATTERN_SECONDS, self._left()))

    def _pattern(self, validator: Any, wanted: Any, instance: Any, _: Any) -> Iterator[Any]:
        if validator.is_type(instance, "string") and not self._found(wanted, instance):
            yield _error(f"{one_line(instance, 80)!r} does not match {wanted!r}")

    def _pattern_properties(self, validator: Any, wanted: Any, instance: Any, _: Any) -> Iterator[Any]:
        if not validator.is_type(instance, "object"):
            return
        for pattern, schema in wanted.items():
            for name, value in instance.items():
                hit = self._found(pattern, name)
                if hit is None:
                    yield _error(f"it can't be known in time whether the name {one_line(name, 80)!r} matches {pattern!r}")
                elif hit:
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)

    def _additional_properties(self, validator: Any, wanted: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if not validator.is_type(instance, "object"):
            return
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        extras = [name for name in instance if name not in known and not any(self._found(pattern, name) for pattern in patterns)]
        if isinstance(wanted, dict):
            for name in extras:
                yield from validator.descend(instance[name], wanted, path=name)
        elif not wanted and extras:
            yield _error(f"Additional properties are not allowed: {', '.join(repr(one_line(name, 80)) for name in extras[:5])}")

    def _unique_items(self, validator: Any, wanted: Any, instance: Any, _: Any) -> Iterator[Any]:
        if not wanted or not validator.is_type(instance, "array"):
            return
        seen = set()
        for item in instance:
            if (key := json.dumps(_plain(item), sort_keys=True)) in seen:
                yield _error(f"{one_line(key, 80)} stands there more than once")
                return
            seen.add(key)


def _plain(value: Any) -> Any:
    """Numbers that are equal written in one way; true is none."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return {name: _plain(item) for name, item in value.items()} if isinstance(value, dict) else value


def _error(message: str) -> Any:
    import jsonschema

    return jsonschema.ValidationError(message)


def _parts(value: Any) -> Iterator[Any]:
    """The value and all that is in it."""
    todo = [value]
    while todo:
        part = todo.pop()
        yield part
        todo += part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()


def _depth(value: Any) -> int:
    """Levels of a JSON value, up to _SHALLOW."""
    level, depth = [value], 0
    while level and depth < _SHALLOW:
        level = [item for part in level for item in (part.values() if isinstance(part, dict) else part if isinstance(part, list) else ())]
        depth += 1
    return depth
