"""The real Claude Code CLI in drivers that isolate: the same results as under tempdir, and nothing of the user's is there."""

from __future__ import annotations

from typing import Any

import pytest

from tests import containers
from tests.claude_runs import ClaudeProject, calls, server, transcript
from tests.front_door import Project
from tests.model_server import Script, ToolCall, Turn, Usage
from tests.real_cli import require_clis

pytestmark = pytest.mark.real_cli

WRITE = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})


def test_the_same_as_under_tempdir(project: Project) -> None:
    engine = containers.use(project)  # beside bubblewrap it is a default, and nothing that a task asks for
    claude = ClaudeProject(project, require_clis())
    look = f"ls {claude.home} {project.path} 2>&1; echo $PWD > where.txt; sed -i s/-/+/ calc.py"
    claude.task("look", files={"calc.py": "def add(a, b):\n    return a - b\n"}, success_criteria=[
        {"type": "run_command", "command": "python -c 'from calc import add; assert add(2, 3) == 5'"},
        {"type": "file_contains", "path": "out.txt", "includes": ["done"]},
        {"type": "command_executed", "command_pattern": "sed -i"},
        {"type": "answer_contains", "includes": ["All done"]},
    ])  # fmt: skip
    turns = (Turn("I look.", [ToolCall("Bash", {"command": look, "description": "look"}), WRITE], Usage(7, 4, 5, 3)), Turn("All done."))
    seen: dict[str, dict[str, Any]] = {}
    said: dict[str, str] = {}
    for driver in ("tempdir", "bubblewrap", "docker"):
        claude.seen_as = containers.BRIDGE if driver == "docker" else None
        with server([Script(turns, key="[look]")]) as model:
            run = claude.run(model, f"--codeprobe-driver={driver}", f"--codeprobe-run-dir={driver}")
        record = run.result("look")
        assert record["status"] == "passed", record
        assert record["warnings"] == []
        seen[driver] = {name: record[name] for name in ("verdict", "score", "changed_files", "final_message")}
        seen[driver] |= {name: record["usage"][name] for name in ("input_tokens", "output_tokens", "cost_usd", "turns", "tool_calls")}
        found = calls(transcript(run, "look"))
        seen[driver]["calls"] = [name for name, _, _ in found]
        said[driver] = found[0][2]
        assert not claude.leaked.exists()
    assert seen["bubblewrap"] == seen["docker"] == seen["tempdir"]
    assert not containers.of(engine, run)
    assert ".claude.json" not in said["bubblewrap"] + said["docker"]
    assert "tasks" in said["tempdir"]
    assert said["bubblewrap"].count("cannot access") == said["docker"].count("cannot access") == 2
