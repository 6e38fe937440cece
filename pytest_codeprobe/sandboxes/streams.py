"""What a command reads and writes: its input, and its output as somebody else may have left it."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from pytest_codeprobe.sandboxes.trees import open_regular


def open_log(path: Path) -> int:
    """A new file (mode 0600) to write to. OSError where there is something of that name."""
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def input_of(content: bytes | None, folder: Path) -> int:
    """A descriptor that reads `content` and ends; nothing of it is ever to be seen in a folder."""
    if content is None:
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    if sys.platform == "linux":
        fd = os.memfd_create("stdin", os.MFD_CLOEXEC)
    else:
        fd, name = tempfile.mkstemp(dir=folder)
        Path(name).unlink()
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd


def text_of(path: Path, limit: int) -> str:
    """The file's text; of a longer one head and tail, with how much is missing between.

    Empty where it is no file any more: under a driver that doesn't isolate, the command could put a FIFO there, to be waited for.
    """
    try:
        descriptor = open_regular(str(path))
    except OSError:
        return ""
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size <= limit:
            return file.read(limit).decode("utf-8", "replace")
        head = file.read(limit // 2)
        file.seek(size - (limit - len(head)))
        tail = file.read(limit - len(head))
    mark = f"\n[… {size - limit} bytes left out …]\n"
    return head.decode("utf-8", "replace") + mark + tail.decode("utf-8", "replace")
