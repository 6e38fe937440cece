"""What pydantic found, said in the words of a task file and placed in the document."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from pytest_codeprobe.errors import did_you_mean
from pytest_codeprobe.tasks.problems import FieldPath, Problems, dotted, shown
from pytest_codeprobe.tasks.yaml import Document

_Error = Mapping[str, Any]

#: words that begin so go on with the name of the field as their subject
_VERBS = ("is ", "must ", "needs ", "has ", "leads ", "names ", "uses ", "stands ", "can't ")

_KINDS: Mapping[str, str] = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "a mapping",
    "mapping_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "left out",
}
_BOUNDS: Mapping[str, tuple[str, str]] = {
    "greater_than": ("gt", "greater than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
    "multiple_of": ("multiple_of", "a multiple of"),
}


def report(
    error: ValidationError,
    raw: Any,
    model: type[BaseModel],
    problems: Problems,
    document: Document,
    where: FieldPath = (),
    *,
    prefix: FieldPath = (),
    skip: Collection[str] = (),
) -> None:
    """Add each fault of a validation to `problems`.

    `raw` is what was validated and stands at `where` in the document; fields are named from `prefix` on. Top-level fields
    in `skip` have been reported already.
    """
    groups = _grouped(error, raw)
    unknown = [path for path, faults in groups.items() if faults[0]["type"] == "extra_forbidden"]
    for path, faults in groups.items():
        fault = _telling(faults)
        kind = fault["type"]
        if len(path) == 1 and path[0] in skip:
            continue
        if kind == "missing" and any(p[:-1] == path[:-1] and did_you_mean(str(p[-1]), [str(path[-1])]) for p in unknown):
            continue  # it is there under a misspelt name, which is told
        if kind == "extra_forbidden":
            known = _fields(_model_at(model, path[:-1]))
            inside = f" in '{dotted((*prefix, *path[:-1]))}'" if len(path) > 1 or prefix else ""
            message = f"unknown field {str(path[-1])!r}{did_you_mean(str(path[-1]), known)}{inside}"
        elif kind == "missing":
            parent = (*prefix, *path[:-1])
            message = f"field {str(path[-1])!r} is missing" + (f" in '{dotted(parent)}'" if parent else "")
        elif not path and kind == "value_error":
            message = _own_words(fault) if not prefix else about(prefix, _own_words(fault))
        else:
            message = about((*prefix, *path), _sentence(faults)) + _in_full(fault, _model_at(model, path))
        place = document.place((*where, *path), key=kind == "extra_forbidden")
        problems.add(place, (*prefix, *path), message)


def _in_full(fault: _Error, model: type[BaseModel] | None) -> str:
    """How a text is written where a mapping has to stand, if it can only be meant for one field of that."""
    if _KINDS.get(fault["type"]) != "a mapping" or not isinstance(fault["input"], str) or model is None:
        return ""
    musts = [field.alias or name for name, field in model.model_fields.items() if field.is_required()]
    return f"; write {{{musts[0]}: {shown(fault['input'])}}}" if len(musts) == 1 and musts != ["type"] else ""


def about(path: FieldPath, words: str) -> str:
    """A sentence about a field: `'run_limits.max_turns' must be …`, or `'solution': give …` before words of another kind."""
    glue = " " if words.startswith(_VERBS) else ": "
    return f"'{dotted(path)}'{glue}{words}"


def _own_words(fault: _Error) -> str:
    cause = fault.get("ctx", {}).get("error")
    return str(cause) if cause is not None else str(fault["msg"]).removeprefix("Value error, ")


def _grouped(error: ValidationError, raw: Any) -> dict[FieldPath, list[_Error]]:
    """Faults by their place in the document; what a union tried stands together."""
    groups: dict[FieldPath, list[_Error]] = {}
    branched: dict[FieldPath, list[tuple[FieldPath, _Error]]] = {}
    for fault in error.errors(include_url=False):
        path, branch = _document_path(fault, raw)
        if branch is None:
            groups.setdefault(path, []).append(dict(fault))
        else:
            branched.setdefault(branch, []).append((path, dict(fault)))
    for branch, tried in branched.items():
        deepest = max(len(path) for path, _ in tried)
        if deepest > len(branch):  # one way of writing it was meant, and has a fault further inside
            told = [t for t in tried if len(t[0]) == deepest]
        else:
            told = tried
        for path, each in told:
            groups.setdefault(path, []).append(each)
    return groups


def _document_path(fault: _Error, raw: Any) -> tuple[FieldPath, FieldPath | None]:
    """The place in the document, and where a union branches off if there is one on the way: its branches are no keys."""
    path: list[str | int] = []
    branch: FieldPath | None = None
    current = raw
    last = len(fault["loc"]) - 1
    for number, part in enumerate(fault["loc"]):
        is_key = isinstance(current, Mapping) and part in current
        is_index = isinstance(current, list | tuple) and isinstance(part, int) and part < len(current)
        if is_key or is_index:
            current = current[part]
            path.append(part)
        elif number == last and fault["type"] == "missing":
            path.append(part)
        elif part != "[key]":
            branch = tuple(path) if branch is None else branch
    return tuple(path), branch


def _telling(faults: Sequence[_Error]) -> _Error:
    return next((f for f in faults if f["type"] not in _KINDS), faults[0])


def _sentence(faults: Sequence[_Error]) -> str:
    kinds = list(dict.fromkeys(_KINDS[f["type"]] for f in faults if f["type"] in _KINDS))
    fault = _telling(faults)
    if fault["type"] in _KINDS:
        return f"must be {' or '.join(kinds)}, not {shown(fault['input'])}"
    kind, value, ctx = fault["type"], shown(fault["input"]), fault.get("ctx", {})
    if kind == "value_error":
        words = _own_words(fault)
        return f"{words}, not {value}" if words == "must be true or false" else words
    if kind == "literal_error":
        options = [part.strip("'") for part in str(ctx["expected"]).replace(" or ", ", ").split(", ")]
        return f"must be {ctx['expected']}, not {value}{did_you_mean(str(fault['input']), options)}"
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"must be {words} {_number(ctx[name])}, not {value}"
    if kind in ("too_short", "string_too_short"):
        least = ctx["min_length"]
        return "is empty" if least == 1 else f"must have at least {least} entries, not {ctx.get('actual_length', 0)}"
    if kind in ("too_long", "string_too_long"):
        return f"must have at most {ctx['max_length']} entries, not {ctx.get('actual_length', 'more')}"
    if kind == "string_pattern_mismatch":
        return f"must match {ctx['pattern']}, not {value}"
    return f"{fault['msg'][:1].lower()}{fault['msg'][1:]}, not {value}"


def _number(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _fields(model: type[BaseModel] | None) -> list[str]:
    if model is None:
        return []
    return [field.alias or name for name, field in model.model_fields.items()]


def _model_at(model: type[BaseModel] | None, path: FieldPath) -> type[BaseModel] | None:
    """The model of what stands at a path, as far as the annotations tell."""
    for part in path:
        if isinstance(part, int):
            continue  # lists were looked through with the field that holds them
        field = model.model_fields.get(part) if model is not None else None
        model = None if field is None else _model_in(field.annotation)
    return model


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if inspect.isclass(annotation) and not typing.get_args(annotation) and issubclass(annotation, BaseModel):
        return annotation
    for inner in typing.get_args(annotation):
        if (found := _model_in(inner)) is not None:
            return found
    return None
