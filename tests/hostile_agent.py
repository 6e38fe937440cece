"""An agent that behaves badly in one way. Run as `python -I -S hostile_agent.py KIND TOKEN [SIGN]` in a workspace.

Kinds that are said to work write out.txt. Every process that one leaves behind shows TOKEN in its command line.
`stubborn` makes the file SIGN once it is deaf.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path

KIND, TOKEN = sys.argv[1:3]
#: what no text file should hold: lone surrogates (as bytes), NUL, ANSI, C1, invalid UTF-8, line separators, a title, a non-character
NASTY = (
    b"lone \xed\xa0\x80 nul \0 red \x1b[31mX\x1b[0m c1 \xc2\x9b2J bad \xff\xfe\xc3( "
    b"ls \xe2\x80\xa8 ps \xe2\x80\xa9 title \x1b]0;owned\x07 bell \x07 non \xef\xbf\xbe ]]> &<x>\r\n"
)


def work() -> None:
    Path("out.txt").write_text("done\n")


def daemonize() -> None:
    """A grandchild in a session of its own, with an empty environment."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        if os.fork() == 0:
            os.chdir("/")
            os.execve("/bin/sh", ["sh", "-c", "sleep 600; :", TOKEN], {})
        os._exit(0)
    os.waitpid(pid, 0)


def daemon() -> None:
    daemonize()
    work()


def stubborn() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    daemonize()
    work()
    for sign in sys.argv[3:]:
        Path(sign).touch()
    while True:
        time.sleep(60)


def flood() -> None:
    work()
    block = (b"x" * 999 + b"\n") * 1000
    for _ in range(2000):
        os.write(1, block)


def long_line() -> None:
    block = b"y" * (1 << 20)
    for _ in range(100):
        view = memoryview(block)
        while view:
            view = view[os.write(1, view) :]
    os.write(1, b"\nlast words\n")
    work()


def nasty() -> None:
    os.write(1, NASTY)
    os.write(2, NASTY)


def nasty_crash() -> None:
    nasty()
    sys.exit(127)


def nothing() -> None:
    """Exit 0 without work."""


def closed() -> None:
    os.close(0)
    os.close(1)
    os.close(2)
    time.sleep(0.3)
    work()
    os._exit(0)


def frozen() -> None:
    work()
    os.kill(os.getpid(), signal.SIGSTOP)


def parricide() -> None:
    parent = os.getppid()
    name = Path(f"/proc/{parent}/comm").read_text().strip()
    if name not in ("codeprobe-keep", "sh", "bwrap"):  # a spawner or a pytest would be somebody else's
        sys.exit(f"refused: {name}")
    os.kill(parent, signal.SIGKILL)
    time.sleep(0.3)
    work()


def no_home() -> None:
    shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # where it is a mount, all in it
    work()


def no_tmp() -> None:
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)
    work()


def no_workspace() -> None:
    shutil.rmtree(Path.cwd(), ignore_errors=True)


def linked() -> None:
    """The workspace becomes a link to a folder that holds what the criterion asks for."""
    here = Path.cwd()
    elsewhere = Path(os.environ["ELSEWHERE"])
    (elsewhere / "out.txt").write_text("not of the workspace\n")
    shutil.rmtree(here)
    here.symlink_to(elsewhere)


def unreadable() -> None:
    work()
    Path("secret").mkdir()
    Path("secret/file").write_text("x")
    Path("secret").chmod(0)
    Path.cwd().chmod(0)


def read_only() -> None:
    work()
    Path("shut/in").mkdir(parents=True)
    Path("shut/in/file").write_text("x")
    Path("shut/in").chmod(0o500)
    Path("shut").chmod(0o500)
    Path.cwd().chmod(0o500)


def deep() -> None:
    work()
    for _ in range(3000):
        Path("down").mkdir()
        os.chdir("down")
    Path("bottom").write_text("x")


def special() -> None:
    work()
    os.mkfifo("fifo")
    socket.socket(socket.AF_UNIX).bind("socket")
    for name, minor in (("device", 3), ("zero", 5)):
        with contextlib.suppress(PermissionError):  # only root with all its capabilities makes them
            os.mknod(name, 0o20666, os.makedev(1, minor))
    Path("outside").symlink_to("/etc/passwd")
    Path("loop").symlink_to("loop")


def names() -> None:
    work()
    plain = (b"n" * 255, b"-rf", b" ", b"'\"$(touch owned)`")
    for name in (*plain, b"new\nline", b"bad\xff\xfe", b"esc\x1b[31m", "ü\u2028x".encode(), b"tab\there"):
        Path(os.fsdecode(name)).write_bytes(NASTY)


def wiped() -> None:
    """The whole private folder of the trial, logs included."""
    shutil.rmtree(Path.cwd().parent, ignore_errors=True)


def out_is_fifo() -> None:
    os.mkfifo("out.txt")


def bomb() -> None:
    """Children that fork and leave, for as long as they live."""
    work()
    for _ in range(50):
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)
            while True:
                time.sleep(0.05)
                if os.fork():
                    os._exit(0)


def killer() -> None:
    """Everything it may kill. Only where a pid namespace keeps it to its own tree."""
    if Path("/proc/1/comm").read_text().strip() in ("codeprobe-keep", "bwrap"):
        work()
        os.kill(-1, signal.SIGKILL)
    sys.exit("refused")


KINDS: dict[str, Callable[[], None]] = {
    action.__name__: action
    for action in (
        daemon, stubborn, flood, long_line, nasty, nasty_crash, nothing, closed, frozen, parricide, no_home, no_tmp, no_workspace, linked,
        unreadable, read_only, deep, special, names, wiped, out_is_fifo, bomb, killer,
    )
}  # fmt: skip

if __name__ == "__main__":
    KINDS[KIND]()
