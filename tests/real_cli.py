"""What a test that runs a real CLI in a loopback-only namespace needs, or the reason why it can't run here."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

from tests.install_clis import installed
from tests.netns import why_no_netns


def require_clis() -> Path:
    """The bin folder of the locked CLIs, usable inside a loopback-only namespace.

    Skips the test where the CLIs or the namespaces are missing; fails it instead where the environment variable CI is set, since CI
    installs both.
    """
    why = why_no_netns()
    if why is not None:
        _missing(f"no network namespace: {why}")
    folder = installed()
    if folder is None:
        _missing("the agent CLIs are not installed; `python tests/install_clis.py` does it")
    return folder


def _missing(reason: str) -> NoReturn:
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
