"""Task files as a process that collects sees them: known from an earlier run, or loaded."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_codeprobe import __version__
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.options.table import AUTO_DRIVERS
from pytest_codeprobe.plugin.garbage import Garbage
from pytest_codeprobe.tasks.discovery import may_hold_tasks, read_bytes
from pytest_codeprobe.tasks.heads import Fault, FileHeads, Reference, Resolved, head_of, left_out_head, trial_text
from pytest_codeprobe.tasks.index import Index, digest, fingerprint
from pytest_codeprobe.tasks.paths import Places, relative

if TYPE_CHECKING:
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.tasks.load import LoadedFile, LoadedTask

#: fields of RunOptions that decide what is valid in a task, and what its trials are
_OPTIONS = (
    "agent", "model", "driver", "timeout", "permission_mode", "set", "repeats", "sample", "sample_per_stratum", "include_skipped",
    "on_command_line", "unknown_fields", "template_roots", "dialect",
)  # fmt: skip
_WRITERS = ("main", "gw0")  #: all workers of pytest-xdist find the same


class TaskFiles:
    """One for each process that collects; each file is read once."""

    def __init__(self, live: Live) -> None:
        self._live, self._config, self._options = live, live.config, live.state.options
        self._found: dict[str, FileHeads | CodeprobeError] = {}
        self._models: dict[Path, LoadedFile | CodeprobeError] = {}
        self._places = Places(self._config.rootpath, self._options.template_roots)
        self._garbage = Garbage()

    def find(self, path: str) -> FileHeads | CodeprobeError:
        """What a file (absolute) refers to and whether it holds tasks, or why it can't be used."""
        found = self._found.get(path)
        if found is None:
            self._garbage.hold()
            found = self._found[path] = self._read(path)
            for warning in found.warnings if isinstance(found, FileHeads) else ():
                self._live.warn(warning)
        return found

    def trials(self, path: str) -> FileHeads:
        """The same, for the node of the file: its tasks are in the run now. CodeprobeError where something is wrong."""
        found = self.find(path)
        if isinstance(found, CodeprobeError):
            raise found
        name = relative(Path(path), self._config.rootpath)
        for head in found.heads:
            self._live.identities.add(head.task_id, f"{name}:{head.line}")
        if found.fault is not None:
            self._live.identities.add(found.fault.task_id, f"{name}:{found.fault.line}")
            raise found.fault.error
        return found

    def models(self, path: Path) -> LoadedFile | CodeprobeError:
        """A task file that a marker names, loaded; or why it can't be used."""
        if path not in self._models:
            from pytest_codeprobe.tasks.load import load_file

            try:
                self._models[path] = load_file(path, self._live.settings)
            except CodeprobeError as error:
                self._models[path] = error
        found = self._models[path]
        for warning in () if isinstance(found, CodeprobeError) else found.warnings:
            self._live.warn(warning)
        return found

    def resolved(self, paths: Iterable[str]) -> dict[str, list[Resolved]]:
        """How the settings of tasks came to be, by the file (absolute) that they stand in."""
        found = {path: self._found[path] for path in paths if path in self._found}
        return {
            path: [Resolved(*each) for each in json.loads(bytes(heads.resolved))]
            for path, heads in found.items()
            if isinstance(heads, FileHeads)
        }

    def close(self) -> None:
        """Collection is over."""
        self._garbage.go_on()
        index = self.__dict__.get("_index")
        if index is not None and self._live.state.worker_id in _WRITERS:
            index.write(self._found)

    # ---- reading
    def _read(self, path: str) -> FileHeads | CodeprobeError:
        try:
            content = read_bytes(path)
        except OSError:
            return self._load(path, None)  # says why
        if not may_hold_tasks(content):
            return FileHeads()
        known = self._index.get(path, content, self._places) if self._index is not None else None
        return self._load(path, content) if known is None else known

    def _load(self, path: str, content: bytes | None) -> FileHeads | CodeprobeError:
        from pytest_codeprobe.tasks.load import load_bytes, load_file

        settings = self._live.settings
        try:
            loaded = load_file(Path(path), settings) if content is None else load_bytes(Path(path), content, settings)
        except CodeprobeError as error:
            return error
        found = FileHeads(
            holds_tasks=bool(loaded.tasks), references=[r for task in loaded.tasks for r in _references(task)], warnings=[*loaded.warnings]
        )
        used = self._expand(loaded.tasks, found)
        if self._index is not None and content is not None and found.fault is None:
            # values of variables may be secrets; a drawn seed is another one the next time
            by_environment = any(task.variables or _draws(task) for task in loaded.tasks)
            if not by_environment and self._foreign.isdisjoint(used):
                self._index.put(path, content, found)
        return found

    def _expand(self, tasks: Iterable[LoadedTask], found: FileHeads) -> set[str]:
        """Add the trials, as text: models would stay in memory until pytest asks for the items. Names of what they use."""
        used: set[str] = set()
        references = dict.fromkeys(found.references)
        resolved: list[Resolved] = []
        for task in tasks:
            used.update((task.task.agent and task.task.agent.model_extra) or ())  # tables of agents, which have their say on them
            try:
                expansion = self._live.expansion(task)
                for one in expansion.tasks():
                    if one is not task:
                        references.update(dict.fromkeys(_references(one)))
                    for trial in expansion.trials(one):
                        found.heads.append(head_of(trial, one.task.fixtures))
                        found.texts.append(trial_text(trial))
                        used.update(_names(trial))
                resolved += expansion.resolved
                for name in expansion.names_left_out():
                    found.heads.append(left_out_head(name, task.task.task_id, task.line))
                    found.texts.append(b"")
            except Exception as error:  # noqa: BLE001  # also of the code of hooks; raised where pytest can tell of it
                found.fault = Fault(task.task.task_id, task.line, error)
                break
        found.references = [*references]
        found.resolved = json.dumps(resolved, separators=(",", ":"), default=str).encode()
        return used

    # ---- the index
    @functools.cached_property
    def _foreign(self) -> frozenset[str]:
        """Names of what hooks brought: nobody can tell whether its code is what it was, so what uses it is loaded each time."""
        brought = self._live.brought
        names = {name for agent in brought.agents for name in (agent.name, *agent.aliases)}
        return frozenset(names.union((driver.name for driver in brought.drivers), brought.criteria))

    @functools.cached_property
    def _index(self) -> Index | None:
        """What earlier runs found under the same circumstances; None where nothing can be kept."""
        circumstances = self._circumstances()
        if circumstances is None or (folder := self._folder()) is None:
            return None
        index = Index(folder, fingerprint(circumstances))
        index.read()
        return index

    def _folder(self) -> Path | None:
        """A folder of ours in pytest's cache; None without that plugin, or where it can't be made."""
        cache = getattr(self._config, "cache", None)
        try:
            return None if cache is None else Path(cache.mkdir("codeprobe"))
        except OSError:
            return None

    def _circumstances(self) -> dict[str, object] | None:
        """What loading depends on beside the task files, as JSON values; None where a value may be a secret."""
        experiment: dict[str, object] = {}
        flags: object = None
        try:
            if self._options.set:
                if any("$" in text for text in self._options.set):
                    return None
                flags = self._live.experiment.plan.flags.flags.values  # the paths that they name have led there from this folder
            if self._live.experiment.is_there:
                chosen = self._live.experiment.chosen
                contents = [read_bytes(file) for file in chosen.files]
                if any(b"$" in content for content in contents):  # the value of a variable would be part of every trial
                    return None
                if any(variant.preambles for variant in chosen.variants):  # found anew for each task, in several places
                    return None
                layers = [*chosen.layers, *(variant.layer for variant in chosen.variants if variant.layer is not None)]
                # the values too: what they name may have moved
                experiment = {"contents": list(map(digest, contents)), "settings": [layer.values for layer in layers]}
        except (OSError, CodeprobeError):
            return None
        options = self._options
        return {
            "version": __version__,
            "rootdir": str(self._config.rootpath),
            "flags": flags,
            "options": {name: getattr(options, name) for name in _OPTIONS},
            "foreign": sorted(self._foreign),
            "experiment": experiment,
        }


def _references(task: LoadedTask) -> Iterator[Reference]:
    prompts = {ref.path for ref in task.refers_to if ref.role == "prompt"}
    for sought, path in task.sought:
        yield Reference(sought, path, digest(read_bytes(path)) if path in prompts else None)
    for sought, path, content in task.dataset.files if task.dataset is not None else ():
        yield Reference(sought, path, content)


def _draws(task: LoadedTask) -> bool:
    return task.dataset is not None and task.dataset.spec.sample_seed is None


def _names(trial: Trial) -> Iterator[str]:
    """Of what hooks may have brought and this trial uses."""
    yield from (trial.agent.type or "", trial.sandbox.driver, *(trial.agent.model_extra or ()))
    if trial.simulation is not None and (user := trial.simulation.agent) is not None:
        yield from (user.type or "", *(user.model_extra or ()))
    yield from (str(criterion["type"]) for criterion in trial.criteria)
    if trial.sandbox.driver == "auto":
        yield from AUTO_DRIVERS
