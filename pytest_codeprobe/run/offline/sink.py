"""The recording sink: a proxy on loopback, with a port for each component of each trial.

Clients that honour proxy variables ask it for every host but loopback. What is allowed it tunnels, through the user's own proxy
where there is one; anything else is told to who owns the port, and answered with 403. One thread with an event loop serves all ports
of a process: it dies with the process, and by then the keepers are ending whatever could ask it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import re
import socket
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_codeprobe.errors import with_frames
from pytest_codeprobe.run.offline.door import came_through, open_door
from pytest_codeprobe.run.offline.guard import unheld
from pytest_codeprobe.run.offline.hosts import Policy, host_name, is_loopback
from pytest_codeprobe.run.offline.request import Target, parse
from pytest_codeprobe.run.offline.upstream import Proxy, Upstream

_log = logging.getLogger(__name__)
_HEAD = 64 << 10  #: bytes of a request's head
_CHUNK = 64 << 10
_HEAD_SECONDS = 60.0  #: for a client to say what it wants
_CONNECT_SECONDS = 60.0
_LINGER_SECONDS = 1.0  #: for a client to take its answer
_SETTLE_SECONDS = 1.0  #: for what is left of a client that is gone; its end is in the socket already
_ANSWER_SECONDS = 60.0  #: for the loop to answer this process's other threads
_CLOSE_SECONDS = 10.0  #: a name may be being looked up
_PAUSE = 0.2  #: seconds without taking connections where there are no descriptors for them
_BACKLOG = 256
_MOST = 128  #: connections to one port at a time, each with another one to where it leads; descriptors are pytest's, too
_BLANK_LINE = re.compile(rb"\r?\n\r?\n")
_NO_TRANSPORT = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError)


@dataclass(eq=False, slots=True)
class Port:
    """One listening port of the sink."""

    policy: Policy
    upstream: Upstream
    tried: Callable[[str, int | None], None]
    listener: socket.socket
    doors: dict[Path, socket.socket] = field(default_factory=dict)  #: by folder; on each one is awaited that listens in another network
    inside: list[socket.socket] = field(default_factory=list)  #: those that came
    asking: set[asyncio.Future[None]] = field(default_factory=set)  #: of connections that have not said yet what they want
    open: set[asyncio.Task[None]] = field(default_factory=set)  #: all connections

    @property
    def url(self) -> str:
        """What a proxy variable holds."""
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"


class Sink:
    """See the module. From any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def open(self, policy: Policy, upstream: Upstream, tried: Callable[[str, int | None], None]) -> Port:
        """A port that allows what the policy does; `tried` is called, in the sink's thread, with the rest. OSError where there is none."""
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            listener.bind(("127.0.0.1", 0))
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            port = Port(policy, upstream, tried, listener)
            self._do(self._begin(port))
        except BaseException:
            listener.close()
            raise
        return port

    def await_door(self, port: Port, folder: Path) -> None:
        """Serve the port to a network namespace too, once children/door.py has handed out its socket. OSError where that can't be."""
        door = open_door(folder)
        try:
            self._do(self._begin_door(port, folder, door))
        except BaseException:
            door.close()
            raise

    def has_let_in(self, port: Port, folder: Path) -> bool:
        """Whether a socket was handed out through a door so far."""
        self._do(self._look(port, folder))
        return folder not in port.doors

    def settle(self, port: Port) -> None:
        """Take in what was said to the port before, then close it and whatever it still tunnels."""
        self._do(self._settle(port))

    def close(self) -> None:
        """End the thread."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(_CLOSE_SECONDS)

    # ---- the thread
    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        with self._lock:
            if self._loop is None:
                try:
                    self._start()
                except BaseException:
                    work.close()
                    raise
            assert self._loop is not None
            with unheld():  # what the loop does later would else be held as what its caller does
                future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.result(_ANSWER_SECONDS)

    def _start(self) -> None:
        """OSError where the system gives no thread or no descriptors."""
        loop = asyncio.new_event_loop()
        loop.set_exception_handler(_note)
        thread = threading.Thread(target=_serve, args=(loop,), name="codeprobe-sink", daemon=True)
        try:
            with unheld():
                thread.start()
        except RuntimeError as error:
            loop.close()
            raise OSError(str(error)) from error
        self._loop, self._thread = loop, thread

    async def _begin(self, port: Port) -> None:
        asyncio.get_running_loop().add_reader(port.listener, self._accept, port, port.listener)

    async def _begin_door(self, port: Port, folder: Path, door: socket.socket) -> None:
        port.doors[folder] = door
        asyncio.get_running_loop().add_reader(door, self._let_in, port, folder)

    async def _look(self, port: Port, folder: Path) -> None:
        if folder in port.doors:
            self._let_in(port, folder)

    def _let_in(self, port: Port, folder: Path) -> None:
        """The first that comes is the one: it was sent before anything of the command ran."""
        loop, door = asyncio.get_running_loop(), port.doors[folder]
        listener = came_through(door)
        if listener is None:
            return
        loop.remove_reader(door)
        del port.doors[folder]
        door.close()
        port.inside.append(listener)
        loop.add_reader(listener, self._accept, port, listener)

    def _accept(self, port: Port, listener: socket.socket, most: int = _MOST) -> None:
        """All connections that wait; where there are too many already, or no descriptors for them, they wait longer."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                if len(port.open) >= most:
                    raise OSError(errno.EMFILE, "too many connections")
                connection, _ = listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS):
                    loop.remove_reader(listener)
                    loop.call_later(_PAUSE, self._go_on, port, listener)
                    return
                continue  # it is gone already
            connection.setblocking(False)
            asked = loop.create_future()
            port.asking.add(asked)
            asked.add_done_callback(port.asking.discard)
            task = loop.create_task(_Connection(port, connection, asked, inside=listener is not port.listener).serve())
            port.open.add(task)
            task.add_done_callback(port.open.discard)

    def _go_on(self, port: Port, listener: socket.socket) -> None:
        if listener.fileno() >= 0:
            asyncio.get_running_loop().add_reader(listener, self._accept, port, listener)

    async def _settle(self, port: Port) -> None:
        loop = asyncio.get_running_loop()
        for folder in list(port.doors):
            self._let_in(port, folder)
        for listener in (port.listener, *port.inside):
            self._accept(port, listener, most=2 * _BACKLOG)
        for each in (port.listener, *port.inside, *port.doors.values()):
            loop.remove_reader(each)
            each.close()
        if port.asking:
            await asyncio.wait(port.asking, timeout=_SETTLE_SECONDS)
        for task in port.open:
            task.cancel()
        if port.open:
            await asyncio.wait(port.open)


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        if tasks := asyncio.all_tasks(loop):
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def _note(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    _log.debug("%s\n%s", context.get("message"), with_frames(error) if isinstance(error, BaseException) else "")


class _Connection:
    """One client."""

    def __init__(self, port: Port, connection: socket.socket, asked: asyncio.Future[None], *, inside: bool) -> None:
        self._port, self._connection, self._asked, self._inside = port, connection, asked, inside

    async def serve(self) -> None:
        """From its request to the end of what it is answered."""
        writer: asyncio.StreamWriter | None = None
        try:
            reader, writer = await asyncio.open_connection(sock=self._connection, limit=_HEAD)
            target, rest = await self._read(reader)
            self._asked.set_result(None)
            if target is None:
                text = "this is a proxy, and it knows CONNECT and http:// only"
                await _answer(reader, writer, "400 Bad Request", text)
            elif self._inside and is_loopback(target.host):  # of this machine, it would be: the client has one of its own
                await _answer(reader, writer, "403 Forbidden", "loopback is not to be asked for from a proxy")
            elif not self._port.policy.allows(target.host, target.port):
                text = f"offline, and {target.host}:{target.port} is neither loopback nor allowed"
                await _answer(reader, writer, "403 Forbidden", text)
            elif not target.spoken:
                await _answer(reader, writer, "400 Bad Request", "this proxy knows CONNECT and whole requests for http:// only")
            else:
                await self._tunnel(target, rest, reader, writer)
        except _NO_TRANSPORT as error:
            _log.debug("connection ended: %r", error)
        finally:
            if not self._asked.done():
                self._asked.set_result(None)
            if writer is None:
                self._connection.close()
            else:
                await _close(writer)

    async def _read(self, reader: asyncio.StreamReader) -> tuple[Target | None, bytes]:
        """What is wanted, told to the port's owner where it is not allowed, and what came behind it; None: no request to a proxy."""
        head, rest = await _head(reader)
        target = parse(head.decode("latin-1"))
        if target is not None and not self._port.policy.allows(target.host, target.port):
            self._port.tried(target.host, target.port)
        return target, rest

    async def _tunnel(self, target: Target, rest: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        proxy = None
        if not is_loopback(target.host):  # of the user's proxy that would be another machine's
            proxy = self._port.upstream.proxy_for(target.host, target.port, encrypted=target.tunnel and target.port != 80)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                back, there = await _reach(target, proxy)
        except (*_NO_TRANSPORT, UnicodeError) as error:  # the latter of names that are none, below a domain that is allowed
            text = f"{target.host}:{target.port} can't be reached: {str(error) or type(error).__name__}"
            await _answer(reader, writer, "502 Bad Gateway", text)
            return
        try:
            if target.tunnel:
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            there.write(rest)
            await _both_ways(reader, there, back, writer)
        finally:
            await _close(there)


async def _head(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """A request's head, and what came behind it. One that has no end is given as far as it came: whom it asks may stand in it."""
    head = b""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_HEAD_SECONDS):
            while (end := _BLANK_LINE.search(head)) is None and len(head) < _HEAD and (data := await reader.read(_CHUNK)):
                head += data
            if end is not None:
                return head[: end.end()].replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"), head[end.end() :]
    return head[: head.rfind(b"\n") + 1], b""


async def _reach(target: Target, proxy: Proxy | None) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection that is ready for what the client sends after its request's head. OSError where there is none."""
    if proxy is None:
        reader, writer = await asyncio.open_connection(target.host, target.port, limit=_HEAD)
        if not target.tunnel:
            writer.write(target.head(target.path, ""))
        return reader, writer
    if proxy.scheme not in ("http", "https"):
        raise OSError(f"a proxy of kind {proxy.scheme} is not supported under --codeprobe-offline")
    reader, writer = await asyncio.open_connection(proxy.host, proxy.port, limit=_HEAD, ssl=proxy.scheme == "https" or None)
    login = f"Proxy-Authorization: {proxy.authorization}\r\n" if proxy.authorization else ""
    if not target.tunnel:
        writer.write(target.head(target.url, login))
        return reader, writer
    try:
        host = host_name(target.host)
        place = f"[{host}]:{target.port}" if ":" in host else f"{host}:{target.port}"
        writer.write(f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n{login}\r\n".encode("latin-1"))
        answer = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").partition("\r\n")[0]
        if not re.fullmatch(r"HTTP/1\.[01] 2\d\d(?: .*)?", answer):
            raise OSError(f"the proxy {proxy.host}:{proxy.port} answered {answer!r}")
    except BaseException:
        writer.transport.abort()
        raise
    return reader, writer


async def _both_ways(
    client: asyncio.StreamReader, there: asyncio.StreamWriter, back: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Until the server has no more to say."""
    up = asyncio.get_running_loop().create_task(_pump(client, there))
    try:
        await _pump(back, writer)
    finally:
        up.cancel()
        with contextlib.suppress(asyncio.CancelledError, *_NO_TRANSPORT):
            await up


async def _pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while data := await source.read(_CHUNK):
        target.write(data)
        await target.drain()
    if target.can_write_eof():
        target.write_eof()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: str, text: str) -> None:
    """An answer of our own. What the client still sends is read for a moment: closing on it would take the answer with it."""
    body = f"codeprobe: {text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    writer.write(head.encode() + body)
    writer.write_eof()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_LINGER_SECONDS):
            while await reader.read(_CHUNK):
                pass  # of no interest


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        async with asyncio.timeout(_LINGER_SECONDS):
            await writer.wait_closed()
    except _NO_TRANSPORT:
        writer.transport.abort()
