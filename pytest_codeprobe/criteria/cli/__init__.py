"""Which calls of a program there were, by the log of `sandbox.record_cli` or of a stand-in of the task's own."""

from __future__ import annotations

from pytest_codeprobe.criteria.cli.criterion import CliCalled

__all__ = ["CliCalled"]
