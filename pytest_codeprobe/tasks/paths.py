"""What a task may refer to, and the variables in what it says.

A path belongs to the file that wrote it and stays inside the git repository that holds the file (else inside rootdir) or
one of ini `codeprobe_template_roots`; a symlink that leads out is refused as well. `..` is fine as long as it stays inside.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

DEFAULTS = Path("experiments", "default.yaml")  #: below rootdir: the layer below all tasks
Kind = Literal["file", "folder", "any"]
_PLAIN = frozenset(("", ".", ".."))  #: parts of a path that lead somewhere else than down
_VARIABLE = re.compile(r"\$(?:\$|(?P<plain>[A-Za-z_][A-Za-z0-9_]*)|\{(?P<braced>[^{}]*)\})")
_BRACED = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>.*))?", re.DOTALL)


def relative(file: Path, rootdir: Path) -> str:
    """How messages name a file: POSIX and relative to rootdir where it lies below it."""
    below = str(rootdir).rstrip(os.sep) + os.sep
    name = str(file).removeprefix(below)
    return name if os.sep == "/" else name.replace(os.sep, "/")


class PathProblem(ValueError):
    """Why a path or a variable can't be used, as the end of a sentence about the field."""


def expand_variables(text: str, environ: Mapping[str, str]) -> str:
    """The text with `$VAR`, `${VAR}` and `${VAR:-default}` replaced; `$$` is a dollar sign.

    PathProblem if a variable is missing. As in a shell the default also stands in for an empty one.
    """

    def replace(match: re.Match[str]) -> str:
        if match["braced"] is None:
            name, default = match["plain"], None
        else:
            inner = _BRACED.fullmatch(match["braced"])
            if inner is None:
                raise PathProblem(f"has {match[0]!r}, which names no variable; write $$ for a dollar sign")
            name, default = inner["name"], inner["default"]
        if name is None:
            return "$"
        value = environ.get(name)
        if default is not None and not value:
            return default
        if value is None:
            raise PathProblem(f"needs the variable {name}, which is not set; set it or write ${{{name}:-default}}")
        return value

    return _VARIABLE.sub(replace, text) if "$" in text else text


class Sought(NamedTuple):
    """What a file names, variables expanded, and how it is looked for."""

    text: str
    kind: Kind = "any"
    anywhere: bool = False  #: may lead out of the repository
    below_rootdir: bool = False  #: also looked for below rootdir


class Folders:
    """What is the same for many files and found once: the repositories that folders are in, and where links lead."""

    def __init__(self) -> None:
        self._repositories: dict[Path, Path | None] = {}
        self._real: dict[Path, str] = {}

    def repository_of(self, folder: Path) -> Path | None:
        """The folder of the git repository (or worktree) that a folder is in; None if it is in none."""
        known = self._repositories
        if folder not in known:
            if (folder / ".git").exists():
                known[folder] = folder
            else:
                known[folder] = None if folder.parent == folder else self.repository_of(folder.parent)
        return known[folder]

    def real(self, folder: Path) -> str:
        """The path without symlinks."""
        if folder not in self._real:
            self._real[folder] = os.path.realpath(folder)
        return self._real[folder]


@dataclass(frozen=True, slots=True)
class PathRules:
    """Where the paths of one file may lead."""

    base: Path  #: the folder of the file
    allowed: tuple[Path, ...]  #: folders, absolute
    folders: Folders = field(default_factory=Folders)

    def resolve(self, text: str, kind: Kind = "any") -> Path:
        """The absolute path; PathProblem if it is not there, of the wrong kind, or leads out."""
        if not text.strip():
            raise PathProblem("is empty")
        joined = self.base / text
        if self._is_plainly_there(text, kind):
            return joined
        real = Path(os.path.realpath(joined))
        if not any(real.is_relative_to(os.path.realpath(root)) for root in self.allowed):
            through = " through a symlink" if self._looks_inside(joined) else ""
            raise PathProblem(f"leads out of {self.allowed[0]}{through}: {text!r}; see ini codeprobe_template_roots")
        if not real.exists():
            raise PathProblem(f"names {'what' if kind == 'any' else f'a {kind} that'} is not there: {text!r}")
        if kind == "file" and not real.is_file():
            raise PathProblem(f"must name a file, not a folder: {text!r}" if real.is_dir() else f"must name a file: {text!r}")
        if kind == "folder" and not real.is_dir():
            raise PathProblem(f"must name a folder, not a file: {text!r}")
        plain = Path(os.path.normpath(joined))  # spelled as pytest spells it, where that means the same
        return plain if os.path.realpath(plain) == str(real) else real

    def _is_plainly_there(self, text: str, kind: Kind) -> bool:
        """Whether no more than a look at each part of the path is needed: it goes down from an allowed folder, through no link."""
        parts = text.split("/")
        path = self.folders.real(self.base)
        inside = any(path == root or path.startswith(root.rstrip(os.sep) + os.sep) for root in map(self.folders.real, self.allowed))
        if not inside or not _PLAIN.isdisjoint(parts) or os.sep in text.replace("/", ""):
            return False
        mode = 0
        for part in parts:
            path = f"{path}{os.sep}{part}"
            try:
                mode = os.lstat(path).st_mode
            except (OSError, ValueError):
                return False
            if stat.S_ISLNK(mode):
                return False
        return kind == "any" or (stat.S_ISREG(mode) if kind == "file" else stat.S_ISDIR(mode))

    def _looks_inside(self, joined: Path) -> bool:
        return any(Path(os.path.normpath(joined)).is_relative_to(root) for root in self.allowed)


class Places:
    """Finds what files name. What is the same for many of them is found once: one for each load of a suite."""

    def __init__(self, rootdir: Path, template_roots: tuple[str, ...] = ()) -> None:
        self._rootdir, self._roots = rootdir, tuple(rootdir / root for root in template_roots)
        self._folders = Folders()

    def repository_of(self, folder: Path) -> Path | None:
        """The folder of the git repository that a folder is in; None if it is in none."""
        return self._folders.repository_of(folder)

    def find(self, file: Path, sought: Sought) -> Path:
        """The absolute path of what `file` (absolute) names; PathProblem if it can't be used."""
        home = self._folders.repository_of(file.parent) or self._rootdir
        allowed = (Path(file.anchor),) if sought.anywhere else (home, *self._roots)
        rules = PathRules(file.parent, allowed, self._folders)
        try:
            return rules.resolve(sought.text, sought.kind)
        except PathProblem:
            if sought.below_rootdir and (self._rootdir / sought.text).exists():
                return PathRules(self._rootdir, allowed, self._folders).resolve(sought.text, sought.kind)
            raise


def leads_out(path: str) -> bool:
    """Whether a path that is meant to lie inside the workspace, written with `/`, is absolute or goes up."""
    return path.startswith("/") or ".." in path.split("/")


def workspace_path(text: str) -> str:
    """A path inside the workspace, as given; PathProblem if it is absolute or has `..`."""
    if not text.strip() or leads_out(text):
        raise PathProblem(f"must be a path inside the workspace, without '..': {text!r}")
    return text
