"""Control groups, v1 or v2: limits on memory, processors and processes of one process tree. Linux.

What can be held is found out by doing it, once in each process.
"""

# ruff: noqa: PTH102
# (made for every process tree: plain calls)
from __future__ import annotations

import errno
import os
import secrets
import sys
import threading
from collections.abc import Mapping

from pytest_codeprobe.model.config import SandboxLimits
from pytest_codeprobe.sandboxes.hierarchies import CONTROLLERS, Place, places, prefix, read, remove, write
from pytest_codeprobe.sandboxes.tools import run_tool
from pytest_codeprobe.text import one_line

_PERIODS = (100_000, 1_000_000)  #: microseconds in which a group has its share of processor time; the second for very small ones
_LEAST_QUOTA = 1000  #: microseconds, the kernel's
_MOST_PIDS = 1 << 22  #: the kernel's own limit; none is more
_MOST_BYTES = 1 << 60
_TRIED = SandboxLimits(memory_mb=64, cpus=1, pids=64)
_THERE_AND_BACK = 'echo 0 > "$1/cgroup.procs" && echo 0 > "$2/cgroup.procs"'


class _Found:
    """What this process can hold, once somebody has asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid, self._places = 0, dict[str, Place | str]()

    def get(self) -> Mapping[str, Place | str]:
        """Limit -> where it is held, or why it can't be."""
        with self._lock:
            if self._pid != os.getpid():
                self._pid, self._places = os.getpid(), _tried()
            return self._places


_FOUND = _Found()


def held() -> Mapping[str, Place | str]:
    """Limit -> where it is held on this machine by this user, or why it can't be. Found out at the first call."""
    return _FOUND.get()


def unheld(limits: SandboxLimits) -> list[str]:
    """A sentence for each of the limits that is set and can't be held here."""
    found = {name: held()[name] for name in CONTROLLERS if getattr(limits, name) is not None}
    return [f"sandbox.limits.{name} can't be held here, it is left out: {why}" for name, why in found.items() if isinstance(why, str)]


def _tried() -> dict[str, Place | str]:
    if sys.platform != "linux":
        return dict.fromkeys(CONTROLLERS, f"it needs control groups, which {sys.platform} has not")
    there = places(read("/proc/self/mountinfo"), read("/proc/self/cgroup"))
    found: dict[str, Place | str] = {}
    for name, controller in CONTROLLERS.items():
        if name not in there:
            found[name] = f"there is no control group with the controller {controller!r} that this user may add to"
            continue
        why = _try(name, there[name])
        found[name] = why or there[name]
    return found


def _try(name: str, place: Place) -> str | None:
    """Why a limit can't be held there: one is set, and a process goes in and out again, as a keeper does."""
    try:
        group = Group({name: place}, _TRIED)
    except OSError as error:
        return f"control group {place.parent}: {error.strerror}"
    try:
        (folder, home), = group.doors  # fmt: skip
        done = run_tool(["/bin/sh", "-c", _THERE_AND_BACK, "sh", folder, home], env={}, timeout=20.0)
    except OSError as error:
        return f"control group {place.parent}: {error.strerror or error}"
    finally:
        group.remove()
    said = done.complaints.decode("utf-8", "replace").strip()
    return None if done.status == 0 else f"no process can be put into control groups in {place.parent}: {one_line(said, 200)}"


class Group:
    """The control groups of one process tree: one folder for each hierarchy that holds some of its limits."""

    def __init__(self, where: Mapping[str, Place], limits: SandboxLimits, *, beside: int = 0) -> None:
        """Make them and set the limits; OSError where that can't be done. `beside`: processes of the sandbox's own."""
        name = f"{prefix(os.getpid())}-{secrets.token_hex(6)}"
        self._places = where
        self._folders = {place.parent: f"{place.parent}/{name}" for place in where.values()}
        self._made: list[str] = []
        self._pids = (limits.pids or 0) + beside
        try:
            for folder in self._folders.values():
                os.mkdir(folder, 0o755)
                self._made.append(folder)
            for limit, place in where.items():
                value = self._pids + 1 if limit == "pids" else getattr(limits, limit)
                _SETTERS[limit](self._folders[place.parent], place.version, value)
        except OSError:
            self.remove()
            raise

    @property
    def doors(self) -> list[tuple[str, str]]:
        """For each group its folder, and that of the group that keepers belong to."""
        return list(dict.fromkeys((self._folders[place.parent], place.home) for place in self._places.values()))

    def settle(self) -> None:
        """The command is started: there is no room any more for the keeper, which was in the groups for that."""
        if "pids" in self._places:
            _set_pids(self._folders[self._places["pids"].parent], 0, self._pids)

    @property
    def ends(self) -> bool:
        """Whether there is a limit that ends a session; processors are only shared out."""
        return not self._places.keys() <= {"cpus"}

    def hit(self) -> str | None:
        """The limit that was hit, by the kernel's own counters. A kill for want of memory alone is none: the whole machine may lack it."""
        for name, place in self._places.items():
            folder = self._folders[place.parent]
            if name == "pids" and _count(f"{folder}/pids.events", "max"):
                return name
            if name == "memory_mb" and _out_of_memory(folder, place.version):
                return name
        return None

    def throttled(self) -> tuple[int, int]:
        """Periods in which all processors of the limit were used up, of those in which something ran."""
        if "cpus" not in self._places:
            return 0, 0
        file = f"{self._folders[self._places['cpus'].parent]}/cpu.stat"
        return _count(file, "nr_throttled"), _count(file, "nr_periods")

    def remove(self) -> list[str]:
        """Remove them, once they are empty; the folders that are left. Idempotent."""
        self._made = [folder for folder in self._made if not remove(folder)]
        return list(self._made)


def make(limits: SandboxLimits, *, beside: int = 0) -> Group | None:
    """The groups that hold what of the limits can be held here; None if that is nothing. OSError as Group."""
    if limits.memory_mb is None and limits.cpus is None and limits.pids is None:
        return None
    found = {name: place for name, place in held().items() if isinstance(place, Place) and getattr(limits, name) is not None}
    return Group(found, limits, beside=beside) if found else None


# ---- the files of a group


def _set_memory(folder: str, version: int, value: int) -> None:
    size = str(min(value << 20, _MOST_BYTES))
    if version == 2:
        write(f"{folder}/memory.max", size)
        write(f"{folder}/memory.swap.max", "0", only_there=True)
    else:
        write(f"{folder}/memory.limit_in_bytes", size)
        write(f"{folder}/memory.swappiness", "0", only_there=True)  # none for this group; a limit with swap would hide who hit it


def _set_cpus(folder: str, version: int, value: float) -> None:
    value = min(value, os.cpu_count() or 1)
    period = next((period for period in _PERIODS if value * period >= _LEAST_QUOTA), _PERIODS[-1])
    quota = max(_LEAST_QUOTA, round(value * period))
    if version == 2:
        write(f"{folder}/cpu.max", f"{quota} {period}")
        return
    write(f"{folder}/cpu.cfs_period_us", str(period))
    try:
        write(f"{folder}/cpu.cfs_quota_us", str(quota))
    except OSError as error:
        if error.errno != errno.EINVAL:  # more than the group above has: then that one holds it
            raise


def _set_pids(folder: str, _version: int, value: int) -> None:
    write(f"{folder}/pids.max", str(value) if value < _MOST_PIDS else "max")


_SETTERS = {"memory_mb": _set_memory, "cpus": _set_cpus, "pids": _set_pids}


def _out_of_memory(folder: str, version: int) -> bool:
    if version == 2:
        file = f"{folder}/memory.events"
        return bool(_count(file, "oom_kill") and _count(file, "oom"))
    return bool(_count(f"{folder}/memory.oom_control", "oom_kill") and read(f"{folder}/memory.failcnt").strip() not in ("", "0"))


def _count(file: str, name: str) -> int:
    """A counter of a file with lines `name number`; 0 where it has none."""
    for line in read(file).splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.isdigit():
            return int(value)
    return 0
