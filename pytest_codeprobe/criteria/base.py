"""What the families share: paths that stay in the workspace, bounded reading of files an agent wrote, bounded patterns."""

from __future__ import annotations

import codecs
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Annotated, Any

import regex
from pydantic import AfterValidator

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.base import Text
from pytest_codeprobe.model.criterion import Score
from pytest_codeprobe.tasks.paths import leads_out
from pytest_codeprobe.text import one_line, shorten

MAX_FILE_BYTES = 16 << 20  #: a larger file is not looked at
PATTERN_SECONDS = 5.0  #: for one pattern on one text; an agent can write a text on which a pattern takes for ever
_FLAGS = {name: getattr(regex, name) for name in ("IGNORECASE", "MULTILINE", "DOTALL", "VERBOSE", "ASCII")}
_SHORT_FLAGS = {"I": "IGNORECASE", "M": "MULTILINE", "S": "DOTALL", "X": "VERBOSE", "A": "ASCII"}
_BOMS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))


class NotThere(Exception):
    """A path of the workspace that can't be looked at. The text is the reason and names the path."""


def inside(value: str) -> str:
    """A relative POSIX path without a way out; ValueError otherwise."""
    if not value or "\0" in value:
        raise ValueError("is no path")
    if value.startswith(("/", "~")):
        raise ValueError(f"{value!r} is not relative to the workspace")
    if leads_out(value):
        raise ValueError(f"{value!r} leaves the workspace")
    return str(PurePosixPath(value))


#: a path inside the workspace
WorkspacePath = Annotated[Text, AfterValidator(inside)]


def locate(workspace: Path, path: str) -> Path:
    """The real path of a file or folder in the workspace, symlinks resolved. NotThere if it is missing or lies outside."""
    root = os.path.realpath(workspace)
    try:
        real = os.path.realpath(os.path.join(root, path), strict=True)  # noqa: PTH118  Path.resolve hides loops before 3.13
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            linked = os.path.islink(os.path.join(root, path))  # noqa: PTH114, PTH118
            raise NotThere(f"{path} {'is a symlink to nowhere' if linked else 'does not exist'}") from error
        raise NotThere(f"{path} can't be looked at: {error.strerror}") from error
    if real != root and not real.startswith(root.rstrip("/") + "/"):
        raise NotThere(f"{path} is reached through a symlink that leaves the workspace, which counts as not there")
    return Path(real)


def read_bytes(workspace: Path, path: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """The content of a regular file. NotThere also for folders, FIFOs, devices, and files of more than `limit` bytes.

    Nothing but a regular file is ever opened for reading: a FIFO would block, a device could do anything.
    """
    real = locate(workspace, path)
    try:
        if not stat.S_ISREG(os.lstat(real).st_mode):
            raise NotThere(f"{path} is {_kind(real)}, not a file")
        descriptor = os.open(real, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            size = os.fstat(descriptor).st_size
            data = file.read(limit + 1) if size <= limit else b""
    except OSError as error:
        raise NotThere(f"{path} can't be read: {error.strerror}") from error
    if size > limit or len(data) > limit:
        raise NotThere(f"{path} has {size} bytes; files of more than {limit} are not looked at")
    return data


def read_text(workspace: Path, path: str, limit: int = MAX_FILE_BYTES) -> str:
    """The same as text: UTF-8, or UTF-16 with a byte order mark; bytes that are neither become U+FFFD."""
    data = read_bytes(workspace, path, limit)
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            return data[len(mark) :].decode(encoding, "replace")
    return data.decode("utf-8", "replace")


def read_tail(file: Path, size: int = 8000) -> str:
    """The last `size` bytes of an output file as text; empty if it is none any more: what wrote it could have replaced it."""
    try:
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            status = os.fstat(opened.fileno())
            if not stat.S_ISREG(status.st_mode):
                return ""
            opened.seek(max(0, status.st_size - size))
            cut = "…" if status.st_size > size else ""
            return cut + opened.read(size).decode("utf-8", "replace").strip()
    except OSError:
        return ""  # gone, or a link


def _kind(path: Path) -> str:
    mode = path.lstat().st_mode
    kinds = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFLNK: "a symlink"}
    return kinds.get(stat.S_IFMT(mode), "a device")


def as_flags(value: Any) -> tuple[str, ...]:
    """Names of pattern flags as they are written in a task (`[i, MULTILINE]`, `re.I|re.M`), in full; ValueError otherwise."""
    names = value.replace("|", ",").split(",") if isinstance(value, str) else value
    if not isinstance(names, list | tuple) or not all(isinstance(n, str) for n in names):
        raise ValueError(f"must be a list of names: {', '.join(sorted(_FLAGS))}")
    short = [n.strip().removeprefix("re.").upper() for n in names]
    full = tuple(_SHORT_FLAGS.get(n, n) for n in short)
    for name in full:
        if name not in _FLAGS:
            raise ValueError(f"unknown flag {name!r}; known are {', '.join(sorted(_FLAGS))}")
    return full


def compile_pattern(pattern: str, flags: Sequence[str] = ()) -> regex.Pattern[str]:
    """The compiled pattern; ValueError that shows the place of a mistake."""
    bits = 0
    for name in flags:
        bits |= _FLAGS[name]
    try:
        return regex.compile(pattern, bits)
    except regex.error as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error


def found(pattern: regex.Pattern[str], text: str, seconds: float = PATTERN_SECONDS) -> bool | None:
    """Whether the pattern occurs in the text; None if that was not known within `seconds`."""
    try:
        return pattern.search(text, timeout=seconds) is not None
    except TimeoutError:
        return None


def broken(message: str, output: str = "") -> CodeprobeError:
    """The error of a criterion that can't say anything, through no doing of the agent."""
    return CodeprobeError("VERIFIER_FAILED", one_line(message, 1000), detail={"output": shorten(output, 4000)} if output else None)


def listing(items: Sequence[str], limit: int = 5) -> str:
    """The first few of some texts, quoted, and how many more there are."""
    shown = ", ".join(repr(one_line(i, 80)) for i in items[:limit])
    return shown + (f" and {len(items) - limit} more" if len(items) > limit else "")


def text_shares(text: str, includes: Sequence[str], excludes: Sequence[str]) -> list[tuple[float, str]]:
    """For each list that is given: the share of it that holds for the text, and what does not."""
    shares = []
    if includes:
        missing = [t for t in includes if t not in text]
        shares.append((1 - len(missing) / len(includes), f"missing: {listing(missing)}" if missing else ""))
    if excludes:
        present = [t for t in excludes if t in text]
        shares.append((1 - len(present) / len(excludes), f"unwanted: {listing(present)}" if present else ""))
    return shares


def combined(shares: Sequence[tuple[float, str]], fine: str) -> Score:
    """The mean of some shares with what was wrong in each."""
    problems = [problem for _, problem in shares if problem]
    return Score(sum(share for share, _ in shares) / len(shares), "; ".join(problems) or fine)
