"""Hooks in progress when the first sign of a task wakes us: pluggy does not call those of plugins that are registered during a call.

So what has woken us goes on by hand to the part that would have been called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live


def node_collected(live: Live) -> None:
    """In an xdist controller: a worker has collected tasks. pytest_sessionstart is over: hand over what it would have brought."""
    assert live.controller is not None
    terminal: Any = live.config.pluginmanager.get_plugin("codeprobe-terminal")
    live.controller.woken_late(_session_of(live.config), terminal.pytest_xdist_node_collection_finished)


def reported(live: Live, report: pytest.CollectReport | pytest.TestReport) -> None:
    """In an xdist controller: the first report that is about a task."""
    assert live.controller is not None
    live.controller.adopt(_session_of(live.config))
    if isinstance(report, pytest.CollectReport):
        live.controller.pytest_collectreport(report)
    else:
        live.controller.logged(report)


def session_finished(live: Live, session: pytest.Session) -> None:
    """In a worker that ends before it met a task."""
    assert live.protocol is not None
    live.protocol.pytest_sessionfinish(session)


def _session_of(config: pytest.Config) -> pytest.Session | None:
    session = config.pluginmanager.get_plugin("session")
    return session if isinstance(session, pytest.Session) else None
