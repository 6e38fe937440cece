"""The console script `codeprobe`: thin callers of pytest.main and of the parts below."""

from __future__ import annotations

__all__ = ["main"]

from pytest_codeprobe.cli.main import main
