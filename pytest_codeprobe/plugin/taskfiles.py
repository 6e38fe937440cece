"""Task files as a process that collects sees them: known from an earlier run, or loaded."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_codeprobe import __version__
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.plugin.garbage import Garbage
from pytest_codeprobe.tasks.discovery import may_hold_tasks, read_bytes
from pytest_codeprobe.tasks.heads import Fault, FileHeads, Reference, head_of, trial_text
from pytest_codeprobe.tasks.index import Index, digest, fingerprint
from pytest_codeprobe.tasks.paths import DEFAULTS, Places, relative

if TYPE_CHECKING:
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.tasks.load import LoadedFile, LoadedTask

#: fields of RunOptions that decide what is valid in a task, and what its trials are
_OPTIONS = ("agent", "model", "driver", "timeout", "permission_mode", "on_command_line", "unknown_fields", "template_roots")
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
            by_environment = any(task.variables for task in loaded.tasks)  # values of variables may be secrets
            if not by_environment and self._foreign.isdisjoint(used):
                self._index.put(path, content, found)
        return found

    def _expand(self, tasks: Iterable[LoadedTask], found: FileHeads) -> set[str]:
        """Add the trials, as text: models would stay in memory until pytest asks for the items. Names of what they use."""
        used: set[str] = set()
        for task in tasks:
            used.update((task.task.agent and task.task.agent.model_extra) or ())  # tables of agents, which have their say on them
            try:
                for trial in self._live.expand(task, task.task.task_id):
                    found.heads.append(head_of(trial, task.task.fixtures))
                    found.texts.append(trial_text(trial))
                    used.update(_names(trial))
            except Exception as error:  # noqa: BLE001  # also of the code of hooks; raised where pytest can tell of it
                found.fault = Fault(task.task.task_id, task.line, error)
                break
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
        defaults: dict[str, object] = {}
        try:
            experiment = self._live.experiment.chosen
            files = (self._config.rootpath / DEFAULTS,) if experiment is None else experiment.files
            contents = [read_bytes(file) for file in files if file.is_file()]
            if contents:
                defaults = {
                    "contents": list(map(digest, contents)),
                    "settings": self._live.experiment.defaults,
                }  # this looks for what it names
        except (OSError, CodeprobeError):
            return None
        if any(b"$" in content for content in contents):  # the value of a variable would be part of every trial
            return None
        options = self._options
        return {
            "version": __version__,
            "rootdir": str(self._config.rootpath),
            "options": {name: getattr(options, name) for name in _OPTIONS},
            "foreign": sorted(self._foreign),
            "defaults": defaults,
        }


def _references(task: LoadedTask) -> Iterator[Reference]:
    prompts = {ref.path for ref in task.refers_to if ref.role == "prompt"}
    for sought, path in task.sought:
        content = digest(task.prompt.encode()) if path in prompts and task.prompt is not None else None
        yield Reference(sought, path, content)


def _names(trial: Trial) -> Iterator[str]:
    """Of what hooks may have brought and this trial uses."""
    yield from (trial.agent.type or "", trial.sandbox.driver, *(trial.agent.model_extra or ()))
    yield from (str(criterion["type"]) for criterion in trial.criteria)
    if trial.sandbox.driver == "auto":
        yield "tempdir"
