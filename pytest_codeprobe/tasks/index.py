"""What earlier runs found in task files, by path and content, so that a large suite need not be loaded again to be collected.

One file of lines for each configuration that loading depends on (`fingerprint`): a header, then for each task file its path, the
digest of its content, what collection must know of it (`tasks/heads.py`), and the text of each of its trials; a checksum. Nothing in it is
code, and nothing in it is older than the file it speaks of: an entry counts only for the same bytes. What the entry cannot
know (that a folder which the file names is still there) is looked at again each time.
Standard library only. Whatever is wrong with the file, it is as if there were none.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pytest_codeprobe.tasks.discovery import read_bytes
from pytest_codeprobe.tasks.heads import FileHeads, Head, Reference
from pytest_codeprobe.tasks.paths import PathProblem, Places, Sought

_MAGIC = b"codeprobe task index 2"
_KEPT = 6  #: files in the folder, of different configurations (agents, drivers, versions)
#: of this package, what decides whether a task is valid and what its trials are
_PARTS = ("agents", "criteria", "model", "sandboxes", "tasks")
#: packages whose release decides what is valid in a task
_DEPENDENCIES = ("pydantic", "pydantic_core", "yaml", "regex", "jsonschema", "jmespath")


def digest(content: bytes) -> str:
    """Of a file's content."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def fingerprint(facts: Any) -> str:
    """Of what loading depends on: `facts` (JSON values), this package's code, Python and the packages that check values."""
    known = [facts, sys.version, list(_code()), list(_releases())]
    return digest(json.dumps(known, sort_keys=True).encode())


def _code() -> Iterator[tuple[str, int, int]]:
    """Name, size and time of each file of this package that has a say in it: it may be installed so that it can be edited."""
    package = Path(__file__).parents[1]
    for path in sorted(path for part in _PARTS for path in (package / part).rglob("*.py")):
        found = path.stat()
        yield path.relative_to(package).as_posix(), found.st_size, found.st_mtime_ns


def _releases() -> Iterator[str]:
    """Names of what is installed beside the packages that check values: they hold the releases."""
    specs = [importlib.util.find_spec(name) for name in _DEPENDENCIES]
    for folder in sorted({Path(spec.origin).parents[1] for spec in specs if spec is not None and spec.origin is not None}):
        if folder.is_dir():
            yield from sorted(entry.name for entry in folder.iterdir() if entry.name.endswith((".dist-info", ".egg-info")))


class Index:
    """The entries of one configuration."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._file = folder / f"tasks-{fingerprint}"
        self._header = b"%s %s\n" % (_MAGIC, fingerprint.encode())
        self._content = memoryview(b"")
        self._spans: dict[bytes, tuple[int, int]] = {}  #: by path: where the rest of its line stands in the content
        self._new: dict[bytes, tuple[str, FileHeads]] = {}

    def read(self) -> None:
        """Take the entries that lie in the folder, if they are whole and of this configuration."""
        try:
            content = self._file.read_bytes()
            os.utime(self._file)  # the last used ones are kept
        except OSError:
            return
        at, end = len(self._header), content.rfind(b"\n") + 1
        if not content.startswith(self._header) or content[end:] != b"%08x" % zlib.crc32(memoryview(content)[at:end]):
            return
        self._content = memoryview(content)
        while at < end:
            tab, line_end = content.index(b"\t", at), content.index(b"\n", at)
            self._spans[content[at:tab]] = tab + 1, line_end
            at = line_end + 1

    def get(self, file: str, content: bytes, places: Places) -> FileHeads | None:
        """What is known of a file with this content; None if nothing is, or if what it names is not what it was."""
        start, end = self._spans.get(os.fsencode(file), (0, 0))
        parts = self._content[start:end].tobytes().split(b"\t")
        if parts[0] != digest(content).encode():
            return None
        holds_tasks, warnings, heads, references = json.loads(parts[1])
        texts = []
        for part in reversed(parts[3:]):  # no copies: thousands of trials wait at once
            texts.append(self._content[end - len(part) : end])
            end -= len(part) + 1
        found = FileHeads(
            holds_tasks=holds_tasks,
            heads=[Head(*head) for head in heads],
            texts=[*reversed(texts)],
            resolved=parts[2],
            references=[Reference(Sought(*sought), path, part) for *sought, path, part in references],
            warnings=warnings,
        )
        return found if all(_still(Path(file), reference, places) for reference in found.references) else None

    def put(self, file: str, content: bytes, found: FileHeads) -> None:
        """Note what was found in a file with this content."""
        key = os.fsencode(file)
        if b"\t" not in key and b"\n" not in key and all(isinstance(text, bytes) for text in found.texts):
            self._new[key] = digest(content), found

    def write(self, seen: Iterable[str]) -> None:
        """Put the entries into the folder if there are new ones; nothing happens where that can't be written.

        Entries of files that were not `seen` this time are kept as long as the files are there.
        """
        part = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            if self._new:
                with part.open("wb") as stream:
                    stream.writelines(self._lines({os.fsencode(file) for file in seen}))
                part.replace(self._file)
                _thin_out(self._file.parent)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()

    def _lines(self, seen: set[bytes]) -> Iterator[bytes]:
        yield self._header
        check = 0
        for line in itertools.chain(self._old(seen), self._noted()):
            check = zlib.crc32(line, check)
            yield line
        yield b"%08x" % check

    def _old(self, seen: set[bytes]) -> Iterator[bytes]:
        for key, (start, end) in self._spans.items():
            if key not in self._new and (key in seen or Path(os.fsdecode(key)).exists()):
                yield b"%s\t%s\n" % (key, self._content[start:end])

    def _noted(self) -> Iterator[bytes]:
        for key, (known, found) in self._new.items():
            references = [(*reference.sought, reference.path, reference.content) for reference in found.references]
            facts = json.dumps([found.holds_tasks, found.warnings, found.heads, references], separators=(",", ":"))
            texts = [text for text in found.texts if isinstance(text, bytes)]
            yield b"\t".join((key, known.encode(), facts.encode(), found.resolved, *texts)) + b"\n"


def _thin_out(folder: Path) -> None:
    files = sorted(folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
    for file in files[_KEPT:]:
        file.unlink()


def _still(file: Path, reference: Reference, places: Places) -> bool:
    """Whether a name leads where it led, and a file that became part of the trial holds what it held."""
    try:
        if str(places.find(file, reference.sought)) != reference.path:
            return False
        return reference.content is None or digest(read_bytes(reference.path)) == reference.content
    except (PathProblem, OSError):
        return False
