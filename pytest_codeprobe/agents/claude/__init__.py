"""Agent `claude`: Claude Code, the command-line tool."""

from __future__ import annotations

from pytest_codeprobe.agents.claude.adapter import Claude, ClaudeTable

__all__ = ["Claude", "ClaudeTable"]
