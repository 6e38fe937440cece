"""A trial: everything that is needed to run it, frozen and serialisable."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pytest_codeprobe.model.base import Model
from pytest_codeprobe.model.config import AgentConfig, PreRunCommand, Reference, RunLimits, SandboxConfig, Simulation, Solution, TaskCommand

FileRole = Literal[
    "task", "prompt", "template", "reference", "solution", "hidden", "schema", "system_prompt", "skill", "plugin", "dataset", "docker"
]
#: of files that the agent must not see
HIDDEN_ROLES: frozenset[FileRole] = frozenset(("task", "hidden", "solution", "reference"))


class FileRef(Model):
    """A file or folder outside the YAML that a trial needs."""

    path: str  #: absolute
    role: FileRole


class Spelled(Model):
    """A setting in which variables stood, as its file or flag says it: what is kept or compared of a trial holds no values of them."""

    path: tuple[str | int, ...]
    text: str


class Trial(Model):
    """One (task, row, variant, repeat). All paths in it are absolute; `folder` is relative to the run dir."""

    node_id: str
    task_id: str
    variant_id: str | None = None
    row_id: str | None = None
    repeat: int = 1
    repeats: int = 1  #: of this task and row under this variant
    rows: int = 1  #: of the dataset that run; 1 without one
    min_passes: int | None = None  #: of the repeats; None: each stands for itself
    row: dict[str, Any] | None = None  #: the dataset's, whose values are in the prompt and the criteria
    folder: str
    task_file: str
    line: int = 1  #: of the task in its file, 1-based
    prompt: str | None
    description: str = ""
    tags: tuple[str, ...] = ()
    metadata: dict[str, Any] = {}
    agent: AgentConfig
    sandbox: SandboxConfig
    limits: RunLimits
    criteria: tuple[dict[str, Any], ...]  #: each valid for the model that the registry holds for its type
    pass_score: float | None = None
    expected_commands: int | None = None  #: of a session, for criteria that compare with it
    reference: Reference | None = None
    solution: Solution | None = None
    pre_run: tuple[PreRunCommand, ...] = ()
    post_run: tuple[TaskCommand, ...] = ()
    simulation: Simulation | None = None  #: a user who answers; its `agent` names a type
    skip: str | None = None  #: reason
    xfail: str | None = None  #: reason
    expect: Literal["pass", "fail"] = "pass"
    host_environment: bool = False  #: pre_run, post_run and run_command see the variables of the process that runs pytest
    marked: bool = False  #: a Python test with the marker, not a task item
    manifest: tuple[FileRef, ...] = ()
    spelled: tuple[Spelled, ...] = ()
    notes: tuple[str, ...] = ()  #: settings that no task or flag asked for and that were left out, each a sentence

    def places(self) -> list[Path]:
        """Folders beside the workspace that commands of the task may read: those that variables() names."""
        found = self.variables(Path())
        return [Path(found[name]) for name in ("TASK_DIR", "REFERENCE_DIR") if name in found]

    def variables(self, workspace: Path) -> dict[str, str]:
        """What every command of the task finds in its environment, as far as it is known before grading."""
        found = {"TASK_DIR": str(Path(self.task_file).parent), "WORKSPACE": str(workspace)}
        if self.reference is not None and (place := self.reference.directory or self.reference.file):
            found["REFERENCE_DIR"] = place if self.reference.directory else str(Path(place).parent)
        return found
