"""Run a command without the rights of root, whoever runs the tests: permissions hold it as they hold any owner of files.

    python tests/unprivileged.py COMMAND ARGUMENT...

It stays the same user, so it can use what the test made, but it has no capability and gets none by starting a program. Linux only.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

PR_CAPBSET_DROP = 24
CAPABILITY_VERSION = 0x20080522  # of two words for each set


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def unprivileged_argv(argv: list[str]) -> list[str]:
    """The command line that runs `argv` so; for a user who has no such rights, it is `argv`."""
    return [sys.executable, str(Path(__file__).resolve()), *argv] if os.geteuid() == 0 else argv


def give_up_capabilities() -> None:
    """Nothing that this process starts from now on has a capability. OSError if the kernel refuses."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) and ctypes.get_errno() != errno.EINVAL:  # none of that number
            raise OSError(ctypes.get_errno(), "prctl(PR_CAPBSET_DROP)")
    nothing = (ctypes.c_uint32 * 6)()  # effective, permitted and inheritable, twice
    if libc.capset(ctypes.byref(_Header(CAPABILITY_VERSION, 0)), ctypes.byref(nothing)):
        raise OSError(ctypes.get_errno(), "capset()")


if __name__ == "__main__":
    give_up_capabilities()
    os.execvp(sys.argv[1], sys.argv[1:])
