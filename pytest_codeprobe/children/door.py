"""Opens a listening socket in a network namespace of its own, hands it out, and becomes the command.

    python -I -S door.py FOLDER PORT PROGRAM ARGUMENT...

The socket goes as one message to the unix datagram socket `door` in the folder. Whoever has it serves 127.0.0.1:PORT of this
namespace from outside: no process of the harness is in here.
"""

from __future__ import annotations

import os
import signal
import socket
import sys


def main(folder: str, port: str, program: str, *arguments: str) -> None:
    """Exit status 125 where the door can't be opened, 127 where the program can't be started: nothing of it has run."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            listener.bind(("127.0.0.1", int(port)))
            listener.listen(256)
            os.chdir(folder)  # its path may be too long for an address
            channel.connect("door")
            socket.send_fds(channel, [b"x"], [listener.fileno()])
        os.fchdir(here)
    except OSError as error:
        sys.stderr.write(f"offline: no door out of the network namespace: {error.strerror or error}\n")
        sys.exit(125)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # which Python ignores, and a program would inherit that
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execv(program, [program, *arguments])
    except OSError as error:
        sys.stderr.write(f"{program}: {error.strerror}\n")
        sys.exit(127)


if __name__ == "__main__":
    main(*sys.argv[1:])
