"""What a session left different in a workspace of layers: only what is in its upper layer is looked at, whatever the workspace's size.

Which paths come into question is read there; what they were and are, in the layers below as one folder and in the workspace, so that
it is the kernel that says what layers mean.
"""

# (hot loops over names that need not be text: plain calls, no Path objects)
from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from pytest_codeprobe.sandboxes.changes import Baseline
from pytest_codeprobe.sandboxes.entries import Difference, Entry, entry_of, merge, scan
from pytest_codeprobe.sandboxes.lane import LANE
from pytest_codeprobe.sandboxes.mounts import merges
from pytest_codeprobe.sandboxes.trees import failed, is_folder


class LayeredBaseline(Baseline):
    """`before`: the lower layers as one folder, which nobody writes to; `upper`: what was written since, None if that is not known."""

    def __init__(self, workspace: str, before: str, upper: str | None) -> None:
        self._workspace, self._before = os.fsencode(workspace), os.fsencode(before)
        self.upper = None if upper is None else os.fsencode(upper)

    def content(self, entry: Entry) -> bytes | None:
        """Where the content before the session can be read; None: nowhere."""
        return self._before + b"/" + entry.path if stat.S_ISREG(entry.mode) or stat.S_ISLNK(entry.mode) else None

    def find(self, paths: AbstractSet[bytes]) -> dict[bytes, Entry]:
        """Those of the paths that were there."""
        found = {}
        for path in paths:
            entry = _entry(self._before, path) if self._lies_in_folders(path) else None
            if entry is not None and not stat.S_ISDIR(entry.mode):
                found[path] = entry
        return found

    def _lies_in_folders(self, path: bytes) -> bool:
        parts = path.split(b"/")[:-1]
        return b".git" not in parts and all(is_folder(self._before + b"/" + b"/".join(parts[:n])) for n in range(1, len(parts) + 1))

    def _compared(self) -> Iterator[list[Difference]]:
        """Every path that may differ, before and now."""
        try:
            if self.upper is None:
                yield from LANE.pieces(merge(scan(self._before), scan(self._workspace)))
            else:
                yield from LANE.pieces(self._written(self.upper))
        except OSError as error:
            raise failed("the workspace could not be compared with its baseline:", error) from error

    def _written(self, upper: bytes) -> Iterator[Difference]:
        """Sorted like a scan. A stack, no recursion: a session's tree can be thousands of folders deep."""
        stack = [iter(_level(upper, b""))]
        while stack:
            for path, info in stack[-1]:
                before, after = _entry(self._before, path), _entry(self._workspace, path)
                was_folder, is_now = _is_dir(before), _is_dir(after)
                files = Difference(None if was_folder else before, None if is_now else after)
                if files.before or files.after:
                    yield files
                if path.rpartition(b"/")[2] == b".git" or not (was_folder or is_now):
                    continue
                if was_folder and is_now and stat.S_ISDIR(info.st_mode) and merges(upper + b"/" + path):
                    stack.append(iter(_level(upper, path)))
                    break
                yield from merge(_below(self._before, path), _below(self._workspace, path))
            else:
                stack.pop()


def _level(upper: bytes, folder: bytes) -> list[tuple[bytes, os.stat_result]]:
    place, prefix = (upper + b"/" + folder, folder + b"/") if folder else (upper, b"")
    try:
        with os.scandir(place) as entries:
            return sorted((prefix + entry.name, entry.stat(follow_symlinks=False)) for entry in entries)
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        return []  # deeper than any program can name it


def _entry(top: bytes, path: bytes) -> Entry | None:
    try:
        return entry_of(path, os.lstat(top + b"/" + path))
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise
        return None


def _is_dir(entry: Entry | None) -> bool:
    return entry is not None and stat.S_ISDIR(entry.mode)


def _below(top: bytes, folder: bytes) -> Iterator[Entry]:
    """scan() of one folder, with paths from the top; nothing where there is none."""
    for entry in scan(top + b"/" + folder):
        yield entry._replace(path=folder + b"/" + entry.path)


def has_links(upper: str) -> bool:
    """Whether a file in a layer has several names: of those only one would change when it is written through a layer above. OSError."""
    return any(info.st_nlink > 1 for piece in LANE.pieces(_files(os.fsencode(upper))) for info in piece)


def _files(top: bytes) -> Iterator[os.stat_result]:
    todo = [b""]
    while todo:
        for path, info in _level(top, todo.pop()):
            if stat.S_ISDIR(info.st_mode):
                todo.append(path)
            elif stat.S_ISREG(info.st_mode):
                yield info
