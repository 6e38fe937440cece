"""Patches of a few small text files, written here: most sessions change no more, and git's start costs more than the comparison."""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from typing import Literal

from pytest_codeprobe.sandboxes.changes import Baseline, read_any
from pytest_codeprobe.sandboxes.entries import Difference, Entry

MAX_FILES = 40
MAX_BYTES = 60_000  #: of one file
MAX_LINES = 1_500  #: of one file; the comparison's worst case grows with the square
_CONTEXT = 3
_PLAIN_NAME = re.compile(rb"[A-Za-z0-9_./+@%=,~^-]+")  # what git shows unquoted
_LINES = re.compile(rb"[^\n]*\n|[^\n]+")
_NOBODY = b"0000000"
_Kind = Literal["replace", "delete", "insert", "equal"]


def small_patch(differences: Sequence[Difference], baseline: Baseline, workspace: bytes) -> bytes | None:
    """The patch as git would write it, if all of it is small, text, and of names that need no quotes; else None.

    OSError if a file can't be read.
    """
    if len(differences) > MAX_FILES:
        return None
    out: list[bytes] = []
    for pair in differences:
        if not _PLAIN_NAME.fullmatch(pair.path):
            return None
        before, after = _side(pair.before, baseline, workspace, old=True), _side(pair.after, baseline, workspace, old=False)
        if before is _NOT_SMALL or after is _NOT_SMALL:
            return None
        out += _sections(pair.path, before, after)
    return b"".join(out)


class _Side:
    """A file or link on one side of the comparison, with its mode as git has it."""

    def __init__(self, mode: bytes, data: bytes) -> None:
        self.mode, self.data, self.lines = mode, data, _LINES.findall(data)

    @property
    def name(self) -> bytes:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data, usedforsecurity=False).hexdigest()[:7].encode()


_NOT_SMALL = _Side(b"", b"")


def _side(entry: Entry | None, baseline: Baseline, workspace: bytes, *, old: bool) -> _Side | None:
    if entry is None:
        return None
    place = baseline.content(entry) if old else workspace + b"/" + entry.path
    if place is None or entry.size > MAX_BYTES or not (stat.S_ISREG(entry.mode) or stat.S_ISLNK(entry.mode)):
        return _NOT_SMALL
    if stat.S_ISLNK(entry.mode):
        return _Side(b"120000", os.readlink(place))  # noqa: PTH115 (a name that need not be text)
    side = _Side(b"100755" if entry.mode & stat.S_IXUSR else b"100644", read_any(place, entry))
    return _NOT_SMALL if b"\0" in side.data or len(side.lines) > MAX_LINES else side


def _sections(path: bytes, before: _Side | None, after: _Side | None) -> Iterator[bytes]:
    if before and after and (before.mode == b"120000") != (after.mode == b"120000"):
        yield from _sections(path, before, None)  # a file that became a link goes and comes
        yield from _sections(path, None, after)
        return
    if before and after and before.mode == after.mode and before.data == after.data:
        return  # a right that git does not know
    yield b"diff --git a/%s b/%s\n" % (path, path)
    if before is None and after is not None:
        yield b"new file mode %s\n" % after.mode
    elif after is None and before is not None:
        yield b"deleted file mode %s\n" % before.mode
    elif before and after and before.mode != after.mode:
        yield b"old mode %s\nnew mode %s\n" % (before.mode, after.mode)
    old, new = before.data if before else b"", after.data if after else b""
    if before and after and old == new:
        return
    same = b" " + before.mode if before and after and before.mode == after.mode else b""
    yield b"index %s..%s%s\n" % (before.name if before else _NOBODY, after.name if after else _NOBODY, same)
    if old != new:
        yield b"--- a/%s\n" % path if before else b"--- /dev/null\n"
        yield b"+++ b/%s\n" % path if after else b"+++ /dev/null\n"
        yield from _hunks(before.lines if before else [], after.lines if after else [])


class _Comparison(difflib.SequenceMatcher[bytes]):
    """Compares only what lies between the lines that both begin and end with, which is most of an edited file."""

    def __init__(self, old: list[bytes], new: list[bytes]) -> None:
        self._head = _common(old, new)
        self._tail = _common(old[self._head :][::-1], new[self._head :][::-1])
        self._ends = len(old), len(new)
        super().__init__(None, old[self._head : len(old) - self._tail], new[self._head : len(new) - self._tail])

    def get_opcodes(self) -> list[tuple[_Kind, int, int, int, int]]:
        head, tail, (old, new) = self._head, self._tail, self._ends
        codes = [(kind, a + head, b + head, c + head, d + head) for kind, a, b, c, d in super().get_opcodes()]
        if head:
            codes.insert(0, ("equal", 0, head, 0, head))
        if tail:
            codes.append(("equal", old - tail, old, new - tail, new))
        return codes


def _hunks(old: list[bytes], new: list[bytes]) -> Iterator[bytes]:
    if not old or not new:
        yield b"@@ -%s +%s @@\n" % (_range(0, len(old)), _range(0, len(new)))
        yield from _marked(b"-", old)
        yield from _marked(b"+", new)
        return
    for group in _Comparison(old, new).get_grouped_opcodes(_CONTEXT):
        first, last = group[0], group[-1]
        yield b"@@ -%s +%s @@\n" % (_range(first[1], last[2]), _range(first[3], last[4]))
        for kind, old_from, old_to, new_from, new_to in group:
            if kind == "equal":
                yield from _marked(b" ", old[old_from:old_to])
            else:
                yield from _marked(b"-", old[old_from:old_to])
                yield from _marked(b"+", new[new_from:new_to])


def _common(old: Sequence[bytes], new: Sequence[bytes]) -> int:
    """How many lines the two begin with alike."""
    return next((number for number, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))


def _range(start: int, end: int) -> bytes:
    count = end - start
    if count == 1:
        return b"%d" % (start + 1)
    return b"%d,%d" % (start + 1 if count else start, count)


def _marked(mark: bytes, lines: list[bytes]) -> Iterator[bytes]:
    for line in lines:
        yield mark + line if line.endswith(b"\n") else mark + line + b"\n\\ No newline at end of file\n"
