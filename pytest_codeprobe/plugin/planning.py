"""What each process makes of the collected trials: the plan, and lock.json beside it. The first to write them wins."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe import __version__
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.plugin.canary import configuration_of
from pytest_codeprobe.plugin.collect import HasTrial
from pytest_codeprobe.plugin.offline import needs
from pytest_codeprobe.plugin.refusal import refused
from pytest_codeprobe.plugin.timeouts import deadline
from pytest_codeprobe.run.folder import prepare_place
from pytest_codeprobe.run.plan import make_plan, planned
from pytest_codeprobe.run.proportion import complete_gates
from pytest_codeprobe.run.resolved import write_resolved
from pytest_codeprobe.tasks.overrides import secrets_in
from pytest_codeprobe.tasks.paths import relative
from pytest_codeprobe.text import Redactor
from pytest_codeprobe.trial.environment import trial_secrets
from pytest_codeprobe.trial.fingerprint import template_digests

if TYPE_CHECKING:
    from pytest_codeprobe.model.config import TemplateSource
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live


FIXTURE = "codeprobe_run"


def may_call(live: Live, items: Iterable[pytest.Item]) -> bool:
    """Whether tests of the run may call trials: one has the fixture, an agent may have been chosen, and something is to start."""
    options, state = live.state.options, live.state
    forbidden = state.no_start or options.dry_run or options.regrade is not None
    chosen = options.agent is not None or options.console or any(name.endswith((".yaml", ".yml")) for name in state.named)
    return chosen and not forbidden and any(FIXTURE in getattr(item, "fixturenames", ()) for item in items)


def publish(live: Live, given: Sequence[HasTrial], *, calls: bool = False) -> bool:
    """plan.json, unless another process was first; False if it holds no trial that may start, and it is no dry run and no resume.

    `calls`: tests may call further trials.
    """
    chosen = [live.chosen(t) for t in given]
    starts = [t.skip_reason is None and c for t, c in zip(given, chosen, strict=True)]
    if not any(starts) and not calls and live.resume is None and not (live.state.options.dry_run and any(chosen)):
        return False
    if live.state.default_place:
        _shared_place(live)
    listed = []
    of_trials: list[Trial] = []  #: under resume, those that may be graded again
    repositories: dict[TemplateSource, None] = {}
    of_task: dict[str, Trial] = {}  #: one trial of each task and variant
    for holder, start in zip(given, starts, strict=True):
        trial = holder.make_trial()
        if start:
            of_task.setdefault(f"{trial.variant_id}:{trial.task_id}", trial)
            repositories.update((source, None) for source in trial.sandbox.template_sources if source.type == "repo")
        if start and live.resume is not None and not live.resume.ours:
            of_trials.append(trial)
        decision = live.resume.decide(trial, _deadline(holder)) if start and live.resume is not None and not trial.marked else None
        fetches = needs(live, trial) if start else ()
        line = planned(trial, starts=start, configuration=configuration_of(live, trial), decision=decision, fetches=fetches)
        listed.append(line.model_copy(update={"min_passes": None}) if live.state.options.check else line)
        for note in trial.notes if start else ():
            live.warn(note)  # once for a run, however many tasks it holds for
        if live.resume is not None and decision is not None and decision.kind in ("keep", "grade"):
            for note in live.resume.changed_packages(trial):
                live.warn(note)
    if live.resume is not None and (error := live.resume.refusal(of_trials)) is not None:
        raise refused(error, live.config) from error
    live.proportions.judge(complete_gates(listed))
    root, options = str(live.config.rootpath), live.state.options
    try:
        redactor = Redactor((*live.context.redactor.secrets, *secrets_in(options.set)))
        name = live.experiment.name
        plan = make_plan(live.state.run_id, __version__, root, options, listed, experiment=name, calls=calls, redactor=redactor)
        first = live.folder.publish_plan(plan)
    except CodeprobeError as error:
        raise refused(error, live.config) from error
    if first:
        _hold_commits(live, repositories)
        _write_resolved(live, list(of_task.values()))
    return True


def _hold_commits(live: Live, sources: Iterable[TemplateSource]) -> None:
    """What branches stand for is looked up before any trial starts. Where that can't be told, the trial says so that needs it."""
    from pytest_codeprobe.sandboxes.sources import repositories_of

    for source in sources:
        repositories_of(live.context).known(source)


def _write_resolved(live: Live, trials: Sequence[Trial]) -> None:
    """lock.json; that it can't be written is told, and stops nothing."""
    root, experiment = live.config.rootpath, None
    if live.experiment.is_there and live.experiment.name is not None:
        chosen = live.experiment.chosen
        names = [variant.name for variant in chosen.variants if variant.name]
        experiment = {"name": chosen.name, "files": [relative(file, root) for file in chosen.files], "variants": names}
    try:
        tasks = live.task_files.resolved(sorted({trial.task_file for trial in trials}))
        templates = {path: found for trial in trials for path, found in template_digests(trial).items()}
        told = {value for trial in trials for value in trial_secrets(trial, live.context)}
        redactor = Redactor((*live.context.redactor.secrets, *told, *secrets_in(live.state.options.set)))
        write_resolved(live.state.run_dir, root, tasks, experiment, templates, redactor)
    except OSError as error:
        live.warn(f"lock.json could not be written: {error.strerror}")


def _deadline(holder: HasTrial) -> float | None:
    return deadline(holder) if isinstance(holder, pytest.Item) else None


def _shared_place(live: Live) -> None:
    """The default place, which another process of the run may make at the same moment."""
    if not live.state.run_dir.exists():
        try:
            prepare_place(live.state.run_dir, default_place=True)
        except CodeprobeError as error:
            raise refused(error, live.config) from error
