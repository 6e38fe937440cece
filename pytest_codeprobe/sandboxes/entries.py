"""The paths of a tree, as lstat sees them: found in order, kept packed, two such lists side by side. Nothing is opened or followed."""

# ruff: noqa: PTH101, PTH108
# (hot loops over names that need not be text: plain calls, no Path objects)
from __future__ import annotations

import errno
import os
import struct
import tempfile
import weakref
from collections.abc import Iterator
from typing import NamedTuple

from pytest_codeprobe.sandboxes.trees import is_folder

_IN_MEMORY = 4 << 20
_CHUNK = 1 << 20
_RECORD = struct.Struct("<HBIQqQq")  # length of the path, origin, mode, size, mtime_ns, inode, ctime_ns
#: where a file's content before the session is: in the template, in a private copy, nowhere
TEMPLATE, PRIVATE, NOWHERE = 0, 1, 2
_FOLDER = b"\0"  #: behind a folder's name: no name has it, and it sorts before all others


_new = tuple.__new__  #: makes a NamedTuple at half the cost


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


def entry_of(path: bytes, info: os.stat_result) -> Entry:
    """The entry of one path."""
    return Entry(path, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ino, info.st_ctime_ns)


def scan(top: bytes) -> Iterator[Entry]:
    """Every path below `top` that is no folder, sorted by Entry.key, without `.git` folders. OSError if `top` can't be read.

    Nothing where `top` is no folder any more: a link that a session put there leads elsewhere.
    """
    if not is_folder(top):
        return
    stack = [(b"", iter(_level(top)))]
    while stack:
        prefix, names = stack[-1]
        for name in names:
            if not name.endswith(_FOLDER):
                path = prefix + name
                try:
                    info = os.lstat(top + b"/" + path)
                except OSError as error:
                    if error.errno != errno.ENAMETOOLONG:
                        raise
                    continue  # deeper than any program can name it
                yield _new(Entry, (path, info.st_mode, info.st_size, info.st_mtime_ns, info.st_ino, info.st_ctime_ns, TEMPLATE))
            elif name[:-1] != b".git":
                path = prefix + name[:-1]
                stack.append((path + b"/", iter(_level(top + b"/" + path))))
                break
        else:
            stack.pop()


def _level(place: bytes) -> list[bytes]:
    """Names in a folder, sorted, those of folders marked: no more than that is held, as there may be millions."""
    try:
        return _list(place)
    except PermissionError:
        os.chmod(place, 0o700)  # a session left it so; it is ours, and graders must be able to look into it as well
        return _list(place)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return []  # deeper than any program can name it


def _list(place: bytes) -> list[bytes]:
    with os.scandir(place) as entries:
        names = [entry.name + _FOLDER if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries]
    names.sort()
    return names


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
                yield _new(Entry, (block[at : at + length], mode, size, mtime, inode, ctime, origin))
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


def merge(before: Iterator[Entry], after: Iterator[Entry]) -> Iterator[Difference]:
    """Every path of two sorted lists, with what each of them has of it."""
    old, new = next(before, None), next(after, None)
    while old is not None or new is not None:
        if old is not None and new is not None and old.path == new.path:
            yield _new(Difference, (old, new))
            old, new = next(before, None), next(after, None)
        elif new is None or (old is not None and old.key < new.key):
            yield Difference(old, None)
            old = next(before, None)
        else:
            yield Difference(None, new)
            new = next(after, None)
