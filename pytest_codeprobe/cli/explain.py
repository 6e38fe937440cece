"""`codeprobe explain`: which layer each setting of a task comes from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import click

from pytest_codeprobe.cli.answers import envelope_line, json_by_environment, say, take_stdout
from pytest_codeprobe.cli.inside import asked
from pytest_codeprobe.cli.launch import options, translated
from pytest_codeprobe.text import one_line

#: flags that shape a task's settings
_NAMES = ("agent", "model", "experiment", "set", "driver", "timeout", "permission-mode", "repeats")
_NUMBER = re.compile(r"\[(\d+)\]\.?")
_WORDS = {"dialect": "dialect coder-eval", "default": "experiments/default.yaml", "flags": "flag, environment or ini"}


@click.command(short_help="Show which layer each setting of a task comes from.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON, in the envelope's form.")
@click.argument("task", type=click.UNPROCESSED)
def explain(task: str, as_json: bool, **values: Any) -> None:
    """Show the settings of TASK (FILE, FILE::TASK_ID or TASK_ID) under each variant, and the layer and file that each comes from.

    Nothing runs, and the agent need not be installed.
    """
    as_json = as_json or json_by_environment()
    take_stdout()  # what plugins and conftest.py files print as they are loaded is no part of it
    _, found = asked("--codeprobe-explain", [*translated(values), task])
    if as_json:
        say(envelope_line("explain", found)[0])
        return
    for number, each in enumerate(found["tasks"]):
        say(("\n" if number else "") + _head(each))
        for line in _table(each):
            say(line)


def _head(each: Mapping[str, Any]) -> str:
    variant = f", variant {each['variant_id']}" if each["variant_id"] else ""
    return f"{each['task_id']}{variant} ({each['file']}:{each['line']})"


def _table(each: Mapping[str, Any]) -> Iterator[str]:
    rows = [(path, _value(each["settings"], path), _origin(owner)) for path, owner in sorted(each["origins"].items())]
    if not rows:
        yield "  no layer sets anything: the defaults of the task format hold"
        return
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    for path, value, origin in rows:
        yield f"  {path:<{widths[0]}}  {value:<{widths[1]}}  {origin}"


def _origin(owner: list[str | None]) -> str:
    layer, file = owner
    word = _WORDS.get(str(layer), str(layer))
    return word if file is None or layer == "default" else f"{word} ({file})"


def _value(settings: Any, path: str) -> str:
    return one_line(str(next(_at(settings, path), "")), 60)


def _at(value: Any, path: str) -> Iterator[Any]:
    """What stands at a dotted path: a key may have dots and brackets of its own."""
    if not path:
        yield value
    elif isinstance(value, Mapping):
        for key in value:
            rest = path.removeprefix(key) if path.startswith(key) else None
            if rest is not None and (not rest or rest[0] in ".["):
                yield from _at(value[key], rest.removeprefix("."))
    elif isinstance(value, list) and (number := _NUMBER.match(path)) is not None:
        yield from _at(value[int(number[1])], path[number.end() :])


options(explain, _NAMES)
