"""Stands in for a program: tells the harness how it was called, and answers what the harness says.

Standard library only; run by path (`python -I -S cli_shim.py FOLDER TOOL ARGUMENT…`), where FOLDER holds the socket `calls`.
To it go 8 digits, the length of what follows: tool and arguments, joined by NUL. Back come a line `EXIT N M`, N bytes of standard
output and M of standard error.
"""

# (starts for every call: what is not needed is not imported)
from __future__ import annotations

import os
import socket
import sys

_PATIENCE = 60.0  # seconds; the harness answers at once, unless the machine is very busy


def ask(folder: str, tool: str, arguments: list[str]) -> tuple[int, bytes, bytes]:
    """Exit status, standard output, standard error. OSError or ValueError where there is no whole answer."""
    told = b"\0".join(os.fsencode(part) for part in (tool, *arguments))
    os.chdir(folder)  # the path of a socket may have a hundred characters only
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as channel:
        channel.connect("calls")  # waits for its turn, where hundreds call at once; with a time limit it would be turned away
        channel.settimeout(_PATIENCE)
        channel.sendall(b"%08d" % len(told) + told)
        answer = bytearray()
        while chunk := channel.recv(1 << 16):
            answer += chunk
    head, newline, rest = bytes(answer).partition(b"\n")
    status, out, err = (int(part) for part in head.split())
    if not newline or len(rest) != out + err:
        raise ValueError("half an answer")
    return status, rest[:out], rest[out:]


def main() -> int:
    """The status to exit with."""
    folder, tool, *arguments = sys.argv[1:]
    try:
        status, out, err = ask(folder, tool, arguments)
    except (OSError, ValueError) as error:
        status, out, err = 1, b"", f"{tool}: can't be used: {error}\n".encode("utf-8", "replace")
    try:
        for stream, text in ((sys.stdout, out), (sys.stderr, err)):
            stream.buffer.write(text)
            stream.flush()
    except OSError:
        pass  # whoever called it does not listen; no traceback of ours in the agent's way
    return status


if __name__ == "__main__":
    code = main()
    os._exit(code)  # nothing is left to flush, and a closed pipe would be complained about once more
