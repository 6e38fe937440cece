"""Messages that a human has to look at."""

PARKED: list[tuple[str, int]] = []


def park(message: str, code: int) -> None:
    PARKED.append((message, code))
