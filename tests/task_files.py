"""A registry of built-ins and a folder with task files, for the tests of loading."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.agents import BUILTIN as AGENTS
from pytest_codeprobe.criteria import BUILTIN as CRITERIA
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.context import Registry
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.sandboxes.tempdir import TempdirDriver
from pytest_codeprobe.tasks.configure import Layers
from pytest_codeprobe.tasks.expand import Plan, expand
from pytest_codeprobe.tasks.experiments import load_experiment
from pytest_codeprobe.tasks.layers import Layer
from pytest_codeprobe.tasks.load import LoadedTask, LoadSettings, load_file
from pytest_codeprobe.tasks.overrides import flags_layer, given

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
    rootdir: Path,
    text: str,
    options: RunOptions | None = None,
    defaults: Mapping[str, Any] | None = None,
    experiment: Path | None = None,
    **more: Any,
) -> Trial:
    """The one trial of that task; `defaults` is the layer below it, else what experiments/default.yaml says."""
    (trial,) = expand(load_one(rootdir, text, **more), plan(settings(rootdir, **more), options, defaults, experiment))
    return trial


def plan(
    made: LoadSettings, options: RunOptions | None = None, defaults: Mapping[str, Any] | None = None, experiment: Path | None = None
) -> Plan:
    """How tasks become trials in a run with these options."""
    options = options or RunOptions()
    chosen = load_experiment(experiment, made)
    if defaults is not None:
        chosen = replace(chosen, layers=(Layer(name="default", values=defaults),))
    around = Layers(below=chosen.layers, flags=flags_layer(options, made), given=tuple(given(options)))
    return Plan(settings=made, experiment=chosen, flags=around, repeats=options.repeats, sample=options.sample)


def faults(error: CodeprobeError) -> list[str]:
    """`line:column message` of all faults that an error knows of."""
    return [f"{e['line']}:{e['column']} {e['message']}" for e in error.detail["errors"]]


def refused(call: Any, *args: Any, **more: Any) -> str:
    """What a call that must be refused is refused with."""
    with pytest.raises(CodeprobeError) as caught:
        call(*args, **more)
    return str(caught.value)
