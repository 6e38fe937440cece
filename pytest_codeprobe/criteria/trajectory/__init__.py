"""Criteria on the way that a session took: the tools it called, the commands it ran, the skills it used, what that cost."""

from __future__ import annotations

from pytest_codeprobe.criteria.trajectory.commands import CommandExecuted, CommandNotExecuted, CommandOrder, CommandsEfficiency, ToolUsed
from pytest_codeprobe.criteria.trajectory.limits import Limits
from pytest_codeprobe.criteria.trajectory.skills import SkillTriggered

__all__ = ["CommandExecuted", "CommandNotExecuted", "CommandOrder", "CommandsEfficiency", "Limits", "SkillTriggered", "ToolUsed"]
