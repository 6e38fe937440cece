"""A registry of built-ins and a folder with task files, for the tests of loading."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_codeprobe.agents import BUILTIN as AGENTS
from pytest_codeprobe.criteria import BUILTIN as CRITERIA
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import Registry
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.sandboxes.tempdir import TempdirDriver
from pytest_codeprobe.tasks.expand import expand
from pytest_codeprobe.tasks.load import LoadedTask, LoadSettings, load_file

MINIMAL = """\
task_id: t
initial_prompt: do it
success_criteria:
  - {type: file_exists, path: a}
"""


def type_of(criterion: type[Criterion]) -> str:
    """The name that selects a criterion."""
    return str(typing.get_args(criterion.model_fields["type"].annotation)[0])


def registry(*agents: Agent) -> Registry:
    """The built-ins, and agents that a test brings."""
    return Registry(
        agents={agent.name: agent for agent in (*AGENTS, *agents)},
        drivers={"tempdir": TempdirDriver()},
        criteria={type_of(criterion): criterion for criterion in CRITERIA},
    )


def settings(rootdir: Path, *, environ: Mapping[str, str] | None = None, **more: Any) -> LoadSettings:
    """Nothing of this process's own environment."""
    made = LoadSettings(rootdir=rootdir, registry=registry(), environ=environ or {})
    return replace(made, **more)


def write(file: Path, content: str | bytes = "") -> Path:
    """A file and its folders."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def load_one(rootdir: Path, text: str, **more: Any) -> LoadedTask:
    """The one task of `tasks/t.yaml` with that text."""
    file = write(rootdir / "tasks" / "t.yaml", text)
    (task,) = load_file(file, settings(rootdir, **more)).tasks
    return task


def expand_one(
    rootdir: Path, text: str, options: RunOptions | None = None, defaults: Mapping[str, Any] | None = None, **more: Any
) -> Trial:
    """The one trial of that task."""
    loaded = load_one(rootdir, text, **more)
    (trial,) = expand(
        loaded, settings=settings(rootdir, **more), options=options or RunOptions(), defaults=defaults or {}, node_id="tasks/t.yaml::t"
    )
    return trial


def faults(error: CodeprobeError) -> list[str]:
    """`line:column message` of all faults that an error knows of."""
    return [f"{e['line']}:{e['column']} {e['message']}" for e in error.detail["errors"]]
