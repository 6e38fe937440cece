"""Which hosts may be reached: loopback, and what ini codeprobe_offline_allow or an agent's adapter names."""

from __future__ import annotations

import functools
import ipaddress
import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pytest_codeprobe.model.network import Endpoint
from pytest_codeprobe.options import ALLOWED_HOST

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_NETWORKS = ipaddress.IPv4Network | ipaddress.IPv6Network
#: names of loopback that no resolver has to be asked for
_LOOPBACK_NAMES = frozenset({"localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback"})
_HOSTS_FILE = Path("/etc/hosts")


def host_name(host: str) -> str:
    """A host as it is compared: without brackets and the last dot, lower case, in ASCII."""
    name = host.strip().removeprefix("[").removesuffix("]").rstrip(".").lower()
    try:
        return name if name.isascii() else name.encode("idna").decode()
    except UnicodeError:
        return name


def address_of(host: str) -> Address | None:
    """The address that a host is written as, also in the old ways (`127.1`, `0x7f000001`); None for a name."""
    text = host_name(host).partition("%")[0]
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        if not re.fullmatch(r"[0-9a-fx.]+", text) or not text[:1].isdigit():
            return None
        try:
            return ipaddress.IPv4Address(socket.inet_aton(text))
        except OSError:
            return None
    return getattr(found, "ipv4_mapped", None) or found


def is_loopback(host: str) -> bool:
    """Whether it is this machine's loopback, by address or by a name that leads nowhere else. An unspecified address means it, too."""
    address = address_of(host)
    if address is not None:
        return address.is_loopback or address.is_unspecified
    name = host_name(host)
    return not name or name in _LOOPBACK_NAMES or name.endswith(".localhost") or name in _names_by_file()


def is_own_name(host: str) -> bool:
    """Whether it is this machine's own name: programs look it up without meaning to go anywhere."""
    return host_name(host) == host_name(socket.gethostname())


@functools.cache
def _names_by_file() -> frozenset[str]:
    """Names that the hosts file has for loopback addresses and for no others."""
    inside, outside = set[str](), set[str]()
    try:
        lines = _HOSTS_FILE.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        first, *names = line.partition("#")[0].split() or [""]
        address = address_of(first)
        if address is not None:
            (inside if address.is_loopback else outside).update(map(host_name, names))
    return frozenset(inside - outside)


@dataclass(frozen=True, slots=True)
class Rule:
    """One host, or many, that may be reached. Of `name` and `network` one is set; `port` None: any."""

    name: str = ""
    below: bool = False  #: the name's subdomains instead of it
    network: _NETWORKS | None = None
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Of a word that has the shape of ALLOWED_HOST, as options/values.py has made sure."""
        found = ALLOWED_HOST.fullmatch(text)
        assert found is not None, text
        port = int(found["port"]) if found["port"] else None
        name = found["host"].strip("[]")
        if "/" in name or address_of(name) is not None:
            return cls(network=ipaddress.ip_network(name if "/" in name else str(address_of(name)), strict=False), port=port)
        return cls(name=host_name(name.removeprefix("*.")), below=name.startswith("*."), port=port)

    @classmethod
    def of_endpoint(cls, endpoint: Endpoint) -> Rule:
        """Of what an adapter names."""
        address = address_of(endpoint.host)
        if address is not None:
            return cls(network=ipaddress.ip_network(address), port=endpoint.port)
        return cls(name=host_name(endpoint.host), port=endpoint.port)

    def fits(self, host: str, port: int | None) -> bool:
        """Whether it allows this one. `port` None: it is not known yet."""
        return (self.port is None or port is None or self.port == port) and self._fits_host(host)

    def _fits_host(self, host: str) -> bool:
        address = address_of(host)
        if self.network is not None:
            return address is not None and address.version == self.network.version and address in self.network
        name = host_name(host)
        return address is None and (name.endswith("." + self.name) if self.below else name == self.name)


class Policy:
    """Loopback and these."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)

    def allows(self, host: str, port: int | None) -> bool:
        """Whether it may be reached. `port` None: it is not known yet."""
        return is_loopback(host) or any(rule.fits(host, port) for rule in self.rules)

    def plus(self, endpoints: Iterable[Endpoint]) -> Policy:
        """And these."""
        return Policy((*self.rules, *map(Rule.of_endpoint, endpoints)))
