"""pytest-timeout's number as a trial's deadline; never its signal or thread, which leave an agent's processes alive."""

from __future__ import annotations

import contextlib
import os

import pytest

from pytest_codeprobe.plugin.collect import TaskItem
from pytest_codeprobe.plugin.marked import MARKED


def deadline(item: pytest.Item) -> float | None:
    """Seconds for prepare and session: closest mark, --timeout, PYTEST_TIMEOUT, ini. None or 0 = none."""
    if not _has_trial(item) or not item.config.pluginmanager.has_plugin("timeout"):
        return None
    found: object = None
    mark = item.get_closest_marker("timeout")
    if mark is not None:
        found = mark.args[0] if mark.args else mark.kwargs.get("timeout")
    if found is None:
        found = item.config.getoption("timeout", None)
    if found is None:
        found = os.environ.get("PYTEST_TIMEOUT") or None
    if found is None:
        with contextlib.suppress(ValueError):
            found = item.config.getini("timeout") or None
    try:
        seconds = float(str(found)) if found is not None else 0.0
    except ValueError:
        return None  # pytest-timeout itself refuses it
    return seconds if seconds > 0 else None


def ignored(item: pytest.Item) -> str | None:
    """A sentence on settings of pytest-timeout that a trial's deadline has no use for."""
    mark = item.get_closest_marker("timeout")
    by_mark = {"method", "func_only"} & set(mark.kwargs) if mark is not None else set()
    if mark is not None and len(mark.args) > 1:
        by_mark.add("method")
    if item.config.getoption("timeout_method", None):
        by_mark.add("method")
    names, verb = " and ".join(sorted(by_mark)), "is" if len(by_mark) == 1 else "are"
    return f"pytest-timeout: {names} {verb} ignored for tasks; the number is the deadline of preparing and session" if names else None


def _has_trial(item: pytest.Item) -> bool:
    """A marked test too: a signal in the middle of its session would leave the agent's processes to themselves."""
    return isinstance(item, TaskItem) or item.stash.get(MARKED, None) is not None


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item) -> bool | None:
    """Trials have a deadline of their own."""
    return True if _has_trial(item) else None


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """Nothing to cancel."""
    return True if _has_trial(item) else None
