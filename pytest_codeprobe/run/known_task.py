"""The small task whose outcome is known beforehand: the canary has each agent do it, and doctor's probe the chosen one.

The agent writes a word that nobody can guess into a file, through its own tools, and answers with it. One whose permission mode lets it
write nothing reads the word from a file instead: it stands nowhere in the prompt.
"""

from __future__ import annotations

import secrets
from typing import Any

from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.config import RunLimits, StarterFile, TemplateSource
from pytest_codeprobe.model.trial import Trial

TIMEOUT, TURNS = 120.0, 5


def known_task(agent: Agent, like: Trial, name: str) -> Trial:
    """The task for the agent, settings, sandbox and limits of another trial; `name` begins the word, and is part of the file's name."""
    word, file = f"{name}-{secrets.token_hex(8)}", f"codeprobe-{name}.txt"
    limits = RunLimits.model_validate({**like.limits.model_dump(exclude_unset=True), "task_timeout": TIMEOUT, "max_turns": TURNS})
    answers: dict[str, Any] = {"type": "answer_contains", "includes": [word]}
    if agent.may_write(like.agent):
        prompt = (
            f"Use your tools to write the text {word} into a new file called {file} in your current directory. "
            f"When the file is there, answer with that text and nothing else: {word}"
        )
        criteria: tuple[dict[str, Any], ...] = ({"type": "file_contains", "path": file, "includes": [word]}, answers)
        return like.model_copy(update={"prompt": prompt, "limits": limits, "criteria": criteria})
    prompt = (
        f"Use your tools to read the file {file} in your current directory. Change nothing and plan nothing: "
        "answer with the text that stands in the file and nothing else."
    )
    laid_out = TemplateSource(type="starter_files", files=(StarterFile(path=file, content=f"{word}\n"),))
    sandbox = like.sandbox.model_copy(update={"template_sources": (laid_out,)})
    return like.model_copy(update={"prompt": prompt, "limits": limits, "criteria": (answers,), "sandbox": sandbox})
