"""Who logs in at a repository's server, out of its URL: git gets that by its environment, as all users of a machine see command lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

_NAME, _PASSWORD = "_CODEPROBE_GIT_NAME", "_CODEPROBE_GIT_PASSWORD"
#: answers git's question for them; git adds what it wants of it, `get` or `store`
_HELPER = f'!f() {{ [ "$1" != get ] || printf "username=%s\\npassword=%s\\n" "${_NAME}" "${_PASSWORD}"; }}; f'


@dataclass(frozen=True, slots=True)
class Login:
    """`password` None: the user's own credential helpers are asked for it; where they have none, the name is a token."""

    name: str
    password: str | None

    @property
    def options(self) -> list[str]:
        """For git, before its command."""
        alone = [] if self.password is None else ["-c", "credential.helper="]
        return [*alone, "-c", f"credential.helper={_HELPER}"]

    def environment(self, environ: Mapping[str, str]) -> dict[str, str]:
        """What git needs beside `environ`."""
        told = environ.get("GIT_CONFIG_COUNT", "")
        number = int(told) if told.isdigit() else 0
        return {
            _NAME: self.name,
            _PASSWORD: self.password or "",
            "GIT_CONFIG_COUNT": str(number + 1),
            f"GIT_CONFIG_KEY_{number}": "credential.username",
            f"GIT_CONFIG_VALUE_{number}": self.name,
        }


def without_login(url: str) -> tuple[str, Login | None]:
    """A URL of HTTP without who logs in there, and who that is; other URLs as they are."""
    head, separator, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    who, at, host = place.rpartition("@")
    if not separator or not at or head.lower() not in ("http", "https"):
        return url, None
    name, colon, password = who.partition(":")
    return f"{head}://{host}{slash}{path}", Login(unquote(name), unquote(password) if colon else None)
