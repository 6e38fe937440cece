"""Which files pytest meets are task files, and what must not be collected because a task refers to it."""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.tasks.discovery import SUFFIXES, TaskPatterns, looks_like_task

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.state import State


class Discovery:
    """One for each process that collects."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._patterns = TaskPatterns(state.options.files, state.options.ignore, state.config.rootpath)
        self._read: set[str] = set()
        self._referred: dict[str, str] = {}  #: what a task refers to -> the folder of its file
        self.left_out: set[str] = set()  #: what was not collected since a task refers to it
        self.not_tasks: set[str] = set()  #: files that match a pattern and are no task files

    def ignored(self, path: Path) -> bool | None:
        """pytest_ignore_collect's answer: True = leave out, False = enter although pytest would not, None = as pytest decides."""
        self._read_above(path)
        text = str(path)
        if text in self._referred and not self._is_named(text, self._referred[text]):
            self.left_out.add(text)
            return True
        return False if self._enter_anyway(path) else None

    def is_task_file(self, path: Path, session: pytest.Session | None = None) -> bool:
        """spec tasks.md, "Which files are tasks"."""
        text = str(path)
        if text in self._state.named:
            return True
        if self._patterns.ignores(path):
            return False
        if self._patterns.matches(path):
            return True
        return any(text.startswith(folder + os.sep) for folder in self._state.named) and looks_like_task(path)

    def _is_named(self, text: str, owner: str) -> bool:
        """Named on the command line, or on the way to what is, or below a named folder that lies beside the task file."""
        return any(
            text == named or named.startswith(text + os.sep) or (text.startswith(named + os.sep) and named.startswith(owner + os.sep))
            for named in self._state.named
        )

    def _enter_anyway(self, path: Path) -> bool:
        if not any(fnmatch.fnmatch(path.name, p) for p in self._state.config.getini("norecursedirs")):
            return False
        on_way = str(path) in self._state.named or self._patterns.on_prefix(path)
        ignored = {os.path.abspath(p) for p in self._state.config.getoption("ignore") or ()}
        return on_way and path.is_dir() and str(path) not in ignored

    def _read_above(self, path: Path) -> None:
        """Read the task files in the folders above, before anything below them is looked at."""
        root = str(self._state.config.rootpath)
        for folder in reversed(path.parents):
            text = str(folder)
            if text not in self._read and (text == root or text.startswith(root + os.sep) or self._below_named(text)):
                self._read.add(text)
                self._read_folder(folder)

    def _below_named(self, text: str) -> bool:
        return any(text == named or text.startswith(named + os.sep) for named in self._state.named)

    def _read_folder(self, folder: Path) -> None:
        if not (self._patterns.may_hold(folder) or self._below_named(str(folder))) or str(folder) in self._referred:
            return
        try:
            with os.scandir(folder) as entries:
                names = [e.name for e in entries if e.name.endswith(SUFFIXES) and e.is_file()]
        except OSError:
            return
        for name in sorted(names):
            if self.is_task_file(folder / name):
                self._referred |= dict.fromkeys(self._refers_to(folder / name), str(folder))

    def _refers_to(self, file: Path) -> set[str]:
        """What a task file names at or below its own folder, but nothing that holds the file itself."""
        known = self._state.activate().task_files.find(file)
        own = str(file.parent)
        if isinstance(known, Exception):
            return _named_in_text(file)
        found = {reference.path for reference in known.references}
        return {p for p in found if p.startswith(own + os.sep) and not str(file).startswith(p + os.sep) and p != str(file)}


def _named_in_text(file: Path) -> set[str]:
    """Of a broken task file nobody knows what it refers to: the folders beside it whose names stand in it."""
    try:
        text = file.read_bytes()
        with os.scandir(file.parent) as entries:
            return {e.path for e in entries if e.is_dir() and os.fsencode(e.name) in text}
    except OSError:
        return set()
