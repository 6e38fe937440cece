"""Agent `command`: any program, started from an argv template of the task."""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from pytest_codeprobe.agents.base import QuietParser, exit_words, last_words
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent, SessionCommand, SessionEnd, SessionRequest
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.model.sandbox import ProcessExit
from pytest_codeprobe.model.trial import Trial

_PLACEHOLDER = re.compile(r"\{(prompt|prompt_file|model|workspace|task_dir)\}")
_MAX_ARGUMENT = 128 << 10  # bytes; Linux's MAX_ARG_STRLEN, with the NUL
_NOT_STARTED = {126: "could not be run", 127: "was not found"}
#: limits that need a count of what the model did, which this agent can't give; under a budget the two others say what a session counts as
_COUNTED = ("max_turns", "expected_turns", "max_input_tokens", "max_output_tokens")


class CommandAgent(Agent):
    """Runs `agent.command`. {prompt}, {prompt_file}, {model}, {workspace} and {task_dir} in it are replaced, without a shell.

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
            "task_dir": str(Path(request.trial.task_file).parent),
        }
        files: dict[Path, bytes] = {prompt_file: prompt} if "prompt_file" in used else {}
        argv = tuple(_PLACEHOLDER.sub(lambda m: values[m[1]], part) for part in template)
        beside = [Path(word) for word, part in zip(argv, template, strict=True) if part.startswith("{task_dir}/")]
        return SessionCommand(
            argv=argv,
            stdin=None if used & {"prompt", "prompt_file"} else prompt,
            reads=beside,  # what of the task's folder it names it may see
            files=files,
        )

    def looked_for(self, request: SessionRequest) -> tuple[str, str]:
        """See the base."""
        program = (request.trial.agent.command or ("?",))[0]
        if "/" in program and not program.startswith(("/", "{")):
            name = program.removeprefix("./")
            remedy = f"Name a program beside the task file as {{task_dir}}/{name} in agent.command, and make it executable."
            return " in the workspace, where a relative path leads", remedy
        return "", "Correct agent.command, or install the program."

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
        if stopped_for is not None or exit.status == 0 or self.request.sandbox.changes():
            return SessionEnd()
        # a shell says so of a program that it can't start, and so can any program after its work: that is graded
        if exit.status in _NOT_STARTED:
            return self._not_started(exit, stderr_tail)
        self.warn(f"{self.request.trial.node_id}: the agent ended with {exit_words(exit)} and changed nothing{last_words(stderr_tail)}")
        return SessionEnd()

    def _not_started(self, exit: ProcessExit, stderr_tail: str) -> SessionEnd:
        """What was tried, and how to name what was meant."""
        program = (self.request.trial.agent.command or ("?",))[0]
        there = shutil.which(program, path=self.request.context.environ.get("PATH")) if _is_plain(program) else None
        said = f"({exit_words(exit)}){last_words(stderr_tail)}"
        if there:
            reason = f"{program!r} could not start what it was told to {said}"
            return SessionEnd(code="AGENT_CRASHED", reason=reason, remediation="Correct what agent.command starts, or install that.")
        where, remedy = CommandAgent().looked_for(self.request)
        return SessionEnd(code="AGENT_CRASHED", reason=f"{program!r} {_NOT_STARTED[exit.status or 127]}{where} {said}", remediation=remedy)


def _is_plain(program: str) -> bool:
    """A name on PATH or an absolute path, without anything to be replaced."""
    return "{" not in program and ("/" not in program or program.startswith("/"))


def _placeholders(template: Sequence[str]) -> frozenset[str]:
    return frozenset(name for part in template for name in _PLACEHOLDER.findall(part))


def _no_argument(prompt: str) -> str | None:
    """Why a prompt can't be an argument."""
    if "\0" in prompt:
        return "has a NUL in it"
    # the rest of the argument's template is not counted; it is short
    return "is too long for an argument" if len(prompt.encode("utf-8", "surrogatepass")) > _MAX_ARGUMENT - 4096 else None
