"""Takes standard input from a socket of the harness and becomes another program: `take_input.py FOLDER PROGRAM ARGUMENT …`.

For containers, whose engine hands on bytes and no open socket. Standard library only, Python 3.9 and newer.
"""

from __future__ import annotations

import os
import socket
import sys

NAME = "s"


def main() -> None:
    """Does not return."""
    folder, *argv = sys.argv[1:]
    cwd = os.open(".", os.O_RDONLY | os.O_CLOEXEC)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(60.0)
        os.chdir(folder)  # a path of a socket may not be long
        channel.connect(NAME)
        _, fds, _, _ = socket.recv_fds(channel, 1, 1)
    os.fchdir(cwd)
    os.dup2(fds[0], 0)
    os.execvp(argv[0], argv)


if __name__ == "__main__":
    main()
