"""A seccomp filter without which all sandboxes of a user share the kernel's keyring of that user: what one puts there another can read.

The three system calls of keyrings end with ENOSYS, as where a kernel has none; every other one is left alone.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Iterator, Sequence

#: architecture as seccomp names it -> numbers of add_key, request_key and keyctl (linux/audit.h; the kernel's tables of calls)
_CALLS = {
    0xC000003E: (248, 249, 250),  # x86-64
    0x40000003: (286, 287, 288),  # x86, which x86-64 runs as well
    0xC00000B7: (217, 218, 219),  # AArch64
    0x40000028: (309, 310, 311),  # ARM, which AArch64 runs as well
}
_X32 = 0x40000000  #: added to the numbers of x86-64 by programs with short pointers
_LOAD, _EQUAL, _MASK, _RETURN = 0x20, 0x15, 0x54, 0x06  #: of classic BPF: load a word, jump if equal, and, return
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4  #: bytes in struct seccomp_data
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000 | errno.ENOSYS


def keyring_filter() -> bytes:
    """The filter as `bwrap --seccomp` reads it: struct sock_filter, one after the other."""
    return b"".join(struct.pack("=HBBI", *step) for step in _steps())


def _steps() -> Iterator[tuple[int, int, int, int]]:
    for architecture, calls in _CALLS.items():
        block = list(_block(calls))
        yield _LOAD, 0, 0, _ARCHITECTURE_AT
        yield _EQUAL, 0, len(block), architecture
        yield from block
    yield _RETURN, 0, 0, _ALLOW


def _block(calls: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    yield _LOAD, 0, 0, _NUMBER_AT
    yield _MASK, 0, 0, 0xFFFFFFFF ^ _X32
    for place, call in enumerate(calls):
        yield _EQUAL, len(calls) - place, 0, call  # over those that follow and the next line
    yield _RETURN, 0, 0, _ALLOW
    yield _RETURN, 0, 0, _FAIL
