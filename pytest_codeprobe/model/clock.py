"""The real clock."""

from __future__ import annotations

from datetime import UTC, datetime
from time import monotonic, sleep  # as they are at the start: tests that run beside trials replace them


class SystemClock:
    """Wall time in UTC, and the monotonic clock."""

    def now(self) -> datetime:
        """UTC, aware."""
        return datetime.now(UTC)

    def monotonic(self) -> float:
        """Seconds that never run backwards."""
        return monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait."""
        sleep(seconds)


def stamp(moment: datetime) -> str:
    """ISO 8601 in UTC to the millisecond, with a Z."""
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
