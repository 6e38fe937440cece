"""The relay's settings."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class SettingsError(Exception):
    """The settings can't be used; the text says why."""


@dataclass(frozen=True)
class Route:
    name: str
    domains: tuple[str, ...]
    host: str
    port: int = 25


@dataclass(frozen=True)
class Settings:
    listen: str
    port: int
    verbose: bool = False
    allow: tuple[str, ...] = ()
    routes: tuple[Route, ...] = ()


def text(value: Any, key: str) -> str:
    if not isinstance(value, str):
        raise SettingsError(f"{key}: a string is expected, not {value!r}")
    return value


def switch(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise SettingsError(f"{key}: true or false is expected, not {value!r}")
    return value


def port(value: Any, key: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 65535:
        raise SettingsError(f"{key}: a number from 1 to 65535 is expected, not {value!r}")
    return value


def array(value: Any, key: str) -> list[Any]:
    if not isinstance(value, list):
        raise SettingsError(f"{key}: an array is expected, not {value!r}")
    return value


def texts(value: Any, key: str) -> tuple[str, ...]:
    return tuple(text(entry, f"{key}[{number}]") for number, entry in enumerate(array(value, key)))


def route(value: Any, key: str) -> Route:
    if not isinstance(value, Mapping):
        raise SettingsError(f"{key}: a table is expected, not {value!r}")
    fields = read(value, {"name": text, "domains": texts, "host": text, "port": port}, ("name", "domains", "host"), f"{key}.")
    return Route(**fields)


def routes(value: Any, key: str) -> tuple[Route, ...]:
    return tuple(route(entry, f"{key}[{number}]") for number, entry in enumerate(array(value, key)))


def read(
    table: Mapping[str, Any], readers: Mapping[str, Callable[[Any, str], Any]], required: tuple[str, ...], prefix: str = ""
) -> dict[str, Any]:
    """The values of a table, checked; keys in messages begin with the prefix."""
    for key in table:
        if key not in readers:
            raise SettingsError(f"{prefix}{key}: unknown key")
    for key in required:
        if key not in table:
            raise SettingsError(f"{prefix}{key}: missing")
    return {key: readers[key](value, prefix + key) for key, value in table.items()}


def load(path: Path) -> Settings:
    """Reads and checks a settings file; SettingsError names the key that is wrong."""
    try:
        table = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path}: {error}") from error
    readers = {"listen": text, "port": port, "verbose": switch, "allow": texts, "routes": routes}
    return Settings(**read(table, readers, ("listen", "port")))
