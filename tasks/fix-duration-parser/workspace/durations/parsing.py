"""Text to seconds."""

import re

from durations.units import UNITS

PART = re.compile(r"(\d+)([a-z]?)")


def parse(text: str) -> int:
    """Seconds in a text such as "45m"."""
    seconds = 0
    for number, unit in PART.findall(text):
        seconds = int(number) * UNITS.get(unit, 1)
    return seconds
