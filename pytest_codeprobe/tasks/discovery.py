"""Which files are task files. Runs in every pytest run of every user: standard library only, nothing of ours.

Patterns are git-style: `**` is any number of folders, a pattern without a slash matches in any folder, one that ends with a
slash means everything below, `*`, `?` and `[…]` stay within one name.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

SUFFIXES = (".yaml", ".yml")
MAX_BYTES = 5_000_000  #: looked at of one file; the loader refuses larger ones
_CHUNK = 1 << 16  #: bytes read at once: more than task files have, and not so many that asking for them costs
#: the keys of which a task has at least one, as they may stand in YAML or JSON
_SIGNS = re.compile(rb"\b(?:task_id|initial_prompt(?:_file)?|success_criteria|run_limits)\b")
_READ = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_ID = re.compile(rb"^(?:\xef\xbb\xbf)?(?: *(?:- +)+)?['\"]?task_id['\"]?[ \t]*:", re.MULTILINE)
_INDENTED_ID = re.compile(rb"^ +['\"]?task_id['\"]?[ \t]*:", re.MULTILINE)
_LIST = re.compile(rb"^- ", re.MULTILINE)
_BRACKETS = re.compile(r"\[([!^]?)(\]?(?:\\.|[^\]\\])*)\]", re.DOTALL)
_NOTHING = "(?!)"  #: what matches nothing
_CRITERIA = re.compile(rb"success_criteria['\"]?[ \t]*:")


def segment_regex(segment: str) -> str:
    """The regular expression of one part of a pattern, between slashes. A bracket that is never closed matches nothing."""
    out, at = [], 0
    while at < len(segment):
        char = segment[at]
        if char == "*":
            while segment[at : at + 1] == "*":  # more of them mean the same, and would only take time
                at += 1
            out.append("[^/]*")
            continue
        if char == "[":
            found = _BRACKETS.match(segment, at)
            if found is None:
                return _NOTHING
            out.append(_set(found[2], negated=bool(found[1])))
            at = found.end()
            continue
        if char == "\\" and at + 1 < len(segment):
            at += 1
            char = segment[at]
        elif char == "?":
            out.append("[^/]")
            at += 1
            continue
        out.append(re.escape(char))
        at += 1
    return "".join(out)


def _set(content: str, *, negated: bool) -> str:
    """`[a-z]` and `[!a-z]`; a range that runs backwards holds nothing, as in git."""
    members = re.findall(r"\\?(.)", content, re.DOTALL)
    escaped = [len(m[0]) > 1 for m in re.finditer(r"\\?.", content, re.DOTALL)]
    parts, at = "", 0
    while at < len(members):
        if at + 2 < len(members) and members[at + 1] == "-" and not escaped[at + 1]:
            low, high = members[at], members[at + 2]
            parts += f"{re.escape(low)}-{re.escape(high)}" if low <= high else ""
            at += 3
        else:
            parts += re.escape(members[at])
            at += 1
    if negated:
        return f"[^/{parts}]"
    return f"(?!/)[{parts}]" if parts else _NOTHING


def _segments(pattern: str) -> tuple[str, ...]:
    """The parts of a pattern from rootdir down; `**` first where it matches in any folder."""
    below = pattern.endswith("/")
    anchored = "/" in pattern.rstrip("/")
    parts = [part for part in pattern.split("/") if part not in ("", ".")]
    if not parts:
        return ()  # `/` and `./` name nothing, as in git
    if not anchored:
        parts.insert(0, "**")
    if below:
        parts.append("**")
    return tuple(part for i, part in enumerate(parts) if part != "**" or i == 0 or parts[i - 1] != "**")


def _regex(segments: tuple[str, ...]) -> str:
    """Of a whole path, without anchors. A `**` at the end means everything below, elsewhere any number of folders."""
    out = ""
    for i, segment in enumerate(segments):
        last = i == len(segments) - 1
        if segment == "**":
            out += ".+" if last else "(?:[^/]+/)*"
        else:
            out += segment_regex(segment) + ("" if last else "/")
    return out


def _folder_regex(segments: tuple[str, ...]) -> str:
    """Of the folders, with a slash behind each, in which a match could lie directly."""
    folders, last = segments[:-1], segments[-1]
    out = "".join("(?:[^/]+/)*" if s == "**" else segment_regex(s) + "/" for s in folders)
    return out + ("(?:[^/]+/)*" if last == "**" else "")


def _either(expressions: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{e})" for e in expressions) or "(?!)", re.DOTALL)


class TaskPatterns:
    """Ini `codeprobe_files` and `codeprobe_ignore`, compiled."""

    def __init__(self, patterns: Iterable[str], ignore: Iterable[str], rootdir: str | os.PathLike[str]) -> None:
        self._root = os.fspath(rootdir).rstrip(os.sep) + os.sep
        split = [segments for pattern in patterns if (segments := _segments(pattern))]
        ignored = [segments for pattern in ignore if (segments := _segments(pattern))]
        self._files = _either(_regex(s) for s in split)
        self._folders = _either(_folder_regex(s) for s in split)
        # as in .gitignore, a folder that is ignored takes everything below it along
        self._ignored = _either(_regex(s) + ("" if s[-1] == "**" else "(?:/.*)?") for s in ignored)
        # outside rootdir there is no relative path, but a pattern without a slash matches in any folder
        self._names = _either(_regex(s[1:]) for s in split if len(s) == 2 and s[0] == "**" and s[1] != "**")
        self._prefixes = frozenset(prefix for segments in split for prefix in _prefixes(segments))

    def matches(self, path: str | os.PathLike[str]) -> bool:
        """Whether an absolute path is that of a task file."""
        text = os.fspath(path)
        if not text.endswith(SUFFIXES):
            return False
        relative = self._relative(text)
        if relative is None:
            return self._names.fullmatch(text.rpartition(os.sep)[2]) is not None
        return self._files.fullmatch(relative) is not None and self._ignored.fullmatch(relative) is None

    def ignores(self, path: str | os.PathLike[str]) -> bool:
        """Whether codeprobe_ignore leaves the path out."""
        relative = self._relative(os.fspath(path))
        return relative is not None and self._ignored.fullmatch(relative) is not None

    def on_prefix(self, directory: str | os.PathLike[str]) -> bool:
        """Whether the folder lies on the literal beginning of a pattern, such as `tasks` for `tasks/**/*.yaml`."""
        relative = self._relative(os.fspath(directory))
        return relative is not None and relative in self._prefixes

    def may_hold(self, directory: str | os.PathLike[str]) -> bool:
        """Whether a task file could lie directly in the folder."""
        relative = self._relative(os.fspath(directory))
        if relative is None:
            return self._names.pattern != "(?!)"
        return self._folders.fullmatch(f"{relative}/" if relative else "") is not None and self._ignored.fullmatch(relative) is None

    def _relative(self, text: str) -> str | None:
        """POSIX, "" for rootdir itself; None outside of it."""
        if text.startswith(self._root):
            relative = text[len(self._root) :]
            return relative if os.sep == "/" else relative.replace(os.sep, "/")
        return "" if text + os.sep == self._root else None


def _prefixes(segments: tuple[str, ...]) -> Iterable[str]:
    """rootdir and each folder before the first part that is no plain name."""
    if segments[0] == "**":
        return
    literal = ""
    yield literal
    for segment in segments[:-1]:
        if re.search(r"[*?\[\\]", segment):
            return
        literal = f"{literal}/{segment}" if literal else segment
        yield literal


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """The content of a file, cut after MAX_BYTES + 1. OSError where it can't be read."""
    chunks: list[bytes] = []
    left = MAX_BYTES + 1
    descriptor = os.open(path, _READ)
    try:
        while left and (chunk := os.read(descriptor, min(left, _CHUNK))):
            chunks.append(chunk)
            left -= len(chunk)
    finally:
        os.close(descriptor)
    return b"".join(chunks)


def may_hold_tasks(content: bytes) -> bool:
    """Whether one of the keys of which a task has at least one stands in a file at all."""
    utf16 = content.startswith((b"\xff\xfe", b"\xfe\xff"))
    return _SIGNS.search(content.decode("utf-16", "replace").encode() if utf16 else content) is not None


def looks_like_task(path: str | os.PathLike[str]) -> bool:
    """By its content, for files below a folder that the command line names.

    `task_id:` must begin a line or a list entry (or a line within an entry of a top-level list), `success_criteria:` may
    stand anywhere. A file that can't be read looks like one, so that the loader says why.
    """
    if not os.fspath(path).endswith(SUFFIXES):
        return False
    try:
        data = read_bytes(path)
    except OSError:
        return True
    if _CRITERIA.search(data) is None:
        return False
    return _ID.search(data) is not None or (_LIST.search(data) is not None and _INDENTED_ID.search(data) is not None)
