"""Lays a commit of a repository into a template: its files as they were committed, and nothing else of the repository."""

# ruff: noqa: PTH117, PTH118, PTH120
# (names need not be text, links are looked at and not followed: plain calls where Path would do more)
from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath

from pytest_codeprobe.model.config import TemplateSource
from pytest_codeprobe.sandboxes.leftout import LeftOut
from pytest_codeprobe.sandboxes.objects import AHEAD, EXECUTABLE, LINK, SUBMODULE, Entry, Objects
from pytest_codeprobe.sandboxes.overlay import clear, folder_in, is_inside, link_leaves
from pytest_codeprobe.sandboxes.sources import Repositories
from pytest_codeprobe.tasks.repositories import shown_url

_POINTER = b"version https://git-lfs.github.com/spec/v"
_SHOWN = 3


def mount_of(source: TemplateSource) -> PurePosixPath:
    """Where in the workspace a source goes; `.` is its top."""
    return PurePosixPath(source.mount_point or ".")


def lay_commit(source: TemplateSource, tree: Path, hidden: Sequence[str], repositories: Repositories, warn: Callable[[str], None]) -> None:
    """The files of the commit that a source of type repo stands for, over what is there.

    CodeprobeError SANDBOX_FAILED where that can't be had, OSError where the disk says no. What is not brought along, such as
    submodules, is warned of.
    """
    commit = repositories.commit(source)
    target = folder_in(tree, mount_of(source), "mount_point")
    clear(target / ".git")  # of an earlier source: its history is not that of these files
    with repositories.objects(source, commit) as objects:
        laying = _Laying(objects, target)
        entries = list(objects.files(commit))
        top = None if source.path is None else os.path.realpath(source.path)
        left_out = LeftOut(top or "/", hidden if top is not None else (), commit=frozenset(os.fsdecode(e.path) for e in entries))
        wanted = _wanted(entries, left_out)
        while some := list(itertools.islice(wanted, AHEAD)):
            objects.ask([entry.digest for entry in some if entry.mode != SUBMODULE])
            for entry in some:
                laying.lay(entry)
    laying.check_links()
    shown = f"repository {shown_url(source.url) if source.url is not None else source.path!s}"
    if laying.submodules:
        warn(f"{shown}: submodules are not followed, their folders are empty: {_listed(laying.submodules)}")
    if laying.pointers:
        warn(f"{shown}: files of Git LFS are not fetched, their pointers stand in their place: {_listed(laying.pointers)}")


def _wanted(entries: Iterable[Entry], left_out: LeftOut) -> Iterator[Entry]:
    known = {"": True}  # folders that are brought along, or not

    def is_brought(folder: str) -> bool:
        unknown = []
        while folder not in known:
            unknown.append(folder)
            folder = folder.rpartition("/")[0]
        brought = known[folder]
        for inner in reversed(unknown):
            brought = known[inner] = brought and not left_out.match(inner, folder=True)
        return brought

    for entry in entries:
        path = os.fsdecode(entry.path)
        if is_brought(path.rpartition("/")[0]) and not left_out.match(path, folder=False):
            yield entry


def _listed(paths: Iterable[bytes]) -> str:
    names = sorted(map(os.fsdecode, paths))
    return ", ".join(names[:_SHOWN]) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")


class _Laying:
    """Into one folder. No link on the way is followed."""

    def __init__(self, objects: Objects, target: Path) -> None:
        self._objects, self._target = objects, target
        self._made: dict[bytes, str] = {}
        self._links: list[tuple[str, str]] = []
        self.submodules: list[bytes] = []
        self.pointers: list[bytes] = []

    def lay(self, entry: Entry) -> None:
        """One entry. Unreadable, OSError, SANDBOX_FAILED."""
        folder, _, name = entry.path.rpartition(b"/")
        if folder not in self._made:
            self._made[folder] = str(folder_in(self._target, PurePosixPath(os.fsdecode(folder) or "."), "path"))
        place = os.path.join(self._made[folder], os.fsdecode(name))
        if os.path.lexists(place):  # of an earlier source
            clear(Path(place))
        if entry.mode == SUBMODULE:
            os.mkdir(place)  # noqa: PTH102
            self.submodules.append(entry.path)
        elif entry.mode == LINK:
            goal = self._objects.read(entry.digest, "blob")
            os.symlink(goal, os.fsencode(place))  # noqa: PTH211
            self._links.append((place, os.fsdecode(goal)))
        else:
            self._file(entry, place)

    def _file(self, entry: Entry, place: str) -> None:
        fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            first = self._objects.copy(entry.digest, fd)
            os.fchmod(fd, 0o755 if entry.mode == EXECUTABLE else 0o644)
        except OSError as error:
            error.filename = error.filename or place
            raise
        finally:
            os.close(fd)
        if first.startswith(_POINTER) and len(first) < 1024:
            self.pointers.append(entry.path)

    def check_links(self) -> None:
        """SANDBOX_FAILED where a link leads out of the repository."""
        top = os.path.realpath(self._target)
        for place, goal in self._links:
            if os.path.isabs(goal) or not is_inside(os.path.join(os.path.dirname(place), goal), top):
                raise link_leaves(os.path.relpath(place, top), goal, "Name a commit without it.")
