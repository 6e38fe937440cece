"""Agent `command`: any program, started from an argv template of the task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from pytest_codeprobe.agents.base import QuietParser, exit_words, last_words
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent, SessionCommand, SessionEnd, SessionRequest
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.model.sandbox import ProcessExit
from pytest_codeprobe.model.trial import Trial

_PLACEHOLDER = re.compile(r"\{(prompt|prompt_file|model|workspace)\}")
_MAX_ARGUMENT = 128 << 10  # bytes; Linux's MAX_ARG_STRLEN, with the NUL
_NOT_STARTED = {126: "could not be run", 127: "was not found"}
#: limits that need a count of what the model did, which this agent can't give; under a budget the two others say what a session counts as
_COUNTED = ("max_turns", "expected_turns", "max_input_tokens", "max_output_tokens")


class CommandAgent(Agent):
    """Runs `agent.command`. {prompt}, {prompt_file}, {model} and {workspace} in it are replaced, without a shell.

    A template with neither {prompt} nor {prompt_file} gets the prompt on its standard input. What it prints last is the final
    message; what it costs is unknown.
    """

    name = "command"
    usage_known = "never"
    tells_calls = False
    supports = frozenset({"command", "model", "args"})

    def problems(self, trial: Trial) -> Sequence[tuple[str, str]]:
        template = trial.agent.command
        if not template or not template[0]:
            return [("agent.command", "agent command needs 'command', a list of the program and its arguments")]
        used = _placeholders((*template, *trial.agent.args))
        found = []
        if "model" in used and trial.agent.model is None:
            found.append(("agent.command", "uses {model}, but no model is set"))
        if "prompt" in used and (problem := _no_argument(trial.prompt or "")):
            found.append(("agent.command", f"uses {{prompt}}, but the prompt {problem}; use {{prompt_file}}"))
        found += [
            (f"run_limits.{name}", "can't be held for agent command, which reports neither turns nor usage")
            for name in _COUNTED
            if getattr(trial.limits, name) is not None
        ]
        return found

    def command(self, request: SessionRequest) -> SessionCommand:
        config = request.trial.agent
        template = (*(config.command or ()), *config.args)
        used = _placeholders(template)
        if "prompt" in used and (problem := _no_argument(request.prompt)):
            raise CodeprobeError("TASK_INVALID", f"agent.command uses {{prompt}}, but the prompt {problem}; use {{prompt_file}}")
        prompt = request.prompt.encode("utf-8", "surrogatepass")
        prompt_file = request.sandbox.tmp / "prompt.txt"
        values = {
            "prompt": request.prompt,
            "prompt_file": str(prompt_file),
            "model": config.model or "",
            "workspace": str(request.sandbox.workspace),
        }
        files: dict[Path, bytes] = {prompt_file: prompt} if "prompt_file" in used else {}
        return SessionCommand(
            argv=tuple(_PLACEHOLDER.sub(lambda m: values[m[1]], part) for part in template),
            stdin=None if used & {"prompt", "prompt_file"} else prompt,
            files=files,
        )

    def parser(self, request: SessionRequest) -> CommandParser:
        return CommandParser(request)


class CommandParser(QuietParser):
    """Knows only what was printed and how it ended."""

    agent = CommandAgent
    # Nothing tells when its model answers, so no silence of it counts as an outage.
    replied = True

    def __init__(self, request: SessionRequest) -> None:
        super().__init__(request)
        self.version = None

    def usage(self) -> Usage:
        return Usage()

    def final_message(self) -> str:
        return self.output()

    def end(self, exit: ProcessExit, *, stopped_for: str | None, stderr_tail: str) -> SessionEnd:
        # a shell says so of a program that it can't start, and so can any program after its work: that is graded
        if stopped_for is None and exit.status in _NOT_STARTED and not self.request.sandbox.changes():
            program = (self.request.trial.agent.command or ("?",))[0]
            reason = f"{program!r} {_NOT_STARTED[exit.status]} ({exit_words(exit)}){last_words(stderr_tail)}"
            return SessionEnd(code="AGENT_CRASHED", reason=reason, remediation="Correct agent.command, or install the program.")
        return SessionEnd()


def _placeholders(template: Sequence[str]) -> frozenset[str]:
    return frozenset(name for part in template for name in _PLACEHOLDER.findall(part))


def _no_argument(prompt: str) -> str | None:
    """Why a prompt can't be an argument."""
    if "\0" in prompt:
        return "has a NUL in it"
    # the rest of the argument's template is not counted; it is short
    return "is too long for an argument" if len(prompt.encode("utf-8", "surrogatepass")) > _MAX_ARGUMENT - 4096 else None
