"""Holds code in pytest's own process: an audit hook that looks at sockets, of threads that act for a trial and of no others.

A hook can't be removed. So there is one for each process, it is set at the first use, and where nothing acts it does nothing.
It sees what goes through Python's `socket`; a library that makes system calls itself is not held.
"""

from __future__ import annotations

import errno
import functools
import socket
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pytest_codeprobe.run.offline.hosts import Policy, address_of, is_loopback, is_own_name

_CONNECTS = frozenset({"socket.connect", "socket.sendto", "socket.sendmsg"})
_LOOKUPS = frozenset({"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"})
_THREADS = frozenset({"_thread.start_new_thread", "_thread.start_joinable_thread"})
_WATCHED = _CONNECTS | _LOOKUPS | _THREADS
_INTERNET = (socket.AF_INET, socket.AF_INET6)


@dataclass(eq=False, slots=True)
class Acting:
    """For whom a thread acts. `tried` is told of each host and port that is not allowed, before the caller is."""

    policy: Policy
    tried: Callable[[str, int | None], None]
    over: bool = False  #: the trial is: what still acts for it is not held any more
    _resolved: dict[str, set[str]] = field(default_factory=dict)  #: allowed name -> addresses that it has had

    def check(self, host: str, port: int | None) -> None:
        """PermissionError where it is not allowed."""
        if not self.policy.allows(host, port) and not self._is_address_of_allowed(host, port):
            self.refuse(host, port)

    def check_name(self, host: str, port: int | None) -> None:
        """The same of a name that is only looked up; what an allowed one leads to may then be reached."""
        if is_own_name(host) or is_loopback(host):
            return
        self.check(host, port)
        if address_of(host) is None:
            self._resolve(host)

    def refuse(self, host: str, port: int | None) -> None:
        """Tell it and raise."""
        self.tried(host, port)
        place = host if port is None else f"{host}:{port}"
        raise PermissionError(errno.EACCES, f"--codeprobe-offline: {place} is neither loopback nor allowed")

    def _is_address_of_allowed(self, host: str, port: int | None) -> bool:
        if address_of(host) is None:
            return False
        for again in (False, True):  # an answer of the resolver may be another one than ours
            for name, addresses in list(self._resolved.items()):
                if not self.policy.allows(name, port):
                    continue
                if again:
                    self._resolve(name)
                if host in addresses:
                    return True
        return False

    def _resolve(self, name: str) -> None:
        known = self._resolved.setdefault(name, set())
        with unheld():
            try:
                found = socket.getaddrinfo(name, None)
            except OSError:
                return  # the caller will see it, too
        known.update(str(entry[4][0]) for entry in found)


class _Nobody:
    """In the place of an Acting: the thread does something for us, not for a trial."""


_NOBODY = _Nobody()
_acting: ContextVar[Acting | _Nobody | None] = ContextVar("codeprobe_acting", default=None)
_here = threading.local()  #: `.who`: the same for all that this thread does, also in contexts that were made elsewhere
#: threads that were started by code of a trial, which a context variable does not reach; replaced as a whole, never changed
_started: tuple[tuple[weakref.ref[threading.Thread], Acting], ...] = ()
_starting = threading.Lock()


@contextmanager
def acting(who: Acting) -> Iterator[None]:
    """Within, this thread acts for it, and so do threads that it starts."""
    _install()
    with _as(who):
        yield


@contextmanager
def unheld() -> Iterator[None]:
    """Within, this thread acts for nobody."""
    with _as(_NOBODY):
        yield


@contextmanager
def _as(who: Acting | _Nobody) -> Iterator[None]:
    token, before = _acting.set(who), getattr(_here, "who", None)
    _here.who = who
    try:
        yield
    finally:
        _here.who = before
        _acting.reset(token)


@functools.cache
def _install() -> None:
    sys.addaudithook(_hook)
    if sys.version_info < (3, 12):
        _follow_starts()


def _follow_starts() -> None:
    """Where the start of a thread is no event yet, hear of it from `threading` itself."""
    start = threading.Thread.start

    @functools.wraps(start)
    def followed(thread: threading.Thread) -> None:
        who = _current()
        if who is not None:
            _note_thread(thread, who)
        start(thread)

    threading.Thread.start = followed  # type: ignore[assignment, method-assign]


def _current() -> Acting | None:
    """For whom this thread acts."""
    who = _acting.get() or getattr(_here, "who", None)
    if who is None and _started:
        who = _of_thread()
    return who if isinstance(who, Acting) and not who.over else None


def _hook(event: str, arguments: tuple[Any, ...]) -> None:
    if event not in _WATCHED:
        return
    who = _current()
    if who is None:
        return
    if event in _CONNECTS:
        _check_connect(who, *arguments)
    elif event in _LOOKUPS:
        _check_lookup(who, *arguments)
    else:
        thread = getattr(arguments[0], "__self__", None)
        if isinstance(thread, threading.Thread):
            _note_thread(thread, who)


def _note_thread(thread: threading.Thread, who: Acting) -> None:
    global _started  # noqa: PLW0603
    with _starting:
        alive = [(ref, its) for ref, its in _started if ref() is not None and not its.over]
        _started = (*alive, (weakref.ref(thread), who))


def _of_thread() -> Acting | None:
    """Of this thread, by who started it. current_thread() would make an object for a thread that is not Python's own."""
    here = threading.get_ident()
    for ref, who in _started:
        thread = ref()
        if thread is not None and thread.ident == here and thread.is_alive():
            return who
    return None


def _check_connect(who: Acting, sock: socket.socket, address: Any) -> None:
    if sock.family in _INTERNET and isinstance(address, tuple) and len(address) > 1:
        who.check(_text(address[0]), _number(address[1]))


def _check_lookup(who: Acting, host: Any, port: Any = None, *_: Any) -> None:
    host, port = host[:2] if isinstance(host, tuple) else (host, port)
    name = _text(host)
    if name:
        who.check_name(name, _number(port))


def _number(port: Any) -> int | None:
    """Of a service, which may be given by name, or not at all."""
    text = _text(port)
    return int(text) if text.isdecimal() and 0 < int(text) < 1 << 16 else None


def _text(value: Any) -> str:
    return value.decode("ascii", "replace") if isinstance(value, bytes | bytearray) else str(value or "")
