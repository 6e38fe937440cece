"""Lays the sources of a template over each other: what is taken, what is left out, and no link that leads out."""

# ruff: noqa: PTH114, PTH115, PTH117, PTH118, PTH120
# (names need not be text, links are looked at and not followed: plain calls where Path would do more)
from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import StarterFile, TemplateSource
from pytest_codeprobe.sandboxes.leftout import LeftOut
from pytest_codeprobe.sandboxes.patterns import Patterns
from pytest_codeprobe.sandboxes.trees import copy_file, copy_link
from pytest_codeprobe.tasks.paths import leads_out


def lay(source: TemplateSource, tree: Path, hidden: Sequence[str]) -> None:
    """One source, a folder or files of the YAML, over what is there. `hidden`: files and folders, absolute, that no workspace may hold.

    CodeprobeError SANDBOX_FAILED where it can't be laid, OSError where the disk says no.
    """
    if source.type == "starter_files":
        for file in source.files or ():
            _lay_starter_file(file, tree)
    else:
        target = folder_in(tree, PurePosixPath(source.mount_point or "."), "mount_point")
        top = Path(source.path or "")
        if not top.is_dir():
            raise CodeprobeError(
                "SANDBOX_FAILED", f"the template {str(top)!r} is not a folder", remediation="Correct template_sources in the task file."
            )
        _Overlay(top, target, source, hidden).run()


def _lay_starter_file(file: StarterFile, tree: Path) -> None:
    relative = PurePosixPath(file.path)
    parent = folder_in(tree, relative.parent, "path of a starter file")
    if relative.name in ("", ".."):
        raise _leaves(file.path, "path of a starter file")
    target = parent / relative.name
    clear(target)
    target.write_bytes(file.content.encode("utf-8", "surrogatepass"))
    target.chmod(int(file.mode, 8) & 0o777 if file.mode else 0o644)


def _leaves(path: str, what: str) -> CodeprobeError:
    return CodeprobeError(
        "SANDBOX_FAILED", f"{what} {path!r} leaves the workspace", remediation="Give a path inside the workspace, without '..'."
    )


def folder_in(tree: Path, relative: PurePosixPath, what: str) -> Path:
    """The folder inside the tree, made of real folders; what else lies in its way gives way."""
    if leads_out(str(relative)):
        raise _leaves(str(relative), what)
    folder = tree
    for part in relative.parts:
        folder = folder / part
        if folder.is_symlink() or not folder.is_dir():
            clear(folder)
            folder.mkdir()
    return folder


def clear(path: Path) -> None:
    """Make way at a place of a template in the making."""
    if path.is_dir() and not path.is_symlink():
        _remove_folder(path)
    else:
        path.unlink(missing_ok=True)


def _remove_folder(path: Path) -> None:
    """Remove a folder of a template in the making. OSError if it can't be done."""
    for folder, folders, files in os.walk(path, topdown=False):
        for name in files:
            (Path(folder) / name).unlink()
        for name in folders:
            there = Path(folder) / name
            if there.is_symlink():
                there.unlink()
            else:
                there.rmdir()
    path.rmdir()


class _Overlay:
    """Lays one folder over another: files replace, folders merge, links stay links."""

    def __init__(self, top: Path, target: Path, source: TemplateSource, hidden: Sequence[str]) -> None:
        self._source, self._target = top, target
        self._real = os.path.realpath(top)
        self._include = None if source.include is None else Patterns(source.include)
        self._exclude = Patterns(source.exclude or ())
        self._left_out = LeftOut(self._real, hidden)
        self._made: dict[str, Path] = {}

    def run(self) -> None:
        todo = [("", self._include is None)]
        modes: list[tuple[Path, os.stat_result]] = []
        while todo:
            folder, wanted = todo.pop()
            with os.scandir(self._source / folder) as entries:
                for entry in sorted(entries, key=lambda e: e.name):
                    relative = f"{folder}/{entry.name}" if folder else entry.name
                    is_folder = entry.is_dir(follow_symlinks=False)
                    if self._left_out.match(relative, folder=is_folder) or self._exclude.match(relative, folder=is_folder):
                        continue
                    included = wanted or (self._include is not None and self._include.match(relative, folder=is_folder))
                    if is_folder:
                        todo.append((relative, included))
                        if included:
                            modes.append((self._folder(relative), entry.stat(follow_symlinks=False)))
                    elif included:
                        self._file(relative, entry)
        for path, info in reversed(modes):  # deepest first, once nothing is written into them any more
            path.chmod(stat.S_IMODE(info.st_mode) & 0o777 | 0o700)
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _folder(self, relative: str) -> Path:
        folder = self._made.get(relative)
        if folder is None:
            folder = self._made[relative] = folder_in(self._target, PurePosixPath(relative), "path")
        return folder

    def _file(self, relative: str, entry: os.DirEntry[str]) -> None:
        parent, _, name = relative.rpartition("/")
        target = self._folder(parent or ".") / name
        if entry.is_symlink():
            self._check_link(entry.path)
            clear(target)
            copy_link(entry.path, str(target))
        elif not entry.is_file(follow_symlinks=False):
            raise CodeprobeError(
                "SANDBOX_FAILED",
                f"{entry.path!r} in a template is neither a file, a folder nor a link",
                remediation="Remove it from the template.",
            )
        elif name == ".git" and Path(entry.path).read_bytes()[:7] == b"gitdir:":
            return  # of a worktree or submodule: it would lead the agent's git into the user's own repository
        else:
            clear(target)
            copy_file(entry.path, str(target))

    def _check_link(self, path: str) -> None:
        goal = os.readlink(path)
        if os.path.isabs(goal) or not is_inside(os.path.join(os.path.dirname(path), goal), self._real):
            raise link_leaves(path, goal)


def is_inside(path: str, top: str) -> bool:
    """Whether a path leads to a place at or below `top`, a real path."""
    real = os.path.realpath(path)
    return real == top or real.startswith(top + os.sep)


def link_leaves(path: str, goal: str, remedy: str = "") -> CodeprobeError:
    """What is said of a link in a template that leads out of it."""
    return CodeprobeError(
        "SANDBOX_FAILED",
        f"the link {path!r} in a template leads out of it, to {goal!r}",
        remediation=remedy or "Make it a relative link that stays inside, or leave it out with 'exclude'.",
    )


def check_links(tree: Path) -> None:
    """Refuse a link that leaves the laid-out tree: sources that are each sound can make one together."""
    top = os.path.realpath(tree)
    for folder, folders, files in os.walk(tree):
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            if os.path.islink(path) and not is_inside(path, top):
                raise link_leaves(os.path.relpath(path, tree), os.readlink(path))
