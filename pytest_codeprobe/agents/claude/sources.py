"""Which settings files of a workspace the CLI reads in a session."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_codeprobe.model.config import AgentConfig

#: below the workspace, by the CLI's word
FILES = {"project": ".claude/settings.json", "local": ".claude/settings.local.json"}


def setting_sources(config: AgentConfig) -> Sequence[str]:
    """The CLI's own words: what `agent.claude.setting_sources` says, else what follows from `agent.project_settings`."""
    named = config.table("claude").get("setting_sources")
    if named is not None:
        return [str(word) for word in named]
    return ["project"] if config.project_settings else []


def reads_project(config: AgentConfig) -> bool:
    """Whether the workspace's settings and MCP servers count."""
    return "project" in setting_sources(config)
