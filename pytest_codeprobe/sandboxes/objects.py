"""Reads the objects of a git repository by their hashes, and believes none whose content has another one.

Contents come as they were committed: no filter, no attribute, no line ending is applied, nothing of the repository's configuration is
run. What lies in a cache that somebody could write to is as good as what was fetched.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from subprocess import PIPE, Popen
from types import TracebackType
from typing import IO, NamedTuple, Self

from pytest_codeprobe.sandboxes.patch import find_git, refused_by_git
from pytest_codeprobe.tasks.repositories import OPTIONS, quiet_environment
from pytest_codeprobe.text import one_line

MAX_FILES = 2_000_000  #: of one commit: a few objects can name each other so often that no disk holds the files
_MAX_PATH = 4000  #: bytes
_MAX_NAMES = 256 << 20  #: bytes of one tree or commit
AHEAD = 256  #: objects that are asked for at once: no pipe is too small for their names
_CHUNK = 1 << 20
FOLDER, LINK, SUBMODULE, EXECUTABLE = 0o040000, 0o120000, 0o160000, 0o100755


class Unreadable(Exception):
    """An object that is not there, or is not what its hash says; the end of a sentence about the commit."""


class Entry(NamedTuple):
    """One entry of a commit that is no folder: a file, a link or a submodule."""

    path: bytes
    mode: int
    digest: str


class Objects:
    """A repository that is being read. `seconds`: for all of it."""

    def __init__(self, repository: str, environ: Mapping[str, str], seconds: float) -> None:
        self._argv = [find_git(), *OPTIONS, "-C", repository, "cat-file", "--batch"]
        self._environ, self._seconds = quiet_environment(environ), seconds
        self._complaints: list[bytes] = []
        self._asked_for: deque[str] = deque()

    def __enter__(self) -> Self:
        self._process = Popen(self._argv, cwd="/", env=self._environ, stdin=PIPE, stdout=PIPE, stderr=PIPE, start_new_session=True)
        self._timer = threading.Timer(self._seconds, self._process.kill)
        self._timer.daemon = True
        self._timer.start()
        self._listener = threading.Thread(target=self._listen, daemon=True)  # or it might wait for somebody who reads what it complains of
        self._listener.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._timer.cancel()
        self._process.kill()
        self._process.wait()
        self._listener.join()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):  # what was still to be written is of no use to anybody
                    stream.close()

    def _listen(self) -> None:
        assert self._process.stderr is not None
        while chunk := self._process.stderr.read(4096):
            if len(self._complaints) < 16:
                self._complaints.append(chunk)

    def ask(self, digests: Sequence[str]) -> None:
        """Ask for what is read next, in this order: git need not be waited for at each. At most AHEAD."""
        assert len(digests) <= AHEAD
        assert not self._asked_for
        assert self._process.stdin is not None
        self._asked_for.extend(digests)
        try:
            self._process.stdin.write("".join(f"{digest}\n" for digest in digests).encode())
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Unreadable(self._died()) from None

    def _answer(self, digest: str) -> tuple[str, int, IO[bytes]]:
        if not self._asked_for:
            self.ask([digest])
        assert self._asked_for.popleft() == digest
        stdout = self._process.stdout
        assert stdout is not None
        head = stdout.readline().split()
        if len(head) == 2:
            raise Unreadable(f"lacks object {digest}")
        if len(head) != 3:
            raise Unreadable(self._died())
        return head[1].decode(), int(head[2]), stdout

    def _died(self) -> str:
        self._process.wait()
        self._listener.join()
        said = one_line(b"".join(self._complaints).decode("utf-8", "replace").strip(), 300)
        return f"can't be read: {said or f'git ended with status {self._process.returncode}'}"

    def copy(self, digest: str, target: int) -> bytes:
        """Write a file's content to the open file `target`; its first bytes. Unreadable, OSError."""
        kind, size, stdout = self._answer(digest)
        if kind != "blob":
            raise Unreadable(f"has a {kind} where a file should be: {digest}")
        check, first, left = _check(digest, kind, size), b"", size
        while left:
            chunk = stdout.read(min(left, _CHUNK))
            if not chunk:
                raise Unreadable(self._died())
            check.update(chunk)
            first = first or chunk[:_CHUNK]
            left -= len(chunk)
            rest = memoryview(chunk)
            while rest:
                rest = rest[os.write(target, rest) :]
        stdout.read(1)
        if check.hexdigest() != digest:
            raise Unreadable(f"has another content than its hash says: {digest}")
        return first

    def read(self, digest: str, wanted: str) -> bytes:
        """A commit, a tree or a link as a whole. Unreadable."""
        kind, size, stdout = self._answer(digest)
        if kind != wanted:
            raise Unreadable(f"is a {kind} where a {wanted} should be: {digest}")
        if size > _MAX_NAMES:
            raise Unreadable(f"has a {kind} of {size} bytes: {digest}")
        data = stdout.read(size)
        stdout.read(1)
        check = _check(digest, kind, size)
        check.update(data)
        if len(data) < size:
            raise Unreadable(self._died())
        if check.hexdigest() != digest:
            raise Unreadable(f"has another content than its hash says: {digest}")
        return data

    def files(self, commit: str) -> Iterator[Entry]:
        """Every entry of a commit that is no folder; a folder's own come together. Unreadable for names that no checkout would make."""
        head, _, tree = self.read(commit, "commit").partition(b"\n")[0].partition(b" ")
        if head != b"tree":
            raise Unreadable(f"has no tree: {commit}")
        todo, count = [(b"", tree.decode())], 0
        while todo:
            folder, digest = todo.pop()
            for entry in _entries(self.read(digest, "tree"), len(commit) // 2):
                name = entry.path
                if name in (b"", b".", b"..") or b"/" in name or refused_by_git(name):
                    raise Unreadable(f"holds a name that git itself refuses: {os.fsdecode(folder + name)!r}")
                count += 1
                if count > MAX_FILES:
                    raise Unreadable(f"holds more than {MAX_FILES} files")
                if len(folder) + len(name) > _MAX_PATH:
                    raise Unreadable(f"holds a path of more than {_MAX_PATH} bytes, which no program can name")
                if entry.mode == FOLDER:
                    todo.append((folder + name + b"/", entry.digest))
                else:
                    yield entry._replace(path=folder + name)


def _check(digest: str, kind: str, size: int) -> hashlib._Hash:
    check = hashlib.sha1(usedforsecurity=False) if len(digest) == 40 else hashlib.sha256()
    check.update(f"{kind} {size}\0".encode())
    return check


def _entries(tree: bytes, width: int) -> Iterator[Entry]:
    """The entries of a tree object; `width`: bytes of a hash."""
    at = 0
    while at < len(tree):
        space = tree.find(b" ", at)
        end = tree.find(b"\0", space)
        if space < 0 or end < 0 or end + width >= len(tree) + 1:
            raise Unreadable("has a tree that can't be read")
        mode = int(tree[at:space], 8)
        yield Entry(tree[space + 1 : end], mode & 0o170000 if mode & 0o170000 != 0o100000 else mode, tree[end + 1 : end + 1 + width].hex())
        at = end + 1 + width
