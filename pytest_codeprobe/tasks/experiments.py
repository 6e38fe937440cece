"""Experiment files: where one lies, what may stand in it, and what of it this version can honour.

Of an experiment `defaults.run_limits` and `defaults.sandbox` hold so far. What else would change a verdict, what is paid, or the exit
code is refused where it is set; what would change nothing yet is left out with a note.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.base import Flag, Float, Int, Model, Text
from pytest_codeprobe.tasks import sentences
from pytest_codeprobe.tasks.discovery import SUFFIXES, read_bytes
from pytest_codeprobe.tasks.layers import Layer, combine, load_defaults, read_defaults
from pytest_codeprobe.tasks.paths import DEFAULTS
from pytest_codeprobe.tasks.problems import FieldPath, Problems, dotted, relative, shown
from pytest_codeprobe.tasks.settings import LoadSettings
from pytest_codeprobe.tasks.yaml import Document, load_documents

FOLDER = DEFAULTS.parent  #: below rootdir
NAME = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")  #: of an experiment or a variant
_CONTENT = re.compile(rb"^[ \t]*[^#\s]", re.MULTILINE)
_ID = re.compile(rb"^experiment_id[ \t]*:[ \t]*['\"]?([^'\"#\r\n]*?)['\"]?[ \t]*(?:#.*)?\r?$", re.MULTILINE)


class Defaults(Model):
    """`defaults` of an experiment; its tables are held to their own models where they are read."""

    repeats: Int = Field(default=1, ge=1, le=999)
    driver: Text | None = None
    gateway: Literal["auto", "off", "required"] | None = None
    agent: dict[str, Any] | None = None
    sandbox: dict[str, Any] | None = None
    run_limits: dict[str, Any] | None = None
    pre_run: tuple[dict[str, Any], ...] | None = None
    post_run: tuple[dict[str, Any], ...] | None = None
    template_sources: tuple[dict[str, Any], ...] | None = None
    simulation: dict[str, Any] | None = None
    prompt_mutations: Any = None


class Variant(Model):
    """One of the configurations that an experiment compares."""

    variant_id: Text = Field(pattern=rf"^{NAME.pattern}$")
    description: Text = ""
    driver: Text | None = None
    gateway: Literal["auto", "off", "required"] | None = None
    agent: dict[str, Any] | None = None
    sandbox: dict[str, Any] | None = None
    run_limits: dict[str, Any] | None = None
    repeats: Int | None = Field(default=None, ge=1, le=999)
    template_sources: tuple[dict[str, Any], ...] | None = None
    simulation: dict[str, Any] | None = None
    prompt_mutations: Any = None
    initial_prompt: Text | None = None
    initial_prompt_file: Text | None = None
    preambles: tuple[Text, ...] | None = None


class Price(Model):
    """US dollars per million tokens."""

    input: Float = Field(ge=0)
    output: Float = Field(ge=0)
    cache_read: Float | None = Field(default=None, ge=0)
    cache_write: Float | None = Field(default=None, ge=0)


class Judge(Model):
    """Which model grades where a criterion asks one."""

    model: Text | None = None
    backend: Text | None = None


class Gate(Model):
    """A bound on a figure of the whole run."""

    metric: Text
    min: Float | None = None
    max: Float | None = None
    variant: Text | None = None
    baseline: Text | None = None


class ExperimentFile(Model):
    """All that an experiment file may say."""

    experiment_id: Text | None = Field(default=None, min_length=1, max_length=100)
    description: Text = ""
    inherit: Flag = True  #: experiments/default.yaml is the layer below
    defaults: Defaults | None = None
    variants: tuple[Variant, ...] = ()
    prices: dict[str, Price] | None = None
    judge: Judge | None = None
    gates: tuple[Gate, ...] | None = None


_SIGN = re.compile(rb"^(?:%s)[ \t]*:" % "|".join(ExperimentFile.model_fields).encode(), re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One that was found and read."""

    name: str  #: its experiment_id, else the name of its file
    files: tuple[Path, ...]  #: what was read: its own, and the one below it
    defaults: Mapping[str, Any]  #: the layer below all tasks
    notes: tuple[str, ...] = ()  #: what it says that nothing comes of yet


# ---- where it lies


def find_experiment(asked: str, *, rootdir: Path, folder: Path) -> Path:
    """The file that a path (from `folder`, else from rootdir) or a bare name means. NO_EXPERIMENT, AMBIGUOUS_EXPERIMENT."""
    for place in (folder / asked, rootdir / asked) if "/" in asked or asked.endswith(SUFFIXES) else ():
        if place.is_file():
            return place
        if place.is_dir():
            raise _not_found(asked, "is a folder, not an experiment file", rootdir, folder)
    found = [file for file in _files(rootdir) if asked in _names(file, rootdir)]
    if len(found) > 1:
        values = [relative(file, rootdir) for file in found]
        raise CodeprobeError(
            "AMBIGUOUS_EXPERIMENT",
            f"experiment {asked!r} fits {len(found)} files",
            remediation=f"Name the file: {' or '.join(f'--config {v}' for v in values)} (pytest: the same after --codeprobe-experiment).",
            detail={"experiment": asked, "candidates": values},
        )
    if not found:
        raise _not_found(asked, "was not found", rootdir, folder)
    return found[0]


def available(rootdir: Path) -> list[str]:
    """Names of the experiments below rootdir, sorted."""
    return sorted({name_of(file) for file in _files(rootdir) if _is_experiment(file)})


def _not_found(asked: str, why: str, rootdir: Path, folder: Path) -> CodeprobeError:
    """With a command that makes one, but not where a slip is likely: a new file of that name would run something else, and say nothing."""
    there, name = available(rootdir), Path(asked).stem
    known = {*there, *(file.stem for file in _files(rootdir) if _is_experiment(file))}
    meant = did_you_mean(asked if did_you_mean(asked, known) else name, known)
    fits = NAME.fullmatch(name) is not None
    command = ["codeprobe", "experiment", "new", name if fits else "NAME"]
    if folder.resolve() != rootdir.resolve():
        command += ["--dir", str(rootdir / FOLDER)]
    choice = f"Use one of: {', '.join(there)}; or make" if there else f"There is none in {FOLDER}/; make"
    return CodeprobeError(
        "NO_EXPERIMENT",
        f"experiment {asked!r} {why}{meant}",
        remediation=f"{choice} a new one with `{' '.join(command)}`.",
        command=tuple(command) if fits and not meant else None,
        detail={"experiment": asked, "available": there},
    )


def _files(rootdir: Path) -> list[Path]:
    """All files that may be experiments, in the order of their names."""
    try:
        return sorted(file for file in (rootdir / FOLDER).rglob("*") if file.suffix in (*SUFFIXES, "") and _is_seen(file, rootdir))
    except OSError:
        return []


def _is_seen(file: Path, rootdir: Path) -> bool:
    return file.is_file() and not any(part.startswith(".") for part in file.relative_to(rootdir).parts)


def _is_experiment(file: Path) -> bool:
    """By its content: a README or somebody's data beside experiments is none. A file that says nothing yet may become one."""
    try:
        data = read_bytes(file)
    except OSError:
        return False
    if file.suffix not in SUFFIXES:
        return _ID.search(data) is not None
    return _SIGN.search(data) is not None or _CONTENT.search(data) is None


def _names(file: Path, rootdir: Path) -> set[str]:
    """Bare names that fit a file."""
    below = file.relative_to(rootdir / FOLDER).as_posix()
    stem = below.removesuffix(file.suffix) if file.suffix in SUFFIXES else below
    return {below, stem, *([own] if (own := _own_id(file)) is not None else [])}


def name_of(file: Path) -> str:
    """What an experiment is called."""
    return _own_id(file) or file.stem


def _own_id(file: Path) -> str | None:
    """The experiment_id, without reading the YAML."""
    try:
        found = _ID.search(read_bytes(file))
    except OSError:
        return None
    return (found[1].decode("utf-8", "replace").strip() or None) if found else None


# ---- what it says


def load_experiment(file: Path, settings: LoadSettings) -> Experiment:
    """Read an experiment file. NO_EXPERIMENT with file:line:column where it is wrong or asks for what nothing does yet."""
    name = relative(file, settings.rootdir)
    notes: list[str] = []
    try:
        document = _only(load_documents(file, rootdir=settings.rootdir))
        problems = Problems(name)
        if not isinstance(document.value, dict):
            problems.add(document.place(()), (), f"an experiment must be a mapping, not {shown(document.value)}")
            problems.raise_first()
        experiment = _validated(document, problems)
        own = read_defaults(document, file, settings, problems)
        for path, message in _unavailable(document.value, experiment):
            problems.add(document.place(path, key=len(path) == 1), path, message)
        problems.check()
    except CodeprobeError as error:
        if error.code != "TASK_INVALID":
            raise
        raise CodeprobeError("NO_EXPERIMENT", error.message, remediation=f"Correct {name} at the place named.", detail=error.detail) from error
    if experiment.judge is not None:
        notes.append(f"{name}: judge is not available yet, and no criterion asks one; it is left out")
    files = [file]
    if experiment.inherit and not _same(file, settings.rootdir / DEFAULTS):
        lower = load_defaults(settings)
        files += [settings.rootdir / DEFAULTS]
        own = combine([Layer(name="default", values=lower), Layer(name="experiment", values=own)])
    return Experiment(name=experiment.experiment_id or file.stem, files=tuple(files), defaults=own, notes=tuple(notes))


def _only(documents: Sequence[Document]) -> Document:
    return next((d for d in documents if d.value is not None), Document({}))


def _same(file: Path, other: Path) -> bool:
    try:
        return file.samefile(other)
    except OSError:
        return False


def _validated(document: Document, problems: Problems) -> ExperimentFile:
    """The file as its model; all faults of its shape are raised together."""
    experiment = ExperimentFile()
    try:
        experiment = ExperimentFile.model_validate(document.value)
    except ValidationError as error:
        sentences.report(error, document.value, ExperimentFile, problems, document, ())
    ids = [v.variant_id for v in experiment.variants]
    for number, variant in enumerate(ids):
        if variant in ids[:number]:
            path: FieldPath = ("variants", number, "variant_id")
            problems.add(document.place(path), path, f"'{dotted(path)}': {variant!r} stands twice")
    problems.check()
    return experiment


_HELD = frozenset({"run_limits", "sandbox"})
#: values that ask for nothing
_NEUTRAL: Mapping[str, Sequence[Any]] = {"repeats": (1,), "gateway": ("auto", "off"), "driver": ()}


def _unavailable(raw: Mapping[str, Any], experiment: ExperimentFile) -> Iterator[tuple[FieldPath, str]]:
    """What would change verdicts, money or the exit code, and is not there yet."""
    for key, value in (raw.get("defaults") or {}).items():
        if key not in _HELD and value not in (None, [], {}, *_NEUTRAL.get(key, ())):
            hint = "; use 'defaults.sandbox.driver'" if key == "driver" else ""
            yield ("defaults", key), f"'defaults.{key}' is not available yet{hint}"
    if len(experiment.variants) > 1:
        yield ("variants",), "'variants': more than one is not available yet"
    for number, variant in enumerate(experiment.variants[:1]):
        for key in sorted(variant.model_fields_set - {"variant_id", "description"}):
            if getattr(variant, key) is not None:
                yield ("variants", number, key), f"'variants[{number}].{key}' is not available yet; use 'defaults'"
    for key in ("prices", "gates"):
        if getattr(experiment, key):
            yield (key,), f"{key!r} is not available yet"
