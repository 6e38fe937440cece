"""Run a command where the only network is loopback.

The command gets a network namespace of its own: whatever it starts can talk to each other on 127.0.0.1 and to nobody else, so a test
that runs a real agent CLI proves that it needs no outside host. Root makes the namespace directly, other users through a user namespace.

    python tests/netns.py [--listen FD:PORT[:ADDRESS]] COMMAND ARGUMENT...

With `--listen`, a socket that listens on PORT of 127.0.0.1, or of ADDRESS, inside the namespace is sent through the unix socket FD
before the command starts (see `receive_listener`): a server outside can then answer inside, while its starter keeps it in hand.

Linux only. Name lookups fail, since no name server can be reached. Processes started in the namespace are ordinary children: ending
them is the caller's business, and the namespace goes away with the last of them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import subprocess
import sys
from functools import cache
from pathlib import Path

CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000
SIOCGIFFLAGS = 0x8913
SIOCSIFFLAGS = 0x8914
IFF_UP = 0x1
# struct ifreq: 16 bytes of name, the flags, padding up to the size of the union.
IFREQ = struct.Struct("16sh22x")


def netns_argv(argv: list[str], *, listen: tuple[int, int] | None = None, host: str = "127.0.0.1") -> list[str]:
    """The command line that runs `argv` in a fresh loopback-only namespace, with this interpreter.

    `listen`: the descriptor of a unix socket that the command line inherits, and the port to listen on, at the address `host`.
    """
    option = [] if listen is None else ["--listen", f"{listen[0]}:{listen[1]}:{host}"]
    return [sys.executable, str(Path(__file__).resolve()), *option, *argv]


def receive_listener(channel: socket.socket) -> socket.socket:
    """The listening socket that comes out of the namespace; raises ConnectionError if its process ended without sending one."""
    _, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
    if not descriptors:
        raise ConnectionError("no socket came out of the namespace")
    return socket.socket(fileno=descriptors[0])


@cache
def why_no_netns() -> str | None:
    """Why `netns_argv` can't work on this machine, in one line; None where it works (found out by doing it, once per process)."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    done = subprocess.run(
        netns_argv([sys.executable, "-c", "pass"]),
        check=False,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=60,
    )
    if done.returncode == 0:
        return None
    lines = done.stderr.strip().splitlines()
    return lines[-1] if lines else f"the probe ended with code {done.returncode}"


def enter_loopback_namespace() -> None:
    """Move this (single-threaded) process into a new network namespace and bring its loopback interface up.

    Raises OSError where the kernel or the container's policy forbids it.
    """
    uid, gid = os.getuid(), os.getgid()
    if uid == 0:
        try:
            _unshare(CLONE_NEWNET)
        except PermissionError:
            # Root without CAP_SYS_ADMIN, as in many containers: a user namespace may still be allowed.
            _unshare_as_user(uid, gid)
    else:
        _unshare_as_user(uid, gid)
    _bring_up_loopback()


def _unshare(flags: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"unshare: {os.strerror(code)}")


def _unshare_as_user(uid: int, gid: int) -> None:
    _unshare(CLONE_NEWUSER | CLONE_NEWNET)
    # The kernel takes a gid map from an unprivileged process only after setgroups was given up.
    Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1", encoding="ascii")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1", encoding="ascii")


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        answer = fcntl.ioctl(control, SIOCGIFFLAGS, IFREQ.pack(b"lo", 0))
        flags: int = IFREQ.unpack(answer)[1]
        fcntl.ioctl(control, SIOCSIFFLAGS, IFREQ.pack(b"lo", flags | IFF_UP))


def _send_listener(option: str) -> None:
    channel, port, host = (*option.split(":"), "127.0.0.1")[:3]
    with socket.socket(fileno=int(channel)) as sender, socket.socket() as listener:
        listener.bind((host, int(port)))
        listener.listen(256)
        socket.send_fds(sender, [b"x"], [listener.fileno()])


def main(argv: list[str]) -> int:
    """Enter the namespace and become the command; 125 when the namespace or 127 when the command can't be had."""
    listen = argv[1] if len(argv) > 1 and argv[0] == "--listen" else None
    argv = argv if listen is None else argv[2:]
    if not argv:
        sys.stderr.write("usage: netns.py [--listen FD:PORT[:ADDRESS]] COMMAND ARGUMENT...\n")
        return 2
    try:
        enter_loopback_namespace()
        if listen is not None:
            _send_listener(listen)
    except OSError as error:
        sys.stderr.write(f"no network namespace: {error}\n")
        return 125
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {errno.errorcode.get(error.errno or 0, 'error')}: {error.strerror}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
