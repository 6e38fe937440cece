"""What spawner and keepers know of processes: who is below whom, and which signals have arrived. Linux, standard library."""

# ruff: noqa: PTH123, PTH208
# (no pathlib here, see keeper.py)
from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable

if sys.platform != "linux":
    raise SystemExit(f"process trees can be read on Linux only, not on {sys.platform}")


def children_of(pid: int) -> list[int]:
    """The direct children of a process; none if it is gone."""
    found: list[int] = []
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):  # a child is listed under the thread that forked it
            with open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                found.extend(map(int, file.read().split()))
    except OSError:
        return found  # it ended while we looked
    return found


def signal_tree(roots: Iterable[int], numbers: Iterable[int], spare: str = "") -> None:
    """Send the signals once to the roots and all below them, but to no process whose program is called `spare`."""
    todo = list(roots)
    while todo:
        pid = todo.pop()
        todo.extend(children_of(pid))  # before the signal: afterwards they belong to someone else
        try:
            if not spare or program_of(pid) != spare[:15]:
                for number in numbers:
                    os.kill(pid, number)
        except OSError:
            continue  # gone; or of another user, then the tree never gets empty and the owner is told so


def put_into(pid: int, groups: Iterable[str]) -> None:
    """Put a process, 0 for this one, into control groups; what it starts from then on is in them too. OSError."""
    for group in groups:
        with open(f"{group}/cgroup.procs", "wb", buffering=0) as file:
            file.write(b"%d" % pid)


def program_of(pid: int) -> str:
    """The name that the kernel shows for a process, at most 15 characters. OSError if it is gone."""
    with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
        return file.read().rstrip("\n")


def signal_pipe(*numbers: int) -> int:
    """The read end of a pipe that gets one byte, the number, per signal that arrives.

    `numbers`: those that no handler is there for yet; a fork has its parent's.
    """
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    for number in numbers:
        signal.signal(number, lambda *_: None)
    return read


def drain(pipe: int) -> bytes:
    """What a signal pipe holds."""
    try:
        return os.read(pipe, 1 << 16)
    except BlockingIOError:
        return b""
