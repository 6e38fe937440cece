"""A spawner that has a Python program loaded already: a command is a fork of it, instead of a new interpreter.

    owner --JSON + 4 descriptors--> warm --fork--> keeper --fork--> the program's main()

Run as `python -I -B warm.py PROGRAM ARGUMENT... CONFIG`, where `python -I -B PROGRAM ARGUMENT...` would be the command. PROGRAM has
two functions: `prepare`, called once, and `main`, called in each fork. CONFIG, the protocol
and the keepers are the spawner's (spawner.py, keeper.py), under the interpreter of the command: an older one, or one that can't do
this, ends here with a reason, and its owner starts commands anew.

No code of a command's ever runs in this process. A fork of it holds no descriptor but the command's own 0, 1, 2 and no object of
spawner or keeper: it is forked off before its keeper knows what the command is, unwinds to the top of this file, and hears the
rest from its keeper. What it can write to, in memory or elsewhere, no other fork reads.
"""

# ruff: noqa: PTH100, PTH119, PTH120, PTH123, PTH208, SIM115
# (no pathlib here, see keeper.py)
from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import resource
import signal
import socket
import sys
import time
from types import ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from pytest_codeprobe.children.keeper import IGNORED_HERE, LEAVE, LOOK, Keeper, rlimit
    from pytest_codeprobe.children.process_tree import put_into
    from pytest_codeprobe.children.spawner import PR_SET_DUMPABLE, PR_SET_NAME, Spawner, channel_of, checked, libc
else:
    _path = list(sys.path)
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # -I keeps the script's own folder out
    from keeper import IGNORED_HERE, LEAVE, LOOK, Keeper, rlimit
    from process_tree import put_into
    from spawner import PR_SET_DUMPABLE, PR_SET_NAME, Spawner, channel_of, checked, libc

    sys.path[:] = _path
    for _name in ("keeper", "outside", "process_tree", "spawner"):
        del sys.modules[_name]  # the code under test may have modules of these names

SET_BY_PYTHON: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGPIPE: signal.SIG_IGN, signal.SIGXFSZ: signal.SIG_IGN}
CAPABILITY_VERSION = 0x20080522
STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


class Begin(BaseException):
    """Takes a fork to the top of this file. Its argument is the socket to its keeper."""


class WarmKeeper(Keeper):
    """A keeper whose command is there already and waits: `child` is its pid, `line` the socket to it."""

    def __init__(self, channel: socket.socket, stdio: list[int], watch: list[int], isolated: bool, child: int, line: socket.socket) -> None:
        super().__init__(channel, stdio, watch, isolated)
        self.child, self.line = child, line

    def launch(self, request: dict[str, Any], targets: list[int]) -> int:
        """Put it into its groups and tell it what it is. Should it never hear that, it ends when the tree is ended, as any child does."""
        put_into(self.child, [group for group, _ in request["groups"]])
        with self.line as line:
            socket.send_fds(line, [b"\n"], targets)
            line.sendall(json.dumps({key: request[key] for key in ("argv", "env", "cwd", "rlimits")}).encode())
        return self.child


class WarmSpawner(Spawner):
    """Forks each keeper together with its command."""

    def go_on(self, fds: list[int]) -> NoReturn:
        """A keeper never returns; its child leaves all frames of ours."""
        begins = False
        try:
            self.become_keeper(fds)
        except Begin:
            begins = True
            raise
        finally:
            if not begins:
                os._exit(1)

    def make_keeper(self, fds: list[int]) -> Keeper:
        ours, theirs = socket.socketpair()
        child = os.fork()
        if child == 0:
            ours.close()
            raise Begin(theirs)
        theirs.close()
        return WarmKeeper(channel_of(fds[0]), fds[1:], self.watch, bool(self.namespaces), child, ours)


def become_command(line: socket.socket) -> None:
    """Be what a new interpreter would be: descriptors, session, signals, limits, folder, environment, streams."""
    for number in {*IGNORED_HERE, signal.SIGCHLD, LOOK, LEAVE}:
        signal.signal(number, SET_BY_PYTHON.get(number, signal.SIG_DFL))
    signal.set_wakeup_fd(-1)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    with line:
        data, fds, _, _ = socket.recv_fds(line, 1, len(STREAMS))
        while chunk := line.recv(1 << 18):
            data += chunk
    if not data:
        os._exit(0)  # the keeper is gone
    request = json.loads(data)
    os.setsid()
    for index, fd in enumerate(fds):
        os.dup2(fd, index)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd >= len(STREAMS):
            close_quietly(fd)
    for name, pair in request["rlimits"].items():
        resource.setrlimit(rlimit(name), tuple(pair))
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    time.tzset()
    for index, (name, mode) in enumerate(STREAMS):
        open_stream(index, name, mode)
    libc.prctl(PR_SET_NAME, os.path.basename(request["argv"][0]).encode())
    if os.geteuid() != 0:
        give_up_capabilities()
    libc.prctl(PR_SET_DUMPABLE, 1)  # as after an exec: without it /proc/self is not its own
    gc.enable()


def give_up_capabilities() -> None:
    """What an exec does for all users but root: the first process of a user namespace has all in it, and so have its forks."""
    header, nothing = (ctypes.c_uint32 * 2)(CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()  # of two words for each set
    checked(libc.capset(header, nothing))


def close_quietly(fd: int) -> None:
    """Close a descriptor, or the one that the list of descriptors was read through."""
    try:
        os.close(fd)
    except OSError:
        return


def open_stream(fd: int, name: str, mode: str) -> None:
    """Ours know what was behind the descriptor before, such as whether one can seek in it."""
    ours = getattr(sys, name)
    buffering = 1 if name == "stderr" else -1
    opened: Any = open(fd, mode, buffering, ours.encoding, ours.errors, newline=None if mode == "r" else "\n", closefd=False)
    opened.buffer.raw.name = f"<{name}>"
    opened.mode = mode
    setattr(sys, name, opened)
    setattr(sys, f"__{name}__", opened)


def load(path: str) -> ModuleType:
    """The program, as `__main__` of all that is to come."""
    spec = importlib.util.spec_from_file_location("program", path)
    if spec is None or spec.loader is None:
        raise SystemExit(f"{path} is no program")
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    program.prepare()
    program.__name__, program.__package__, program.__spec__ = "__main__", None, None
    return program


def check() -> None:
    """Whether forks are safe: none has what another thread held, and none can write what others read (some builds of libffi)."""
    if len(os.listdir("/proc/self/task")) > 1:
        raise SystemExit("something that is loaded runs threads")
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            rights = line.split()[1]
            if "w" in rights and "s" in rights:
                raise SystemExit(f"forks would share memory: {line.strip()}")


def serve() -> socket.socket:
    """Serve the owner. Returns in forks only, each to become a command."""
    config = json.loads(sys.argv.pop())
    del sys.argv[0], sys.orig_argv[-1], sys.orig_argv[-len(sys.argv) - 1]
    if sys.getfilesystemencoding() != "utf-8":
        raise SystemExit(f"names of files would be read as {sys.getfilesystemencoding()}")
    program = load(sys.argv[0])
    check()
    spawner = WarmSpawner(config)
    libc.prctl(PR_SET_NAME, b"codeprobe-warm")
    sys.modules["__main__"] = program
    try:
        spawner.run()
    except Begin as begin:
        line: socket.socket = begin.args[0]
        return line
    os._exit(0)  # what is loaded need not be taken down


if __name__ == "__main__":
    libc.prctl(PR_SET_DUMPABLE, 0)  # from the start, and whatever holds trees together: no ptrace by those of our uid
    become_command(serve())
    sys.modules["__main__"].main()
