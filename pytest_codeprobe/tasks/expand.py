"""From a loaded task to its trials: for each row, variant and repeat one, with layers merged and everything absolute."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from pydantic import BaseModel, ValidationError

from pytest_codeprobe.model.base import plain
from pytest_codeprobe.model.config import AgentConfig, PreRunCommand, RunLimits, SandboxConfig, Simulation, TaskCommand
from pytest_codeprobe.model.trial import FileRef, Spelled, Trial
from pytest_codeprobe.tasks import sentences
from pytest_codeprobe.tasks.configure import Configuration, Layers
from pytest_codeprobe.tasks.dataset.rows import Row
from pytest_codeprobe.tasks.dataset.sampling import Sampling, SamplingProblem, sampled
from pytest_codeprobe.tasks.dataset.substitution import SubstitutionProblem, substituted, without_row
from pytest_codeprobe.tasks.dialect import CODER_EVAL
from pytest_codeprobe.tasks.experiment_layers import ChosenVariant
from pytest_codeprobe.tasks.experiments import Experiment
from pytest_codeprobe.tasks.heads import Resolved
from pytest_codeprobe.tasks.load import LoadedTask, LoadSettings, TaskDataset
from pytest_codeprobe.tasks.problems import FieldPath, Problems, dotted
from pytest_codeprobe.tasks.prompts import PREAMBLES, PromptProblem, find_preamble, mutated, preamble_text, steps_of, with_preambles


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is the same for all tasks of a run."""

    settings: LoadSettings
    experiment: Experiment
    flags: Layers  #: without a variant
    repeats: int | None = None  #: instead of what the layers say
    sample: int | None = None  #: rows of each dataset
    sample_per_stratum: int | None = None
    drawn_seed: int = 0  #: for datasets whose seed is null
    include_skipped: bool = False  #: `skip` of a task counts for nothing


class Expansion:
    """A task on its way to its trials. CodeprobeError where it asks for what nothing can do here."""

    def __init__(self, loaded: LoadedTask, plan: Plan) -> None:
        self.loaded, self.plan = loaded, plan
        dataset = loaded.dataset
        self.rows: tuple[Row, ...] = ()  #: those that run
        self.left_out: tuple[Row, ...] = ()  #: by sampling
        #: how the settings came to be, under each variant; of a task with a dataset, of its first row. Filled by trials()
        self.resolved: list[Resolved] = []
        self._named: dict[str, tuple[str | None, str | None]] = {}  #: row and variant of each name, case ignored
        if dataset is not None:
            self.rows = tuple(self._sampled(dataset))
            chosen = {row.id for row in self.rows}
            self.left_out = tuple(row for row in dataset.rows if row.id not in chosen)

    def _sampled(self, dataset: TaskDataset) -> list[Row]:
        spec, plan = dataset.spec, self.plan
        seed = plan.drawn_seed if spec.sample_seed is None else spec.sample_seed
        sampling = Sampling(
            rows=plan.sample,
            per_stratum=plan.sample_per_stratum or spec.sample_per_stratum,
            field=spec.stratify_field,
            seed=0 if plan.sample is not None else seed,
        )
        try:
            return sampled(dataset.rows, sampling)
        except SamplingProblem as problem:
            raise self.loaded.error(("dataset",), str(problem)) from problem

    def tasks(self) -> Iterator[LoadedTask]:
        """The task with the values of each row that runs; as it is without a dataset."""
        dataset = self.loaded.dataset
        if dataset is None:
            yield self.loaded
            return
        for row in self.rows:
            yield self.loaded if row is self.loaded.row else dataset.read(row)

    def trials(self, task: LoadedTask) -> Iterator[Trial]:
        """Those of one row: for each variant and repeat one. Its node id is the name of its item."""
        for variant in self.plan.experiment.variants:
            one = _Variant(task, self.plan, variant, len(self.rows) or 1)
            for trial in one.trials():
                self._is_unique(trial.node_id, trial.row_id, trial.variant_id)
                yield trial
            if len(self.resolved) < len(self.plan.experiment.variants):
                self.resolved.append(one.resolved())

    def names_left_out(self) -> Iterator[str]:
        """Names of the items that sampling leaves out."""
        for variant in self.plan.experiment.variants if self.left_out else ():
            one = _Variant(self.loaded, self.plan, variant, len(self.rows))
            for row in self.left_out:
                for name in (one.name(repeat, row) for repeat in range(1, one.repeats + 1)):
                    self._is_unique(name, row.id, variant.name)
                    yield name

    def _is_unique(self, name: str, row: str | None, variant: str | None) -> None:
        """TASK_INVALID where two trials would have one name: pytest would run both as one, and one record would be lost."""
        if not self.plan.experiment.compares:
            return  # rows are told apart by their ids already
        other = self._named.setdefault(name.casefold(), (row, variant))
        if other != (row, variant):
            both = " and ".join(
                " of ".join([*([f"row {a!r}"] if a is not None else []), f"variant {b!r}"]) for a, b in (other, (row, variant))
            )
            raise self.loaded.error(("task_id",), f"{both} would both be {name!r}; give one of them another id")


def expand(loaded: LoadedTask, plan: Plan) -> Iterator[Trial]:
    """All trials of a task, in their order. A task without an agent becomes trials whose agent.type is None."""
    expansion = Expansion(loaded, plan)
    for task in expansion.tasks():
        yield from expansion.trials(task)


def explained(loaded: LoadedTask, plan: Plan) -> Iterator[Resolved]:
    """How a task's settings come to be under each variant, whether or not anything can do what they ask for."""
    for variant in plan.experiment.variants:
        around = Layers(below=plan.flags.below, variant=variant.layer, flags=plan.flags.flags, given=plan.flags.given)
        one = Configuration(loaded, plan.settings, around, holds=False)
        settings, found = one.resolved()
        repeats = plan.repeats or one.values.get("repeats") or 1
        owners = {path: list(owner) for path, owner in found.items()}
        prompts, theirs = _prompt_of(plan.experiment, variant)
        yield Resolved(loaded.task.task_id, variant.name, {**settings, "repeats": repeats, **prompts}, {**owners, **theirs})


def _prompt_of(experiment: Experiment, variant: ChosenVariant) -> tuple[dict[str, Any], dict[str, list[str | None]]]:
    """What becomes of a task's prompt, and where each part is said."""
    own: list[str | None] = ["variant", None if variant.layer is None else variant.layer.file]
    if variant.prompt is not None:
        settings: dict[str, Any] = {"initial_prompt": variant.prompt}
        owners = {"initial_prompt": own}
    else:
        below = steps_of(experiment.mutations)
        lower: list[str | None] = [experiment.layers[-1].name, experiment.layers[-1].file] if experiment.layers else own
        steps = steps_of((*experiment.mutations, *variant.mutations))
        settings = {"prompt_mutations": [step.model_dump(mode="json", exclude_unset=True) for step in steps]} if steps else {}
        owners = {f"prompt_mutations[{n}]": lower if step in below else own for n, step in enumerate(steps)}
    for number, name in enumerate(variant.preambles):
        settings.setdefault("preambles", []).append(name)
        owners[f"preambles[{number}]"] = own
    return settings, owners


class _Variant:
    """A task (and row) under one variant."""

    def __init__(self, loaded: LoadedTask, plan: Plan, variant: ChosenVariant, rows: int) -> None:
        self.loaded, self.plan, self.variant, self.rows = loaded, plan, variant, rows
        around = Layers(below=plan.flags.below, variant=variant.layer, flags=plan.flags.flags, given=plan.flags.given)
        self.configured = Configuration(loaded, plan.settings, around)
        self.repeats: int = plan.repeats or self.configured.values.get("repeats") or 1

    def trials(self) -> Iterator[Trial]:
        """One for each repeat."""
        first = self._build()
        self.configured.keep_hidden(first)
        if self.configured.ask(first):
            first = self._build()
        yield first
        for repeat in range(2, self.repeats + 1):
            yield first.model_copy(update=self._identity(repeat))

    def resolved(self) -> Resolved:
        """How its settings came to be."""
        settings, found = self.configured.resolved()
        owners = {path: list(owner) for path, owner in found.items()}
        return Resolved(self.loaded.task.task_id, self.variant.name, {**settings, "repeats": self.repeats}, owners)

    def name(self, repeat: int, row: Row | None) -> str:
        """Of the item of one repeat: `cls[row-7-sonnet-r2]`."""
        parts = [f"row-{row.id}"] if row is not None else []
        if self.variant.name is not None and self.plan.experiment.compares:
            parts.append(self.variant.name)
        if self.repeats > 1:
            parts.append(f"r{repeat:0{len(str(self.repeats))}d}")
        task_id = self.loaded.task.task_id
        return f"{task_id}[{'-'.join(parts)}]" if parts else task_id

    def _identity(self, repeat: int) -> dict[str, Any]:
        row = self.loaded.row
        folders = [self.variant.name or "default", self.loaded.task.task_id.replace("/", "__")]
        if row is not None:
            folders.append(f"row-{row.id}")
        return {"node_id": self.name(repeat, row), "repeat": repeat, "folder": "/".join([*folders, f"r{repeat:03d}"])}

    def _gate(self) -> int | None:
        """How many repeats must pass; None without a gate."""
        wanted = self.loaded.task.min_passes
        if wanted is None:
            return None
        own = self.configured.below("variant").get("repeats") or 1
        if wanted > own:
            raise self.loaded.error(("min_passes",), f"'min_passes' must be at most the {own} repeats that there are, not {wanted}")
        scaled = math.ceil(wanted * self.repeats / own)
        if scaled != wanted:
            task_id = self.loaded.task.task_id
            self.configured.notes.append(f"{task_id}: {wanted} of {own} repeats that must pass have become {scaled} of {self.repeats}")
        return scaled

    def _build(self) -> Trial:
        loaded, task = self.loaded, self.loaded.task
        sandbox = self._table(SandboxConfig, "sandbox")
        min_passes = self._gate()
        return Trial(
            **self._identity(1),
            task_id=task.task_id,
            variant_id=self.variant.name,
            row_id=None if loaded.row is None else loaded.row.id,
            row=None if loaded.row is None else plain(loaded.row.values),
            rows=self.rows,
            repeats=self.repeats,
            min_passes=min_passes,
            task_file=str(loaded.file),
            line=loaded.line,
            prompt=self._prompt(),
            description=task.description,
            tags=task.tags,
            metadata=plain(task.metadata),
            agent=self._table(AgentConfig, "agent"),
            sandbox=sandbox,
            limits=self._table(RunLimits, "run_limits"),
            criteria=tuple(c.model_dump(mode="json", exclude_unset=True) for c in loaded.criteria),
            pass_score=task.pass_score,
            expected_commands=task.expected_commands,
            reference=task.reference,
            solution=task.solution,
            pre_run=self._commands(PreRunCommand, "pre_run"),
            post_run=self._commands(TaskCommand, "post_run"),
            simulation=self._simulation(),
            skip=None if self.plan.include_skipped else task.skip_reason,
            xfail=task.xfail,
            expect=task.expect,
            manifest=tuple(dict.fromkeys(_manifest(loaded, sandbox))),
            spelled=tuple(Spelled(path=path, text=text) for path, text in self.configured.spelled()),
            host_environment=loaded.dialect == CODER_EVAL,
            notes=tuple(self.configured.notes),
        )

    # ---- parts

    def _prompt(self) -> str | None:
        """The task's, or the variant's instead; mutated, and with preambles behind it."""
        variant = self.variant
        prompt = variant.prompt or self.loaded.prompt
        if prompt is None:
            return None
        name = "prompt_mutations" if variant.prompt is None else "initial_prompt"
        try:
            if variant.prompt is None:
                prompt = mutated(prompt, steps_of((*self.plan.experiment.mutations, *variant.mutations)), self._with_values)
            else:
                prompt = self._with_values(prompt)
            if variant.preambles:
                prompt = with_preambles(prompt, self._preambles())
        except PromptProblem as problem:
            self._fault(f"{problem} (task {self.loaded.task.task_id!r})")
        except SubstitutionProblem as problem:
            self._fault(f"'{name}' {problem} (task {self.loaded.task.task_id!r})", (name,))
        return prompt

    def _with_values(self, text: str) -> str:
        """What an experiment says to each task, with this one's row in it."""
        row = self.loaded.row
        return without_row(text) if row is None else substituted(text, row.values)

    def _preambles(self) -> Iterator[str]:
        rootdir, folder = self.plan.settings.rootdir, self.loaded.file.parent
        repository = self.plan.settings.places.repository_of(folder) or rootdir
        variables = {"task_id": self.loaded.task.task_id, "repo_name": repository.name, "repo_path": "."}
        places = (folder, rootdir / PREAMBLES, Path.home() / PREAMBLES)
        for name in self.variant.preambles:
            yield preamble_text(find_preamble(name, places), variables)

    def _fault(self, message: str, path: FieldPath = ()) -> NoReturn:
        """At the variant, else at the defaults of the experiment."""
        own = self.variant.layer if self.variant.mutations or path != ("prompt_mutations",) else None
        layer = own or self.plan.experiment.layers[-1]
        problems = Problems(layer.file or self.loaded.name)
        problems.add(layer.place(path), (*layer.at, *path), message)
        problems.raise_first()

    def _commands(self, model: Any, name: str) -> Any:
        configured = self.configured
        own = configured.is_the_tasks(name) or not configured.values.get(name)
        return getattr(self.loaded.task, name) if own else tuple(map(model.model_validate, configured.values[name]))

    def _simulation(self) -> Simulation | None:
        """Of an agent that can hold a dialog, with who plays the user."""
        values, judge = self.configured.values.get("simulation"), self.plan.experiment.judge
        found = None if values is None else self._valid(Simulation, values, "simulation")
        simulation = self.configured.hold_simulation(found, None if judge is None else judge.model)
        if simulation is None and self.configured.agent is not None and self.configured.agent.is_session:
            self.configured.need_prompt(self.variant.prompt or self.loaded.prompt)
        return simulation

    def _table(self, model: Any, name: str) -> Any:
        """The layers are valid one by one; together they may break a rule that spans fields."""
        values = self.configured.table(name)
        if not values:
            return _empty(model)
        if self.configured.is_the_tasks(name) and (name != "agent" or self.configured.agent is not None):
            return getattr(self.loaded.task, name)  # as its file says it: validated already
        return self._valid(model, values, name)

    def _valid(self, model: Any, values: Mapping[str, Any], name: str) -> Any:
        loaded = self.loaded
        try:
            return model.model_validate(values)
        except ValidationError as error:
            problems = Problems(loaded.name)
            sentences.report(error, values, model, problems, loaded.document, (*loaded.at, name), prefix=(name,))
            problems.raise_first()


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


__all__ = ["Plan", "dotted", "expand", "plain"]
