"""A Python environment of a trial's own over packages that all share: a few files that cost next to nothing, or a whole copy."""

# ruff: noqa: PTH211
# (laid for every trial: plain calls)
from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_codeprobe.sandboxes.trees import copy_tree, open_regular

_FIRST_LINE = 127  #: bytes that every kernel reads of it
_MAX_SCRIPT = 1 << 20
_MAX_PTH, _MOST_PTH = 1 << 16, 200
_PTH = "codeprobe.pth"


@dataclass(frozen=True, slots=True)
class PythonSet:
    """A virtual environment with packages, to be read only."""

    folder: Path
    program: str  #: the interpreter's real file
    prefix: str  #: what the interpreter is made of lies below
    site: str  #: where its packages are, relative to the folder


class _Script(NamedTuple):
    name: str
    content: bytes | None  #: None: it names no folder, and a link to it will do
    mode: int


@functools.lru_cache(maxsize=64)
def _programs(made: PythonSet) -> tuple[tuple[str, ...], tuple[_Script, ...]]:
    """Names of the interpreter, and the other programs of the shared environment."""
    names, scripts, prefix = [], [], os.fsencode(made.folder)
    with os.scandir(made.folder / "bin") as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_symlink() and entry.name.startswith("python"):
                names.append(entry.name)
            elif entry.is_file():
                content = Path(entry.path).read_bytes() if entry.stat().st_size <= _MAX_SCRIPT else b""
                is_text = prefix in content and b"\0" not in content[:1024]
                scripts.append(_Script(entry.name, content if is_text else None, stat.S_IMODE(entry.stat().st_mode)))
    return tuple(names), tuple(scripts)


def lay_thin(made: PythonSet, target: Path, *, before: Sequence[Path] = (), quiet: bool = False) -> None:
    """An environment at `target`, which may be there, that finds the shared packages after its own. OSError.

    `before`: folders with packages that come between the two, and of which no `.pth` file is read. `quiet`: nothing of those runs when
    Python starts.
    """
    site = target / made.site
    site.mkdir(parents=True)
    if (made.folder / "lib64").is_symlink():
        os.symlink("lib", target / "lib64")
    lines = [*map(str, before), f"import site; site.addsitedir({str(made.folder / made.site)!r})"]  # with the .pth files of packages in it
    (site / _PTH).write_text("\n".join(lines) + "\n", encoding="utf-8")
    if quiet:
        (site / "sitecustomize.py").write_text("")
    (target / "pyvenv.cfg").write_bytes((made.folder / "pyvenv.cfg").read_bytes())
    (target / "bin").mkdir(exist_ok=True)
    names, scripts = _programs(made)
    for name in names:
        os.symlink(made.program, target / "bin" / name)
    for script in scripts:
        if script.content is None:
            os.symlink(made.folder / "bin" / script.name, target / "bin" / script.name)
        else:
            _write(target / "bin" / script.name, moved(script.content, made.folder, target), script.mode)


def lay_whole(made: PythonSet, target: Path) -> None:
    """A copy at `target`, which does not exist. OSError."""
    target.mkdir()
    copy_tree(str(made.folder), str(target), small=False)
    for script in _programs(made)[1]:
        if script.content is not None:
            place = target / "bin" / script.name
            place.unlink()
            _write(place, moved(script.content, made.folder, target), script.mode)


def _write(path: Path, content: bytes, mode: int) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with os.fdopen(fd, "wb") as file:
        file.write(content)


def moved(content: bytes, old: Path, new: Path) -> bytes:
    """A script of an environment that has moved. A first line that no kernel would understand becomes one that a shell does."""
    there = os.fsencode(new)
    content = content.replace(os.fsencode(old), there)
    line, _, rest = content.partition(b"\n")
    found = re.match(rb"#!(%s/bin/\S+)[ \t]*(.*)" % re.escape(there), line)
    if found is None or (len(line) <= _FIRST_LINE and not re.search(rb"\s", there)):
        return content
    # to a shell it is a command, to Python a string that nobody looks at
    return b"#!/bin/sh\n'''exec' \"%s\" %s \"$0\" \"$@\"\n' '''\n%s" % (found[1], found[2], rest)


def paths_named(site: Path, inside: Path) -> Iterator[Path]:
    """Folders in `inside` that plain lines of `.pth` files in `site` name: a project that is installed to be edited. Runs nothing."""
    top = os.path.realpath(inside)
    try:
        with os.scandir(site) as entries:
            files = sorted(entry.path for entry in entries if entry.name.endswith(".pth"))[:_MOST_PTH]
    except OSError:
        return
    for file in files:
        try:
            with os.fdopen(open_regular(file), "rb") as opened:
                lines = opened.read(_MAX_PTH).decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            place = Path(line.strip())
            if place.is_absolute() and place.is_dir() and Path(os.path.realpath(place)).is_relative_to(top):
                yield place
