"""Tasks that stay in one stage until they are ended, with a process tree that is hard to end."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from tests.front_door import Project, scripted

AGENT = Path(__file__).with_name("hostile_agent.py")
STAGES = ("prepare", "session", "grading")
WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
USAGE = {"usage": {"model": "m", "input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}}


def holding(project: Project, name: str, seconds: float = 600) -> str:
    """A shell command that says where it runs in marks/<name>, leaves a daemon without environment, and stays."""
    daemon = shlex.join([sys.executable, "-I", "-S", str(AGENT), "daemon", project.mark_text])
    part, whole = (shlex.quote(str(project.marks / f"{name}{end}")) for end in (".part", ""))
    sign = f"pwd >{part}; mv {part} {whole}"
    return f"{daemon}; {sign}; sleep {seconds:g}; : {project.mark_text}"


def held_task(project: Project, task_id: str, stage: str) -> None:
    """A task that stays in a stage; marks/<task id> is there once it has come to it. post_run leaves marks/post-<task id>."""
    command = holding(project, task_id)
    fields: dict[str, Any] = {
        "agent": scripted(USAGE, {"say": "I begin"}, WRITE, *([{"run": command}] if stage == "session" else [])),
        "post_run": [{"command": shlex.join(["touch", str(project.marks / f"post-{task_id}")]), "timeout": 60}],
        "run_limits": {"task_timeout": 600, "grading_timeout": 600, "setup_timeout": 600},
    }
    if stage == "prepare":
        fields["pre_run"] = [{"command": command, "timeout": 600}]
    if stage == "grading":
        fields["success_criteria"] = [{"type": "run_command", "command": command, "timeout": 600}]
    project.task(task_id, **fields)


def quick_task(project: Project, task_id: str, *, file: str | None = None) -> None:
    """A task that passes at once."""
    project.task(task_id, file=file, agent=scripted(USAGE, WRITE))


def owner_of(project: Project, task_id: str) -> int:
    """The pytest process whose trial it is: its private folder is called after it."""
    return int((project.marks / task_id).read_text().partition("/codeprobe-")[2].partition("-")[0])
