"""What a folder of files that are only read was when it was made, so that whoever uses it later can tell that it still is."""

from __future__ import annotations

import hashlib
import os
import struct
from pathlib import Path

from pytest_codeprobe.sandboxes.entries import Entry, scan
from pytest_codeprobe.sandboxes.lane import LANE

_FACTS = struct.Struct("<IIQqq")
#: what Python adds by itself where somebody runs it with -O
_OWN = (b".opt-1.pyc", b".opt-2.pyc")


def seal(folder: Path, *, without: str = "") -> str:
    """A digest of the names of its files and what they are; times among that, of which no program can set all. No content is read.

    `without`: a file at its top that does not count. OSError.
    """
    digest = hashlib.blake2b(digest_size=16)
    left_out = os.fsencode(without)
    for piece in LANE.pieces(scan(os.fsencode(folder))):
        for entry in piece:
            if entry.path != left_out and not entry.path.endswith(_OWN):
                digest.update(_said(entry))
    return digest.hexdigest()


def _said(entry: Entry) -> bytes:
    return _FACTS.pack(len(entry.path), entry.mode, entry.size, entry.mtime_ns, entry.ctime_ns) + entry.path
