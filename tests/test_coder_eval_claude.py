"""A suite in coder-eval's spelling with the real Claude Code CLI."""

from __future__ import annotations

from typing import Any

import pytest

from tests.claude_runs import ClaudeProject, server
from tests.front_door import Project
from tests.model_server import Script, ToolCall, Turn
from tests.real_cli import require_clis

SKILL = "---\nname: review\ndescription: How code is reviewed here. Use it for every review.\n---\nLook twice.\n"


@pytest.mark.real_cli
def test_its_settings_reach_the_cli_and_its_verdicts_hold(project: Project) -> None:
    """Denied tools; a skill that is used, and one that is not there because the project's settings are not read."""
    claude = ClaudeProject(project, require_clis())
    files = [{"path": ".claude/skills/review/SKILL.md", "content": SKILL}]
    common: dict[str, Any] = {
        "max_iterations": 1,
        "dialect": "coder-eval",
        "sandbox": {"python": None, "template_sources": [{"type": "starter_files", "files": files}]},
        "run_limits": {"max_turns": 5, "stop_early": False, "count_cache_creation": False},
    }
    agent = {"type": "claude-code", "sdk_options": {"effort": "high"}, "claude_settings": {"permissions": {"deny": ["Bash(rm:*)"]}}}
    used = {"type": "skill_triggered", "skill_name": "review", "stop_early": {"on_pass": "stop"}}
    wrote = {"type": "run_command", "command": "test -e kept.txt", "read_only": True}
    claude.task(
        "skilled", **common, agent={**agent, "setting_sources": ["project"]}, success_criteria=[{**used, "expected_skill": "review"}, wrote]
    )
    claude.task(
        "bare",
        **common,
        agent={**agent, "setting_sources": []},
        success_criteria=[{**used, "expected_skill": "other"}, wrote],
    )
    keep = Turn("", [ToolCall("Bash", {"command": "echo x > kept.txt", "description": "x"})])
    remove = Turn("", [ToolCall("Bash", {"command": "rm kept.txt", "description": "x"})])
    skill = Turn("", [ToolCall("Skill", {"skill": "review"})])
    scripts = [Script((skill, keep, remove, Turn("Done.")), key="[skilled]"), Script((keep, remove, Turn("Done.")), key="[bare]")]
    with server(scripts) as model:
        run = claude.run(model, "--codeprobe-jobs=2")
    assert run.statuses == {"skilled": "passed", "bare": "passed"}, run.output
