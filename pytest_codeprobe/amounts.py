"""Money and time as a person reads them."""

from __future__ import annotations

import math


def dollars(amount: float) -> str:
    """US dollars: whole cents where they are enough, never `$0.00` for what is not nothing."""
    if 0 < amount < 0.0001:
        return f"${amount:.{3 - math.ceil(math.log10(amount))}f}".rstrip("0")
    fine = f"{amount:.4f}"
    return f"${amount:,.2f}" if amount >= 1 or fine.endswith("00") else f"${fine}"


_UNITS = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def span(seconds: float) -> str:
    """A length of time as a person says it: `0.5 s`, `90 s`, `30 min`, `1 h 30 min`; from two minutes on to the second."""
    if seconds < 120:
        return f"{seconds:.3g} s"
    left, parts = round(seconds), list[str]()
    for size, unit in _UNITS:
        if left >= size and len(parts) < 2:
            parts.append(f"{left // size} {unit}")
        left %= size
    return " ".join(parts)
