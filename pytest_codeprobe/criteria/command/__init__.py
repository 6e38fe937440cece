"""Criteria that run a command of the task."""

from __future__ import annotations

from pytest_codeprobe.criteria.command.criterion import RunCommand

__all__ = ["RunCommand"]
