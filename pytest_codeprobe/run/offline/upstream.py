"""The proxy that a process would have used: what it may reach is reached through it."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from pytest_codeprobe.run.offline.hosts import address_of, host_name

#: all names by which a proxy is set, in lower case
PROXY_VARIABLES = frozenset({"http_proxy", "https_proxy", "all_proxy", "no_proxy"})


@dataclass(frozen=True, slots=True)
class Proxy:
    """One of the user's."""

    scheme: str
    host: str
    port: int
    authorization: str = ""  #: value of the header Proxy-Authorization

    @classmethod
    def parse(cls, url: str) -> Proxy | None:
        """Of a variable's value; None where it can't be read."""
        try:
            parts = urlsplit(url if "://" in url else f"http://{url}")
            port = parts.port or (443 if parts.scheme == "https" else 80)
        except ValueError:
            return None
        if not parts.hostname:
            return None
        if parts.username is None:
            return cls(parts.scheme, parts.hostname, port)
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        return cls(parts.scheme, parts.hostname, port, "Basic " + base64.b64encode(user.encode()).decode())


@dataclass(frozen=True, slots=True)
class Upstream:
    """The proxies of an environment."""

    http: Proxy | None = None
    https: Proxy | None = None
    without: tuple[str, ...] = ()  #: NO_PROXY

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Upstream:
        """As curl reads it: the small name before the big one."""

        def value(name: str) -> str:
            return environ.get(name) or environ.get(name.upper()) or ""

        every = value("all_proxy")
        http, https = (Proxy.parse(url) if (url := value(name) or every) else None for name in ("http_proxy", "https_proxy"))
        return cls(http, https, tuple(host_name(part) for part in value("no_proxy").replace(",", " ").split()))

    def proxy_for(self, host: str, port: int, *, encrypted: bool) -> Proxy | None:
        """None: it is reached without one."""
        return None if any(_covers(entry, host, port) for entry in self.without) else self.https if encrypted else self.http


def _covers(entry: str, host: str, port: int) -> bool:
    """Whether an entry of NO_PROXY means this host."""
    if entry == "*":
        return True
    address = address_of(host)
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name, _, only = entry.removeprefix("*").removeprefix(".").partition(":")
    wanted = host_name(host)
    return bool(name) and only in ("", str(port)) and (wanted == name or wanted.endswith(f".{name}"))
