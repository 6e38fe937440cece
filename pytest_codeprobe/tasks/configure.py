"""A task under one variant: its layers as one, held against what agent and driver can do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.base import plain
from pytest_codeprobe.model.config import AgentConfig, Simulation
from pytest_codeprobe.model.trial import HIDDEN_ROLES, Trial
from pytest_codeprobe.options.table import AUTO_DRIVERS
from pytest_codeprobe.tasks import availability, dialect, sentences
from pytest_codeprobe.tasks.availability import shown_plain
from pytest_codeprobe.tasks.dataset.substitution import SubstitutionProblem, has_placeholders, with_row, without_rows
from pytest_codeprobe.tasks.dialogs import with_user
from pytest_codeprobe.tasks.layers import Layer, LayerName, combine, copied, lookup, origins, without_foreign_fields
from pytest_codeprobe.tasks.load import LoadedTask, LoadSettings
from pytest_codeprobe.tasks.problems import FieldPath, Problems, dotted, undotted
from pytest_codeprobe.tasks.repositories import RepositoryProblem, shown_url

_ALWAYS = frozenset({"type", "env", "permission_mode"})  #: agent fields that need no entry in Agent.supports
_OF_ROWS = ("sandbox", "pre_run", "post_run", "simulation", "agent")  #: settings of an experiment that may name fields of a row
_MEANT = frozenset({"task", "variant"})  #: layers whose settings are asked for by somebody, not merely a default


@dataclass(frozen=True, slots=True, kw_only=True)
class Layers:
    """Those that are not the task's own."""

    below: tuple[Layer, ...] = ()  #: of the experiment, low to high
    variant: Layer | None = None
    flags: Layer
    given: tuple[tuple[FieldPath, str], ...] = ()  #: what the command line sets, and how it was spelled there


#: mappings of names to values that may be secrets, by the last step of their path
_VALUES = frozenset({"env", "headers", "args"})


def _without_values(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        return {k: "..." if key in _VALUES else _without_values(v, str(k)) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return ["..." if key in _VALUES else _without_values(v, key) for v in value]
    return shown_url(value) if key == "url" and isinstance(value, str) else plain(value)


@dataclass(slots=True)
class Configuration:
    """A task under one variant: its layers as one, and what nothing can hold reported or left out."""

    loaded: LoadedTask
    settings: LoadSettings
    around: Layers
    holds: bool = True  #: agent and driver are asked what they can do; else the layers are put together and no more
    problems: Problems = field(init=False)
    notes: list[str] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)  #: the layers as one
    layers: list[Layer] = field(default_factory=list)
    agent: Agent | None = None  #: None where none is chosen
    driver: str = "auto"

    def __post_init__(self) -> None:
        """TASK_INVALID, UNKNOWN_BACKEND, INVALID_PERMISSION_MODE where it asks for what nothing can do here."""
        self.problems = Problems(self.loaded.name)
        if not self.holds:
            self._merge()
            return
        for path, message in availability.of_task(self.loaded.task):
            self._add(path, message)
        self._merge()
        self.agent = self._agent()
        self.driver = self._driver()
        self._hold_repositories()
        if self.agent is not None:
            self._hold_agent(self.agent)
        self.problems.check()

    def table(self, name: str) -> Mapping[str, Any]:
        """One table of the layers as one."""
        found = self.values.get(name) or {}
        if name == "agent" and self.agent is None:
            return {key: value for key, value in found.items() if key != "type"}
        return dict(found)

    def below(self, name: LayerName) -> dict[str, Any]:
        """The layers below one as one."""
        return combine(self.layers[: next((n for n, layer in enumerate(self.layers) if layer.name in (name, "flags")), None)])

    def resolved(self) -> tuple[dict[str, Any], dict[str, tuple[LayerName, str | None]]]:
        """All settings, and of each leaf that a layer set, dotted: the layer, and the file that it stands in. None of a flag.

        Of variables for processes only the names are told: their values may be secrets.
        """
        found = {dotted(path): (layer.name, layer.file) for path, layer in origins(self.layers).items() if self._still_there(path)}
        shown = copied(self.values)
        for path, text in self.spelled():
            lookup(shown, path[:-1])[path[-1]] = text
        return _without_values(shown), found

    def spelled(self) -> Iterator[tuple[FieldPath, str]]:
        """Settings in which variables stood and that hold, as their files say them."""
        for layer in self.layers:
            for path, text in layer.spelled.items():
                if self._still_there(path) and self._layer(path) is layer:
                    yield path, text

    def _still_there(self, path: FieldPath) -> bool:
        """Whether a setting has not been left out since."""
        return lookup(self.values, path) is not None

    def is_the_tasks(self, name: str) -> bool:
        """Whether no other layer has a say in a table: then it is as its file says it, and validated already."""
        alone = all(layer.name == "task" for layer in self.layers if layer.values.get(name))
        return alone and self.values.get(name) == self.loaded.layer.get(name)

    # ------------------------------------------------------------------ layers

    def _merge(self) -> None:
        loaded, flags = self.loaded, self.around.flags
        own = Layer(name="task", values=loaded.layer, file=loaded.name, document=loaded.document, at=loaded.at, spelled=loaded.spelled)
        if self._is_without_agent():
            flags = replace(flags, values={key: value for key, value in flags.values.items() if key != "agent"})
        variant = () if self.around.variant is None else (self._with_row(self.around.variant),)
        layers = [*map(self._with_row, self.around.below), own, *variant, flags]
        if loaded.dialect == dialect.CODER_EVAL:
            upper = combine(layers)
            agent = self.settings.agent_names.get(str(lookup(upper, ("agent", "type"))))
            layers.insert(0, dialect.layer(agent, simulated=bool(upper.get("simulation"))))
        self.layers = without_foreign_fields(layers, self.settings.agent_names)
        self.values = combine(self.layers)
        if not loaded.layer.get("simulation") and lookup(self.values, ("simulation", "goal")) is None:
            self.values.pop("simulation", None)  # an experiment's bounds on dialogs make none of a task that has no user

    def _with_row(self, layer: Layer) -> Layer:
        """What an experiment sets for all tasks, with the values of this one's row where it names them."""
        named = {key: layer.values[key] for key in _OF_ROWS if has_placeholders(layer.values.get(key))}
        if not named:
            return layer
        row = self.loaded.row
        try:
            filled = without_rows(named) if row is None else with_row(named, row.values, resolved=True)
        except SubstitutionProblem as problem:
            message = f"{sentences.about(problem.path, str(problem))} (task {self.loaded.task.task_id!r})"
            self.problems.add(layer.place(problem.path), problem.path, message, file=layer.file)
            return layer
        return replace(layer, values={**layer.values, **filled})

    def _layer(self, path: FieldPath) -> Layer | None:
        """The highest that sets a field, after foreign agent fields are gone."""
        return next((layer for layer in reversed(self.layers) if lookup(layer.values, path) is not None), None)

    def _is_without_agent(self) -> bool:
        """Whether the file itself says `agent.type: none`, which no flag changes."""
        name = lookup(self.loaded.layer, ("agent", "type"))
        found = self._known_agent(str(name)) if name is not None else None
        return name == "none" or (found is not None and found.name == "none")

    def _flag_for(self, path: FieldPath) -> str | None:
        """How the command line spelled what sets a field, if it does."""
        if lookup(self.layers[-1].values, path) is None:
            return None
        return next((spelled for at, spelled in self.around.given if path[: len(at)] == at), None)

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
        flag, layer = self._flag_for(path), self._layer(path)
        if flag is not None:
            self._add(path, f"{message} (set by {flag})")
        elif layer is not None and layer.name != "flags" and lookup(layer.values, ("agent", "type")) is not None:
            self._add(path, message)
        else:
            self._leave_out(path, message)

    # -------------------------------------------------------------- simulation

    def hold_simulation(self, simulation: Simulation | None, judge: str | None) -> Simulation | None:
        """It with who plays the user; None without one. `judge`: the model that does where nobody else is named."""
        if simulation is None or self.agent is None:
            return None
        try:
            found = with_user(simulation, self.agent, self.settings, judge, self._add)
        except CodeprobeError as error:
            place = f"{self.loaded.name}:{self.loaded.line}"
            message = f"{error.message} (task {self.loaded.task.task_id!r}, {place})"
            raise CodeprobeError(error.code, message, remediation=error.remediation, detail=error.detail) from None
        self.problems.check()
        return found

    def need_prompt(self, prompt: str | None) -> None:
        """A fault where there is neither a prompt nor a user who opens."""
        if prompt is None:
            self._add((), "a task needs 'initial_prompt' or 'initial_prompt_file' where no simulated user opens")
            self.problems.check()

    # ----------------------------------------------------------------- sandbox

    def _driver(self) -> str:
        path: FieldPath = ("sandbox", "driver")
        name = str(lookup(self.values, path) or "auto")
        drivers = self.settings.registry.drivers
        if (by := self._chose_driver) is not None:
            availability.check_driver(name, drivers, by)
        known = {*drivers, *availability.KNOWN_DRIVERS}
        if name in known:
            return name
        engine = " (podman is an engine of driver docker: `driver: docker`, and ini codeprobe_engine = podman)" if name == "podman" else ""
        meant = engine or did_you_mean(name, known) or f"; one of: auto, {', '.join(sorted(drivers))}"
        self._add(path, f"unknown driver {name!r}{meant}")
        return "auto"

    @property
    def _chose_driver(self) -> str | None:
        """What named the driver for all tasks of the run, if anything did."""
        path: FieldPath = ("sandbox", "driver")
        if lookup(self.layers[-1].values, path) is None:
            return None
        return self._flag_for(path) or "ini codeprobe_driver, or CODEPROBE_DRIVER"

    def _hold_repositories(self) -> None:
        """A commit that is not there is found out now, where no server has to be asked for it."""
        for number, source in enumerate(lookup(self.values, ("sandbox", "template_sources")) or ()):
            if source.get("type") == "repo":
                try:
                    self.settings.commits.check(source, self.loaded.file)
                except RepositoryProblem as problem:
                    path: FieldPath = ("sandbox", "template_sources", number, problem.field)
                    self._add(path, f"'{dotted(path)}' {problem}")

    def _wanted(self, path: FieldPath) -> bool:
        """Whether the task, the variant or a flag asks for a field: what nothing holds is a fault then."""
        layer, _ = self._own(path)
        return self._flag_for(path) is not None or (layer is not None and layer.name in _MEANT)

    def _own(self, path: FieldPath) -> tuple[Layer | None, FieldPath]:
        """The layer that sets a field, and where in it: entries of template_sources may stand elsewhere there."""
        if path[:2] != ("sandbox", "template_sources") or len(path) < 3:
            return self._layer(path), path
        source = lookup(self.values, path[:3])
        for layer in reversed(self.layers):
            entries = lookup(layer.values, path[:2]) or []
            if source in entries:
                return layer, (*path[:2], entries.index(source), *path[3:])
        return None, path

    def keep_hidden(self, trial: Trial) -> None:
        """A template inside of what the agent must not see would show it nothing else."""
        hidden = {ref.path: ref.role for ref in trial.manifest if ref.role in HIDDEN_ROLES}
        for number, source in enumerate(trial.sandbox.template_sources):
            places = (source.path, *map(str, Path(source.path).parents)) if source.path is not None else ()
            if role := next((hidden[place] for place in places if place in hidden), None):
                path: FieldPath = ("sandbox", "template_sources", number, "path")
                what = "hidden tests" if role == "hidden" else role
                self._add(path, f"'{dotted(path)}' names what the agent must not see: the task's {what}")

    # ------------------------------------------------------------------- faults

    def _add(self, path: FieldPath, message: str) -> None:
        layer, at = self._own(path)
        if layer is None or layer.document is None or layer.name == "task":
            self.problems.add(self.loaded.place(at), at, message)
        else:
            self.problems.add(layer.place(at), at, message, file=layer.file)

    def _leave_out(self, path: FieldPath, message: str) -> None:
        """Take a field away that only a default (or a layer that names no agent) set."""
        holder = lookup(self.values, path[:-1])
        if isinstance(holder, dict):
            holder.pop(path[-1], None)
        elif isinstance(holder, list) and isinstance(path[-1], int):
            del holder[path[-1]]
        self.notes.append(f"{message}; it is left out")

    def _not_held(self, trial: Trial) -> Sequence[tuple[str, str]]:
        """Fields that the trial's driver can't hold, and what would; what `auto` comes to is asked only where that makes a difference."""
        drivers = self.settings.registry.drivers
        if self.driver != "auto":
            own = any(lookup(layer.values, ("sandbox", "driver")) == self.driver for layer in self.layers[:-1])
            by = f" (driver {self.driver} is what {self._chose_driver} names)" if self._chose_driver is not None and not own else ""
            return [(name, holds + by) for name, holds in drivers[self.driver].unsupported(trial)] if self.driver in drivers else ()
        found = {name: list(drivers[name].unsupported(trial)) for name in AUTO_DRIVERS if name in drivers}
        if not any(found.values()):
            return ()
        chosen, why = self.settings.auto()
        because = f" (driver auto is {chosen} here: {why})" if why is not None and len({tuple(f) for f in found.values()}) > 1 else ""
        return [(name, holds + because) for name, holds in found.get(chosen, ())]

    def ask(self, trial: Trial) -> bool:
        """What agent and driver have to say about a trial of it; whether something was left out, so that it is to be made anew."""
        changed = False
        if self.agent is not None:
            for name, words in self.agent.problems(trial):
                path = undotted(name)
                self._add(path, words if words.startswith(name) else sentences.about(path, words))
        if trial.simulation is not None and (config := trial.simulation.agent) is not None:
            user = trial.model_copy(update={"agent": config, "prompt": None, "simulation": None})
            for name, words in self.settings.registry.agent(config.type or "").problems(user):
                path = ("simulation", *undotted(name))
                self._add(path, f"simulation.{words}" if words.startswith(name) else sentences.about(path, words))
        for name, holds in self._not_held(trial):
            path = undotted(name)
            value = lookup(self.values, path)
            said = f"{name}: {shown_plain(value)}" if isinstance(value, str | int | float | list) else name
            message = f"{said} needs {holds}"
            if value is None or self._wanted(path):
                self._add(path, message)
            else:
                self._leave_out(path, message)
                changed = True
        self.problems.check()
        return changed
