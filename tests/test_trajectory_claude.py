"""Criteria on what a session did, and recorded programs, with the real Claude Code CLI."""

from __future__ import annotations

import json

import pytest

from tests.claude_runs import ClaudeProject, server
from tests.front_door import Project
from tests.model_server import Script, ToolCall, Turn
from tests.real_cli import require_clis

SKILL = "---\nname: review\ndescription: How code is reviewed here. Use it for every review.\n---\nLook twice.\n"


@pytest.mark.real_cli
def test_commands_skills_and_recorded_programs(project: Project) -> None:
    """One session that does all of it, one that reads the skill's file, one that only looks around."""
    claude = ClaudeProject(project, require_clis())
    files = {".claude/skills/review/SKILL.md": SKILL, ".claude/skills/other/SKILL.md": SKILL.replace("review", "other")}
    gh = {"tool": "gh", "responses": [{"when": {"verb": "pr view", "positional": ["7"]}, "stdout": "PR 7: fix\n"}]}
    sources = [{"type": "starter_files", "files": [{"path": name, "content": text} for name, text in files.items()]}]
    used = {"type": "skill_triggered", "skill_name": "review"}
    claude.task(
        "all",
        sandbox={"record_cli": [gh], "template_sources": sources},
        success_criteria=[
            used,
            {**used, "skill_name": "other", "expected": False},
            {"type": "cli_called", "tool": "gh", "verb": "pr view", "flags": {"json": {"contains": "title"}}, "max_count": 1},
            {"type": "cli_called", "tool": "gh", "verb": "pr merge", "min_count": 0, "max_count": 0},
            {"type": "command_executed", "command_pattern": "^gh pr view 7", "require_success": True},
            {"type": "command_not_executed", "command_pattern": "^git push"},
            {"type": "command_order", "patterns": ["^gh pr view", "^cat$"]},
            {"type": "tool_used", "name": "read", "min": 0, "max": 0},
            {"type": "commands_efficiency", "expected_commands": 2},
            {"type": "limits", "max_turns": 2, "max_usd": 5, "max_tokens": 1000000, "max_seconds": 100},
            {"type": "classification_match", "answer": True, "expected_label": "approved", "allowed_labels": ["approved", "refused"]},
            {"type": "file_contains", "path": "pr.txt", "includes": ["PR 7: fix"]},
        ],
    )
    claude.task("file", files=files, success_criteria=[used])
    claude.task("look", files=files, success_criteria=[{**used, "expected": False}])
    work = "gh pr view 7 --json title | tee pr.txt | cat"
    scripts = [
        Script(
            (
                Turn("", [ToolCall("Skill", {"skill": "review"})]),
                Turn("", [ToolCall("Bash", {"command": work, "description": "x"})]),
                Turn("It is fine.\n\n**approved**"),
            ),
            key="[all]",
        ),
        Script((Turn("", [ToolCall("Read", {"file_path": "{cwd}/.claude/skills/review/SKILL.md"})]), Turn("Done.")), key="[file]"),
        Script((Turn("", [ToolCall("Bash", {"command": "ls .claude/skills/review/ && echo cat"})]), Turn("Done.")), key="[look]"),
    ]
    with server(scripts) as model:
        run = claude.run(model, "--codeprobe-jobs=3")
    assert run.statuses == {"all": "passed", "file": "passed", "look": "passed"}, run.output
    (entry,) = map(json.loads, (run.trial("all") / "attempt-1" / "calls.jsonl").read_text().splitlines())
    assert (entry["argv"], entry["exit"]) == (["pr", "view", "7", "--json", "title"], 0)
    assert not any(c["verdict"] == "left out" for c in run.result("all")["criteria"])
    assert run.result("look")["criteria"][0]["evidence"]["observed_label"] == "no"
