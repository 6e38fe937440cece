"""Workspaces: made once per run from a task's sources, then laid out for each attempt by the cheapest way the file system has."""

# ruff: noqa: PTH102
# (names need not be text, links are looked at and not followed: plain calls where Path would do more)
from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
import stat
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.model.sandbox import Change
from pytest_codeprobe.sandboxes.changes import Baseline
from pytest_codeprobe.sandboxes.checkout import lay_commit, mount_of
from pytest_codeprobe.sandboxes.entries import Difference, Records, merge, scan
from pytest_codeprobe.sandboxes.gitbaseline import write_repository
from pytest_codeprobe.sandboxes.keeping import keep_tree, move_tree
from pytest_codeprobe.sandboxes.lane import LANE
from pytest_codeprobe.sandboxes.leftout import below
from pytest_codeprobe.sandboxes.overlay import check_links, lay
from pytest_codeprobe.sandboxes.patch import find_git, write_patch
from pytest_codeprobe.sandboxes.restore import restore
from pytest_codeprobe.sandboxes.sources import Repositories, cache_of
from pytest_codeprobe.sandboxes.sweep import new_folder
from pytest_codeprobe.sandboxes.trees import (
    SMALL_BYTES,
    SMALL_FILES,
    copy_tree,
    failed,
    remove_tree,
)
from pytest_codeprobe.sandboxes.watch import Watch, watch
from pytest_codeprobe.text import one_line

_INODE = 0xFFFFFFFFFFFFFFFF  #: as Records keeps it
KEPT = 256  #: templates that are kept for trials to come
KEPT_BYTES = 1 << 30  #: of their files
#: one template at a time, so that threads don't hold each other up; not the lane of the trials, it can take long
_MAKING = threading.Lock()


class Workspace(Protocol):
    """How a workspace comes to be and what became of it. Another way than a copy, such as an overlay, has the same face."""

    @property
    def renames(self) -> bool:
        """Whether move() can be cheaper than keep()."""

    def lay_out(self) -> None:
        """Fill the empty workspace folder from the template."""

    def snapshot(self) -> None:
        """Take the baseline."""

    def changes(self) -> Sequence[Change]:
        """What differs from the baseline, sorted by path."""

    def touched(self, wanted: Callable[[str], bool]) -> Sequence[Change]:
        """Every difference whose path is wanted."""

    def write_diff(self, target: Path, *, max_file_bytes: int) -> None:
        """The same as a patch."""

    def restore(self, paths: Sequence[str]) -> None:
        """Put paths back as the baseline had them."""

    def keep(self, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
        """Copy the workspace."""

    def move(self, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
        """Copy or rename it; it is gone afterwards."""

    def release(self) -> Sequence[str]:
        """Before its folders are removed: let go of what is more than files in them. What could not be let go of; idempotent."""


class Template:
    """A workspace as its sources make it, with its baseline repository. Never written again; `size` in bytes."""

    def __init__(self, tree: Path, records: Records, entries: int, size: int, repositories: Sequence[Path], *, linked: bool) -> None:
        self.tree, self.records, self.size = tree, records, size
        self.linked = linked  #: whether there are files with several names in it
        self.small = entries <= SMALL_FILES and size <= SMALL_BYTES
        self._repositories = repositories
        self._histories = _inside(repositories)
        self._lock = threading.Lock()
        self._watch: Watch | None = None
        self.spoilt: str | None = None  #: a path that was found changed; it is used no more

    def check(self) -> str | None:
        """A path that is not as it was made, None if all is: under a driver that doesn't isolate, a session can write there.

        By inode and ctime, which no program can set. Once a trial, when its session is over: so whoever got a template that another
        session had changed knows of it as well. A large one is looked through once, and again where something was done in it since.
        """
        with self._lock:
            if self.spoilt is None and (self._watch is None or self._watch.heard()):
                if self._watch is None and not self.small:
                    self._watch = watch(str(self.tree))
                self.spoilt = self._changed()
        return self.spoilt

    def _changed(self) -> str | None:
        for piece in LANE.pieces(merge(iter(self.records), scan(os.fsencode(self.tree)))):
            for pair in piece:
                before, after = pair
                if before is None or after is None or before[:6] != (*after[:4], after.inode & _INODE, after.ctime_ns):
                    return os.fsdecode(pair.path)
        return None if _inside(self._repositories) == self._histories else ".git"


class TemplateStore:
    """The templates of one run in this process, each made at its first use.

    Those that were not asked for lately are given up, and their files go once no workspace uses them. The store's folder goes away
    with its last user.
    """

    def __init__(self, parent: Path, repositories: Repositories | None = None, warn: Callable[[str], None] = lambda _: None) -> None:
        """`repositories`: those of the run; without it names of commits are looked up anew. `warn`: hears what a source did not bring."""
        self._parent, self._warn = parent, warn
        self._repositories = repositories or Repositories(os.environ, cache_of(os.environ))
        self._lock = threading.Lock()
        self._folder: Path | None = None
        self._numbers = itertools.count(1)
        self._locks: weakref.WeakValueDictionary[str, _Making] = weakref.WeakValueDictionary()
        self._ready: OrderedDict[str, Template] = OrderedDict()  # the last one was asked for last
        self._given_up: list[tuple[Path, weakref.ref[Template]]] = []

    def get(self, config: SandboxConfig, hidden: Sequence[str] = ()) -> Template:
        """The template of these sources. CodeprobeError SANDBOX_FAILED if it can't be made; a later call tries again.

        `hidden`: files and folders, absolute, that no workspace may hold.
        """
        hidden = below(hidden, config.template_sources)
        key = _key(config, hidden)
        with self._lock:
            making = self._locks.get(key) or _Making()
            self._locks[key] = making
            template = self._ready.get(key)
            if template is not None:
                self._ready.move_to_end(key)
        if template is not None and template.spoilt is None:
            return template
        with making.lock:
            with self._lock:
                template = self._ready.get(key)
                if template is not None and template.spoilt is not None:
                    self._given_up.append((template.tree, weakref.ref(template)))
                    template = None
            if template is None:
                template = self._make(config, hidden)
                with self._lock:
                    self._ready[key] = template
                self._tidy()
            return template

    def _tidy(self) -> None:
        with self._lock:
            while len(self._ready) > KEPT or (len(self._ready) > 1 and sum(t.size for t in self._ready.values()) > KEPT_BYTES):
                oldest = self._ready.popitem(last=False)[1]
                self._given_up.append((oldest.tree, weakref.ref(oldest)))
                del oldest
            unused = {tree for tree, user in self._given_up if user() is None}
            self._given_up = [pair for pair in self._given_up if pair[0] not in unused]
        for tree in unused:
            remove_tree(tree)

    def _make(self, config: SandboxConfig, hidden: Sequence[str]) -> Template:
        try:
            with self._lock:
                if self._folder is None:
                    self._folder = new_folder(self._parent)
                    weakref.finalize(self, _remove_own, self._folder, os.getpid())
                tree = self._folder / f"template-{next(self._numbers)}"
                tree.mkdir()
        except OSError as error:
            raise failed("no folder could be made for templates in", error, self._parent) from error
        try:
            for source in config.template_sources:
                if source.type == "repo":
                    self._repositories.make_ready(source)  # a server may be slow
            with _MAKING:
                repositories = self._lay(config, tree, hidden)
                return _measured(tree, repositories)
        except OSError as error:
            remove_tree(tree)
            raise failed("the workspace's template could not be made:", error) from error
        except (CodeprobeError, Stopped):
            remove_tree(tree)
            raise

    def _lay(self, config: SandboxConfig, tree: Path, hidden: Sequence[str]) -> list[Path]:
        """All sources over each other; the folders that are repositories."""
        mounts = [tree]
        for source in config.template_sources:
            if source.type == "repo":
                lay_commit(source, tree, hidden, self._repositories, self._warn)
                mounts.append(tree / mount_of(source))
            else:
                lay(source, tree, hidden)
        check_links(tree)
        found = sorted({folder for folder in mounts if folder.is_dir()}, key=lambda folder: len(folder.parts), reverse=True)
        for folder in found if config.git == "baseline" else ():  # the inner ones first
            if not (folder / ".git").is_dir():
                write_repository(folder)
        return found


class _Making:
    """Held by those who wait for one template."""

    def __init__(self) -> None:
        self.lock = threading.Lock()


def _key(config: SandboxConfig, hidden: Sequence[str]) -> str:
    sources = json.dumps([config.git, [source.model_dump() for source in config.template_sources], *hidden], sort_keys=True)
    return hashlib.sha256(sources.encode("utf-8", "surrogatepass")).hexdigest()


def _remove_own(folder: Path, pid: int) -> None:
    if os.getpid() == pid:  # not in a fork of the process that made it
        shutil.rmtree(folder, ignore_errors=True)  # no lane, no lock: the garbage collector may call while this thread holds one


def _inside(repositories: Iterable[Path]) -> frozenset[tuple[str, int, int]]:
    """Names, inodes and ctimes of what is in their `.git`, which scan() leaves out."""
    found = set()
    for folder, _, names in itertools.chain.from_iterable(os.walk(repository / ".git") for repository in repositories):
        for path in (folder, *(f"{folder}/{name}" for name in names)):
            info = os.lstat(path)
            found.add((path, info.st_ino, info.st_ctime_ns))
    return frozenset(found)


def _measured(tree: Path, repositories: Sequence[Path]) -> Template:
    records = Records(str(tree.parent))
    size = 0
    for entry in scan(os.fsencode(tree)):
        records.append(entry, 0)
        size += entry.size
    entries, linked = 0, False
    for folder, folders, names in os.walk(tree):
        entries += len(folders) + len(names)
        found = [os.lstat(f"{folder}/{name}") for name in names]
        linked = linked or any(info.st_nlink > 1 for info in found if stat.S_ISREG(info.st_mode))
        if ".git" in folder:
            size += sum(info.st_size for info in found)
    return Template(tree, records, entries, size, repositories, linked=linked)


class CopiedWorkspace:
    """A workspace that is a copy of its template, whose changes are found by stat."""

    renames = True

    def __init__(self, template: Template, folder: Path, private: Path) -> None:
        find_git()  # what the diff will need is better missed before the agent is paid for
        self._template, self._folder, self._private = template, folder, private
        self._since = 0
        self._baseline: Baseline | None = None
        self._found: list[Difference] | None = None

    def lay_out(self) -> None:
        """Copy the template into the empty folder."""
        try:
            copy_tree(str(self._template.tree), str(self._folder), small=self._template.small)
            self._note_time()
        except OSError as error:
            raise failed("the workspace could not be laid out in", error, error.filename or self._folder) from error

    def _note_time(self) -> None:
        os.mkdir(self._private, 0o700)
        self._since = os.lstat(self._private).st_ctime_ns  # nothing that was laid out is newer

    def snapshot(self) -> None:
        """Take the baseline, with private copies of what is not as in the template."""
        if self._baseline is not None:
            remove_tree(self._private)
        self._baseline = Baseline(self._folder, self._template.tree, self._template.records, self._since, self._private)
        self._found = None

    def changes(self) -> Sequence[Change]:
        """What differs from the baseline, sorted; looked up anew at each call.

        SANDBOX_FAILED where the template is no longer as it was made: nothing can be compared with it, or put back from it.
        """
        found, listed = self._taken().changes()
        if spoilt := self._template.check():
            raise CodeprobeError(
                "SANDBOX_FAILED",
                f"a session changed the template that workspaces are made from: {one_line(spoilt)}",
                remediation="Look at what the trials that ran at that time did; a driver that isolates lets no session reach it.",
            )
        self._found = found
        return listed

    def touched(self, wanted: Callable[[str], bool]) -> Sequence[Change]:
        """Every difference whose path is wanted; no list of bounded length that an agent could fill stands before it."""
        return self._taken().touched(wanted)

    def write_diff(self, target: Path, *, max_file_bytes: int) -> None:
        """A patch of what the last changes() found."""
        baseline = self._taken()
        if self._found is None:
            self._found, _ = baseline.differences()
        write_patch(
            target, self._found, baseline=baseline, workspace=self._folder, scratch=self._private.parent, max_file_bytes=max_file_bytes
        )

    def restore(self, paths: Sequence[str]) -> None:
        """Put paths back as the baseline had them; what it did not have is removed."""
        restore(self._taken(), self._folder, paths)

    def _taken(self) -> Baseline:
        if self._baseline is None:
            raise CodeprobeError("SANDBOX_FAILED", "there is no snapshot to compare the workspace with")
        return self._baseline

    def keep(self, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
        """Copy the workspace to `target`."""
        return keep_tree(self._folder, target, ignore)

    def move(self, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
        """Rename or copy the workspace to `target`."""
        return move_tree(self._folder, target, ignore)

    def release(self) -> Sequence[str]:
        """There is nothing but files."""
        return ()
