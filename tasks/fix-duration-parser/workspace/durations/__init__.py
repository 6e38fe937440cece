"""Durations as people write them."""

from durations.parsing import parse
from durations.rendering import render

__all__ = ["parse", "render"]
