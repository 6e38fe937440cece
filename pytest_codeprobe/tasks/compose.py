"""The short way to read YAML: documents of mappings, lists and scalars, built by the C library.

It knows what most task files are made of and nothing else: for a tag, an alias, a merge key, a duplicate key or a fault it
answers None, and the reader of `tasks/yaml.py`, which knows it all and can say what is wrong and where, takes its place.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

import yaml

_MAX_CHARACTERS = 100_000
#: of the characters that can open a level without a line of its own: the C library needs some stack for each
_MAX_OPENERS = 1_000
#: what could be a tag or an anchor; `&&`, `2>&1` and `a & b` are none
_PROPERTY = re.compile(r"(?<![^\s\[{,:])(?:!|&[^\s&,\[\]{}])")
Scalar = Callable[[str], Any]


class _OtherWay(Exception):
    """Only the other reader can answer."""


def _composer() -> Any:
    """A class on top of PyYAML's C parser; None where PyYAML was built without it."""
    parser = getattr(getattr(yaml, "cyaml", None), "CParser", None)
    if parser is None:
        return None
    # the parser asks for a node's tag and reports where it is in the tree; what it hears must cost nothing, and means nothing
    silent = {"resolve": slice, "descend_resolver": operator.is_, "ascend_resolver": int}
    return type("Composer", (parser,), silent)


_Composer = _composer()


def compose(text: str, scalar: Scalar, max_depth: int) -> list[tuple[Any, list[Any]]] | None:
    """The value of each document, and the marks of where it stands and where its entries do if it is a list.

    None where the other reader must look. `scalar` gives the meaning of a plain scalar, and raises ValueError.
    """
    if _Composer is None or len(text) > _MAX_CHARACTERS or sum(map(text.count, "-?[{")) > _MAX_OPENERS:
        return None
    if ("!" in text or "&" in text) and _PROPERTY.search(text) is not None:
        return None
    composer = _Composer(text)
    found = []
    try:
        while composer.check_node():
            node = composer.get_node()
            entries = node.value if type(node) is yaml.SequenceNode else ()
            found.append((_value(node, scalar, max_depth), [node.start_mark, *(entry.start_mark for entry in entries)]))
    except (_OtherWay, yaml.YAMLError, ValueError):
        return None
    finally:
        composer.dispose()
    return found


def _value(node: Any, scalar: Scalar, left: int) -> Any:
    kind = type(node)
    if kind is yaml.ScalarNode:
        if "\0" in node.value:
            raise _OtherWay
        return node.value if node.style else scalar(node.value)  # the style of a plain one is empty
    if not left:
        raise _OtherWay
    left -= 1
    if kind is yaml.SequenceNode:
        return [_value(entry, scalar, left) for entry in node.value]
    values = {}
    for key, value in node.value:
        name = key.value
        if type(name) is not str or name in values or (name == "<<" and not key.style):
            raise _OtherWay
        values[name] = _value(value, scalar, left)
    return values
