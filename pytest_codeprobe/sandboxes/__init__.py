"""Where sessions run: drivers, the workspaces they lay out and what becomes of these."""

from __future__ import annotations

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.context import Context, Registry
from pytest_codeprobe.model.sandbox import Driver
from pytest_codeprobe.options.table import AUTO_DRIVERS
from pytest_codeprobe.sandboxes.bubblewrap import BubblewrapDriver
from pytest_codeprobe.sandboxes.docker import DockerDriver
from pytest_codeprobe.sandboxes.hierarchies import take_away as take_away_groups
from pytest_codeprobe.sandboxes.sweep import sweep
from pytest_codeprobe.sandboxes.tempdir import TempdirDriver

__all__ = ["BUILTIN", "best", "choose", "registered", "sweep", "sweep_groups"]

#: the drivers that come with the package
BUILTIN: tuple[Driver, ...] = (TempdirDriver(), BubblewrapDriver(), DockerDriver())


def sweep_groups() -> list[str]:
    """Remove the control groups whose owner is dead, and what is in them; those removed."""
    return [folder for folder, gone in take_away_groups() if gone]


def registered(name: str, registry: Registry) -> Driver:
    """The driver of that name, for `auto` the one that always works. SANDBOX_UNAVAILABLE if there is none: there is no fallback."""
    wanted = AUTO_DRIVERS[-1] if name == "auto" else name
    driver = registry.drivers.get(wanted)
    known = sorted(registry.drivers)
    if driver is None:
        raise CodeprobeError(
            "SANDBOX_UNAVAILABLE",
            f"there is no sandbox driver {wanted!r}{did_you_mean(wanted, known)}",
            remediation=f"There are: {', '.join(known)}. To run in another than the one that was asked for is for a human to decide.",
            detail={"driver": wanted, "known": known},
        )
    return driver


def best(registry: Registry, context: Context) -> tuple[str, str | None]:
    """Name of the driver that `auto` comes to on this machine, and why it is none that isolates; None where it does."""
    why = []
    for name in AUTO_DRIVERS[:-1]:
        driver = registry.drivers.get(name)
        reason = f"there is no driver {name!r}" if driver is None else driver.unavailable(context)
        if reason is None:
            return name, None
        why.append(reason)
    return AUTO_DRIVERS[-1], "; ".join(why)


def choose(name: str, registry: Registry, context: Context) -> Driver:
    """The driver of that name, `auto` being the best one, if it can be used on this machine; else SANDBOX_UNAVAILABLE."""
    driver = registered(best(registry, context)[0] if name == "auto" else name, registry)
    if (reason := driver.unavailable(context)) is not None:
        raise CodeprobeError(
            "SANDBOX_UNAVAILABLE",
            f"sandbox driver {driver.name!r} can't be used here: {reason}",
            detail={"driver": driver.name, "reason": reason},
        )
    return driver
