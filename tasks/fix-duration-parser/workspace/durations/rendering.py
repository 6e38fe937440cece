"""Seconds to text."""

from durations.units import UNITS


def render(seconds: int) -> str:
    """The text for a number of seconds."""
    for unit in ("m", "s"):
        if seconds % UNITS[unit] == 0:
            return f"{seconds // UNITS[unit]}{unit}"
    raise ValueError(seconds)
