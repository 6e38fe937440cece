"""The relay's settings."""

import configparser
from dataclasses import dataclass
from pathlib import Path


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


def split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def load(path: Path) -> Settings:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(path)
    relay = parser["relay"]
    routes = []
    for name in parser.sections():
        if name.startswith("route:"):
            section = parser[name]
            routes.append(Route(name.removeprefix("route:"), split(section["domains"]), section["host"], section.getint("port", 25)))
    return Settings(
        relay["listen"],
        relay.getint("port"),
        relay.getboolean("verbose", False),
        split(relay.get("allow", "")),
        tuple(routes),
    )
