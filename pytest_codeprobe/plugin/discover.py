"""Which files pytest meets are task files, and what must not be collected because a task refers to it."""

from __future__ import annotations

import fnmatch
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_codeprobe.tasks.discovery import SUFFIXES, TaskPatterns, looks_like_task, read_bytes

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.state import State


_SHOWN = 3  #: names in a line of the summary
_ROWS = (".jsonl", ".ndjson", ".csv", ".tsv")  #: nobody takes a dataset's files for tests, so that nobody misses them


class Discovery:
    """One for each process that collects. Paths are text here: it is asked of everything that pytest meets."""

    def __init__(self, state: State) -> None:
        self._state, config = state, state.config
        self._patterns = TaskPatterns(state.options.files, state.options.ignore, config.rootpath)
        self._root = str(config.rootpath)
        self._norecurse = re.compile("|".join(fnmatch.translate(os.path.normcase(p)) for p in config.getini("norecursedirs")) or "(?!)")
        self._seen: set[str] = set()  #: folders whose task files have been read, where they are any of ours
        self._task_files: set[str] = set()
        self._referred: dict[str, str] = {}  #: what a task refers to -> the folder of its file
        self.left_out: set[str] = set()  #: what was not collected since a task refers to it
        self.not_tasks: set[str] = set()  #: files that match a pattern and are no task files

    def ignored(self, path: Path) -> bool | None:
        """pytest_ignore_collect's answer: True = leave out, False = enter although pytest would not, None = as pytest decides."""
        text = str(path)
        folder, name = os.path.split(text)
        if folder not in self._seen:
            self._read_above(folder)
        if text in self._referred and not self._is_named(text, self._referred[text]):
            if not text.endswith(_ROWS):
                self.left_out.add(text)
            return True
        return False if self._norecurse.match(os.path.normcase(name)) and self._enter_anyway(text) else None

    def is_task_file(self, path: str) -> bool:
        """spec tasks.md, "Which files are tasks"."""
        if path not in self._task_files and not self._is_task_file(path):
            return False
        self._task_files.add(path)
        return True

    def _is_task_file(self, path: str) -> bool:
        if path in self._state.named:
            return True
        if self._patterns.ignores(path):
            return False
        if self._patterns.matches(path):
            return True
        return any(path.startswith(folder + os.sep) for folder in self._state.named) and looks_like_task(path)

    def _is_named(self, text: str, owner: str) -> bool:
        """Named on the command line, or on the way to what is, or below a named folder that lies beside the task file."""
        return any(
            text == named or named.startswith(text + os.sep) or (text.startswith(named + os.sep) and named.startswith(owner + os.sep))
            for named in self._state.named
        )

    def _enter_anyway(self, path: str) -> bool:
        on_way = path in self._state.named or self._patterns.on_prefix(path)
        ignored = {os.path.abspath(p) for p in self._state.config.getoption("ignore") or ()}
        return on_way and os.path.isdir(path) and path not in ignored

    def _read_above(self, folder: str) -> None:
        """Read the task files in a folder and those above, before anything below them is looked at."""
        unseen = []
        while folder not in self._seen:
            self._seen.add(folder)
            unseen.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(unseen):
            if folder == self._root or folder.startswith(self._root + os.sep) or self._below_named(folder):
                self._read_folder(folder)

    def _below_named(self, text: str) -> bool:
        return any(text == named or text.startswith(named + os.sep) for named in self._state.named)

    def _read_folder(self, folder: str) -> None:
        if not (self._patterns.may_hold(folder) or self._below_named(folder)) or folder in self._referred:
            return
        try:
            with os.scandir(folder) as entries:
                found = sorted(e.path for e in entries if e.name.endswith(SUFFIXES) and e.is_file())
        except OSError:
            return
        for file in found:
            if self.is_task_file(file):
                self._referred |= dict.fromkeys(self._refers_to(file, folder), folder)

    def _refers_to(self, file: str, folder: str) -> set[str]:
        """What a task file names at or below its own folder, but nothing that holds the file itself."""
        known = self._state.collecting().task_files.find(file)
        if isinstance(known, Exception):
            return _named_in_text(file)
        below = folder + os.sep
        return {p for _, p, _ in known.references if p.startswith(below) and not file.startswith(p + os.sep) and p != file}


def lines_of(left_out: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """What the summary says of what collection left out (Live.collected())."""
    if left := left_out["left_out"]:
        one = len(left) == 1
        what = "1 path not collected, since a task refers to it" if one else f"{len(left)} paths not collected, since tasks refer to them"
        yield f"{what}: {_some(left)}"
    if others := left_out["not_tasks"]:
        yield f"no task files: {_some(others)} (a task has `task_id` and `success_criteria`)"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def _named_in_text(file: str) -> set[str]:
    """Of a broken task file nobody knows what it refers to: the folders beside it whose names stand in it."""
    try:
        text = read_bytes(file)
        with os.scandir(os.path.dirname(file)) as entries:
            return {e.path for e in entries if e.is_dir() and os.fsencode(e.name) in text}
    except OSError:
        return set()
