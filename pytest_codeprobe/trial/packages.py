"""Packages that are folders of the user's: whether they may have changed since a session had them.

What is in such a folder is in no fingerprint: installing from it writes into it, and much beside the package may lie there, so that every
resumed run would pay for sessions again. Times tell enough for a word on it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from pytest_codeprobe.model.config import package_paths
from pytest_codeprobe.model.trial import Trial

#: folders that installing, running and testing leave; those with a name that begins with a dot are passed by, too
_LEFT = frozenset({"__pycache__", "build", "dist", "node_modules"})


class PackageFolders:
    """What is newest in each folder, found out once."""

    def __init__(self) -> None:
        self._newest: dict[tuple[Path, Path], tuple[float, Path | None]] = {}

    def newer(self, trial: Trial, started_at: str) -> Iterator[tuple[Path, Path]]:
        """Each folder that is a package of the trial and has something newer than a time (ISO 8601), with its newest file."""
        try:
            since = datetime.fromisoformat(started_at).timestamp()
        except ValueError:
            return  # nobody knows
        for folder in filter(Path.is_dir, package_paths(trial.sandbox)):
            when, file = self._known(folder, Path(trial.task_file))
            if file is not None and when > since:
                yield folder, file

    def _known(self, folder: Path, task_file: Path) -> tuple[float, Path | None]:
        # Of a repository that holds its own tasks, these are no part of the package.
        tasks = folder / task_file.relative_to(folder).parts[0] if task_file.is_relative_to(folder) else task_file
        if (folder, tasks) not in self._newest:
            self._newest[folder, tasks] = max(_files(folder, tasks), key=lambda found: found[0], default=(0.0, None))
        return self._newest[folder, tasks]


def _files(top: Path, left_out: Path) -> Iterator[tuple[float, Path]]:
    for name, folders, files in os.walk(top):
        if "events.ndjson" in files:  # a run dir; the plan of the one that is gone on with is put aside just now
            folders.clear()
            continue
        here = Path(name)
        folders[:] = [f for f in folders if f not in _LEFT and f[0] != "." and not f.endswith(".egg-info") and here / f != left_out]
        for file in files:
            path = here / file
            if file[0] != "." and path != left_out:
                try:
                    yield path.lstat().st_mtime, path
                except OSError:
                    continue  # it is gone by now
