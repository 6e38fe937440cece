"""What a session left different: a stat snapshot before, a scan after, contents compared only where the stat differs.

Nothing here trusts what an agent controls: times can be set, but not ctime and inode; file types decide before anything is
opened; `.git` folders are not looked into. Memory stays flat however many files there are.
"""

# ruff: noqa: PTH101, PTH115, PTH120, PTH123
# (hot loops over names that need not be text: plain calls, no Path objects)
from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Literal

from pytest_codeprobe.model.sandbox import Change
from pytest_codeprobe.sandboxes.entries import NOWHERE, PRIVATE, TEMPLATE, Difference, Entry, Records, merge, scan
from pytest_codeprobe.sandboxes.lane import CONTENTS, FEW, LANE
from pytest_codeprobe.sandboxes.trees import (
    SMALL_BYTES,
    SMALL_FILES,
    copy_file,
    copy_link,
    copy_paths,
    failed,
    make_folders,
    open_regular,
)

MAX_FILE_BYTES = 10_000_000  #: content above this is named by hash and size
MAX_CHANGES = 10_000  #: listed one by one
MAX_FILES = 3_000_000  #: looked at in one workspace
MAX_HASHED = 1 << 30  #: bytes; a sparse file can claim any size
MAX_COMPARED = 256 << 20  #: bytes; a larger file that was touched counts as changed
_CHUNK = 1 << 20
_AT_ONCE = 20_000  # files given to one cp

_KINDS = {stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class Baseline:
    """A workspace as it was when the session began.

    `laid` are the entries of the template, `since` the ctime (ns) of something made just after it was laid out: what is newer than
    that, or not like the template, was made by pre_run and is copied to `private`.
    """

    def __init__(self, workspace: Path, template: Path, laid: Records, since: int, private: Path) -> None:
        self._workspace, self._template, self._private = os.fsencode(workspace), os.fsencode(template), os.fsencode(private)
        self._records = Records(os.fspath(private))
        self._pending: list[Entry] = []
        try:
            private.mkdir(exist_ok=True)
            for piece in LANE.pieces(merge(iter(laid), scan(self._workspace))):
                self._take(piece, since)
            self._copy_pending()
        except OSError as error:
            raise failed("no snapshot could be taken of the workspace", error) from error

    def _take(self, piece: Sequence[Difference], since: int) -> None:
        there = [(laid, now) for laid, now in piece if now is not None]
        # of the template's mode, size and mtime: the template's own, if it is no newer; else its content must be looked at
        alike = [laid is not None and laid[1:4] == now[1:4] for laid, now in there]
        doubtful = [now for (_, now), like in zip(there, alike, strict=True) if like and now.ctime_ns >= since]
        equal: set[bytes] = set()
        if 0 < len(doubtful) <= FEW:  # else a copy is cheaper than so many comparisons
            with CONTENTS:
                equal = {e.path for e in doubtful if _same_content(self._template + b"/" + e.path, self._workspace + b"/" + e.path, e)}
        for (_, now), like in zip(there, alike, strict=True):
            is_template = like and (now.ctime_ns < since or now.path in equal)
            self._records.append(now, TEMPLATE if is_template else self._kept(now))

    def _kept(self, now: Entry) -> int:
        """See to it that content which is not the template's can be read later; where."""
        if now.size > MAX_COMPARED or not (stat.S_ISREG(now.mode) or stat.S_ISLNK(now.mode)):
            return NOWHERE
        if now.mode & stat.S_IRUSR:
            self._pending.append(now)
            if len(self._pending) >= _AT_ONCE:
                self._copy_pending()
        else:
            with LANE:
                self._copy_one(now)
        return PRIVATE

    def _copy_one(self, entry: Entry) -> None:
        target = self._private + b"/" + entry.path
        make_folders(os.path.dirname(target))
        copy_any(self._workspace + b"/" + entry.path, target, entry)

    def _copy_pending(self) -> None:
        """Keep what pre_run made: few files here, an installed package tree by `cp`."""
        if len(self._pending) > SMALL_FILES or sum(entry.size for entry in self._pending) > SMALL_BYTES:
            copy_paths(os.fsdecode(self._workspace), os.fsdecode(self._private), [entry.path for entry in self._pending])
        else:
            with LANE:
                for entry in self._pending:
                    self._copy_one(entry)
        self._pending.clear()

    def content(self, entry: Entry) -> bytes | None:
        """Where the content before the session can be read; None: nowhere."""
        if entry.origin == NOWHERE:
            return None
        return (self._private if entry.origin == PRIVATE else self._template) + b"/" + entry.path

    def find(self, paths: AbstractSet[bytes]) -> dict[bytes, Entry]:
        """Those of the paths that were there."""
        return {entry.path: entry for entry in self._records if entry.path in paths}

    def differences(self) -> tuple[list[Difference], int]:
        """What differs now, sorted, at most MAX_CHANGES; and how many more there are, -1 if not all files were looked at."""
        found: list[Difference] = []
        more = seen = 0
        for piece in self._compared():
            differing = self._differing([pair for pair in piece[: MAX_FILES - seen] if _is_suspect(pair)])
            room = MAX_CHANGES - len(found)
            found += differing[:room]
            more += len(differing[room:])
            seen += len(piece)
            if seen > MAX_FILES:
                return found, -1
        return found, more

    def touched(self, wanted: Callable[[str], bool]) -> list[Change]:
        """All that differs and is wanted, however many files there are: what is put back depends on it."""
        return [
            Change(path=os.fsdecode(pair.path), kind=_kind(pair), size=None)
            for piece in self._compared()
            for pair in self._differing([pair for pair in piece if _is_suspect(pair) and wanted(os.fsdecode(pair.path))])
        ]

    def _compared(self) -> Iterator[list[Difference]]:
        """Every path, before and now."""
        try:
            yield from LANE.pieces(merge(iter(self._records), scan(self._workspace)))
        except OSError as error:
            raise failed("the workspace could not be compared with its baseline:", error) from error

    def _differing(self, pairs: Sequence[Difference]) -> list[Difference]:
        """Those that differ. Contents are looked into where the stat does not say it."""
        found = [pair for pair in pairs if _by_stat(pair) is not False]
        doubtful = [pair for pair in found if _by_stat(pair) is None]
        equal: set[bytes] = set()
        for start in range(0, len(doubtful), FEW):
            with CONTENTS:
                equal |= {pair.path for pair in doubtful[start : start + FEW] if self._is_as_before(pair)}
        return [pair for pair in found if pair.path not in equal] if equal else found

    def _is_as_before(self, pair: Difference) -> bool:
        assert pair.before is not None
        assert pair.after is not None
        before = self.content(pair.before)
        return before is not None and _same_content(before, self._workspace + b"/" + pair.after.path, pair.after)

    def change(self, pair: Difference) -> Change:
        """The difference as the record shows it."""
        entry = pair.after or pair.before
        assert entry is not None
        note = _KINDS.get(stat.S_IFMT(entry.mode), "")
        if pair.after is not None and stat.S_ISREG(entry.mode) and entry.size > MAX_FILE_BYTES:
            note = large_note(self._workspace + b"/" + entry.path, entry.size)
        return Change(
            path=os.fsdecode(entry.path),
            kind=_kind(pair),
            size=pair.after.size if pair.after else None,
            mode=stat.S_IMODE(pair.after.mode) if pair.after else None,
            note=note,
        )

    def changes(self) -> tuple[list[Difference], list[Change]]:
        """The differences, and the same for the record, whose last one says so where there are more than can be listed."""
        found, more = self.differences()
        listed = [self.change(pair) for pair in found]
        if more:
            left = f"{more:,} further changes are not listed" if more > 0 else f"only the first {MAX_FILES:,} files were looked at"
            listed.append(Change(path=".", kind="modified", note=left))
        return found, listed


def _is_suspect(pair: Difference) -> bool:
    """Whether anything at all differs; of most files nothing does."""
    old, new = pair
    return old is None or new is None or old[1:6] != new[1:6]


def _by_stat(pair: Difference) -> bool | None:
    """Whether the two differ; None: their contents must be looked at."""
    old, new = pair.before, pair.after
    if old is None or new is None or old.mode != new.mode:
        return True
    if old[1:6] == new[1:6]:
        return False
    if not (stat.S_ISREG(new.mode) or stat.S_ISLNK(new.mode)):
        return False
    return True if old.size != new.size else None


def _kind(pair: Difference) -> Literal["added", "modified", "deleted"]:
    return "modified" if pair.before and pair.after else "added" if pair.after else "deleted"


def copy_any(source: bytes, target: bytes, entry: Entry) -> None:
    """Copy a regular file or a link. A file that its owner may not read is made readable for the moment."""
    if stat.S_ISLNK(entry.mode):
        copy_link(source, target)
        return
    with readable(source, entry):
        copy_file(source, target)


def read_any(path: bytes, entry: Entry) -> bytes:
    """The content of a regular file, also of one that its owner may not read."""
    with readable(path, entry), open(open_regular(path), "rb") as file:
        return file.read()


@contextlib.contextmanager
def readable(path: bytes, entry: Entry) -> Iterator[None]:
    """Give the owner the right to read a regular file, and take it away again; not among mounted layers, which only root has."""
    given = False
    if not entry.mode & stat.S_IRUSR:
        with _suppressed(errno.EROFS):
            os.chmod(path, stat.S_IMODE(entry.mode) | stat.S_IRUSR)
            given = True
    try:
        yield
    finally:
        if given:
            os.chmod(path, stat.S_IMODE(entry.mode))


@contextlib.contextmanager
def _suppressed(number: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno != number:
            raise


def _same_content(before: bytes, after: bytes, entry: Entry) -> bool:
    try:
        if stat.S_ISLNK(entry.mode):
            return os.readlink(before) == os.readlink(after)
        if not stat.S_ISREG(entry.mode) or entry.size > MAX_COMPARED:
            return False
        with readable(after, entry), open(open_regular(before), "rb", 0) as old, open(open_regular(after), "rb", 0) as new:
            while True:
                piece = old.read(_CHUNK)
                if piece != new.read(_CHUNK):
                    return False
                if not piece:
                    return True
    except OSError:
        return False  # what can't be compared is shown as changed


def large_note(path: bytes, size: int) -> str:
    """What stands for content that is too large to show."""
    if size > MAX_HASHED:
        return "too large: not hashed"
    digest = hashlib.sha256()
    try:
        with open(open_regular(path), "rb", 0) as file:
            while piece := file.read(_CHUNK):
                digest.update(piece)
    except OSError as error:
        return f"too large: not readable ({error.strerror})"
    return f"too large: sha256 {digest.hexdigest()}"
