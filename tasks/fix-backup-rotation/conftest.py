"""Fixtures for the task beside this file; pytest finds them as it finds any other.

The agent gets a folder of backups to try its script on. They are dated up to today, so they can't lie in `workspace/`.
Without this file the task is the same, and as hard: the hidden tests make folders of their own.
"""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_codeprobe.trial.handle import SandboxHandle


@pytest.fixture
def codeprobe_sandbox(codeprobe_sandbox: SandboxHandle) -> SandboxHandle:
    """The usual sandbox, with `backups/` in its workspace."""
    # A second attempt begins with a fresh workspace; on_prepare() does this again there.
    codeprobe_sandbox.on_prepare(add_backups)
    return codeprobe_sandbox


def add_backups(sandbox: SandboxHandle) -> None:
    """Ten nights of two backups, and a file that is none."""
    today = datetime.datetime.now(tz=datetime.UTC).date()
    for nights in range(10):
        date = today - datetime.timedelta(days=nights)
        for name in ("db", "my site"):
            sandbox.write_text(f"backups/{name}-{date}.tar.gz", f"{name}, {date}\n")
    sandbox.write_text("backups/notes.txt", "Keep me.\n")
