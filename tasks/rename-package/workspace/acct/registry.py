"""Formats by name."""

import importlib
import json
from collections.abc import Callable
from pathlib import Path

DEFAULT = "acct.formats.plain:render"


def load(name: str, listing: Path = Path("formats.json")) -> Callable[[dict[str, int], str], str]:
    target = json.loads(listing.read_text(encoding="utf-8"))[name] if listing.exists() else DEFAULT
    module, function = target.split(":")
    return getattr(importlib.import_module(module), function)
