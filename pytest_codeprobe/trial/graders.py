"""Where graders work: a folder made when nothing of the agent is alive, and only if one of them asks for it."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.trial.environment import command_environment, interpreter_inside, make_tools
from pytest_codeprobe.trial.setup import tools_python


class GradersPlace:
    """The folder `grade` of the private one: tools, the agent's answer and transcript, the reference, a scratch folder for each criterion.

    What lies there already is removed when it is laid: the agent may have planted it, or a grader's process changed it.
    """

    def __init__(self, trial: Trial, context: Context, sandbox: Sandbox, message: str | None, transcript: Transcript | None) -> None:
        self._trial, self._context, self._sandbox = trial, context, sandbox
        self._root = sandbox.root / "grade"
        self._message, self._transcript = message, transcript
        self._reference = trial.reference.code if trial.reference is not None else None
        self._laid = False

    @functools.cached_property
    def _environment(self) -> dict[str, str]:
        environment = command_environment(self._trial, self._context, self._sandbox, self._root / "tools", "grader")
        environment["AGENT_OUTPUT"] = str(self._root / "agent_output.txt")
        if self._reference is not None:
            environment["REFERENCE_DIR"] = str(self._root / "reference")
        if self._transcript is not None:
            environment["TRANSCRIPT"] = str(self._root / "transcript.json")
        return environment

    @property
    def environment(self) -> Mapping[str, str]:
        """Of graders. SANDBOX_FAILED where what it names can't be laid."""
        self._lay()
        return self._environment

    def scratch(self, number: int) -> Path:
        """The folder of one criterion, empty at first. SANDBOX_FAILED where it can't be made."""
        self._lay()
        folder = self._root / "scratch" / str(number)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise CodeprobeError("SANDBOX_FAILED", f"{folder}: {error.strerror}") from error
        return folder

    def lay_anew(self) -> None:
        """A process has been in there, with the rights to change whatever the next one relies on."""
        self._laid = False

    def _lay(self) -> None:
        if self._laid:
            return
        root = self._root
        if left := remove_tree(root):
            raise CodeprobeError("SANDBOX_FAILED", f"what the session left in the graders' place could not be removed: {left[0]}")
        try:
            root.mkdir(mode=0o700)
            lay_python = tools_python(self._trial, self._context, self._sandbox)
            make_tools(root / "tools", self._trial.row, interpreter_inside(self._sandbox), lay_python)
            (root / "agent_output.txt").write_text(self._message or "", encoding="utf-8", errors="replace")
            if self._reference is not None:
                (root / "reference").mkdir()
                (root / "reference" / "code").write_text(self._reference, encoding="utf-8")
            if self._transcript is not None:
                (root / "transcript.json").write_text(self._transcript.model_dump_json(exclude_none=True), encoding="utf-8")
        except OSError as error:
            raise CodeprobeError("SANDBOX_FAILED", f"{error.filename or root}: {error.strerror}") from error
        self._laid = True
