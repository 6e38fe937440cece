"""When to try again, and how long to wait before."""

import configparser
from collections.abc import Iterator


class Policy:
    def __init__(self, path: str = "settings.ini") -> None:
        parser = configparser.ConfigParser()
        parser.read(path)
        section = parser["delivery"]
        self.retries = section.getint("retries")
        self.first_delay = section.getfloat("first_delay")
        self.factor = section.getfloat("factor")
        self.longest_delay = section.getfloat("longest_delay")

    def delays(self) -> Iterator[float]:
        """The waits before the second try, the third, and so on."""
        delay = self.first_delay
        for _ in range(self.retries):
            yield min(delay, self.longest_delay)
            delay *= self.factor


def permanent(code: int) -> bool:
    return 500 <= code < 600


def worth_another(code: int) -> bool:
    """421 is a server that goes down for a moment; it says so with a code that looks harmless."""
    return code == 421 or not permanent(code)
