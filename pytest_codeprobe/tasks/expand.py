"""From a loaded task to its trials: layers merged, prompt read, everything absolute, nothing asked for in vain."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.base import SourcedFloat, SourcedInt
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.model.trial import HIDDEN_ROLES, FileRef, Trial
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.tasks import availability, sentences
from pytest_codeprobe.tasks.availability import shown_plain
from pytest_codeprobe.tasks.layers import Layer, combine, lookup, without_foreign_fields
from pytest_codeprobe.tasks.load import LoadedTask, LoadSettings
from pytest_codeprobe.tasks.problems import FieldPath, Problems, dotted, undotted

#: (table, field, field of RunOptions that sets it)
_FLAGS = (
    ("agent", "type", "agent"),
    ("agent", "model", "model"),
    ("agent", "permission_mode", "permission_mode"),
    ("sandbox", "driver", "driver"),
    ("run_limits", "task_timeout", "timeout"),
)
_ALWAYS = frozenset({"type", "env", "permission_mode"})  #: agent fields that need no entry in Agent.supports


def expand(
    loaded: LoadedTask,
    *,
    settings: LoadSettings,
    options: RunOptions,
    defaults: Mapping[str, Any],
    node_id: str,
) -> list[Trial]:
    """The trials of a task, in their order. CodeprobeError if it asks for what nothing can do here.

    `defaults` is what load_defaults() gave. A task without an agent becomes a trial whose agent.type is None.
    """
    return [_Expansion(loaded, settings, options, defaults).trial(node_id)]


@dataclass(slots=True)
class _Expansion:
    loaded: LoadedTask
    settings: LoadSettings
    options: RunOptions
    defaults: Mapping[str, Any]
    problems: Problems = field(init=False)
    notes: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)  #: the layers as one
    layers: list[Layer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.problems = Problems(self.loaded.name)

    def trial(self, node_id: str) -> Trial:
        for path, message in availability.of_task(self.loaded.task):
            self._add(path, message)
        self._merge()
        agent = self._agent()
        driver = self._driver()
        self._hold_sandbox()
        if agent is not None:
            self._hold_agent(agent)
        self.problems.check()
        trial = self._build(node_id, agent)
        self._keep_hidden(trial)
        if self._ask(trial, agent, driver):
            trial = self._build(node_id, agent)
        self.problems.check()
        return trial

    # ------------------------------------------------------------------ layers

    def _merge(self) -> None:
        layers = [
            Layer(name="default", values=self.defaults),
            Layer(name="task", values=self.loaded.layer),
            Layer(name="flags", values=self._flags()),
        ]
        self.layers = without_foreign_fields(layers, self.settings.agent_names)
        self.values = combine(self.layers)

    def _flags(self) -> dict[str, Any]:
        flags: dict[str, dict[str, Any]] = {}
        for table, field_name, option in _FLAGS:
            value = getattr(self.options, option)
            if value is not None and not (table == "agent" and self._is_without_agent()):
                flags.setdefault(table, {})[field_name] = value
        return flags

    def _is_without_agent(self) -> bool:
        """Whether the file itself says `agent.type: none`, which no flag changes."""
        name = lookup(self.loaded.layer, ("agent", "type"))
        found = self._known_agent(str(name)) if name is not None else None
        return name == "none" or (found is not None and found.name == "none")

    def _flag_for(self, path: FieldPath) -> str | None:
        """The option that sets a field, if its flag stands on the command line."""
        name = next((option.replace("_", "-") for *at, option in _FLAGS if tuple(at) == path), None)
        given = name in self.options.on_command_line and lookup(self.layers[-1].values, path) is not None
        return f"--codeprobe-{name}" if given else None

    def _task_sets(self, path: FieldPath) -> bool:
        """Whether the task's own layer still has the field, after foreign agent fields are gone."""
        return lookup(self.layers[1].values, path) is not None

    # ------------------------------------------------------------------- agent

    def _known_agent(self, name: str) -> Agent | None:
        return self.settings.agents_by_name.get(name)

    def _agent(self) -> Agent | None:
        """The adapter; UNKNOWN_BACKEND for a flag's unknown name. None where no agent is chosen."""
        name = lookup(self.values, ("agent", "type"))
        if name is None:
            return None
        agent = self._known_agent(str(name))
        if agent is not None:
            self.values["agent"]["type"] = agent.name
            return agent
        if lookup(self.layers[-1].values, ("agent", "type")) is None and name in availability.KNOWN_AGENTS:
            self._add(("agent", "type"), f"agent {name!r} is not available yet")
            return None
        return self.settings.registry.agent(str(name))  # raises

    def _hold_agent(self, agent: Agent) -> None:
        """Fields that the agent can't honour: a fault if set for it, else left out with a note."""
        fields: dict[str, Any] = self.values.get("agent", {})
        for name in list(fields):
            if name == agent.name or name not in AgentConfig.model_fields:
                if name != agent.name:
                    del fields[name]  # another agent's own table
                continue
            if name in _ALWAYS or name in agent.supports or fields[name] == AgentConfig.model_fields[name].default:
                continue
            self._refuse(("agent", name), f"agent.{name} is not supported by {agent.name}")
        mode = fields.get("permission_mode", "auto")
        if mode not in agent.permission_modes:
            self._refuse_mode(agent, str(mode))

    def _refuse_mode(self, agent: Agent, mode: str) -> None:
        path: FieldPath = ("agent", "permission_mode")
        if flag := self._flag_for(path):
            raise CodeprobeError(
                "INVALID_PERMISSION_MODE",
                f"{flag}: {mode!r} is not supported by {agent.name}",
                remediation=f"It takes: {', '.join(agent.permission_modes)}. Which of them it gets is for a human to decide.",
                detail={"agent": agent.name, "mode": mode, "supported": list(agent.permission_modes)},
            )
        self._refuse(path, f"agent.permission_mode: {mode} is not supported by {agent.name}")

    def _refuse(self, path: FieldPath, message: str) -> None:
        """An agent field counts as set for the agent where its layer names a type, or where it is a flag's."""
        flag = self._flag_for(path)
        if flag is not None:
            self._add(path, f"{message} (set by {flag})")
        elif self._task_sets(path) and self._task_sets(("agent", "type")):
            self._add(path, message)
        else:
            self._leave_out(path, message)

    # ----------------------------------------------------------------- sandbox

    def _driver(self) -> str:
        path: FieldPath = ("sandbox", "driver")
        name = str(lookup(self.values, path) or "auto")
        drivers = self.settings.registry.drivers
        if self.options.driver is not None:
            availability.check_driver(name, drivers, self._flag_for(path) or "codeprobe_driver")
        known = {*drivers, *availability.KNOWN_DRIVERS}
        if name in known:
            return name
        self._add(path, f"unknown driver {name!r}{did_you_mean(name, known)}")
        return "auto"

    def _hold_sandbox(self) -> None:
        found = list(availability.of_sandbox(self.values.get("sandbox", {})))
        for path, message in reversed(found):  # from the end, so that leaving out an entry moves no other
            if self._wanted(path):
                self._add(self._own(path) or path, message)
            else:
                self._leave_out(path, message)

    def _wanted(self, path: FieldPath) -> bool:
        own = self._own(path)
        return own is not None and (self._flag_for(path) is not None or self._task_sets(own))

    def _own(self, path: FieldPath) -> FieldPath | None:
        """The path in the task's layer, where entries of template_sources may stand elsewhere; None: another layer's entry."""
        if path[:2] != ("sandbox", "template_sources") or len(path) < 3:
            return path
        source = lookup(self.values, path[:3])
        own = lookup(self.layers[1].values, path[:2]) or []
        return (*path[:2], own.index(source), *path[3:]) if source in own else None

    def _keep_hidden(self, trial: Trial) -> None:
        """A template inside of what the agent must not see would show it nothing else."""
        hidden = {ref.path: ref.role for ref in trial.manifest if ref.role in HIDDEN_ROLES}
        for number, source in enumerate(trial.sandbox.template_sources):
            places = (source.path, *map(str, Path(source.path).parents)) if source.path is not None else ()
            if role := next((hidden[place] for place in places if place in hidden), None):
                path: FieldPath = ("sandbox", "template_sources", number, "path")
                what = "hidden tests" if role == "hidden" else role
                self._add(self._own(path) or path, f"'{dotted(path)}' names what the agent must not see: the task's {what}")

    # ------------------------------------------------------------------- faults

    def _add(self, path: FieldPath, message: str) -> None:
        self.problems.add(self.loaded.place(path), path, message)

    def _leave_out(self, path: FieldPath, message: str) -> None:
        """Take a field away that only a default (or a layer that names no agent) set."""
        holder = lookup(self.values, path[:-1])
        if isinstance(holder, dict):
            holder.pop(path[-1], None)
        elif isinstance(holder, list) and isinstance(path[-1], int):
            del holder[path[-1]]
        self.notes.append(f"{message}; it is left out")

    def _ask(self, trial: Trial, agent: Agent | None, driver: str) -> bool:
        """What agent and driver have to say about the trial; whether something was left out, so that it is made anew."""
        changed = False
        if agent is not None:
            for name, words in agent.problems(trial):
                path = undotted(name)
                self._add(path, words if words.startswith(name) else sentences.about(path, words))
        chosen = self.settings.registry.drivers.get("tempdir" if driver == "auto" else driver)
        for name, holds in chosen.unsupported(trial) if chosen is not None else ():
            path = undotted(name)
            value = lookup(self.values, path)
            said = f"{name}: {shown_plain(value)}" if isinstance(value, str | int | float | list) else name
            message = f"{said} needs {holds}"
            if value is None or self._wanted(path):
                self._add(self._own(path) or path, message)
            else:
                self._leave_out(path, message)
                changed = True
        return changed

    # -------------------------------------------------------------------- trial

    def _build(self, node_id: str, agent: Agent | None) -> Trial:
        loaded, task = self.loaded, self.loaded.task
        agent_values = dict(self.values.get("agent", {}))
        if agent is None:
            agent_values.pop("type", None)
        sandbox = self._table(SandboxConfig, "sandbox", self.values.get("sandbox", {}))
        return Trial(
            node_id=node_id,
            task_id=task.task_id,
            folder=f"default/{task.task_id.replace('/', '__')}/r001",
            task_file=str(loaded.file),
            line=loaded.line,
            prompt=loaded.prompt,
            description=task.description,
            tags=task.tags,
            metadata=plain(task.metadata),
            agent=self._table(AgentConfig, "agent", agent_values),
            sandbox=sandbox,
            limits=self._table(RunLimits, "run_limits", self.values.get("run_limits", {})),
            criteria=tuple(c.model_dump(mode="json", exclude_unset=True) for c in loaded.criteria),
            pass_score=task.pass_score,
            reference=task.reference,
            solution=task.solution,
            pre_run=task.pre_run,
            post_run=task.post_run,
            skip=task.skip_reason,
            xfail=task.xfail,
            expect=task.expect,
            manifest=tuple(dict.fromkeys(_manifest(loaded, sandbox))),
            notes=tuple(self.notes),
        )

    def _table(self, model: Any, name: str, values: Mapping[str, Any]) -> Any:
        """The layers are valid one by one; together they may break a rule that spans fields."""
        if not values:
            return _empty(model)
        alone = all(layer.name == "task" for layer in self.layers if layer.values.get(name))
        if alone and values == self.loaded.layer.get(name):
            return getattr(self.loaded.task, name)  # as its file says it: validated already
        try:
            return model.model_validate(values)
        except ValidationError as error:
            sentences.report(error, values, model, self.problems, self.loaded.document, (*self.loaded.at, name), prefix=(name,))
            self.problems.raise_first()


@functools.cache
def _empty(model: type[BaseModel]) -> BaseModel:
    """One for all tasks that set nothing of it."""
    return model()


def _manifest(loaded: LoadedTask, sandbox: SandboxConfig) -> Iterator[FileRef]:
    yield FileRef(path=str(loaded.file), role="task")
    yield from loaded.refers_to
    for source in sandbox.template_sources:  # also those of other layers
        if source.path is not None:
            yield FileRef(path=source.path, role="template")


def plain(value: Any) -> Any:
    """The value without the numbers that remember their spelling, in containers of its own."""
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, SourcedInt):
        return int(value)
    return float(value) if isinstance(value, SourcedFloat) else value


__all__ = ["dotted", "expand", "plain"]
