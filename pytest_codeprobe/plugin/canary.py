"""--codeprobe-canary: the built-in task that the controller has each agent of the plan do before the first trial."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe import sandboxes
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.plugin.failure import money
from pytest_codeprobe.plugin.refusal import refused
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.run.proofs import Key
from pytest_codeprobe.text import Redactor, secret_values

if TYPE_CHECKING:
    from pytest_codeprobe.model.agent import Agent
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.run.asking import Answer
    from pytest_codeprobe.run.book import RunBook
    from pytest_codeprobe.run.canary import Canary, Outcome, Sample

_VERSION_TIMEOUT = 10.0  #: seconds for all CLIs; a machine may be busy
_MAKE_SANDBOX = "pytest_codeprobe_make_sandbox"
_REDACTOR = pytest.StashKey[Redactor]()
_WORDS = {
    "proved": "proved now",
    "stored": "proved earlier",
    "failed": "FAILED",
    "stopped": "not run",
    "due": "would run",
    "not_needed": "not needed",
}


def is_wanted(live: Live) -> bool:
    """Whether the run asks for the built-in canary."""
    return live.state.options.canary not in (None, "off")


def configuration_of(live: Live, trial: Trial) -> str | None:
    """For the plan: in one word how its agent is started; None without the option."""
    if not is_wanted(live):
        return None
    from pytest_codeprobe.run.configuration import digest

    return digest(_configuration(live, trial))


def _configuration(live: Live, trial: Trial) -> dict[str, str]:
    """Needs no context: that may be what the run is refused for."""
    from pytest_codeprobe.run.configuration import configuration

    redactor = live.config.stash.get(_REDACTOR, None)
    if redactor is None:
        redactor = live.config.stash[_REDACTOR] = Redactor(secret_values(os.environ, live.state.options.secrets))
    return configuration(trial, live.state.options.backend, redactor.text)


class BuiltInCanary:
    """The controller's side; without the option it does nothing and loads nothing."""

    def __init__(self, live: Live, book: RunBook) -> None:
        self._live, self._book = live, book
        self._canary: Canary | None = None
        self._made: dict[Path, tuple[str, ...]] = {}  #: by folder
        self._chosen: dict[str, str] = {}  #: drivers
        self._told = ""  #: what has been said of the one that runs

    def examine(self) -> None:
        """The plan is known: refuse the run where a proof is missing, or holds for something else."""
        live, options = self._live, self._live.state.options
        if options.canary is None or not is_wanted(live):
            return
        from pytest_codeprobe.run.canary import Canary

        live.build()
        self._canary = Canary(options.canary, live.context, live.make_sandbox, live.warn, self._versions, dry=options.dry_run)
        try:
            self._canary.examine(self._samples())
        except CodeprobeError as error:
            raise refused(error, live.config) from error

    def _versions(self, agents: Sequence[Agent]) -> Mapping[str, Answer]:
        if self._live.state.options.dry_run:
            from pytest_codeprobe.plugin.dry_run import versions

            return versions(self._live, agents)
        from pytest_codeprobe.run.asking import ask_versions

        return ask_versions(agents, self._live.context, _VERSION_TIMEOUT)

    def run(self) -> None:
        """Run what is due, once the header line is printed; see Gate.fell() for what follows from a failure.

        Signals only raise the flag meanwhile, and the session ends by that.
        """
        if self._canary is None or self._live.state.options.dry_run:
            return
        with self._live.interrupts.held():
            self._canary.run(self._began, self._ended)
        for usage in self._canary.usages():
            self._book.paid(usage.cost_usd)

    # ---- which trials it stands for
    def _samples(self) -> dict[Key, Sample]:
        """For each way in which an agent of the plan is started the first trial of that kind, with the limits of all of them."""
        from pytest_codeprobe.run.canary import Sample, widest

        alike: dict[tuple[object, ...], list[PlannedTrial]] = {}
        for trial in self._book.plan.values():
            if trial.starts and trial.agent is not None:
                kind = trial.agent, trial.model, self._driver(trial.driver), trial.configuration, self._makers(trial.task_file)
                alike.setdefault(kind, []).append(trial)
        found: dict[Key, Sample] = {}
        for trials in alike.values():
            sample = self._loaded(trials[0])
            known = _configuration(self._live, sample)
            if makers := self._makers(trials[0].task_file):
                known["sandbox.made_by"] = ", ".join(makers)
            key = Key(str(trials[0].agent), trials[0].model, self._driver(trials[0].driver), tuple(sorted(known.items())))
            found[key] = Sample(trial=sample, limits=widest(trial.limits for trial in trials))
        return found

    def _makers(self, task_file: str) -> tuple[str, ...]:
        folder = Path(task_file).parent
        if folder not in self._made:
            self._made[folder] = self._found_makers(folder)
        return self._made[folder]

    def _found_makers(self, folder: Path) -> tuple[str, ...]:
        """Who beside the drivers has a say in the sandboxes of the trials in a folder, as people know them."""
        live, root = self._live, self._live.config.rootpath
        session = live.interrupts.session
        hook = getattr(session.gethookproxy(folder) if session is not None else live.config.hook, _MAKE_SANDBOX)
        names = [Path(str(impl.plugin_name)) for impl in hook.get_hookimpls() if impl.plugin is not live.protocol]
        return tuple(sorted(str(name.relative_to(root)) if name.is_relative_to(root) else str(name) for name in names))

    def _driver(self, name: str) -> str:
        """What `auto` comes to here; a driver that can't be used is the canary's own error to tell of."""
        if name not in self._chosen:
            try:
                self._chosen[name] = sandboxes.choose(name, self._live.registry, self._live.context).name
            except CodeprobeError:
                self._chosen[name] = name
        return self._chosen[name]

    def _loaded(self, planned: PlannedTrial) -> Trial:
        """The trial itself: an xdist controller has no items, and the plan holds nothing secret."""
        found = self._live.task_files.models(Path(planned.task_file))
        if isinstance(found, CodeprobeError):
            raise found
        task = next((t for t in found.tasks if t.task.task_id == planned.task_id), None)
        if task is None:
            raise CodeprobeError("TASK_INVALID", f"{planned.task_file}: task {planned.task_id!r} is gone since it was collected")
        wanted = (planned.variant_id, planned.row_id, planned.repeat)
        trials = (t for t in self._live.expand(task) if (t.variant_id, t.row_id, t.repeat) == wanted)
        return next(trials).model_copy(update={"node_id": planned.node_id})

    # ---- what is told of it
    def _began(self, outcome: Outcome) -> None:
        version = f" {outcome.fingerprint.agent_version}" if outcome.fingerprint is not None and outcome.fingerprint.agent_version else ""
        self._say(f"codeprobe: canary: {outcome.key}{version} ... ")

    def _ended(self, outcome: Outcome) -> None:
        result = outcome.result
        assert result is not None
        became = {"proved": "passed", "failed": f"FAILED: {result.code or 'its task is not done'}"}.get(outcome.state, "not run")
        self._say(f"{became} in {result.duration_seconds:.1f} s, {money(result.cost_usd)}\n")

    def _say(self, text: str) -> None:
        """By pytest's own reporter, which keeps out of stdout in the JSON modes."""
        reporter = self._live.config.pluginmanager.get_plugin("terminalreporter")
        if isinstance(reporter, pytest.TerminalReporter) and self._live.config.get_verbosity() >= 0:
            if not self._told.endswith(" ") and self._live.state.xdist and reporter.isatty:
                reporter.rewrite("", erase=True)  # xdist's status stands there without an end, and comes again below
                reporter.write("\r")
            reporter.write(text, flush=True)
            self._told = text

    @property
    def forbids(self) -> bool:
        """Whether nothing else may start."""
        return self._canary is not None and self._canary.forbids

    @property
    def failure(self) -> CodeprobeError | None:
        """Of the first that failed."""
        return self._canary.failure if self._canary is not None else None

    def foretold(self) -> list[Mapping[str, Any]]:
        """In a dry run: of each that would run, what is known of its cost, tokens and time."""
        return self._canary.foretold() if self._canary is not None else []

    def usages(self) -> list[Usage]:
        """What it has cost: part of the run's cost, though it is in no count."""
        return self._canary.usages() if self._canary is not None else []

    def as_json(self) -> Mapping[str, Any] | None:
        """data.canary; None without the option."""
        return self._canary.as_json() if self._canary is not None else None

    def lines(self) -> list[str]:
        """For the summary."""
        return [f"canary: {outcome.key}: {_WORDS[outcome.state]}" for outcome in self._canary.outcomes] if self._canary is not None else []
