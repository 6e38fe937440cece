"""The criteria that come with the plugin, one file or folder for each family."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_codeprobe.model.criterion import Criterion

    BUILTIN: tuple[type[Criterion], ...]

__all__ = ["BUILTIN"]


def __getattr__(name: str) -> Any:
    """`BUILTIN`, the classes of all built-in criteria; what they need is imported when it is asked for."""
    if name != "BUILTIN":
        raise AttributeError(name)
    from pytest_codeprobe.criteria import trajectory
    from pytest_codeprobe.criteria.answer import AnswerContains
    from pytest_codeprobe.criteria.cli import CliCalled
    from pytest_codeprobe.criteria.command import RunCommand
    from pytest_codeprobe.criteria.files import FileCheck, FileContains, FileExists, FileMatchesRegex
    from pytest_codeprobe.criteria.hidden import HiddenTests
    from pytest_codeprobe.criteria.json_check import JsonCheck
    from pytest_codeprobe.criteria.labels import ClassificationMatch

    return (
        FileExists,
        FileContains,
        FileMatchesRegex,
        FileCheck,
        JsonCheck,
        RunCommand,
        HiddenTests,
        AnswerContains,
        ClassificationMatch,
        CliCalled,
        *(getattr(trajectory, name) for name in trajectory.__all__),
    )
