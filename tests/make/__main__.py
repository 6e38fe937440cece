"""`python -m tests.make COMMAND`, which the Makefile calls."""

from __future__ import annotations

import sys
from collections.abc import Callable

from tests.make import demo, lock, suites
from tests.make.project import MakeError, say


def _lock() -> int:
    lock.lock()
    return 0


COMMANDS: dict[str, Callable[[], int]] = {
    "test": suites.test,
    "lint": suites.lint,
    "bench": suites.bench,
    "soak": suites.soak,
    "lock": _lock,
    "demo": demo.demo,
}


def main(argv: list[str]) -> int:
    """Run one command; a MakeError becomes its last line."""
    if len(argv) != 1 or argv[0] not in COMMANDS:
        sys.stderr.write(f"usage: python -m tests.make {{{','.join(COMMANDS)}}}\n")
        return 2
    try:
        return COMMANDS[argv[0]]()
    except MakeError as error:
        say(f"{error}\n{argv[0]}: FAILED")
        return 1
    except KeyboardInterrupt:
        say(f"{argv[0]}: interrupted")
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
