"""A simple index of wheels on loopback that wants a login, and counts what it is asked for."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

USER, TOKEN = "buyer", "t0ken-of-the-index"


@dataclass
class Index:
    """`url`: with the login in it. `silent`: it takes requests and never answers."""

    wheels: Path
    silent: bool = False
    asked: list[str] = field(default_factory=list)
    url: str = ""

    def answer(self, path: str, login: str) -> tuple[int, bytes]:
        """Status and content."""
        self.asked.append(path)
        if login != f"Basic {base64.b64encode(f'{USER}:{TOKEN}'.encode()).decode()}":
            return 401, b""
        name = path.strip("/").rpartition("/")[2]
        if name.endswith(".whl"):
            return 200, (self.wheels / name).read_bytes()
        links = [f'<a href="/{file.name}">{file.name}</a>' for file in sorted(self.wheels.glob(f"{name}-*.whl"))]
        return (200, f"<!DOCTYPE html><html><body>{' '.join(links)}</body></html>".encode()) if links else (404, b"")


@contextmanager
def index(wheels: Path, *, silent: bool = False) -> Iterator[Index]:
    """While it is served."""
    shown, over = Index(wheels, silent), threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if shown.silent:
                shown.asked.append(self.path)
                over.wait(120)
                return
            status, content = shown.answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if not self.path.endswith(".whl") else "application/zip")
            self.send_header("Content-Length", str(len(content)))
            if status == 401:
                self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        shown.url = f"http://{USER}:{TOKEN}@127.0.0.1:{server.server_port}/simple"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield shown
        finally:
            over.set()
            server.shutdown()
