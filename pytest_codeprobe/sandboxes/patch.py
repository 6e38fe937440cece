"""`diff.patch`: what a session changed, so that `git apply` on a fresh workspace makes the same again.

A few small text files are compared here. For all else git never sees the agent's tree, configuration or attributes: the changed
files are copied to two private folders and compared there.
"""

# ruff: noqa: PTH101, PTH102, PTH120
# (hot loops over names that need not be text: plain calls, no Path objects)
from __future__ import annotations

import errno
import functools
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.sandboxes.changes import MAX_COMPARED, Baseline, copy_any, large_note
from pytest_codeprobe.sandboxes.entries import Difference, Entry
from pytest_codeprobe.sandboxes.lane import CONTENTS, FEW
from pytest_codeprobe.sandboxes.textpatch import small_patch
from pytest_codeprobe.sandboxes.tools import run_tool
from pytest_codeprobe.sandboxes.trees import PATH, failed, make_folders, remove_tree
from pytest_codeprobe.text import one_line, whole_file, write_whole

MAX_PATCH_BYTES = 200_000_000  #: of all files in one patch, before and after together
_TIMEOUT = 600.0  # seconds for git
_HEADER = b"diff --git "
_SPECIAL = re.compile(rb"(?i)(?<![^/])\.git(?:attributes|ignore|modules)(?![^/])")  # names that git reads


def refused_by_git(path: bytes) -> bool:
    """Whether git takes a name in the path for its own folder, so that it would refuse the whole patch."""
    return any(_is_git(part) for part in re.split(rb"[/\\]", path))


def _is_git(part: bytes) -> bool:
    return part.lower().partition(b":")[0].rstrip(b" .") in (b".git", b"git~1")


@functools.cache
def find_git() -> str:
    """The git program; SANDBOX_FAILED where there is none."""
    program = shutil.which("git", path=PATH)
    if program is None:
        raise CodeprobeError(
            "SANDBOX_FAILED",
            "git is not on PATH; it makes the diff of what a session changed",
            remediation="Install git, or put it on the PATH of the process that runs pytest.",
        )
    return program


class _Pair:
    """The two folders that git compares, `a` and `b`, and what could not go there."""

    def __init__(self, folder: str, baseline: Baseline, workspace: bytes, max_file_bytes: int) -> None:
        self._folder, self._baseline, self._workspace, self._cap = os.fsencode(folder), baseline, workspace, max_file_bytes
        self._left = MAX_PATCH_BYTES
        self._word = secrets.token_hex(12).encode()  # no content can hold it: the session is over
        self.renamed = False
        self.notes: list[str] = []
        for side in (b"/a", b"/b"):
            os.mkdir(self._folder + side)

    def add(self, pair: Difference) -> None:
        if refused_by_git(pair.path):
            self._note(pair.path, "git refuses the name")
            return
        before, after = pair.before, pair.after
        if sum(e.size for e in (before, after) if e) > self._left:
            self._note(pair.path, "the patch is large enough")
            return
        for entry in (before, after):
            if entry is not None and stat.S_ISREG(entry.mode) and entry.size > self._cap:
                self._too_large(pair)
                return
        old = self._baseline.content(before) if before else None
        if before and old is None and stat.S_ISREG(before.mode):
            self._note(pair.path, "its former content was not kept")
            return
        if before and old:
            self._copy(b"/a/", old, before)
        if after:
            self._copy(b"/b/", self._workspace + b"/" + after.path, after)

    def _copy(self, side: bytes, source: bytes, entry: Entry) -> None:
        if not (stat.S_ISREG(entry.mode) or stat.S_ISLNK(entry.mode)):
            self._note(entry.path, "neither a file nor a link")
            return
        safe = _SPECIAL.sub(lambda match: self._word + match[0][1:], entry.path)
        self.renamed = self.renamed or safe != entry.path
        target = self._folder + side + safe
        try:
            make_folders(os.path.dirname(target))
            copy_any(source, target, entry)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            self._note(entry.path, error.strerror or str(error))
            return
        if stat.S_ISREG(entry.mode):
            os.chmod(target, 0o700 if entry.mode & stat.S_IXUSR else 0o600)
        self._left -= entry.size

    def _too_large(self, pair: Difference) -> None:
        if pair.after is None:
            assert pair.before is not None
            self._note(pair.path, f"deleted, {pair.before.size} bytes")
        elif stat.S_ISREG(pair.after.mode):
            what = large_note(self._workspace + b"/" + pair.after.path, pair.after.size)
            self._note(pair.path, f"{pair.after.size} bytes, {what}")
        else:
            self._note(pair.path, "its former content is too large")

    def _note(self, path: bytes, why: str) -> None:
        self.notes.append(f"# not in this patch: {json.dumps(os.fsdecode(path))}: {why}\n")

    def restore(self, line: bytes) -> bytes:
        return line.replace(self._word, b".") if self.renamed else line


def write_patch(
    target: Path, differences: Sequence[Difference], *, baseline: Baseline, workspace: Path, scratch: Path, max_file_bytes: int
) -> None:
    """Write the patch to `target`; what is not in it is named at its top. Empty where nothing changed.

    SANDBOX_FAILED if the disk is full or git is missing.
    """
    folder = ""
    try:
        small = small_patch(differences, baseline, os.fsencode(workspace)) if _is_plain(differences, max_file_bytes) else None
        if small is not None:
            write_whole(target, small)
            return
        folder = tempfile.mkdtemp(prefix="diff-", dir=scratch)
        pair = _Pair(folder, baseline, os.fsencode(workspace), min(max_file_bytes, MAX_COMPARED))
        for start in range(0, len(differences), FEW):
            with CONTENTS:
                for difference in differences[start : start + FEW]:
                    pair.add(difference)
        with whole_file(target) as out:
            out.writelines(note.encode("ascii") for note in pair.notes)
            out.writelines(_git_diff(folder, pair))
    except OSError as error:
        raise failed("the diff could not be written:", error, error.filename or target) from error
    finally:
        if folder:
            remove_tree(Path(folder))


def _is_plain(differences: Sequence[Difference], max_file_bytes: int) -> bool:
    """Whether nothing has to be left out."""
    sizes = (entry.size for pair in differences for entry in (pair.before, pair.after) if entry)
    return not any(refused_by_git(pair.path) for pair in differences) and max(sizes, default=0) <= max_file_bytes


def _git_diff(folder: str, pair: _Pair) -> Iterator[bytes]:
    environment = {
        "PATH": PATH,
        "LC_ALL": "C",
        "HOME": folder,
        "XDG_CONFIG_HOME": folder,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_CEILING_DIRECTORIES": os.path.dirname(folder),
    }
    argv = [find_git(), "-c", "core.attributesFile=/dev/null", "diff", "--no-index", "--binary", "--no-renames", "--no-ext-diff"]
    argv += ["--no-textconv", "--no-color", "--no-prefix", "a", "b"]
    with tempfile.TemporaryFile(dir=folder) as out:
        done = run_tool(argv, env=environment, timeout=_TIMEOUT, cwd=folder, stdout=out)
        if done.status not in (0, 1):
            complaint = one_line(done.complaints.decode("utf-8", "replace"), 500)
            raise OSError(errno.ENOSPC if "No space left" in complaint else errno.EIO, f"git diff: {complaint}")
        out.seek(0)
        for line in out:
            yield pair.restore(_with_both_sides(line) if line.startswith(_HEADER) else line)


def _with_both_sides(line: bytes) -> bytes:
    """Of an added or deleted file git names one side twice; `git apply` and readers expect `a/` and `b/`."""
    names = line[len(_HEADER) : -1]
    half = len(names) // 2
    first, second = names[:half], names[half + 1 :]
    if first != second:
        return line
    lead = 2 if first.startswith(b'"') else 1  # `"b/` or `b/`
    quote = first[: lead - 1]
    return _HEADER + quote + b"a" + first[lead:] + b" " + quote + b"b" + second[lead:] + b"\n"
