"""Copies of workspaces that outlive their trial: what is left out, and the cheapest way for the rest."""

# ruff: noqa: PTH101, PTH102
# (hot loops over names that need not be text: plain calls, no Path objects)
from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Literal

from pytest_codeprobe.sandboxes.lane import LANE, PIECE
from pytest_codeprobe.sandboxes.patterns import Patterns
from pytest_codeprobe.sandboxes.trees import (
    SMALL_BYTES,
    SMALL_FILES,
    copy_file,
    copy_link,
    copy_paths,
    copy_tree,
    failed,
    finish_folder,
    is_folder,
    make_folders,
    remove_tree,
)


class _Selection:
    """What of a tree is to be left out, and the shortest list of what remains."""

    def __init__(self, top: bytes, ignore: Patterns) -> None:
        self._top, self._ignore = top, ignore
        self.left_out: list[bytes] = []
        self._split: set[bytes] = set()  # folders that are not copied as a whole
        self._few: list[tuple[bytes, os.DirEntry[bytes]]] = []  # what was found, folders before what is in them
        self._entries = self._bytes = 0
        walk = _walk(top, self._skip)
        more = True
        while more:
            with LANE:
                more = self._look(itertools.islice(walk, PIECE))

    def _look(self, piece: Iterator[tuple[bytes, os.DirEntry[bytes]]]) -> bool:
        before = self._entries
        for path, entry in piece:
            self._entries += 1
            if self._entries <= SMALL_FILES:
                self._few.append((path, entry))
            if not entry.is_dir(follow_symlinks=False):
                self._bytes += _size(entry)
                if not (entry.is_file(follow_symlinks=False) or entry.is_symlink()):
                    self._leave_out(path)
        return self._entries > before

    @property
    def small(self) -> bool:
        return self._entries <= SMALL_FILES and self._bytes <= SMALL_BYTES

    def copy(self, target: bytes) -> None:
        """All of a small tree, of which nothing is left out, into the existing empty folder `target`. OSError if it can't be done."""
        folders = []
        for path, entry in self._few:
            there = target + b"/" + path
            if entry.is_dir(follow_symlinks=False):
                os.mkdir(there, 0o700)
                folders.append((there, entry))
            elif entry.is_symlink():
                copy_link(entry.path, there)
            else:
                copy_file(entry.path, there)
        for there, entry in reversed(folders):
            finish_folder(there, entry)

    def _skip(self, path: bytes, entry: os.DirEntry[bytes]) -> bool:
        if self._ignore and self._ignore.match(os.fsdecode(path), folder=entry.is_dir(follow_symlinks=False)):
            self._leave_out(path)
            return True
        return False

    def _leave_out(self, path: bytes) -> None:
        self.left_out.append(path)
        while path:
            path = path.rpartition(b"/")[0]
            self._split.add(path)

    def remaining(self) -> list[bytes]:
        """Paths that, copied as a whole, are the tree without what is left out."""
        parts, gone = [], set(self.left_out)
        for folder in sorted(self._split):
            with os.scandir(self._top + b"/" + folder if folder else self._top) as entries:
                for entry in entries:
                    path = folder + b"/" + entry.name if folder else entry.name
                    if path not in gone and path not in self._split:
                        parts.append(path)
        return parts

    def make_split_folders(self, target: bytes) -> None:
        for folder in sorted(self._split - {b""}):
            make_folders(target + b"/" + folder)


def _size(entry: os.DirEntry[bytes]) -> int:
    try:
        return entry.stat(follow_symlinks=False).st_size
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return SMALL_BYTES + 1  # left to cp, which will complain


def _walk(top: bytes, skip: Callable[[bytes, os.DirEntry[bytes]], bool]) -> Iterator[tuple[bytes, os.DirEntry[bytes]]]:
    todo = [b""]
    while todo:
        folder = todo.pop()
        try:
            entries = os.scandir(top + b"/" + folder if folder else top)
        except OSError as error:
            if folder and error.errno in (errno.EACCES, errno.ENAMETOOLONG):
                continue  # cp will complain about it too, and the copy be called partial
            raise
        with entries:
            for entry in entries:  # one after the other: of a million, each with its stat, no list is made
                path = folder + b"/" + entry.name if folder else entry.name
                if skip(path, entry):
                    continue
                yield path, entry
                if entry.is_dir(follow_symlinks=False):
                    todo.append(path)


def keep_tree(source: Path, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
    """Copy a tree to `target`, which does not exist yet, without what `ignore` matches and without devices, FIFOs and sockets.

    `partial`: something was left out. CodeprobeError SANDBOX_FAILED for a full disk or a target that can't be made.
    """
    try:
        _make_place(target)
        if not is_folder(source):
            return "partial"  # the session removed it or put something else there
        os.chmod(target, 0o700 | stat.S_IMODE(os.lstat(source).st_mode) & 0o777)
        selection = _Selection(os.fsencode(source), Patterns(ignore))
        if not selection.left_out:
            if not selection.small or not _copied(selection, os.fsencode(target)):
                copy_tree(str(source), str(target), small=False)
            return "whole"
        with LANE:
            selection.make_split_folders(os.fsencode(target))
            remaining = selection.remaining()
        copy_paths(str(source), str(target), remaining)
    except OSError as error:
        if error.errno == errno.EIO and target.is_dir():
            return "partial"  # cp has copied what it could read
        raise failed("the workspace could not be kept in", error, target) from error
    return "partial"


def _make_place(target: Path) -> None:
    try:
        os.mkdir(target)
    except FileNotFoundError:
        target.parent.mkdir(parents=True, exist_ok=True)
        os.mkdir(target)


def _copied(selection: _Selection, target: bytes) -> bool:
    """False where something can't be read or named: `cp` goes on behind it, and then complains."""
    try:
        with LANE:
            selection.copy(target)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG):
            raise
        return False
    return True


def move_tree(source: Path, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
    """As keep_tree(), by rename where it can be; `source` is gone afterwards."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if not is_folder(source):
            kept = keep_tree(source, target, ignore)
            remove_tree(source)  # a link in its place, say
            return kept
        selection = _Selection(os.fsencode(source), Patterns(ignore))
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise failed("the workspace could not be moved to", error, target) from error
        kept = keep_tree(source, target, ignore)
        remove_tree(source)
        return kept
    for path in selection.left_out:
        remove_tree(target / os.fsdecode(path))
    return "partial" if selection.left_out else "whole"


def carry(source: Path, target: Path) -> None:
    """Move a copy that was made here, whole, to `target`. CodeprobeError SANDBOX_FAILED if it can't be done."""
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise failed("the workspace could not be moved to", error, target) from error
        keep_tree(source, target, ())
        remove_tree(source)
