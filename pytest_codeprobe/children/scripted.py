"""The program behind agent `scripted`: does steps that are given as JSON on standard input, in the current folder.

Standard library only; run by path (`python -I -S scripted.py`). Says what it does as NDJSON on standard output, one event at once:

    {"event": "call", "id": "1", "tool": "write" | "delete" | "run" | any that a `call` names, "arguments": {…}}
    {"event": "result", "id": "1", "content": "…", "failed": false}
    {"event": "say", "text": "…"}
    {"event": "usage", "usage": {…}}
    {"event": "fail", "code": "…"}
    {"event": "end", "status": 0}
"""

# ruff: noqa: PTH103, PTH108, PTH112, PTH114, PTH120, PTH123
# (starts for every session: what is not needed is not imported, and pathlib never)
from __future__ import annotations

import json
import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_OUTPUT = 64 << 10  # bytes of a command's output that are reported, half from its begin and half from its end
_DRAIN_SECONDS = 1.0  # for output that is still in the pipe when the command has ended


class _Output:
    """Reads a pipe for as long as anybody writes to it, and keeps both ends of what came."""

    def __init__(self, descriptor: int) -> None:
        import threading

        self._descriptor = descriptor
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0
        # A daemon: a background process of the command may hold the pipe open until the session's end.
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        half = _OUTPUT // 2
        while chunk := os.read(self._descriptor, 1 << 16):
            self._total += len(chunk)
            room = half - len(self._head)
            self._head += chunk[:room]
            self._tail += chunk[room:] if room > 0 else chunk
            if len(self._tail) > 4 * half:
                del self._tail[:-half]

    def text(self) -> str:
        """What came until now."""
        self._thread.join(_DRAIN_SECONDS)
        head, tail, total = bytes(self._head), bytes(self._tail[-_OUTPUT // 2 :]), self._total
        left_out = total - len(head) - len(tail)
        gap = f"\n[… {left_out} bytes left out …]\n".encode() if left_out > 0 else b""
        return (head + gap + tail).decode("utf-8", "backslashreplace")


def _emit(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}) + "\n")
    sys.stdout.flush()


def _write(arguments: dict[str, Any]) -> tuple[str, bool]:
    path = arguments["path"].rstrip("/") or "/"
    content = arguments["content"].encode("utf-8", "surrogatepass")
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    with open(path, "wb") as file:
        file.write(content)
    return f"{len(content)} bytes written to {path}", False


def _delete(arguments: dict[str, Any]) -> tuple[str, bool]:
    path = arguments["path"].rstrip("/") or "/"
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
    else:
        os.unlink(path)
    return f"{path} deleted", False


def _run(arguments: dict[str, Any]) -> tuple[str, bool]:
    import subprocess

    reader, writer = os.pipe()
    output = _Output(reader)
    try:
        process = subprocess.Popen(["/bin/sh", "-c", arguments["command"]], stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
    finally:
        os.close(writer)
    status = process.wait()
    return output.text() + (f"\n[exit status {status}]" if status else ""), status != 0


_TOOLS = {"write": _write, "delete": _delete, "run": _run}


def _call(number: int, tool: str, arguments: dict[str, Any]) -> None:
    _emit("call", id=str(number), tool=tool, arguments=arguments)
    try:
        content, failed = _TOOLS[tool](arguments)
    except (OSError, ValueError) as error:  # ValueError: a NUL in a path or a command; shutil's errors are OSErrors
        content, failed = f"{type(error).__name__}: {error}", True
    _emit("result", id=str(number), content=content, failed=failed)


def _step(number: int, step: dict[str, Any]) -> int | None:
    """Do one step; an exit status if it is the last one."""
    (name, value), *_ = step.items()
    if name == "write":
        _call(number, name, value)
    elif name == "delete":
        _call(number, name, {"path": value})
    elif name == "run":
        _call(number, name, {"command": value})
    elif name == "call":
        _emit("call", id=str(number), tool=value["tool"], arguments=value.get("arguments", {}))
        _emit("result", id=str(number), content=value.get("result", ""), failed=value.get("failed", False))
    elif name == "say":
        _emit("say", text=value)
    elif name == "sleep":
        time.sleep(value)
    elif name == "usage":
        _emit("usage", usage=value)
    elif name == "fail":
        _emit("fail", code=value)
        return 1
    elif name == "exit":
        return int(value)
    return None


def main() -> int:
    """All steps in order, up to the first `fail` or `exit`."""
    status: int | None = None
    for number, step in enumerate(json.loads(sys.stdin.buffer.read()), 1):
        status = _step(number, step)
        if status is not None:
            break
    _emit("end", status=status or 0)
    return status or 0


if __name__ == "__main__":
    code = main()
    # os._exit: a thread that still reads a background process's pipe must not hold up or break the end
    sys.stdout.flush()
    os._exit(code)
