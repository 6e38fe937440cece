"""What a task's own fields must have to do with each other, beyond the shape that the models hold."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from pytest_codeprobe.errors import did_you_mean
from pytest_codeprobe.model import metrics
from pytest_codeprobe.model.config import AgentConfig, SandboxConfig
from pytest_codeprobe.model.context import Registry
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.tasks.paths import PathProblem, workspace_path
from pytest_codeprobe.tasks.problems import FieldPath, dotted
from pytest_codeprobe.tasks.task import Task

_PASSED_ON = re.compile(r"(?:(?:agent|grader):)?[^\s=:]+")
Add = Callable[[FieldPath, str], None]


def check_task(task: Task, criteria: Sequence[Criterion | None], registry: Registry, add: Add) -> None:
    """Add a sentence for each fault, with the field that it is about."""
    _prompt(task, registry, add)
    if "expect" in task.model_fields_set and "canary" not in task.tags:
        add(("expect",), "'expect' is only for a task with the tag 'canary'")
    if task.sandbox is not None:
        check_sandbox(task.sandbox, add)
    if task.agent is not None:
        _agent(task.agent, add)
    for number, name in enumerate(task.fixtures):
        if not name.isidentifier():
            add(("fixtures", number), f"'fixtures[{number}]' must be the name of a fixture, not {name!r}")
    for number, criterion in enumerate(criteria):
        if criterion is not None and task.expected_commands is None and getattr(criterion, "expected_commands", 0) is None:
            where: FieldPath = ("success_criteria", number)
            add(where, f"'{dotted(where)}' needs 'expected_commands', here or in the task")
        if criterion is not None and criterion.suite_thresholds:
            _thresholds(criterion, number, add)
    if _is_without_agent(task, registry):
        for number, criterion in enumerate(criteria):
            if criterion is not None and criterion.needs_session:
                at: FieldPath = ("success_criteria", number, "type")
                add(at, f"criterion {criterion.type!r} needs a session, and a task of agent 'none' has none")


def _thresholds(criterion: Criterion, number: int, add: Add) -> None:
    for metric in criterion.suite_thresholds or ():
        at: FieldPath = ("success_criteria", number, "suite_thresholds", metric)
        known = (*metrics.PLAIN, *(metrics.CLASSIFICATION if criterion.classifies else ()))
        if not metrics.is_known(metric):
            add(at, f"unknown metric {metric!r}{did_you_mean(metric, known)} in '{dotted(at[:-1])}'")
        elif metric not in metrics.PLAIN and not criterion.classifies:
            add(at, f"metric {metric!r} is only for a criterion that classifies, which {criterion.type!r} does not")
        elif (label := metrics.label_of(metric)) is not None:
            _label(criterion, metric, label, at, add)


def _label(criterion: Criterion, metric: str, label: str, at: FieldPath, add: Add) -> None:
    """A figure of a class that can't be would be 0 for ever."""
    labels = criterion.labels()
    if label in (metrics.NO_ANSWER, metrics.OTHER_ANSWER):
        add(at, f"{label!r} in '{dotted(at[:-1])}' is no class: it stands for an answer that is none")
    elif labels is not None and label not in labels:
        head = metric.partition(".")[0]
        near = did_you_mean(metric, [f"{head}.{known}" for known in labels])
        add(at, f"metric {metric!r} in '{dotted(at[:-1])}' is of no label that there is{near}: those are {', '.join(labels)}")


def _prompt(task: Task, registry: Registry, add: Add) -> None:
    given = [name for name in ("initial_prompt", "initial_prompt_file") if getattr(task, name) is not None]
    if len(given) > 1:
        add(("initial_prompt_file",), "give 'initial_prompt' or 'initial_prompt_file', not both")
    opens = task.simulation is not None and task.simulation.enabled
    if not given and not opens and not _is_without_agent(task, registry):
        add((), "a task needs 'initial_prompt' or 'initial_prompt_file'; only one of agent 'none' does without")


def check_sandbox(sandbox: SandboxConfig, add: Add) -> None:
    """Paths inside the workspace and names of variables."""
    for number, source in enumerate(sandbox.template_sources):
        at: FieldPath = ("sandbox", "template_sources", number)
        if source.mount_point is not None:
            _inside(source.mount_point, (*at, "mount_point"), add)
        for index, file in enumerate(source.files or ()):
            _inside(file.path, (*at, "files", index, "path"), add)
    for number, folder in enumerate(sandbox.mock_path_dirs):
        _inside(folder, ("sandbox", "mock_path_dirs", number), add)
    _names(sandbox.env, ("sandbox", "env"), add)
    for number, entry in enumerate(sandbox.env_passthrough):
        if not _PASSED_ON.fullmatch(entry):
            message = f"'sandbox.env_passthrough[{number}]' must be NAME, agent:NAME or grader:NAME, not {entry!r}"
            add(("sandbox", "env_passthrough", number), message)


def _agent(agent: AgentConfig, add: Add) -> None:
    _names(agent.env, ("agent", "env"), add)
    if agent.system_prompt is not None and agent.system_prompt_file is not None:
        add(("agent", "system_prompt_file"), "'agent': give 'system_prompt' or 'system_prompt_file', not both")


def _inside(path: str, at: FieldPath, add: Add) -> None:
    try:
        workspace_path(path)
    except PathProblem as problem:
        add(at, f"'{dotted(at)}' {problem}")


def _names(env: dict[str, Any], at: FieldPath, add: Add) -> None:
    for name in env:
        if not name or "=" in name:
            add((*at, name), f"'{dotted(at)}' has {name!r}, which can't be the name of a variable")


def _is_without_agent(task: Task, registry: Registry) -> bool:
    """Whether the file itself says `agent.type: none`."""
    name = task.agent.type if task.agent is not None else None
    return name == "none" or any(agent.name == "none" and name in agent.aliases for agent in registry.agents.values())
