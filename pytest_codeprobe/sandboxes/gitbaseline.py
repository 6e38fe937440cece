"""The one-commit repository that a workspace gets if it is none: written here, without git.

No remote, reflog, hook, alternate or second object store; the commit's identity and date are fixed, so that the same files give the
same commit. One pack and its index are two files to copy however many the workspace has, and the list of files (`index`) comes with
sizes and times, so that the agent's first `git status` reads no content.
"""

# ruff: noqa: PTH115, PTH123
# (hot loops over names that need not be text: plain calls, no Path objects)
from __future__ import annotations

import hashlib
import itertools
import os
import stat
import struct
import zlib
from pathlib import Path
from typing import BinaryIO

from pytest_codeprobe.sandboxes.entries import Entry, scan
from pytest_codeprobe.sandboxes.patch import refused_by_git
from pytest_codeprobe.sandboxes.trees import open_regular

LARGE_FILE = 50_000_000  #: bytes; a larger file stays out of the commit, it would cost minutes to pack
_COMMIT, _TREE, _BLOB = 1, 2, 3
_NAMES = {_COMMIT: b"commit", _TREE: b"tree", _BLOB: b"blob"}
_AUTHOR = b"pytest-codeprobe <codeprobe@localhost> 0 +0000"
_CONFIG = """\
[core]
\trepositoryformatversion = 0
\tfilemode = true
\tbare = false
\tlogallrefupdates = true
\tcheckStat = minimal
\ttrustctime = false
[gc]
\tauto = 0
[maintenance]
\tauto = false
[user]
\tname = agent
\temail = agent@localhost
"""


class _Pack:
    """A pack file in the making."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._offset = file, 0
        self._entries: dict[bytes, tuple[int, int]] = {}  # object id: crc32, offset
        self._write(b"PACK" + struct.pack(">II", 2, 0))

    def _write(self, data: bytes) -> None:
        self._file.write(data)
        self._offset += len(data)

    def add(self, kind: int, data: bytes) -> bytes:
        """Add an object once; its id."""
        name = hashlib.sha1(b"%s %d\0" % (_NAMES[kind], len(data)), usedforsecurity=False)
        name.update(data)
        digest = name.digest()
        if digest not in self._entries:
            packed = _entry_header(kind, len(data)) + zlib.compress(data, 1)
            self._entries[digest] = (zlib.crc32(packed), self._offset)
            self._write(packed)
        return digest

    def finish(self) -> tuple[bytes, bytes]:
        """The pack's checksum and the content of its index file."""
        self._file.seek(8)
        self._file.write(struct.pack(">I", len(self._entries)))
        self._file.seek(0)
        digest = hashlib.sha1(usedforsecurity=False)
        while chunk := self._file.read(1 << 20):
            digest.update(chunk)
        checksum = digest.digest()
        self._file.write(checksum)
        return checksum, self._index(checksum)

    def _index(self, checksum: bytes) -> bytes:
        names = sorted(self._entries)
        counts = [0] * 256
        for name in names:
            counts[name[0]] += 1
        fanout = itertools.accumulate(counts)
        offsets = [self._entries[name][1] for name in names]
        far = [offset for offset in offsets if offset >= 1 << 31]
        numbers = iter(range(len(far)))
        near = [offset if offset < 1 << 31 else (1 << 31) | next(numbers) for offset in offsets]
        body = b"\377tOc" + struct.pack(">I256I", 2, *fanout) + b"".join(names)
        body += struct.pack(f">{len(names)}I", *(self._entries[name][0] for name in names))
        body += struct.pack(f">{len(near)}I", *near) + struct.pack(f">{len(far)}Q", *far) + checksum
        return body + hashlib.sha1(body, usedforsecurity=False).digest()


def _entry_header(kind: int, size: int) -> bytes:
    byte, size = (kind << 4) | (size & 15), size >> 4
    out = bytearray()
    while size:
        out.append(byte | 0x80)
        byte, size = size & 0x7F, size >> 7
    out.append(byte)
    return bytes(out)


def _git_mode(mode: int) -> int:
    if stat.S_ISLNK(mode):
        return 0o120000
    return 0o100755 if mode & stat.S_IXUSR else 0o100644


class _Folder:
    """A folder of the commit while its files come in, in the order of the scan."""

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.items: list[tuple[bytes, bytes]] = []  # sort key, entry of the tree object

    def add(self, mode: int, name: bytes, digest: bytes) -> None:
        key = name + b"/" if mode == 0o40000 else name
        self.items.append((key, b"%o %s\0" % (mode, name) + digest))

    def data(self) -> bytes:
        return b"".join(item for _, item in sorted(self.items))


class _Trees:
    """Builds tree objects from a sorted stream of files."""

    def __init__(self, pack: _Pack) -> None:
        self._pack, self._stack = pack, [_Folder(b"")]

    def add(self, path: bytes, mode: int, digest: bytes) -> None:
        *folders, name = path.split(b"/")
        common = 0
        while common < min(len(folders), len(self._stack) - 1) and self._stack[common + 1].name == folders[common]:
            common += 1
        self._close(common)
        self._stack.extend(_Folder(folder) for folder in folders[common:])
        self._stack[-1].add(mode, name, digest)

    def _close(self, depth: int) -> None:
        while len(self._stack) - 1 > depth:
            folder = self._stack.pop()
            self._stack[-1].add(0o40000, folder.name, self._pack.add(_TREE, folder.data()))

    def finish(self) -> bytes:
        self._close(0)
        return self._pack.add(_TREE, self._stack[0].data())


def _index_entry(entry: Entry, digest: bytes) -> bytes:
    mtime, nanoseconds = divmod(entry.mtime_ns, 1_000_000_000)
    head = struct.pack(
        ">10I", 0, 0, mtime & 0xFFFFFFFF, nanoseconds, 0, 0, _git_mode(entry.mode), 0, 0, entry.size & 0xFFFFFFFF
    )  # no device, inode and owner: every copy has others
    data = head + digest + struct.pack(">H", min(len(entry.path), 0xFFF)) + entry.path
    return data + b"\0" * (8 - len(data) % 8)


def write_repository(tree: Path) -> None:
    """Make `.git` in the folder `tree`, with all its files in one commit on `main`. OSError if it can't be done.

    Files over LARGE_FILE bytes and names that git takes for its own stay out of the commit.
    """
    top = os.fsencode(tree)
    git = tree / ".git"
    for folder in ("objects/pack", "refs/heads", "info"):  # few: every trial has them made and removed
        (git / folder).mkdir(parents=True)
    excluded: list[bytes] = []
    index: list[tuple[bytes, bytes]] = []
    part = git / "objects" / "pack" / "new"
    with part.open("w+b") as file:
        pack = _Pack(file)
        trees = _Trees(pack)
        for entry in scan(top):
            if refused_by_git(entry.path):
                continue
            if entry.size > LARGE_FILE:
                excluded.append(entry.path)
                continue
            digest = pack.add(_BLOB, _content(top + b"/" + entry.path, entry))
            trees.add(entry.path, _git_mode(entry.mode), digest)
            index.append((entry.path, _index_entry(entry, digest)))
        commit = pack.add(_COMMIT, b"tree %s\nauthor %s\ncommitter %s\n\nbase\n" % (trees.finish().hex().encode(), _AUTHOR, _AUTHOR))
        checksum, pack_index = pack.finish()
    name = f"pack-{checksum.hex()}"
    part.rename(part.with_name(f"{name}.pack"))
    part.with_name(f"{name}.idx").write_bytes(pack_index)
    _write_files(git, commit, excluded)
    body = b"DIRC" + struct.pack(">II", 2, len(index)) + b"".join(data for _, data in sorted(index))
    (git / "index").write_bytes(body + hashlib.sha1(body, usedforsecurity=False).digest())


def _content(path: bytes, entry: Entry) -> bytes:
    if stat.S_ISLNK(entry.mode):
        return os.readlink(path)
    with open(open_regular(path), "rb") as file:
        return file.read()


def _write_files(git: Path, commit: bytes, excluded: list[bytes]) -> None:
    (git / "HEAD").write_text("ref: refs/heads/main\n", encoding="ascii")
    (git / "config").write_text(_CONFIG, encoding="ascii")
    (git / "packed-refs").write_bytes(b"# pack-refs with: peeled fully-peeled sorted \n%s refs/heads/main\n" % commit.hex().encode())
    if lines := b"".join(b"/" + _escaped(path) + b"\n" for path in excluded if b"\n" not in path):
        (git / "info" / "exclude").write_bytes(lines)


def _escaped(path: bytes) -> bytes:
    out = bytearray()
    for byte in path:
        if byte in b"\\*?[ !#":
            out += b"\\"
        out.append(byte)
    return bytes(out)
