"""What a run has alive and on disk: of its trials, and of its own."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.front_door import Project, Run, survivors

T = TypeVar("T")


def children_of(pid: int) -> list[int]:
    """Live children of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def workers_of(run: Run) -> list[int]:
    """Process ids of a run's xdist workers."""
    return [pid for pid in children_of(run.process.pid) if not _is_spawner(pid)]


def spawners_of(pid: int) -> list[int]:
    """Spawners and keepers that watch a process."""
    numbers = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [number for number in numbers if _is_spawner(number) and pid in _watched(number)]


def tree_of(pid: int) -> list[int]:
    """A process and all below it, parents first."""
    found = [pid]
    for each in found:
        found += children_of(each)
    return found


def commands_of(pid: int) -> list[str]:
    """The arguments of a process; none if it is gone."""
    return [part.decode(errors="replace") for part in _command(pid)]


def whole_lines(run: Run) -> list[dict[str, Any]]:
    """events.ndjson up to the last full line; each of them is JSON, and they are numbered."""
    whole, _, _ = (run.folder / "events.ndjson").read_text().rpartition("\n")
    events = [json.loads(line) for line in whole.splitlines()]
    assert [e["seq"] for e in events] == list(range(len(events)))
    return events


def _command(pid: int) -> list[bytes]:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return []


def _is_spawner(pid: int) -> bool:
    """A spawner or a keeper; a command that was forked by one has the same arguments."""
    named_so = any(part.endswith((b"/children/spawner.py", b"/children/warm.py")) for part in _command(pid))
    return named_so and not _is_forked_command(pid)


def _is_forked_command(pid: int) -> bool:
    with contextlib.suppress(OSError):
        parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[1]
        return Path(f"/proc/{parent}/comm").read_text().strip() == "codeprobe-keep"
    return False


def _watched(pid: int) -> list[int]:
    for part in _command(pid):
        with contextlib.suppress(ValueError, TypeError, KeyError):
            return list(json.loads(part)["watch"])
    return []


def trial_processes(project: Project) -> list[str]:
    """Command lines of live processes of this project's trials: by its mark, or by a place of its own in environment or folder."""
    place = str(project.scratch / "tmp" / "codeprobe-")
    lines = {*survivors(project.mark_text), *survivors(place), *_working_in(place)}
    return sorted(line for line in lines if not _is_harness(int(line.partition(":")[0])))


def _working_in(place: str) -> list[str]:
    """Those whose folder begins so: a forked command's environment is not to be seen from outside."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and str((entry / "cwd").readlink()).startswith(place):
                found.append(f"{entry.name}: {b' '.join(_command(int(entry.name))).decode(errors='replace')[:200]}")
    return found


def _is_harness(pid: int) -> bool:
    """pytest, a worker of it, a spawner or a keeper."""
    command = _command(pid)
    return _is_spawner(pid) or b"pytest" in command or any(part.startswith(b"import sys;exec(eval(sys.stdin") for part in command)


def harness_processes(run: Run) -> list[str]:
    """pytest, its workers, and the spawners and keepers that watch it."""
    ours = [line for line in survivors(run.project.mark_text) if _is_harness(int(line.partition(":")[0]))]
    return [*ours, *(f"{pid}: spawner or keeper" for pid in spawners_of(run.process.pid))]


def private_folders(project: Project) -> list[str]:
    """Private folders of trials and templates that are on disk."""
    return sorted(p.name for p in Path(project.environment["TMPDIR"]).glob("codeprobe-*"))


def control_groups(pid: int) -> list[str]:
    """Those that a process made and that are there still; of other runs' some may go while this looks."""
    return [folder for folder, _, _ in os.walk("/sys/fs/cgroup") if Path(folder).name.startswith(f"codeprobe-{pid}-")]


def mounts_below(place: Path) -> list[str]:
    """Mount points of this process's namespace that a test's folder has in it."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [point for point in points if Path(point).is_relative_to(place)]


def until(look: Callable[[], T], fine: Callable[[T], bool], seconds: float) -> T:
    """Look until it is fine or the time is over; what was seen last."""
    end = time.monotonic() + seconds
    while not fine(seen := look()) and time.monotonic() < end:
        time.sleep(0.1)  # a look reads of every process on the machine
    return seen


def none_within(look: Callable[[], list[str]], seconds: float) -> None:
    """Fails if something is there until the time is over."""
    left = until(look, lambda seen: not seen, seconds)
    assert not left, f"{look} after {seconds:g} s: {left}"
