"""From an experiment file to the layers that it makes: each table valid by its own model, paths absolute, faults at their line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from pytest_codeprobe.model.base import Text
from pytest_codeprobe.model.config import AgentConfig, PreRunCommand, RunLimits, SandboxConfig, Simulation, TaskCommand
from pytest_codeprobe.tasks import sentences
from pytest_codeprobe.tasks.agent_fields import AgentFields
from pytest_codeprobe.tasks.checks import check_sandbox
from pytest_codeprobe.tasks.dialect import CODER_EVAL, completed_experiment, dialect_of
from pytest_codeprobe.tasks.discovery import read_bytes
from pytest_codeprobe.tasks.experiment_file import Defaults, ExperimentFile, Gate, Judge, Price, Settings, Variant
from pytest_codeprobe.tasks.layers import Layer, LayerName, copied
from pytest_codeprobe.tasks.paths import PathProblem, Sought
from pytest_codeprobe.tasks.problems import FieldPath, Problems, dotted, relative, shown
from pytest_codeprobe.tasks.prompts import Said
from pytest_codeprobe.tasks.resolve import Resolver
from pytest_codeprobe.tasks.settings import LoadSettings
from pytest_codeprobe.tasks.spellings import respelled_experiment
from pytest_codeprobe.tasks.yaml import Document, load_documents

#: keys by one of which a file in experiments/ shows that it is meant for us
SIGNS = ("experiment_id", "variants", "defaults")
#: settings that are part of another table -> that table
_SHORT: Mapping[str, str] = {"driver": "sandbox", "template_sources": "sandbox"}
_COMMANDS: Mapping[str, type[TaskCommand]] = {"pre_run": PreRunCommand, "post_run": TaskCommand}


class _SimulationLayer(Simulation):
    """A part of one: the goal may be another layer's."""

    goal: Text | None = Field(default=None)  # type: ignore[assignment]

    @model_validator(mode="after")
    def _checks(self) -> _SimulationLayer:
        """None: what the rule is about may be another layer's, too."""
        return self


_TABLES: Mapping[str, type[BaseModel]] = {
    "agent": AgentConfig,
    "sandbox": SandboxConfig,
    "run_limits": RunLimits,
    "simulation": _SimulationLayer,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenVariant:
    """One of the configurations that are run. Without any in the file there is one of no name that sets nothing."""

    name: str | None = None
    description: str = ""
    layer: Layer | None = None
    prompt: str | None = None  #: instead of the task's
    mutations: Said = ()
    preambles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExperimentParts:
    """What one file says."""

    id: str | None
    inherit: bool
    layer: Layer
    mutations: Said  #: of the defaults
    variants: tuple[ChosenVariant, ...]
    prices: Mapping[str, Price]
    judge: Judge | None
    gates: tuple[Gate, ...]
    files: tuple[Path, ...]  #: whose content is part of it


def is_experiment(document: Document) -> bool:
    """Whether a file in experiments/ is ours, and not another tool's."""
    value = document.value
    return value is None or (isinstance(value, dict) and any(key in value for key in SIGNS) and not isinstance(value.get("defaults"), list))


def read_parts(file: Path, name: LayerName, settings: LoadSettings) -> ExperimentParts | None:
    """Read a file whose `defaults` are the layer `name`. TASK_INVALID with file:line:column; None if it is another tool's."""
    shown_name = relative(file, settings.rootdir)
    document = next((d for d in load_documents(file, rootdir=settings.rootdir) if d.value is not None), Document({}))
    problems = Problems(shown_name)
    if not isinstance(document.value, dict):
        problems.add(document.place(()), (), f"an experiment must be a mapping, not {shown(document.value)}")
        problems.raise_first()
    if not is_experiment(document) and name == "default":
        return None
    _respell(document, problems, settings)
    found = _validated(document, problems)
    reader = _Reader(file, shown_name, document, settings, problems)
    defaults = found.defaults or Defaults()
    layer = reader.layer(name, document.value.get("defaults") or {}, defaults, ("defaults",))
    listed = zip(document.value.get("variants") or (), found.variants, strict=True)
    variants = tuple(reader.variant(raw, valid, number) for number, (raw, valid) in enumerate(listed))
    problems.check()
    return ExperimentParts(
        id=found.experiment_id,
        inherit=found.inherit,
        layer=layer,
        mutations=_said(defaults),
        variants=variants,
        prices=found.prices,
        judge=found.judge,
        gates=found.gates,
        files=(file, *reader.files),
    )


def _respell(document: Document, problems: Problems, settings: LoadSettings) -> None:
    """Put our names in the place of coder-eval's, and what its files mean without saying it where this is one."""
    ours = respelled_experiment(document.value)
    for path, message in ours.faults:
        problems.add(document.place(path), path, message)
    is_theirs = dialect_of(ours.value, settings.dialect) == CODER_EVAL
    document.value, document.stands = completed_experiment(ours.value) if is_theirs else ours.value, ours.stands
    for note in ours.notes:
        settings.warn(note)


def _said(settings: Settings) -> Said:
    return (settings.prompt_mutations,) if "prompt_mutations" in settings.model_fields_set else ()


def _validated(document: Document, problems: Problems) -> ExperimentFile:
    """The file as its model; all faults of its shape are raised together."""
    found = ExperimentFile()
    try:
        found = ExperimentFile.model_validate({key: value for key, value in document.value.items() if value is not None})
    except ValidationError as error:
        sentences.report(error, document.value, ExperimentFile, problems, document, ())
    for path, message in _at_odds(found):
        problems.add(document.place(path), path, message)
    problems.check()
    return found


def _at_odds(found: ExperimentFile) -> Iterator[tuple[FieldPath, str]]:
    ids = [variant.variant_id for variant in found.variants]
    for number, name in enumerate(ids):
        if name in ids[:number]:
            yield ("variants", number, "variant_id"), f"'variants[{number}].variant_id': {name!r} stands twice"
    for at, part in ((("defaults",), found.defaults), *((("variants", n), variant) for n, variant in enumerate(found.variants))):
        if part is not None and part.gateway == "required":
            yield (*at, "gateway"), f"'{dotted((*at, 'gateway'))}': required is not available yet"
    for number, gate in enumerate(found.gates):
        for field in ("variant", "baseline"):
            named = getattr(gate, field)
            if named is not None and named not in ids:
                yield ("gates", number, field), f"'gates[{number}].{field}': there is no variant {named!r}"


@dataclass(slots=True)
class _Reader:
    file: Path
    name: str
    document: Document
    settings: LoadSettings
    problems: Problems
    files: tuple[Path, ...] = ()

    def layer(self, name: LayerName, raw: Mapping[str, Any], valid: Settings, at: FieldPath) -> Layer:
        """The settings of one place in the file."""
        moved: dict[FieldPath, FieldPath] = {}

        def fault(path: FieldPath, words: str) -> None:
            self._fault(at, moved.get(path[:2], path[:2]) + path[2:], words)

        resolver = Resolver(self.file, self.settings.places, self.settings.environ, fault)
        own = {key: value for key, value in raw.items() if key in _TABLES}
        for key, table in _SHORT.items():
            if key in raw:
                own[table] = {**(own.get(table) or {}), key: raw[key]}
                moved[(table, key)] = (key,)
        values = resolver.task(own)
        for key, model in _TABLES.items():
            if isinstance(values.get(key), dict):
                values[key] = self._table(key, model, values[key], (*at, key), moved)
        for key, entry in _COMMANDS.items():
            if key in raw:
                values[key] = None if raw[key] is None else self._commands(key, entry, raw[key], (*at, key))
        for key in ("repeats", "gateway"):
            if key in raw:
                values[key] = getattr(valid, key)  # null takes a lower layer's away
        return Layer(name=name, values=values, file=self.name, document=self.document, at=at, moved=moved, spelled=resolver.spelled)

    def variant(self, raw: Mapping[str, Any], valid: Variant, number: int) -> ChosenVariant:
        """One entry of `variants`."""
        at: FieldPath = ("variants", number)
        return ChosenVariant(
            name=valid.variant_id,
            description=valid.description,
            layer=self.layer("variant", raw, valid, at),
            prompt=self._prompt(valid, at),
            mutations=_said(valid),
            preambles=valid.preambles,
        )

    def _prompt(self, valid: Variant, at: FieldPath) -> str | None:
        if valid.initial_prompt_file is None:
            return valid.initial_prompt
        path: FieldPath = ("initial_prompt_file",)
        try:
            found = self.settings.places.find(self.file, Sought(valid.initial_prompt_file, "file"))
            text = read_bytes(found).decode()
        except PathProblem as problem:
            self._fault(at, path, str(problem))
        except UnicodeDecodeError as error:
            self._fault(at, path, f"must name a file in UTF-8: byte {error.start} of it is not")
        except OSError as error:
            self._fault(at, path, f"names a file that can't be read: {error.strerror}")
        else:
            self.files = (*self.files, found)
            if text:
                return text
            self._fault(at, path, "names an empty file")
        return None

    def _table(self, key: str, model: type[BaseModel], raw: dict[str, Any], at: FieldPath, moved: Mapping[FieldPath, FieldPath]) -> Any:
        values = raw
        if key == "agent":
            values = AgentFields(self.settings, self.problems, self.document, at, at).read(raw)
        elif key == "simulation" and isinstance(raw.get("agent"), dict):
            inner = (*at, "agent")
            values = {**raw, "agent": AgentFields(self.settings, self.problems, self.document, inner, inner).read(raw["agent"])}
        data = copied(values)
        try:
            valid = model.model_validate(data)
        except ValidationError as error:
            sentences.report(error, data, model, self.problems, self.document, at, prefix=at)
        else:
            if isinstance(valid, SandboxConfig):
                check_sandbox(valid, lambda path, message: self._add(at[:-1], moved.get(path[:2], path[:2]) + path[2:], message))
        return values

    def _commands(self, key: str, model: type[TaskCommand], raw: Any, at: FieldPath) -> list[Any]:
        for number, entry in enumerate(raw):
            try:
                model.model_validate(entry)
            except ValidationError as error:
                sentences.report(error, entry, model, self.problems, self.document, (*at, number), prefix=(*at, number))
        return list(raw)

    def _fault(self, at: FieldPath, path: FieldPath, words: str) -> None:
        self._add(at, path, sentences.about((*at, *path), words))

    def _add(self, at: FieldPath, path: FieldPath, message: str) -> None:
        self.problems.add(self.document.place((*at, *path)), (*at, *path), message)
