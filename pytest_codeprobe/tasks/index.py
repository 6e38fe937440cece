"""What earlier runs found in task files, by path and content, so that a large suite need not be loaded again to be collected.

One file of lines for each configuration that loading depends on (`fingerprint`): a header, then for each task file its path, the
digest of its content, what collection must know of it (`tasks/heads.py`), and the text of each of its trials. Nothing in it is
code, and nothing in it is older than the file it speaks of: an entry counts only for the same bytes. What the entry cannot
know (that a folder which the file names is still there) is looked at again each time.
Standard library only. Whatever is wrong with the file, it is as if there were none.
"""

from __future__ import annotations

import hashlib
import importlib.util
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
from pytest_codeprobe.text import write_whole

_MAGIC = b"codeprobe task index 1"
_KEPT = 6  #: files in the folder, of different configurations (agents, drivers, versions)
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
    """Name, size and time of each file of this package: it may be installed so that it can be edited."""
    package = Path(__file__).parents[1]
    for folder, folders, names in os.walk(package):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                found = os.stat(path)
                yield os.path.relpath(path, package), found.st_size, found.st_mtime_ns


def _releases() -> Iterator[str]:
    """Names of what is installed beside the packages that check values: they hold the releases."""
    folders = set()
    for name in _DEPENDENCIES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin is not None:
            folders.add(os.path.dirname(os.path.dirname(found.origin)))
    for folder in sorted(folders):
        if os.path.isdir(folder):
            yield from sorted(name for name in os.listdir(folder) if name.endswith((".dist-info", ".egg-info")))


class Index:
    """The entries of one configuration."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder, self._file = folder, folder / f"tasks-{fingerprint}"
        self._header = b"%s %s" % (_MAGIC, fingerprint.encode())
        self._lines: dict[bytes, bytes] = {}  #: by path
        self.changed = False

    def read(self) -> None:
        """Take the entries that lie in the folder, if they are whole and of this configuration."""
        try:
            content = self._file.read_bytes()
            os.utime(self._file)  # the last used ones are kept
        except OSError:
            return
        header, _, body = content.partition(b"\n")
        if header == b"%s %08x" % (self._header, zlib.crc32(body)):
            self._lines = {line[: line.index(b"\t")]: line for line in body.split(b"\n") if line}

    def write(self, seen: Iterable[str]) -> None:
        """Put the entries into the folder; nothing happens where that can't be written.

        Entries of files that were not `seen` this time are kept as long as the files are there.
        """
        now = {os.fsencode(file) for file in seen}
        body = b"\n".join(line for key, line in self._lines.items() if key in now or os.path.exists(key))
        try:
            write_whole(self._file, b"%s %08x\n%s" % (self._header, zlib.crc32(body), body))
            others = sorted(self._folder.iterdir(), key=lambda file: file.stat().st_mtime, reverse=True)
            for file in others[_KEPT:]:
                file.unlink()
        except OSError:
            return

    def get(self, file: str, content: bytes, places: Places) -> FileHeads | None:
        """What is known of a file with this content; None if nothing is, or if what it names is not what it was."""
        line = self._lines.get(os.fsencode(file))
        if line is None:
            return None
        _, known, text, *texts = line.split(b"\t")
        if known != digest(content).encode():
            return None
        warnings, heads, references = json.loads(text)
        found = FileHeads(
            holds_tasks=True,
            heads=[Head(*head) for head in heads],
            texts=[*texts],
            references=[Reference(Sought(text=t, kind=k, anywhere=a, below_rootdir=b), path, c) for t, k, a, b, path, c in references],
            warnings=warnings,
        )
        return found if all(_still(Path(file), reference, places) for reference in found.references) else None

    def put(self, file: str, content: bytes, found: FileHeads) -> None:
        """Note what was found in a file with this content."""
        key = os.fsencode(file)
        if b"\t" in key or b"\n" in key or not all(isinstance(text, bytes) for text in found.texts):
            return
        references = [
            (r.sought.text, r.sought.kind, r.sought.anywhere, r.sought.below_rootdir, r.path, r.content) for r in found.references
        ]
        facts = json.dumps([found.warnings, found.heads, references], separators=(",", ":"))
        texts = [text for text in found.texts if isinstance(text, bytes)]
        self._lines[key] = b"\t".join((key, digest(content).encode(), facts.encode(), *texts))
        self.changed = True


def _still(file: Path, reference: Reference, places: Places) -> bool:
    """Whether a name leads where it led, and a file that became part of the trial holds what it held."""
    try:
        if str(places.find(file, reference.sought)) != reference.path:
            return False
        return reference.content is None or digest(read_bytes(reference.path)) == reference.content
    except (PathProblem, OSError):
        return False
