"""How many files a process may have open: with many trials at once pytest's own needs more, what it starts keeps the limit it had."""

from __future__ import annotations

import sys

from pytest_codeprobe.errors import CodeprobeError

if sys.platform != "win32":
    import resource

_EACH = 12  #: of one trial, at its busiest; while its session works it has 4
_OFFLINE = 12  #: and of one whose processes ask a proxy of ours: its ports, and some connections from and to them
_OTHERS = 100  #: of pytest, other plugins, ordinary tests


def _limit() -> tuple[int, int] | None:
    return None if sys.platform == "win32" else resource.getrlimit(resource.RLIMIT_NOFILE)


_AT_START = _limit()


def limits_of_start() -> dict[str, tuple[int, int]]:
    """For what is started: the limit that pytest had, where it has another one now."""
    return {"NOFILE": _AT_START} if _AT_START is not None and _limit() != _AT_START else {}


def make_room(trials: int, *, offline: bool = False) -> None:
    """Raise this process's limit as far as so many trials at once need it. USAGE_ERROR where the system forbids it."""
    if sys.platform == "win32":
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    each = _EACH + (_OFFLINE if offline else 0)
    needed = _OTHERS + each * trials
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        fitting = max(1, (hard - _OTHERS) // each)
        raise CodeprobeError(
            "USAGE_ERROR",
            f"{trials} trials at once need {needed} open files, and this system allows {hard} (ulimit -Hn)",
            remediation=f"Use --codeprobe-jobs {fitting}, or raise the limit.",
            detail={"needed": needed, "limit": hard},
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
