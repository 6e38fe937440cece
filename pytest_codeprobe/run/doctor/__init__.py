"""Doctor: whether this machine has what a run would use. Each check says one thing, and what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.run.doctor import agents, drivers, machine
from pytest_codeprobe.run.doctor.check import Check, Subject
from pytest_codeprobe.run.envelope import ErrorEntry, entry

__all__ = ["Check", "Subject", "as_data", "examine", "faults"]

_MANY = 32  #: checks at once: most of them wait for a program to answer


def examine(subject: Subject) -> list[Check]:
    """All checks, side by side, in the order in which they are told. Never raises for what it finds."""
    tasks = [*machine.checks(subject), *agents.checks(subject), *drivers.checks(subject)]
    with ThreadPoolExecutor(_MANY, thread_name_prefix="codeprobe-doctor") as pool:
        found = [check for group in pool.map(_Safely(subject), tasks) for check in group]
    return [*found, *map(subject.clean, agents.overall(subject, found))]


class _Safely:
    """A check that raises is a finding too."""

    def __init__(self, subject: Subject) -> None:
        self.subject = subject

    def __call__(self, task: tuple[str, Callable[[], Sequence[Check]]]) -> Sequence[Check]:
        name, look = task
        try:
            found = look()
        except Exception as error:  # noqa: BLE001  # an adapter's or a driver's own code may raise anything
            what = f"could not be checked: {type(error).__name__}: {error}"
            found = [Check(name=name, status="warn", message=what, fix="Report it, with what `codeprobe doctor --json` prints.")]
        return [self.subject.clean(check) for check in found]


def as_data(subject: Subject, checks: Sequence[Check]) -> dict[str, Any]:
    """`data` of doctor's envelope."""
    tally: Mapping[str, int] = {status: sum(c.status == status for c in checks) for status in ("pass", "warn", "fail", "info")}
    return {"agent": subject.chosen.name if subject.chosen else None, "counts": dict(tally), "checks": [c.as_json() for c in checks]}


def faults(checks: Sequence[Check]) -> list[ErrorEntry]:
    """errors[] of the envelope: one line if anything failed."""
    failed = [c for c in checks if c.status == "fail"]
    if not failed:
        return []
    error = CodeprobeError(
        "DOCTOR_CHECKS_FAILED",
        f"{len(failed)} check{'s' * (len(failed) != 1)} failed: {', '.join(c.name for c in failed)}",
        remediation=" ".join(dict.fromkeys(c.fix for c in failed if c.fix)),
        detail={"checks": [c.name for c in failed]},
    )
    return [entry(error)]
