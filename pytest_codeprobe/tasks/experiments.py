"""Experiment files: where one lies, and what a run takes from it and from experiments/default.yaml below it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.tasks import experiment_file
from pytest_codeprobe.tasks.discovery import SUFFIXES, read_bytes
from pytest_codeprobe.tasks.experiment_file import Gate, Judge, Price
from pytest_codeprobe.tasks.experiment_layers import SIGNS, ChosenVariant, ExperimentParts, read_parts
from pytest_codeprobe.tasks.layers import Layer
from pytest_codeprobe.tasks.paths import DEFAULTS
from pytest_codeprobe.tasks.problems import Place, invalid, relative
from pytest_codeprobe.tasks.prompts import Said
from pytest_codeprobe.tasks.settings import LoadSettings

FOLDER = DEFAULTS.parent  #: below rootdir
NAME = re.compile(experiment_file.NAME)  #: of an experiment
_CONTENT = re.compile(rb"^[ \t]*[^#\s]", re.MULTILINE)
_ID = re.compile(rb"^experiment_id[ \t]*:[ \t]*['\"]?([^'\"#\r\n]*?)['\"]?[ \t]*(?:#.*)?\r?$", re.MULTILINE)
_SIGN = re.compile(rb"^(?:%s)[ \t]*:" % "|".join(experiment_file.ExperimentFile.model_fields).encode(), re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """One that was found and read."""

    name: str | None  #: its experiment_id, else the name of its file; None: there is none
    files: tuple[Path, ...]  #: what was read: its own, and the one below it
    layers: tuple[Layer, ...]  #: below all tasks, low to high
    mutations: Said  #: of the prompt, layer by layer, below those of a variant
    variants: tuple[ChosenVariant, ...]  #: at least one
    prices: Mapping[str, Price] = field(default_factory=dict)
    judge: Judge | None = None
    gates: tuple[Gate, ...] = ()

    @property
    def compares(self) -> bool:
        """Whether the names of variants are part of the ids."""
        return len(self.variants) > 1


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

#: what a run without any experiment has
NONE = Experiment(name=None, files=(), layers=(), mutations=(), variants=(ChosenVariant(),))


def load_experiment(file: Path | None, settings: LoadSettings) -> Experiment:
    """Read an experiment file and what is below it; None means experiments/default.yaml, if that is there.

    NO_EXPERIMENT with file:line:column where the file is wrong, TASK_INVALID where experiments/default.yaml is and nobody named it.
    """
    lower = settings.rootdir / DEFAULTS
    default: ExperimentParts | None = None
    if file is None:
        default = read_parts(lower, "default", settings) if lower.is_file() else None
        return NONE if default is None else _experiment(default.id or lower.stem, [default], default)
    try:
        own = read_parts(file, "default" if _same(file, lower) else "experiment", settings)
        if own is None:
            raise invalid(relative(file, settings.rootdir), Place(), f"no experiment: it has none of {', '.join(SIGNS)}")
        if own.inherit and own.layer.name == "experiment" and lower.is_file():
            default = read_parts(lower, "default", settings)
    except CodeprobeError as error:
        if error.code != "TASK_INVALID":
            raise
        name = error.detail.get("file") or relative(file, settings.rootdir)
        remedy = f"Correct {name} at the place named."
        raise CodeprobeError("NO_EXPERIMENT", error.message, remediation=remedy, detail=error.detail) from error
    return _experiment(own.id or file.stem, [part for part in (default, own) if part is not None], own)


def _experiment(name: str, parts: Sequence[ExperimentParts], own: ExperimentParts) -> Experiment:
    return Experiment(
        name=name,
        files=tuple(file for part in parts for file in part.files),
        layers=tuple(part.layer for part in parts),
        mutations=tuple(said for part in parts for said in part.mutations),
        variants=own.variants or (ChosenVariant(),),
        prices=own.prices,
        judge=own.judge,
        gates=own.gates,
    )


def _same(file: Path, other: Path) -> bool:
    try:
        return file.samefile(other)
    except OSError:
        return False
