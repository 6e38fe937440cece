"""Commands that make it hard to end them. Run as `python -I -S hostile.py KIND TOKEN FILE`.

Every process of the tree shows TOKEN in its command line; FILE gets "ready" once the tree stands, and what the kind has to tell.
A kind that kills looks first that its victim is a keeper or a spawner, or that it can reach nobody else.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

TOKEN, FILE = sys.argv[2], Path(sys.argv[3])


def tell(text: str) -> None:
    with FILE.open("a", encoding="utf-8") as file:
        file.write(text + "\n")


def rest() -> NoReturn:
    """In short sleeps: a signal that arrives just before a sleep begins has its Python handler run only when that sleep ends."""
    while True:
        time.sleep(0.1)


def branch(action: Callable[[], None]) -> int:
    """A child that does the action and then stays."""
    pid = os.fork()
    if pid == 0:
        action()
        rest()
    return pid


def daemonize() -> None:
    """Leave a program that has another parent, session, folder and name, and no environment to know it by."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.execve("/bin/sleep", ["sleep", TOKEN], {})
        os._exit(0)
    os.waitpid(pid, 0)


def ignore_term() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1])


def victim(pid: int, name: str) -> int:
    found = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    if found != name:
        tell(f"refused: {pid} is {found}")
        sys.exit(99)
    return pid


def stubborn() -> None:
    ignore_term()
    daemonize()
    branch(os.setsid)
    branch(lambda: None)
    tell("ready")


def bomb() -> None:
    """300 processes that go on by forking and leaving."""

    def hop() -> None:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            time.sleep(0.2)
            if os.fork():
                os._exit(0)

    for _ in range(300):
        branch(hop)
    tell("ready")


def frozen() -> None:
    daemonize()
    tell("ready")
    os.kill(os.getpid(), signal.SIGSTOP)


def holder() -> None:
    """Ends at once; a daemon keeps its stdout."""
    daemonize()
    sys.stdout.write("done\n")
    sys.stdout.flush()
    sys.exit(7)


def orphans() -> None:
    for _ in range(300):
        if os.fork() == 0:
            os._exit(0 if os.fork() else 5)
        os.wait()
    sys.exit(0)


def saver() -> None:
    def save(*_: object) -> None:
        time.sleep(0.3)
        tell("saved")
        os._exit(4)

    signal.signal(signal.SIGTERM, save)
    signal.signal(signal.SIGINT, lambda *_: tell("interrupted"))
    tell("ready")


def slow_child() -> None:
    """The command itself obeys at once; its child saves first."""
    branch(saver)
    rest()


def flood() -> None:
    ignore_term()
    while True:
        os.write(1, b"x" * 50_000)
        os.write(2, b"y" * 3)


def kill_keeper() -> None:
    daemonize()
    keeper = victim(os.getppid(), "codeprobe-keep")
    tell("ready")
    os.kill(keeper, signal.SIGKILL)


def freeze_keeper() -> None:
    ignore_term()
    daemonize()
    keeper = victim(os.getppid(), "codeprobe-keep")
    tell("ready")
    os.kill(keeper, signal.SIGSTOP)


def kill_both() -> None:
    """Only where there is no pid namespace: there the spawner can't be seen."""
    daemonize()
    keeper = victim(os.getppid(), "codeprobe-keep")
    spawner = victim(parent_of(keeper), "codeprobe-spawn")
    tell("ready")
    os.kill(spawner, signal.SIGKILL)
    os.kill(keeper, signal.SIGKILL)


def kill_all() -> None:
    """kill -9 -1, where the keeper is PID 1: it reaches the own tree alone."""
    daemonize()
    victim(1, "codeprobe-keep")
    tell("ready")
    os.kill(-1, signal.SIGKILL)


KINDS: dict[str, Callable[[], None]] = {
    action.__name__: action
    for action in (
        stubborn,
        bomb,
        frozen,
        holder,
        orphans,
        saver,
        slow_child,
        flood,
        kill_keeper,
        freeze_keeper,
        kill_both,
        kill_all,
    )
}

if __name__ == "__main__":
    KINDS[sys.argv[1]]()
    rest()
