"""The two ways to start a run, so that a test can go through either: pytest, and `codeprobe`."""

from __future__ import annotations

from typing import Any

from pytest_codeprobe.options import BUILT
from tests.front_door import MODES, Project, Run

_WITH_VALUE = ("-k", "-m", "-n", "-p", "-W")  #: of pytest
DOORS = ("pytest", "codeprobe")


class Console(Project):
    """A project that is run by `codeprobe run`: flags of the table in its spelling, pytest's own behind `--`."""

    def run(self, *args: str, mode: str = "plain", junit: bool = True, **more: Any) -> Run:
        ours, rest, command = [], [*MODES[mode]], "run"
        flags = {option.flag: option for option in BUILT}
        given = iter(args)
        for argument in given:
            flag, equals, value = argument.partition("=")
            if flag == "--codeprobe-doctor":
                command = "doctor"
            elif flag in flags:
                ours += [flags[flag].cli[0], *([value] if equals else [])]
            elif argument in _WITH_VALUE:
                rest += [argument, next(given)]
            elif argument.startswith("-"):
                rest.append(argument)
            else:
                ours.append(argument)
        run = self.codeprobe(command, *ours, *(["--", *rest] if rest else []), **more)
        run.run_dir = next((self.path / a.partition("=")[2] for a in args if a.startswith("--codeprobe-run-dir=")), None)
        return run


def through(door: str, project: Project) -> Project:
    """The same project behind the other door, or behind this one."""
    return Console(**vars(project)) if door == "codeprobe" else project
