"""From the `dataset` of a task to its rows, faults told at their place."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pytest_codeprobe.tasks.dataset.rows import Row, RowProblem, inline_rows, rows_of_files
from pytest_codeprobe.tasks.dataset.spec import Dataset
from pytest_codeprobe.tasks.index import digest
from pytest_codeprobe.tasks.paths import PathProblem, Sought, expand_variables
from pytest_codeprobe.tasks.problems import FieldPath, relative
from pytest_codeprobe.tasks.settings import LoadSettings

Fault = Callable[[FieldPath, str], None]
File = tuple[Sought, str, str]  #: what the task names, where that leads, and the digest of its content


def read_rows(
    spec: Dataset, raw: Mapping[str, Any], file: Path, settings: LoadSettings, fault: Fault
) -> tuple[tuple[Row, ...], tuple[File, ...]] | None:
    """The rows and the files that they come from; None where something is wrong, which `fault` has heard of (where, whole sentence).

    `raw` is what the model was made of: numbers in it remember how they were written.
    """
    try:
        if spec.rows is not None:
            return tuple(inline_rows(raw["rows"], spec.id_field)), ()
        files = tuple(_file(text, file, settings, number) for number, text in enumerate(spec.paths or ()))
        paths = [Path(path) for _, path, _ in files]
        return tuple(rows_of_files(paths, [relative(path, settings.rootdir) for path in paths], spec.id_field)), files
    except _FileProblem as problem:
        fault(("paths", problem.number), f"'dataset.paths[{problem.number}]' {problem}")
    except RowProblem as problem:
        fault(("rows", problem.row) if problem.row is not None else (), str(problem))
    return None


class _FileProblem(ValueError):
    def __init__(self, number: int, words: str) -> None:
        super().__init__(words)
        self.number = number


def _file(text: str, file: Path, settings: LoadSettings, number: int) -> File:
    try:
        sought = Sought(expand_variables(text, settings.environ), "file")
        path = settings.places.find(file, sought)
        return sought, str(path), digest(path.read_bytes())
    except PathProblem as problem:
        raise _FileProblem(number, str(problem)) from problem
    except OSError as error:
        raise _FileProblem(number, f"names a file that can't be read: {error.strerror}") from error
