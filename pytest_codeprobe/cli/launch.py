"""Runs pytest in this process for a command of `codeprobe`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest

from pytest_codeprobe.cli.answers import take_stdout
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.options import BUILT, Option
from pytest_codeprobe.text import one_line


class _Reached:
    """A plugin that tells whether pytest came as far as ours, which from there on answers for the envelope."""

    yes = False

    def pytest_load_initial_conftests(self) -> None:
        self.yes = True


def program() -> str:
    """What starts this script from a shell."""
    name = Path(sys.argv[0]).name
    return name if name in ("codeprobe", "pytest-codeprobe") else "codeprobe"


def start(arguments: list[str], typed: list[str]) -> int:
    """Run pytest; its exit code. `typed`: the command line that it comes of.

    USAGE_ERROR where pytest refuses its command line before any plugin has a say.
    """
    reached = _Reached()
    internal = [f"--codeprobe-console={json.dumps([program(), *typed])}"]
    json_wanted = bool({"--codeprobe-json", "--codeprobe-json-lines"} & set(arguments))
    if json_wanted:
        internal.append(f"--codeprobe-stdout={take_stdout()}")
    try:
        # by name, for those who switch off the loading of installed plugins
        code = int(pytest.main(["-p", "codeprobe", *internal, *arguments], plugins=[reached]))
    except ImportError as error:  # -p with a plugin that is not there
        if reached.yes:
            raise
        raise CodeprobeError("USAGE_ERROR", one_line(str(error), 1000)) from error
    if not reached.yes and (code or json_wanted):
        why = "refused its command line or configuration" if code else "ended before it ran anything"
        raise CodeprobeError("USAGE_ERROR", f"pytest {why}; what it says is on stderr")
    return code


def options(command: click.Command, names: Iterable[str] | None = None) -> click.Command:
    """Give a command the flags of the table: those of these names, else all."""
    wanted = [option for option in BUILT if option.cli and (names is None or option.name in names)]
    for option in reversed(wanted):
        text = option.help + ("" if option.kind == "flag" else f"  [default: {option.default}]")
        flag = option.kind == "flag"
        metavar = None if flag else option.metavar
        several = option.kind == "list"
        named = [*option.cli, option.field]
        command.params.insert(0, click.Option(named, is_flag=flag, default=None, metavar=metavar, help=text, multiple=several))
    return command


def translated(values: Mapping[str, Any], leave: Iterable[str] = ("json", "json-lines")) -> list[str]:
    """What click read, as flags of pytest; JSON is the command's own business."""
    return [
        flag
        for option in BUILT
        if option.name not in leave and values.get(option.field) not in (None, False)
        for flag in _flags(option, values[option.field])
    ]


def _flags(option: Option, value: Any) -> list[str]:
    if option.kind == "flag":
        return [option.flag]
    return [f"{option.flag}={one}" for one in (value if option.kind == "list" else (value,))]
