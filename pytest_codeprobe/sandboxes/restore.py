"""Putting paths of a workspace back as they were before the session."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.sandboxes.changes import Baseline, copy_any
from pytest_codeprobe.sandboxes.entries import Entry
from pytest_codeprobe.sandboxes.trees import failed, is_folder, loosen, remove_tree
from pytest_codeprobe.tasks.paths import leads_out


def restore(baseline: Baseline, workspace: Path, paths: Sequence[str]) -> None:
    """Give each path the baseline's content and mode and a new mtime; remove what the baseline did not have.

    No link on the way is followed: where a folder is needed it is replaced by one. SANDBOX_FAILED if a path can't be put back.
    """
    try:
        _restore(baseline, workspace, paths)
    except CodeprobeError:
        if not loosen(str(workspace)):
            raise
        _restore(baseline, workspace, paths)


def _restore(baseline: Baseline, workspace: Path, paths: Sequence[str]) -> None:
    wanted = [_inside(path) for path in paths]
    known = baseline.find({os.fsencode(path) for path in wanted})
    folders: set[str] = set()
    for path in wanted:  # first what is to go: it may lie where something else is to come back
        if os.fsencode(path) not in known and _lies_in_folders(str(workspace), str(path), folders):
            left = remove_tree(workspace / path)
            if left:
                raise CodeprobeError("SANDBOX_FAILED", f"{left[0]!r} could not be removed before grading")
    for path in wanted:
        entry = known.get(os.fsencode(path))
        if entry is not None:
            try:
                _put_back(baseline, entry, workspace, path)
            except OSError as error:
                raise failed("the file could not be put back as it was before the session:", error, workspace / path) from error


def _inside(path: str) -> PurePosixPath:
    relative = PurePosixPath(path)
    if leads_out(path) or not relative.parts:
        raise CodeprobeError("SANDBOX_FAILED", f"{path!r} is not a path inside the workspace")
    return relative


def _lies_in_folders(workspace: str, path: str, known: set[str]) -> bool:
    """Whether the way to the path has no link in it. Text, not Path: a session's tree can be thousands of folders deep."""
    place = workspace
    for part in ("", *path.split("/")[:-1]):
        place = f"{place}/{part}" if part else place
        if place not in known:
            if not is_folder(place):
                return False
            _make_writable(place)
            known.add(place)
    return True


def _make_writable(folder: str) -> None:
    """A session may have taken that right from its owner, who is us; what was protected comes back all the same."""
    mode = stat.S_IMODE(os.lstat(folder).st_mode)
    if mode & stat.S_IRWXU != stat.S_IRWXU:
        Path(folder).chmod(mode | stat.S_IRWXU)


def _put_back(baseline: Baseline, entry: Entry, workspace: Path, path: PurePosixPath) -> None:
    source = baseline.content(entry)
    if source is None:
        raise CodeprobeError("SANDBOX_FAILED", f"the content that {str(path)!r} had before the session was too large to keep")
    folder = workspace
    for part in ("", *path.parent.parts):
        folder = folder / part
        if not is_folder(folder):
            folder.unlink(missing_ok=True)
            folder.mkdir()
        _make_writable(str(folder))
    target = workspace / path
    remove_tree(target)
    copy_any(source, os.fsencode(target), entry)
    if stat.S_ISREG(entry.mode):
        target.chmod(stat.S_IMODE(entry.mode))
        os.utime(target)  # caches of the old content, such as bytecode, go by the time
