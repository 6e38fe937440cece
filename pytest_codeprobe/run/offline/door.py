"""Where a socket comes out of a network namespace: children/door.py sends it, the sink listens on it."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def open_door(folder: Path) -> socket.socket:
    """A unix datagram socket `door` in the folder, however long the folder's path is."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    descriptor = -1
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        door.bind(f"/proc/self/fd/{descriptor}/door")
        door.setblocking(False)
    except BaseException:
        door.close()
        raise
    finally:
        if descriptor >= 0:
            os.close(descriptor)
    return door


def came_through(door: socket.socket) -> socket.socket | None:
    """The listening TCP socket that was sent; None where nothing was, or something else."""
    try:
        _, descriptors, _, _ = socket.recv_fds(door, 1, 1)
    except OSError:
        return None
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
        try:
            came = socket.socket(fileno=descriptor)
        except OSError:
            os.close(descriptor)
            continue
        is_tcp = came.family == socket.AF_INET and came.type == socket.SOCK_STREAM
        if is_tcp and came.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            came.setblocking(False)
            return came
        came.close()
    return None
