"""--codeprobe-canary: the built-in task that the controller has each agent of the plan do before the first trial."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_codeprobe import sandboxes
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.plugin.refusal import refused
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.run.proofs import Key

if TYPE_CHECKING:
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.run.book import RunBook
    from pytest_codeprobe.run.canary import Canary


class BuiltInCanary:
    """The controller's side; without the option it does nothing and loads nothing."""

    def __init__(self, live: Live, book: RunBook) -> None:
        self._live, self._book = live, book
        self._canary: Canary | None = None

    def examine(self) -> None:
        """The plan is known: refuse the run where a proof is missing, or holds for something else."""
        options = self._live.state.options
        if options.canary in (None, "off") or options.dry_run:
            return
        from pytest_codeprobe.run.canary import Canary

        self._live.build()
        self._canary = Canary(options.canary, self._live.context, self._live.make_sandbox, self._live.warn)
        try:
            self._canary.examine(self._samples())
        except CodeprobeError as error:
            raise refused(error, self._live.config) from error

    def run(self) -> None:
        """Run what is due; see Gate.fell() for what follows from a failure. Signals only raise the flag, and the session ends by that."""
        if self._canary is None:
            return
        with self._live.interrupts.held():
            self._canary.run()
        for usage in self._canary.usages():
            self._book.paid(usage.cost_usd)

    def _samples(self) -> dict[Key, Trial]:
        """For each (agent, model, driver) of the plan its first trial."""
        first: dict[Key, PlannedTrial] = {}
        for trial in self._book.plan.values():
            if trial.starts and trial.agent is not None:
                first.setdefault(Key(trial.agent, trial.model, self._driver(trial.driver)), trial)
        return {key: self._loaded(trial) for key, trial in first.items()}

    def _driver(self, name: str) -> str:
        """What `auto` comes to here; a driver that can't be used is the canary's own error to tell of."""
        try:
            return sandboxes.choose(name, self._live.registry, self._live.context).name
        except CodeprobeError:
            return name

    def _loaded(self, planned: PlannedTrial) -> Trial:
        """The trial itself: an xdist controller has no items, and the plan holds nothing secret."""
        found = self._live.task_files.models(Path(planned.task_file))
        if isinstance(found, CodeprobeError):
            raise found
        task = next((t for t in found.tasks if t.task.task_id == planned.task_id), None)
        if task is None:
            raise CodeprobeError("TASK_INVALID", f"{planned.task_file}: task {planned.task_id!r} is gone since it was collected")
        trials = self._live.expand(task, planned.node_id)
        wanted = (planned.variant_id, planned.row_id, planned.repeat)
        return next((t for t in trials if (t.variant_id, t.row_id, t.repeat) == wanted), trials[0])

    @property
    def failure(self) -> CodeprobeError | None:
        """CANARY_PROOF_FAILED."""
        return self._canary.failure if self._canary is not None else None

    def usages(self) -> list[Usage]:
        """What it has cost: part of the run's cost, though it is in no count."""
        return self._canary.usages() if self._canary is not None else []

    def as_json(self) -> Mapping[str, Any] | None:
        """data.canary; None without the option."""
        return self._canary.as_json() if self._canary is not None else None

    def lines(self) -> list[str]:
        """For the summary."""
        if self._canary is None:
            return []
        words = {"proved": "proved now", "stored": "proved earlier", "failed": "FAILED", "stopped": "not run", "not_needed": "not needed"}
        return [f"canary: {outcome.key}: {words[outcome.state]}" for outcome in self._canary.outcomes]
