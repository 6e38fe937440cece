"""What a session left different: a stat snapshot before, a scan after, contents compared only where the stat differs.

Nothing here trusts what an agent controls: times can be set, but not ctime and inode; file types decide before anything is
opened; `.git` folders are not looked into. Memory stays flat however many files there are.
"""

# ruff: noqa: PTH101, PTH108, PTH115, PTH120, PTH123
# (hot loops over names that need not be text: plain calls, no Path objects)
from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
import struct
import tempfile
import weakref
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Literal, NamedTuple

from pytest_codeprobe.model.sandbox import Change
from pytest_codeprobe.sandboxes.trees import (
    LANE,
    SMALL_BYTES,
    SMALL_FILES,
    copy_file,
    copy_link,
    copy_paths,
    failed,
    is_folder,
    make_folders,
    open_regular,
)

MAX_FILE_BYTES = 10_000_000  #: content above this is named by hash and size
MAX_CHANGES = 10_000  #: listed one by one
MAX_FILES = 3_000_000  #: looked at in one workspace
MAX_HASHED = 1 << 30  #: bytes; a sparse file can claim any size
MAX_COMPARED = 256 << 20  #: bytes; a larger file that was touched counts as changed
_IN_MEMORY = 4 << 20
_CHUNK = 1 << 20
_AT_ONCE = 20_000  # files given to one cp

_RECORD = struct.Struct("<HBIQqQq")  # length of the path, origin, mode, size, mtime_ns, inode, ctime_ns
#: where a file's content before the session is: in the template, in a private copy, nowhere
TEMPLATE, PRIVATE, NOWHERE = 0, 1, 2

_KINDS = {stat.S_IFLNK: "symlink", stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}


class Entry(NamedTuple):
    """A path that is no folder, as lstat saw it. `path`: relative, bytes as the file system has them."""

    path: bytes
    mode: int
    size: int
    mtime_ns: int
    inode: int
    ctime_ns: int
    origin: int = TEMPLATE

    @property
    def key(self) -> bytes:
        """Sorts like the scan: folder by folder."""
        return self.path.replace(b"/", b"\0")


def scan(top: bytes) -> Iterator[Entry]:
    """Every path below `top` that is no folder, sorted by Entry.key, without `.git` folders. OSError if `top` can't be read.

    Nothing where `top` is no folder any more: a link that a session put there leads elsewhere.
    """
    if not is_folder(top):
        return
    stack = [iter(_level(top, b""))]
    while stack:
        for path, entry in stack[-1]:
            if not entry.is_dir(follow_symlinks=False):
                try:
                    info = entry.stat(follow_symlinks=False)
                except OSError as error:
                    if error.errno != errno.ENAMETOOLONG:
                        raise
                    continue  # deeper than any program can name it
                yield Entry(path, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ino, info.st_ctime_ns)
            elif entry.name != b".git":
                stack.append(iter(_level(top, path)))
                break
        else:
            stack.pop()


def _level(top: bytes, folder: bytes) -> list[tuple[bytes, os.DirEntry[bytes]]]:
    place = top + b"/" + folder if folder else top
    try:
        entries = _list(place)
    except PermissionError:
        os.chmod(place, 0o700)  # a session left it so; it is ours, and graders must be able to look into it as well
        entries = _list(place)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return []  # deeper than any program can name it
    prefix = folder + b"/" if folder else b""
    return sorted([(prefix + entry.name, entry) for entry in entries], key=lambda pair: pair[1].name)


def _list(place: bytes) -> list[os.DirEntry[bytes]]:
    with os.scandir(place) as entries:
        return list(entries)


class Records:
    """A list of entries, packed; in memory while it is short, in an unlinked file beyond. Read by any number of threads."""

    def __init__(self, folder: str) -> None:
        self._folder, self._parts, self._size = folder, bytearray(), 0
        self._fd = -1
        self.count = 0

    def append(self, entry: Entry, origin: int) -> None:
        self._parts += _RECORD.pack(
            len(entry.path), origin, entry.mode, entry.size, entry.mtime_ns, entry.inode & 0xFFFFFFFFFFFFFFFF, entry.ctime_ns
        )
        self._parts += entry.path
        self.count += 1
        if len(self._parts) >= _IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        if self._fd < 0:
            self._fd, name = tempfile.mkstemp(dir=self._folder)
            weakref.finalize(self, os.close, self._fd)
            os.unlink(name)
        view = memoryview(bytes(self._parts))
        while view:
            written = os.pwrite(self._fd, view, self._size)
            self._size += written
            view = view[written:]
        self._parts.clear()

    def __iter__(self) -> Iterator[Entry]:
        for block in self._blocks():
            at = 0
            while at < len(block):
                length, origin, mode, size, mtime, inode, ctime = _RECORD.unpack_from(block, at)
                at += _RECORD.size
                yield Entry(block[at : at + length], mode, size, mtime, inode, ctime, origin)
                at += length

    def _blocks(self) -> Iterator[bytes]:
        """Pieces that end where a record ends."""
        offset, rest = 0, b""
        while offset < self._size:
            data = os.pread(self._fd, _CHUNK, offset)
            offset += len(data)
            block = rest + data
            end = _whole(block)
            yield block[:end]
            rest = block[end:]
        yield rest + bytes(self._parts)


def _whole(block: bytes) -> int:
    at = 0
    while at + _RECORD.size <= len(block):
        after = at + _RECORD.size + int.from_bytes(block[at : at + 2], "little")
        if after > len(block):
            break
        at = after
    return at


class Difference(NamedTuple):
    """One path before and after; None where it is not there."""

    before: Entry | None
    after: Entry | None

    @property
    def path(self) -> bytes:
        entry = self.after or self.before
        assert entry is not None
        return entry.path


def _merge(before: Iterator[Entry], after: Iterator[Entry]) -> Iterator[Difference]:
    old, new = next(before, None), next(after, None)
    while old is not None or new is not None:
        if old is not None and new is not None and old.path == new.path:
            yield Difference(old, new)
            old, new = next(before, None), next(after, None)
        elif new is None or (old is not None and old.key < new.key):
            yield Difference(old, None)
            old = next(before, None)
        else:
            yield Difference(None, new)
            new = next(after, None)


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
            with LANE:
                for pair in _merge(iter(laid), scan(self._workspace)):
                    if pair.after is not None:
                        self._records.append(pair.after, self._origin(pair.before, pair.after, since))
                self._copy_pending()
        except OSError as error:
            raise failed("no snapshot could be taken of the workspace", error) from error

    def _origin(self, template: Entry | None, now: Entry, since: int) -> int:
        same = template is not None and (template.mode, template.size, template.mtime_ns) == (now.mode, now.size, now.mtime_ns)
        if same and (now.ctime_ns < since or _same_content(self._template + b"/" + now.path, self._workspace + b"/" + now.path, now)):
            return TEMPLATE
        if now.size > MAX_COMPARED or not (stat.S_ISREG(now.mode) or stat.S_ISLNK(now.mode)):
            return NOWHERE
        if now.mode & stat.S_IRUSR:
            self._pending.append(now)
            if len(self._pending) >= _AT_ONCE:
                self._copy_pending()
        else:
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
        more = 0
        try:
            with LANE:
                for seen, pair in enumerate(_merge(iter(self._records), scan(self._workspace))):
                    if seen >= MAX_FILES:
                        more = -1
                        break
                    if not self._differs(pair):
                        continue
                    if len(found) < MAX_CHANGES:
                        found.append(pair)
                    else:
                        more += 1
        except OSError as error:
            raise failed("the workspace could not be compared with its baseline:", error) from error
        return found, more

    def _differs(self, pair: Difference) -> bool:
        old, new = pair.before, pair.after
        if old is None or new is None:
            return True
        if old.mode != new.mode:
            return True
        if (old.size, old.mtime_ns, old.inode, old.ctime_ns) == (new.size, new.mtime_ns, new.inode, new.ctime_ns):
            return False
        if not (stat.S_ISREG(new.mode) or stat.S_ISLNK(new.mode)):
            return False
        if old.size != new.size:
            return True
        before = self.content(old)
        return before is None or not _same_content(before, self._workspace + b"/" + new.path, new)

    def touched(self, wanted: Callable[[str], bool]) -> list[Change]:
        """All that differs and is wanted, however many files there are: what is put back depends on it."""
        try:
            with LANE:
                differing = (pair for pair in _merge(iter(self._records), scan(self._workspace)) if self._differs(pair))
                return [
                    Change(path=os.fsdecode(pair.path), kind=_kind(pair), size=None) for pair in differing if wanted(os.fsdecode(pair.path))
                ]
        except OSError as error:
            raise failed("the workspace could not be compared with its baseline:", error) from error

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
    """Give the owner the right to read a regular file, and take it away again."""
    if entry.mode & stat.S_IRUSR:
        yield
        return
    os.chmod(path, stat.S_IMODE(entry.mode) | stat.S_IRUSR)
    try:
        yield
    finally:
        os.chmod(path, stat.S_IMODE(entry.mode))


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
