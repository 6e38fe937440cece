"""What of this machine a container shows, in the engines' words."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path


def mounts(binds: Iterable[tuple[Path, Path, bool]]) -> Iterator[str]:
    """The words for what is mounted: (of this machine, inside, read-only). The last one for a place counts."""
    for target, (source, read_only) in {target: (source, read_only) for source, target, read_only in binds}.items():
        fields = ["type=bind", f"source={os.path.realpath(source)}", f"target={target}", *(["readonly"] if read_only else [])]
        yield from ("--mount", ",".join(_field(text) for text in fields))


def _field(text: str) -> str:
    """As in a line of CSV, which is what engines read."""
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n') else text


def outermost(places: Iterable[Path]) -> list[Path]:
    """Those that are there and lie in none of the others."""
    kept: list[Path] = []
    for place in sorted(dict.fromkeys(places), key=lambda path: len(path.parts)):
        if place.exists() and place != Path("/") and not any(place.is_relative_to(other) for other in kept):
            kept.append(place)
    return kept
