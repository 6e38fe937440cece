"""Workspaces that are layers over their template, mounted by this process: laid out and compared in the same time whatever their size.

What pre_run made becomes a layer of its own, below the one that the session writes to, so that nothing of it has to be copied.
"""

# ruff: noqa: PTH101, PTH102, PTH208
# (made for every trial: plain calls)
from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pytest_codeprobe.model.sandbox import Change
from pytest_codeprobe.sandboxes.keeping import keep_tree
from pytest_codeprobe.sandboxes.layers import LayeredBaseline, has_links
from pytest_codeprobe.sandboxes.mounts import mount_layers, take_off, take_point, unmount
from pytest_codeprobe.sandboxes.trees import failed, remove_tree
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, Template


class OverlaidWorkspace(CopiedWorkspace):
    """Its layers are in the existing folder `layers`, beside the workspace or in a place of bounded size.

    `idle`: whether no process of the sandbox is alive. Others may have a copy of the mount in a namespace of their own, so that it
    does not tell whether it is in use.
    """

    renames = False

    def __init__(self, template: Template, folder: Path, private: Path, layers: Path, idle: Callable[[], bool]) -> None:
        super().__init__(template, folder, private)
        self._layers, self._idle = layers, idle
        self._lowers = [str(template.tree)]  # the first one is on top
        self._before = str(template.tree)  #: all of them as one folder
        self._number, self._works = 0, itertools.count(1)
        self._upper = ""
        self._mounted: list[str] = []

    def lay_out(self) -> None:
        """Mount the template, with an empty layer over it, on the empty folder."""
        try:
            self._add_layer()
            self._note_time()
        except OSError as error:
            raise failed("the workspace could not be laid out in", error, error.filename or self._folder) from error

    def snapshot(self) -> None:
        """Take the baseline. What pre_run made becomes a lower layer, where that changes nothing for those who look at it."""
        try:
            layered = not os.listdir(self._upper) or self._is_lower_now()
        except OSError as error:
            raise failed("no snapshot could be taken of the workspace", error) from error
        if layered:
            self._baseline, self._found = LayeredBaseline(str(self._folder), self._before, self._upper), None
        else:
            super().snapshot()

    def changes(self) -> Sequence[Change]:
        """What differs from the baseline, sorted; looked up anew at each call."""
        if isinstance(self._baseline, LayeredBaseline) and str(self._folder) in self._mounted:
            try:
                # a session that could reach the layers may have made them differ from what the kernel still shows: it is to look again
                known = self._is_taken_off() and self._mount()
            except OSError as error:
                raise failed("the workspace could not be compared with its baseline:", error) from error
            self._baseline.upper = os.fsencode(self._upper) if known else None
        return super().changes()

    def move(self, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
        """Copy the workspace to `target`; the mount is gone then, and its folder."""
        kept = keep_tree(self._folder, target, ignore)
        if isinstance(self._baseline, LayeredBaseline):
            self._baseline.upper = None
        if self._let_go(str(self._folder)) or remove_tree(self._folder):
            raise failed("the workspace could not be moved to", OSError(errno.EBUSY, os.strerror(errno.EBUSY)), target)
        return kept

    def release(self) -> Sequence[str]:
        """Take all mounts away; where that was not possible."""
        return [left for point in reversed(list(self._mounted)) for left in self._let_go(point)]

    def _let_go(self, point: str) -> list[str]:
        """Also of what is in use. Without its mount point no other namespace has a copy any more."""
        try:
            unmount(point, lazily=True)
            self._mounted.remove(point)
            take_point(point)
        except OSError:
            return [point]
        return []

    def _is_lower_now(self) -> bool:
        if has_links(self._upper) or not self._is_taken_off():
            return False
        self._lowers.insert(0, self._upper)
        self._add_layer()
        self._before = f"{self._layers}/b{self._number}"
        os.mkdir(self._before)
        mount_layers(self._lowers, self._before)
        self._mounted.append(self._before)
        return True

    def _is_taken_off(self) -> bool:
        """False where somebody is in the workspace; then it stays mounted."""
        if not self._idle() or not take_off(str(self._folder)):
            return False
        self._mounted.remove(str(self._folder))
        return True

    def _add_layer(self) -> None:
        self._number += 1
        self._upper = f"{self._layers}/u{self._number}"
        os.mkdir(self._upper)
        top = os.lstat(self._lowers[0])
        os.chown(self._upper, top.st_uid, top.st_gid)
        os.chmod(self._upper, stat.S_IMODE(top.st_mode))
        self._mount()

    def _mount(self) -> bool:
        work = f"{self._layers}/w{next(self._works)}"  # never one that was in use: the kernel refuses it
        os.mkdir(work)
        mount_layers(self._lowers, str(self._folder), self._upper, work)
        self._mounted.append(str(self._folder))
        return True
