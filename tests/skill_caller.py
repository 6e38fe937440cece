"""A caller of `codeprobe run` that knows SKILL.md and nothing else: its codes come from the table there, its policy is section 4."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Execute = Callable[[Sequence[str]], subprocess.CompletedProcess[str]]
_ROW = re.compile(r"^\| `([A-Z_]+)` \| \w+ \| (no|after_fix|bounded) \| (yes|no) \| (\d) \|", re.MULTILINE)
_MAX_RETRIES = 2


@dataclass(frozen=True)
class Rule:
    """A row of the table."""

    retryable: str
    terminal: bool
    exit_code: int


@dataclass
class Story:
    """What the caller did, and how it ended."""

    end: str = ""  #: passed, failed, stopped: why
    calls: list[list[str]] = field(default_factory=list)
    codes: list[str] = field(default_factory=list)  #: of the runs, in their order
    doctors: int = 0


class Caller:
    """See the module."""

    def __init__(self, skill: str, execute: Execute) -> None:
        self.rules = {code: Rule(retry, terminal == "yes", int(exit_code)) for code, retry, terminal, exit_code in _ROW.findall(skill)}
        self.execute = execute

    def drive(self, call: Sequence[str], agent: str) -> Story:
        """From the first look at doctor to the right end."""
        story = Story()
        call = list(call)
        while True:
            if not self._is_healthy(agent, story):
                story.end = "stopped: doctor"
                return story
            story.calls.append(call)
            done = self.execute(call)
            envelope = self._envelope(done.stdout)
            if envelope is None:
                story.codes.append("INTERRUPTED")
                story.end = "stopped: no envelope"
                return story
            if not envelope["errors"]:
                story.end = {0: "passed", 1: "failed"}.get(done.returncode, f"stopped: exit {done.returncode}")
                return story
            error = envelope["errors"][0]
            story.codes.append(error["code"])
            following = self._next(call, error, story)
            if following is None:
                return story
            call = following

    def _is_healthy(self, agent: str, story: Story) -> bool:
        story.doctors += 1
        return self.execute(["codeprobe", "doctor", "--agent", agent, "--json"]).returncode == 0

    def _envelope(self, stdout: str) -> dict[str, Any] | None:
        """The last line, if it is one."""
        lines = stdout.splitlines()
        found = json.loads(lines[-1]) if lines else {}
        return dict(found) if found.get("record_type") == "envelope" else None

    def _next(self, call: list[str], error: dict[str, Any], story: Story) -> list[str] | None:
        """The call to make now; None where it stops, and the story says why."""
        rule = self.rules[error["code"]]
        assert (rule.retryable, rule.terminal) == (error["retryable"], error["terminal"]), "SKILL.md and the envelope differ"
        if rule.terminal:
            story.end = "stopped: terminal"
        elif rule.retryable == "no":
            story.end = "stopped: no retry"
        elif story.codes[-2:] == [error["code"]] * 2:
            story.end = "stopped: twice the same"
        elif len(story.calls) > _MAX_RETRIES:
            story.end = "stopped: two retries"
        elif rule.retryable == "bounded":
            return call
        else:
            command = error["command"] or []
            if command[:2] == ["codeprobe", "run"] and command[-1] != "--help":
                return list(command)
            story.end = "stopped: needs a fix"
        return None
