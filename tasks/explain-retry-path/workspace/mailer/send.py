"""One message, from here to the server."""

import time
from collections.abc import Callable

from mailer.parking import park
from mailer.policy import Policy, worth_another

OK = 250


class DeliveryError(Exception):
    """A try that failed."""

    def __init__(self, code: int) -> None:
        super().__init__(f"the server said {code}")
        self.code = code


class Undeliverable(Exception):
    """All tries failed."""


def attempt(message: str, hand_over: Callable[[str], int]) -> None:
    code = hand_over(message)
    if code != OK:
        raise DeliveryError(code)


def send(message: str, hand_over: Callable[[str], int], policy: Policy | None = None) -> bool:
    """True: the server has it. False: it was parked."""
    policy = policy or Policy()
    waits = policy.delays()
    while True:
        try:
            attempt(message, hand_over)
            return True
        except DeliveryError as error:
            if not worth_another(error.code):
                park(message, error.code)
                return False
            wait = next(waits, None)
            if wait is None:
                raise Undeliverable(message) from error
            time.sleep(wait)
