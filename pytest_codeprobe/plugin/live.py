"""What a process needs once there is a task: registry, loading, context, and the hooks that run trials."""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.errors import CodeprobeError, Skipped, Stopped, with_frames
from pytest_codeprobe.model.clock import SystemClock
from pytest_codeprobe.plugin import collect
from pytest_codeprobe.plugin.closures import Closures
from pytest_codeprobe.plugin.collect import HasTrial, TaskItem
from pytest_codeprobe.plugin.experiment import RunExperiment
from pytest_codeprobe.plugin.interrupts import Interrupts
from pytest_codeprobe.plugin.marks import Marks
from pytest_codeprobe.plugin.registry import ask_hooks, registry_with
from pytest_codeprobe.plugin.taskfiles import TaskFiles
from pytest_codeprobe.run.folder import RunFolder
from pytest_codeprobe.run.stops import StopFolder
from pytest_codeprobe.tasks.identities import Identities

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from pytest_codeprobe.model.context import Context, Registry
    from pytest_codeprobe.model.sandbox import Sandbox
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.called import Caller
    from pytest_codeprobe.plugin.cases import Cases
    from pytest_codeprobe.plugin.controller import Controller
    from pytest_codeprobe.plugin.discover import Discovery
    from pytest_codeprobe.plugin.protocol import TrialProtocol
    from pytest_codeprobe.plugin.registry import Brought
    from pytest_codeprobe.plugin.resume import Resume
    from pytest_codeprobe.plugin.state import State
    from pytest_codeprobe.run.lock import RunLock
    from pytest_codeprobe.run.plan import PlannedTrial
    from pytest_codeprobe.run.proportion import ProportionGates
    from pytest_codeprobe.sandboxes.keeper import Spawner
    from pytest_codeprobe.tasks.expand import Expansion
    from pytest_codeprobe.tasks.load import LoadedTask, LoadSettings
    from pytest_codeprobe.text import Redactor
    from pytest_codeprobe.trial.engine import ThreadEngine
    from pytest_codeprobe.trial.run import TrialRun

_log = logging.getLogger("codeprobe")


class Live:
    """One for each process in which a task was seen.

    It imports little, and what the index knows of tasks needs no more: the models, agents and criteria load with the first task
    that must be loaded, and what runs trials once register() is called.
    """

    def __init__(self, state: State) -> None:
        self.state, self.config = state, state.config
        self.clock = SystemClock()
        self.folder = RunFolder(state.run_dir)
        self.stops = StopFolder(self.folder.stop)
        self.interrupts = Interrupts(self.stops, worker=state.worker)
        self.warnings: list[str] = []
        self.identities = Identities()
        self.controller: Controller | None = None
        self.fault: CodeprobeError | None = None  #: an option from environment or ini is wrong: one refusal, not an error for each file
        self.protocol: TrialProtocol | None = None
        self.broken = False  #: something could not be collected, so nothing may start; xdist goes on by itself
        self.engine: ThreadEngine | None = None  #: runs trials ahead of their items; None: all run in their own set-up
        self.current: pytest.Item | None = None  #: the one that pytest is at
        self.called_secrets: Redactor | None = None  #: of trials that tests have called: what pytest tells of a test is cleaned of them
        self.deleter: Executor | None = None  #: removes private folders while the main thread goes on; None: that does it
        self._warning = threading.Lock()
        self.task_files = TaskFiles(self)
        self.experiment = RunExperiment(self)
        self.closures = Closures(self.config)
        self.marks = Marks(self.config)

        self.config.add_cleanup(self.close)
        self.config.pluginmanager.register(collect, "codeprobe-collect")

    def register(self) -> None:
        """Put the hooks in force that run trials and tell of them, if they are not yet."""
        if self.protocol is not None:
            return
        from pytest_codeprobe.plugin import timeouts
        from pytest_codeprobe.plugin.protocol import TrialProtocol
        from pytest_codeprobe.plugin.reports import Reports

        manager = self.config.pluginmanager
        manager.register(timeouts, "codeprobe-timeouts")
        self.protocol = TrialProtocol(self)
        manager.register(self.protocol, "codeprobe-protocol")
        manager.register(Reports(self), "codeprobe-reports")
        if self.state.options.dry_run:
            if not self.state.no_start:
                from pytest_codeprobe.plugin.dry_run import DryRun

                manager.register(DryRun(self), "codeprobe-dry-run")
        elif self.jobs > 1:
            from pytest_codeprobe.plugin.jobs import Jobs

            manager.register(Jobs(self), "codeprobe-jobs")
        if not self.state.worker:
            from pytest_codeprobe.plugin.controller import Controller
            from pytest_codeprobe.plugin.live_line import LiveLine
            from pytest_codeprobe.plugin.terminal import Terminal

            self.controller = Controller(self)
            manager.register(self.controller, "codeprobe-controller")
            manager.register(self.controller.workers, "codeprobe-workers")
            manager.register(Terminal(self), "codeprobe-terminal")
            manager.register(LiveLine(self), "codeprobe-live-line")

    def close(self) -> None:
        """A cleanup of the config: no process and no handler of ours outlives pytest."""
        self.interrupts.restore()
        if "spawner" in self.__dict__:
            self.spawner.close()

    def warn(self, text: str) -> None:
        """Say something once, in the summary and the envelope. From any thread."""
        with self._warning:
            if text not in self.warnings:
                self.warnings.append(text)

    @property
    def jobs(self) -> int:
        """Trials at once in this process."""
        return self.state.jobs

    # ---- options and registry
    @functools.cached_property
    def registry(self) -> Registry:
        """Built-ins and what the hooks brought."""
        return registry_with(self.brought)

    @functools.cached_property
    def brought(self) -> Brought:
        """What the hooks bring, as of the first task."""
        return ask_hooks(self.config)

    # ---- tasks
    @property
    def folder_of_flags(self) -> Path:
        """What relative paths in flags are relative to."""
        return Path(self.state.options.invoked_in or self.config.invocation_params.dir)

    @functools.cached_property
    def settings(self) -> LoadSettings:
        """What loading depends on."""
        from pytest_codeprobe.tasks.load import LoadSettings

        options = self.state.options
        return LoadSettings(
            rootdir=self.config.rootpath,
            registry=self.registry,
            dialect=options.dialect,
            unknown_fields=options.unknown_fields,
            template_roots=options.template_roots,
            invoked_in=self.folder_of_flags,
            auto=lambda: self.auto,
            warn=self.warn,
        )

    @functools.cached_property
    def auto(self) -> tuple[str, str | None]:
        """What driver `auto` comes to on this machine, and why it is none that isolates."""
        from pytest_codeprobe import sandboxes

        return sandboxes.best(self.registry, self.context)

    def driver_of(self, trial: PlannedTrial) -> str:
        """Name of the driver that a trial of the plan runs in."""
        return self.auto[0] if trial.driver == "auto" else trial.driver

    def expand(self, task: LoadedTask) -> Iterator[Trial]:
        """The trials of a task, each by the name of its item."""
        from pytest_codeprobe.tasks.expand import expand

        return expand(task, self.experiment.plan)

    def expansion(self, task: LoadedTask) -> Expansion:
        """A task on its way to its trials."""
        from pytest_codeprobe.tasks.expand import Expansion

        return Expansion(task, self.experiment.plan)

    def is_fault_of_run(self, error: CodeprobeError) -> bool:
        """Whether the error lies in the run's options and not in the task file that met it; the run is refused with it then."""
        if error.code in ("TASK_INVALID", "DUPLICATE_TASK") or (error.code == "UNKNOWN_BACKEND" and self.state.options.agent is None):
            return False
        self.fault = self.fault or error
        return True

    def chosen(self, trial: HasTrial) -> bool:
        """Whether somebody chose an agent for this trial: a plain pytest must never spend money."""
        options = self.state.options
        if options.agent is not None:
            return True
        return trial.agent_name is not None and (options.console or trial.task_file in self.state.named)

    def may_start(self, trial: HasTrial) -> bool:
        """Whether pytest's set-up of its item would start it at all."""
        if self.state.no_start or self.broken or not self.chosen(trial):
            return False
        return self.resume is None or not isinstance(trial, TaskItem) or self.resume.skips(trial.trial) is None

    def needs_slot(self, item: pytest.Item) -> bool:
        """Whether a trial will run in the item's own set-up."""
        if isinstance(item, TaskItem):
            return self.may_start(item) and not any(item.iter_markers("skip")) and not item.is_kept
        from pytest_codeprobe.plugin.marked import MARKED

        return item.stash.get(MARKED, None) is not None

    # ---- running
    @functools.cached_property
    def spawner(self) -> Spawner:
        """The one child of this process that starts keepers."""
        from pytest_codeprobe.sandboxes.keeper import Spawner

        return Spawner(watch=[os.getppid()] if self.state.worker else [])

    @functools.cached_property
    def context(self) -> Context:
        """What trials need from outside."""
        from pytest_codeprobe.plugin.context import context_of

        return context_of(self)

    @functools.cached_property
    def proportions(self) -> ProportionGates:
        """The gates over the repeats of tasks."""
        from pytest_codeprobe.run.proportion import ProportionGates

        return ProportionGates(self.state.run_dir / "gates")

    @functools.cached_property
    def resume(self) -> Resume | None:
        """What an earlier run has left that this one goes on with, or grades again; None for a run of its own."""
        options = self.state.options
        if not options.resume and options.regrade is None:
            return None
        from pytest_codeprobe.plugin.resume import Regrade, Resume

        return Regrade(self, Path(options.regrade)) if options.regrade is not None else Resume(self)

    @functools.cached_property
    def lock(self) -> RunLock:
        """Of the run dir."""
        from pytest_codeprobe.run.lock import RunLock

        lock = RunLock(self.state.run_dir)
        self.config.add_cleanup(lock.release)
        return lock

    @functools.cached_property
    def cases(self) -> Cases:
        """What marked tests are parametrised with."""
        from pytest_codeprobe.plugin.cases import Cases

        return Cases(self)

    @functools.cached_property
    def caller(self) -> Caller:
        """What `codeprobe_run` hands out."""
        from pytest_codeprobe.plugin.called import Caller

        return Caller(self)

    def make_sandbox(self, trial: Trial, context: Context) -> Sandbox:
        """What the hook answers, which conftest.py files above the task file can implement. From any thread."""
        session = self.interrupts.session
        hook = session.gethookproxy(Path(trial.task_file)) if session is not None else self.config.hook
        try:
            sandbox = hook.pytest_codeprobe_make_sandbox(config=self.config, trial=trial, context=context)
        except (CodeprobeError, Stopped, Skipped):
            raise
        except Exception as error:  # of anybody's code
            _log.error("%s: pytest_codeprobe_make_sandbox\n%s", trial.node_id, with_frames(error))  # it may parse
            what = f"pytest_codeprobe_make_sandbox: {type(error).__name__}: {error}"
            raise CodeprobeError("SANDBOX_FAILED", what, remediation="Correct the hook in the project's conftest.py or plugin.") from error
        if not callable(getattr(sandbox, "prepare", None)):
            raise CodeprobeError("SANDBOX_FAILED", f"pytest_codeprobe_make_sandbox answered {type(sandbox).__name__}, which is no sandbox")
        made: Sandbox = sandbox
        return made

    def build(self) -> None:
        """Make in this thread what trials in other threads share."""
        _ = self.registry, self.settings, self.spawner, self.context

    def stop_trials(self, reason: str) -> None:
        """End what runs in this process's threads, with the reason that all processes of the run hear."""
        try:
            if not self.stops.is_raised("maxfail"):
                self.stops.raise_flag(reason)
        except OSError:  # a full disk: then without a word
            self.spawner.close()

    def run_of(self, node: pytest.Item) -> TrialRun:
        """The trial that an item runs, for its fixtures."""
        from pytest_codeprobe.plugin.marked import MARKED

        if isinstance(node, TaskItem) and node.run is not None:
            return node.run
        marked = node.stash.get(MARKED, None)
        if marked is not None and marked.run is not None:
            return marked.run
        pytest.fail("codeprobe fixtures need a task: mark the test with @pytest.mark.codeprobe(task='tasks/….yaml')", pytrace=False)

    @property
    def discovery(self) -> Discovery | None:
        """What was met while this process collected; None if it has collected nothing."""
        from pytest_codeprobe.plugin import DISCOVERY

        return self.config.stash.get(DISCOVERY, None)

    def collected(self) -> dict[str, list[str]]:
        """What collection left out, for the summary."""
        found, root = self.discovery, self.config.rootpath
        if found is None:
            return {"left_out": [], "not_tasks": []}
        return {"left_out": _relative(found.left_out, root), "not_tasks": _relative(found.not_tasks, root)}

    def is_ours(self, item: pytest.Item) -> bool:
        """Whether it is the item of a task file."""
        return isinstance(item, TaskItem)

    def has_nothing_to_do(self, items: Iterable[pytest.Item]) -> bool:
        """Whether no task is to run, and no run is to be refused."""
        return self.fault is None and (self.config.option.collectonly or not any(map(self.is_ours, items)))

    def shown_run_dir(self) -> str | None:
        """The run dir as people read it: relative to rootdir where it can be."""
        known = self.controller.book.taken if self.controller is not None else self.folder.plan_file.exists()
        if not known:  # none, or that of another run
            return None
        root = self.config.rootpath
        path = self.state.run_dir
        return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _relative(paths: Iterable[str], root: Path) -> list[str]:
    return sorted(os.path.relpath(p, root) for p in paths)
