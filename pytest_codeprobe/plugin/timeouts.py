"""pytest-timeout's number as a trial's deadline; never its signal or thread, which leave an agent's processes alive."""

from __future__ import annotations

import contextlib
import os

import pytest

from pytest_codeprobe.plugin.collect import TaskItem


def deadline(item: pytest.Item) -> float | None:
    """Seconds for prepare and session: closest mark, --timeout, PYTEST_TIMEOUT, ini. None or 0 = none."""
    if not isinstance(item, TaskItem) or not item.config.pluginmanager.has_plugin("timeout"):
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


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item) -> bool | None:
    """Task items have a deadline of their own."""
    return True if isinstance(item, TaskItem) else None


@pytest.hookimpl(tryfirst=True, optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool | None:
    """Nothing to cancel."""
    return True if isinstance(item, TaskItem) else None
