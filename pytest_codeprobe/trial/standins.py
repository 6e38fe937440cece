"""Programs of a task that stand in for real ones: made executable before the session, their log laid before grading."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from pytest_codeprobe.model.invocations import CALLS_FILE
from pytest_codeprobe.sandboxes.trees import is_folder, remove_tree
from pytest_codeprobe.trial.preserve import write_new


def make_executable(folder: Path) -> None:
    """Each regular file directly in a folder of stand-ins, for everybody who may read it. OSError where that can't be."""
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                mode = stat.S_IMODE(entry.stat(follow_symlinks=False).st_mode)
                wanted = mode | (mode & 0o444) >> 2
                if wanted != mode:
                    Path(entry.path).chmod(wanted, follow_symlinks=os.chmod not in os.supports_follow_symlinks)


def lay_calls(workspace: Path, content: bytes) -> None:
    """The log of calls in the grading copy, whatever lies in its place. OSError where the session left no room for it."""
    target = workspace / CALLS_FILE
    if not is_folder(target.parent):
        remove_tree(target.parent)
        target.parent.mkdir()
    write_new(str(target), content)
