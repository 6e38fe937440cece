"""The hierarchies of control groups that this machine shows: where groups can be made, and what killed runs have left there. Linux.

A group is called `codeprobe-<pid>-<start time>-<pid namespace>-<random>` after the process that made it, so that a later run can tell
that its owner is dead, whatever has become of private folders.
"""

# ruff: noqa: PTH106, PTH116, PTH119, PTH120, PTH123
# (made for every process tree: plain calls)
from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_codeprobe.sandboxes.sweep import start_time

#: limit -> controller that holds it
CONTROLLERS: Mapping[str, str] = {"memory_mb": "memory", "cpus": "cpu", "pids": "pids"}
_NAME = re.compile(r"codeprobe-(\d{1,10})-(\d{1,20})-(\d{1,20})-[0-9a-f]{8,}")
_PATIENCE = 2.0  #: seconds until a group of a killed run is empty
_MOST_GROUPS = 20_000  #: that a sweep looks at


@dataclass(frozen=True, slots=True)
class Place:
    """Where groups with some controller can be made."""

    version: Literal[1, 2]
    parent: str  #: folder that they are made in
    home: str  #: of the group that this process itself is in


@dataclass(frozen=True, slots=True)
class _Mount:
    version: Literal[1, 2]
    root: str  #: of the hierarchy, as far as it is mounted
    point: str
    controllers: frozenset[str]  #: of v1

    def folder(self, group: str) -> str:
        """Of a group; the topmost one that can be seen, if the group itself can't."""
        if self.root != "/":
            if group != self.root and not group.startswith(f"{self.root}/"):
                return self.point
            group = group.removeprefix(self.root)
        elif group.startswith("/.."):
            return self.point
        return self.point + group.rstrip("/")


def places(mountinfo: str, own: str) -> dict[str, Place]:
    """Limit -> where it may be held: by v2 where it has the controller, else by v1.

    `mountinfo`, `own`: what /proc/self/mountinfo and /proc/self/cgroup say.
    """
    groups = dict(_own_groups(own))
    found: dict[str, Place] = {}
    for mount in sorted(_mounts(mountinfo), key=lambda mount: -mount.version):
        if mount.version == 2:
            home = mount.folder(groups.get("", "/"))
            parent, controllers = _nearest(mount.point, home)
        else:
            home = parent = mount.folder(next((groups[name] for name in mount.controllers if name in groups), "/"))
            controllers = mount.controllers
        for name, controller in CONTROLLERS.items():
            if controller in controllers and name not in found and os.access(parent, os.W_OK):
                found[name] = Place(mount.version, parent, home)
    return found


def places_of(pid: int) -> dict[str, str]:
    """Controller -> folder of the group that a process is in, as far as that can be seen; of v2 all that the group has."""
    groups = dict(_own_groups(read(f"/proc/{pid}/cgroup")))
    found: dict[str, str] = {}
    for mount in _mounts(read("/proc/self/mountinfo")):
        for name in mount.controllers & groups.keys() if mount.version == 1 else ():
            found[name] = mount.folder(groups[name])
        if mount.version == 2 and "" in groups:
            folder = mount.folder(groups[""])
            found |= {name: folder for name in read(f"{folder}/cgroup.controllers").split() if name not in found}
    return found


def _nearest(point: str, home: str) -> tuple[str, frozenset[str]]:
    """Of v2: the group above ours, or our own, whose members get most of the controllers; of several the nearest.

    A group that gives controllers to its members can't have processes beside them, so it is hardly ever our own.
    """
    best, most, folder = home, frozenset[str](), home
    while folder.startswith(point):
        there = frozenset(read(f"{folder}/cgroup.subtree_control").split()) & frozenset(CONTROLLERS.values())
        if len(there) > len(most) and os.access(folder, os.W_OK):
            best, most = folder, there
        folder = os.path.dirname(folder)
    return best, most


def _mounts(text: str) -> Iterator[_Mount]:
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(" "), after.split(" ")
        if kind[0] not in ("cgroup", "cgroup2") or len(kind) < 3 or len(fields) < 6 or "ro" in fields[5].split(","):
            continue
        point = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[4])
        yield _Mount(2 if kind[0] == "cgroup2" else 1, fields[3], point, frozenset(kind[2].split(",")))


def _own_groups(text: str) -> Iterator[tuple[str, str]]:
    """Controller -> group; that of v2 is under ""."""
    for line in text.splitlines():
        _, names, group = line.split(":", 2)
        for name in names.split(","):
            yield name, group


def read(file: str) -> str:
    """A file's text; empty where it can't be read."""
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            return opened.read()
    except OSError:
        return ""


def write(file: str, value: str, *, only_there: bool = False) -> None:
    """Write to a file of the kernel's. OSError; `only_there`: none where there is no such file."""
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        if only_there:
            return
        raise
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def remove(folder: str) -> bool:
    """Remove a group in which nobody is, and what somebody who was may have made in it; whether it is gone."""
    for each in (folder, *reversed(_with_those_below(folder))):
        with contextlib.suppress(OSError):
            os.rmdir(each)
        if not os.path.lexists(folder):
            return True
    return False


def _with_those_below(folder: str) -> list[str]:
    """Parents first."""
    found = [folder]
    for each in found:
        with contextlib.suppress(OSError), os.scandir(each) as entries:
            found += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    return found


# ---- what killed runs have left


@functools.cache
def prefix(pid: int) -> str:
    """How the groups of this process are called."""
    return f"codeprobe-{pid}-{start_time(pid) or 0}-{_pid_namespace()}"


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def owner_of(folder: str) -> int:
    """The process id in a group's name."""
    found = _NAME.fullmatch(os.path.basename(folder))
    return int(found[1]) if found else 0


def abandoned() -> Iterator[str]:
    """Folders of the groups whose owner is dead: of this user, and of this pid namespace, in which alone that can be told."""
    if sys.platform != "linux":
        return
    for mount in _mounts(read("/proc/self/mountinfo")):
        if mount.version == 2 or not mount.controllers.isdisjoint(CONTROLLERS.values()):
            yield from filter(_is_abandoned, _ours_below(mount.point))


def _ours_below(point: str) -> Iterator[str]:
    todo, seen = [point], 0
    while todo and seen < _MOST_GROUPS:
        try:
            with os.scandir(todo.pop()) as entries:
                below = [entry for entry in entries if entry.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for entry in below:
            seen += 1
            if _NAME.fullmatch(entry.name):
                yield entry.path
            else:
                with contextlib.suppress(OSError):  # others' come and go
                    if entry.stat(follow_symlinks=False).st_nlink > 2:  # it has groups of its own
                        todo.append(entry.path)


def _is_abandoned(folder: str) -> bool:
    named = _NAME.fullmatch(os.path.basename(folder))
    if named is None or int(named[3]) != _pid_namespace() or start_time(int(named[1])) == int(named[2]):
        return False
    with contextlib.suppress(OSError):
        return Path(folder).stat().st_uid == os.geteuid()
    return False


def take_away() -> Iterator[tuple[str, bool]]:
    """Remove the abandoned groups, one by one: the folder, and whether it is gone. What is in one is killed first."""
    for folder in list(abandoned()):
        yield folder, _end(folder)


def _end(folder: str) -> bool:
    until = time.monotonic() + _PATIENCE
    with contextlib.suppress(OSError):
        write(f"{folder}/pids.max", "0", only_there=True)  # nothing forks on
    while not remove(folder):
        if time.monotonic() >= until:
            return False
        with contextlib.suppress(OSError):
            write(f"{folder}/cgroup.kill", "1", only_there=True)
        for each in _with_those_below(folder):
            _kill(map(int, read(f"{each}/cgroup.procs").split()))
        time.sleep(0.01)
    return True


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            if pid > 0:  # 0: of a pid namespace that can't be seen
                os.kill(pid, signal.SIGKILL)
