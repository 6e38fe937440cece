"""--codeprobe-resume: the earlier run's results, told again, graded again, or run again."""

from __future__ import annotations

import functools
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import Attempt, TrialResult
from pytest_codeprobe.run.decision import Decision
from pytest_codeprobe.run.leftover import publish_left
from pytest_codeprobe.run.proportion import Proportion, gate_of
from pytest_codeprobe.run.resume import Earlier, decide, is_gradable, make_way, plan_of, put_back, read_earlier
from pytest_codeprobe.trial.again import Past
from pytest_codeprobe.trial.fingerprint import changed, fingerprint
from pytest_codeprobe.trial.packages import PackageFolders

_LAID = frozenset({"template", "sandbox", "pre_run"})  #: parts of a fingerprint that a workspace is compared with
_SHOWN = 5

if TYPE_CHECKING:
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.run.final import Final


class Resume:
    """One for each process. What lies in the run dir does not change before the first trial starts."""

    ours = True  #: the earlier run's dir is this run's

    def __init__(self, live: Live, run_dir: Path | None = None) -> None:
        self._live = live
        self._run_dir = run_dir or live.state.run_dir
        self._decisions: dict[str, Decision] = {}
        self._experiment: str | None = None  #: of the run, as it was begun or last gone on with
        self._packages = PackageFolders()

    @functools.cached_property
    def earlier(self) -> Earlier:
        """What the run dir holds. RESUME_MISMATCH, USAGE_ERROR."""
        return read_earlier(self._run_dir, self._live.config.rootpath)

    def past(self, trial: Trial, record: TrialResult) -> Past:
        """What is left of the trial's earlier session."""
        return Past(record=record, folder=self._run_dir / "trials" / trial.folder, ours=self.ours)

    def check(self) -> None:
        """Whether there is a run that can be gone on with. RESUME_MISMATCH, USAGE_ERROR."""
        plan_of(self._run_dir, self._live.config.rootpath)

    def make_way(self) -> None:
        """In the controller, which has the lock, before anything is collected. OSError."""
        plan = plan_of(self._run_dir, self._live.config.rootpath)
        self._experiment = plan.get("experiment")
        publish_left(self._live.folder, plan, self._live.clock)
        _ = self.earlier
        run_dir = self._live.state.run_dir
        moved = make_way(run_dir)
        self._live.config.add_cleanup(functools.partial(put_back, run_dir, moved))  # while the lock is held

    def another_experiment(self) -> str | None:
        """Told before anything is paid where the call has not the run's experiment; else None."""
        was, now = self._experiment, self._live.experiment.name
        if not self.ours or was == now:
            return None
        had, has = ("without an experiment" if name is None else f"with experiment {name}" for name in (was, now))
        way = "" if was is None else f" (--codeprobe-experiment={shlex.quote(was)} is what it had)"
        return f"the run was last run {had}, and goes on {has}{way}: results of trials that are none of this call's are told no more"

    def another_run(self, folders: Iterable[str]) -> str | None:
        """Told where the run has results, and of none of the trials that go on with it; else None."""
        results = self.earlier.results
        if not self.ours or not results or not results.keys().isdisjoint(folders):
            return None
        number = f"{len(results)} trial{'s' * (len(results) != 1)}"
        return f"the run dir has results of {number}, and of none of this call: is it the one that is meant?"

    def decide(self, trial: Trial, deadline: float | None = None) -> Decision:
        """What becomes of a trial. `deadline`: seconds that pytest-timeout gives it."""
        options = self._live.state.options
        old = self.earlier.results.get(trial.folder)
        new = fingerprint(trial, self._live.context)
        began = self.earlier.began.get(trial.folder, 0)
        versions = self._live.state.versions
        found = decide(trial, old, new, began=began, rerun=options.rerun, versions=versions, deadline=deadline)
        self._decisions[trial.folder] = found
        return found

    def result(self, trial: Trial) -> TrialResult | None:
        """The earlier result of a trial that is not run again; None where it is."""
        if self._decisions.get(trial.folder, Decision("run")).kind in ("run", "skip"):
            return None
        return self.earlier.results[trial.folder]

    def runs(self, folder: str) -> bool:
        """Whether a trial has a session of its own, in spite of what is there."""
        return self._decisions.get(folder, Decision("run")).kind == "run"

    def is_kept(self, folder: str) -> bool:
        """Whether the earlier result of a trial stands as it is."""
        return self._decisions.get(folder, Decision("run")).kind == "keep"

    def differences(self, finals: Iterable[Final]) -> list[str]:
        """Nothing is graded but what the summary tells of anyway."""
        return []

    def changed_packages(self, trial: Trial) -> Iterator[str]:
        """A word on each folder that the trial's earlier session had as a package, and that has newer files by now."""
        old = self.earlier.results.get(trial.folder)
        if not self.ours or old is None or not old.attempts:
            return
        for folder, file in self._packages.newer(trial, old.attempts[-1].started_at):
            yield (
                f"sandbox.setup installs {folder}, where {file.relative_to(folder)} is newer than sessions whose results are kept: "
                "those do not speak of it. To run them again: --codeprobe-rerun=all"
            )

    def skips(self, trial: Trial) -> str | None:
        """Why nothing is done with a trial; None where something is."""
        decision = self._decisions.get(trial.folder)
        return decision.why if decision is not None and decision.kind == "skip" else None

    def refusal(self, trials: Iterable[Trial]) -> CodeprobeError | None:
        """Why none of it can be done."""
        return None

    def attempts(self, trial: Trial) -> tuple[Attempt, ...]:
        """Those before the ones to come."""
        return self.earlier.attempts(trial.folder)

    def agents(self) -> Mapping[str, str]:
        """Agents that earlier results tell of, and their versions."""
        found: dict[str, str] = {}
        for result in self.earlier.results.values():
            if result.agent is not None and result.agent.version:
                found.setdefault(result.agent.name, result.agent.version)
        return found


class Regrade(Resume):
    """`codeprobe regrade`: criteria again on the workspaces that another run has kept. No agent starts."""

    ours = False

    def make_way(self) -> None:
        """The earlier run stays as it is."""

    def decide(self, trial: Trial, deadline: float | None = None) -> Decision:
        """Graded again where there is a verdict, or only grading had failed. Else there is nothing to grade, which is told as a skip."""
        old = self.earlier.results.get(trial.folder)
        graded = old is not None and is_gradable(old)
        left_out = Decision("skip", "not graded again: no verdict is kept of it", gated=old is not None or self._was_decided(trial))
        found = self._decisions[trial.folder] = Decision("grade") if graded else left_out
        return found

    def _was_decided(self, trial: Trial) -> bool:
        """Whether the gate over the trial's repeats was decided without it."""
        if trial.min_passes is None:
            return False
        passes, misses = (self._statuses[gate_of(trial.folder), status] for status in ("passed", "failed"))
        return Proportion(trial.repeats, trial.min_passes, passes, misses).held is not None

    @functools.cached_property
    def _statuses(self) -> Counter[tuple[str, str]]:
        """How many of the repeats below a folder ended how."""
        return Counter((gate_of(folder), result.status) for folder, result in self.earlier.results.items())

    def attempts(self, trial: Trial) -> tuple[Attempt, ...]:
        """Those of the earlier result are part of it."""
        return ()

    def differences(self, finals: Iterable[Final]) -> list[str]:
        """What has become of verdicts and scores, trial by trial."""
        lines = []
        for final in finals:
            old = self.earlier.results.get(final.folder or "")
            if old is None or (old.status, old.score) == (final.status, final.score):
                continue
            was, now = (
                f"{status}{'' if score is None else f' {score:.2f}'}"
                for status, score in ((old.status, old.score), (final.status, final.score))
            )
            lines.append(f"regraded: {final.node_id}: {was} -> {now}")
        return [*(lines or ["regraded: every verdict and score is what it was"]), *self._left_behind()]

    def _left_behind(self) -> list[str]:
        """Trials of the earlier run that no task file has any more, unless trials were selected."""
        option, controller = self._live.config.option, self._live.controller
        if option.keyword or option.markexpr or option.deselect or controller is None:
            return []
        planned = {trial.folder for trial in controller.book.plan.values()}
        items = {folder: result for folder, result in self.earlier.results.items() if "@" not in folder}  # not of tests
        gone = [result.node_id for folder, result in items.items() if folder not in planned and is_gradable(result)]
        more = f" and {len(gone) - _SHOWN} more" if len(gone) > _SHOWN else ""
        return [f"not graded again, since no task file asks for it now: {', '.join(gone[:_SHOWN])}{more}"] if gone else []

    def refusal(self, trials: Iterable[Trial]) -> CodeprobeError | None:
        """USAGE_ERROR that names each trial whose workspace was not kept whole, or is laid out from something else now."""
        wrong: dict[str, str] = {}
        for trial in trials:
            old = self.earlier.results.get(trial.folder)
            if old is None or not is_gradable(old):
                continue
            parts = [part for part in changed(old.fingerprint.session, fingerprint(trial, self._live.context).session) if part in _LAID]
            if old.kept != "whole":
                partly = "only in part (ignore_patterns, or a secret in it)"
                wrong[trial.node_id] = f"its workspace was kept {partly if old.kept == 'partial' else old.kept}"
            elif parts:
                wrong[trial.node_id] = f"changed: {', '.join(parts)}"
        if not wrong:
            return None
        return CodeprobeError(
            "USAGE_ERROR",
            f"{len(wrong)} trial{'s' * (len(wrong) != 1)} can't be graded again: "
            + "; ".join(f"{name}: {why}" for name, why in list(wrong.items())[:_SHOWN]),
            remediation="Run them anew, or leave them out with -k.",
            detail={"trials": wrong},
        )
