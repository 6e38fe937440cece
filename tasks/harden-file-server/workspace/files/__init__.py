"""Files for the web."""

from files.resolve import NotFound, resolve

__all__ = ["NotFound", "resolve"]
