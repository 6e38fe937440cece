"""What a client asks a proxy for: a tunnel to a place, or something by its URL."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

#: some clients leave the brackets of an IPv6 address out
_CONNECT = re.compile(r"CONNECT (?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s\[\]]+):(?P<port>\d{1,5}) HTTP/1\.[01]", re.IGNORECASE)
_PLAIN = re.compile(r"(?P<method>[!-~]+) (?P<url>(?P<scheme>http|https|ftp|ws|wss)://\S+) HTTP/1\.[01]", re.IGNORECASE)
#: what a client may ask a proxy for by URL; of these only http is spoken
_PORTS = {"http": 80, "ws": 80, "https": 443, "wss": 443, "ftp": 21}
_HOP = re.compile(r"(?im)^(?:proxy-[^:\r\n]*|connection|keep-alive):[^\r\n]*\r\n")


@dataclass(frozen=True, slots=True)
class Target:
    """Where to, and what to say there."""

    host: str
    port: int
    tunnel: bool  #: the client will speak to it itself; else what follows is the request
    method: str = ""
    url: str = ""
    path: str = ""
    fields: str = ""  #: header lines, those for this connection alone left out
    spoken: bool = True  #: False: nothing but its place is of interest

    def head(self, url: str, login: str) -> bytes:
        """The request's head as the next one gets it. One request for each connection: the client's next may be for another host."""
        return f"{self.method} {url} HTTP/1.1\r\n{self.fields}{login}Connection: close\r\n\r\n".encode("latin-1")


def parse(head: str) -> Target | None:
    """The target of a request to a proxy."""
    line, _, rest = head.partition("\n")
    line, is_whole = line.removesuffix("\r"), rest.endswith("\r\n")
    if found := _CONNECT.fullmatch(line):
        port = int(found["port"])
        return Target(_host(found["host"].strip("[]")), port, tunnel=True, spoken=is_whole) if 0 < port < 1 << 16 else None
    found = _PLAIN.fullmatch(line)
    if found is None:
        return None
    scheme = found["scheme"].lower()
    try:
        parts = urlsplit(found["url"])
        port = parts.port or _PORTS[scheme]
    except ValueError:
        return None
    if not parts.hostname:
        return None
    host, spoken = _host(parts.hostname), is_whole and scheme == "http"
    fields = _HOP.sub("", rest)[:-2]
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    return Target(host, port, tunnel=False, method=found["method"], url=found["url"], path=path, fields=fields, spoken=spoken)


def _host(name: str) -> str:
    """A name out of a head that was read byte by byte: some clients write it in UTF-8."""
    try:
        return name.encode("latin-1").decode()
    except UnicodeError:
        return name
