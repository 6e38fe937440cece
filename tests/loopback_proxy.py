"""An HTTP proxy on loopback that stands for the user's own: it knows the names that a test gives it, and writes down what was asked."""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

_CHUNK = 1 << 16


class LoopbackProxy:
    """A context manager that listens inside the `with`.

    `targets`: `host:port` -> the port on 127.0.0.1 that it leads to; anything else is answered with 502. `asked` holds all that was asked.
    `login`: the Proxy-Authorization that it wants. `tls`: it answers a CONNECT as the host itself would, with this, and passes on what
    was encrypted.
    """

    def __init__(self, targets: Mapping[str, int], *, login: str | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.targets, self.login, self._tls = targets, login, tls
        self.asked: list[str] = []
        self.heads: list[str] = []
        self._own = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._own.getsockname()[1])
        self._listeners = [self._own]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._serve(self._own)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for listener in self._listeners:
            with contextlib.suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)  # wakes its accept()
            listener.close()

    def join(self, listener: socket.socket) -> None:
        """Serve a further listening socket, one of another network namespace for instance."""
        self._listeners.append(listener)
        self._serve(listener)

    def _serve(self, listener: socket.socket) -> None:
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=self._handle, args=(connection,), daemon=True).start()

    def _handle(self, client: socket.socket) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            stack.enter_context(client)
            raw = b""
            while b"\r\n\r\n" not in raw:
                if not (data := client.recv(_CHUNK)):
                    return
                raw += data
            head, _, body = raw.partition(b"\r\n\r\n")
            line, _, fields = head.decode("latin-1").partition("\r\n")
            self.heads.append(head.decode("latin-1"))
            method, url, version = line.split(" ")
            parts = urlsplit(f"//{url}" if method == "CONNECT" else url)
            place = f"{parts.hostname}:{parts.port or 80}"
            self.asked.append(place)
            if self.login is not None and f"Proxy-Authorization: {self.login}" not in fields:
                client.sendall(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
                return
            if place not in self.targets:
                client.sendall(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
                return
            with socket.create_connection(("127.0.0.1", self.targets[place])) as server:
                if method == "CONNECT":
                    client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                    if self._tls is not None:
                        client = stack.enter_context(self._tls.wrap_socket(client, server_side=True))
                else:
                    fields = re.sub(r"(?im)^proxy-[^\r\n]*\r\n?", "", fields)
                    path = parts.path + (f"?{parts.query}" if parts.query else "")
                    server.sendall(f"{method} {path or '/'} {version}\r\n{fields}\r\n\r\n".encode("latin-1") + body)
                back = threading.Thread(target=_pump, args=(server, client), daemon=True)
                back.start()
                _pump(client, server)
                back.join()


def _pump(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
