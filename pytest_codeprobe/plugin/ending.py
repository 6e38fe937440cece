"""What a run comes to as a whole: exit code, errors, envelope. From what the controller has seen."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.result import DRY_RUN
from pytest_codeprobe.options import spelled
from pytest_codeprobe.plugin.gate import gate_error
from pytest_codeprobe.plugin.refusal import as_error, called, stop_text
from pytest_codeprobe.run.book import RunBook
from pytest_codeprobe.run.envelope import ErrorEntry, RunFacts, entry, envelope, trial_errors
from pytest_codeprobe.run.exit_code import Happened, exit_code
from pytest_codeprobe.run.final import Final
from pytest_codeprobe.run.plan import CANARY, PlannedTrial
from pytest_codeprobe.run.proportion import Proportion
from pytest_codeprobe.run.remedy import addressed, next_steps
from pytest_codeprobe.run.suites import GateResult, RunGate, Suite, proportion_gates, run_gates, suites
from pytest_codeprobe.text import json_line

if TYPE_CHECKING:
    from pytest_codeprobe.model.result import Usage
    from pytest_codeprobe.plugin.canary import BuiltInCanary
    from pytest_codeprobe.plugin.live import Live


_NAMED, _LISTED = 5, 100  #: trials in a sentence, and in a list


class Ending:
    """Collects what may end a run, or spoil it, and says what that makes of it."""

    def __init__(self, live: Live, book: RunBook) -> None:
        self.live, self.state, self.config, self.book = live, live.state, live.config, book
        self.session: pytest.Session | None = None
        self.unplanned: dict[str, Final] = {}  #: tasks that were skipped without a plan, for want of an agent
        self.task_errors: list[CodeprobeError] = []
        self.raised: list[CodeprobeError] = []  #: of the run as a whole, while trials ran
        self.warnings: list[str] = []
        self.left_out: dict[str, list[str]] = {"left_out": [], "not_tasks": []}  #: by collection
        self.canary: BuiltInCanary | None = None
        self.internal = False
        self.stop: BaseException | None = None  #: what ended pytest's loop
        self.refused: CodeprobeError | None = None
        self._started, self._began = time.time(), monotonic()

    def reason(self) -> str:
        """Of the trials that never started."""
        if self.live.interrupts.count or self.live.stops.is_raised("interrupt"):
            return "interrupted"
        if self.refused is not None:
            return "refused"
        if self.live.stops.is_raised("maxfail") or self.stopped_by_count():
            return "maxfail"
        if self.live.stops.is_raised(CANARY):
            return "canary"
        return "interrupted" if isinstance(self.stop, KeyboardInterrupt | pytest.exit.Exception) else "stopped"

    def stopped_by_count(self) -> bool:
        """-x and --maxfail, whose Interrupted under xdist is no interrupt."""
        maxfail = self.config.getoption("maxfail")
        return bool(maxfail) and self.session is not None and self.session.testsfailed >= maxfail

    def went_on(self) -> bool:
        """--continue-on-collection-errors."""
        return bool(self.config.option.continue_on_collection_errors)

    def about_tasks(self) -> bool:
        """Whether this run is any of our business."""
        output = self.state.output
        asked = self.state.options.console or self.state.options.agent is not None or (output is not None and output.json)
        return bool(self.book.taken or self.unplanned or self.task_errors or asked)

    def finals(self) -> list[Final]:
        """All records, in the plan's order."""
        order = [self.book.final[n] for n in self.book.plan if n in self.book.final]
        return [*order, *self.unplanned.values()]

    @functools.cached_property
    def suites(self) -> list[Suite]:
        """Figures over the rows of tasks; once all trials have their record."""
        return suites(self.book.plan, self.book.final)

    def gates(self) -> list[GateResult]:
        """What bounds figures of several trials: repeats, suites, the run."""
        if not self.book.plan or self.state.options.dry_run or not self.book.closed:
            return []
        return self._gates

    @functools.cached_property
    def _gates(self) -> list[GateResult]:
        options, wanted = self.state.options, list[RunGate]()
        if options.min_pass_rate is not None:
            wanted.append(RunGate(metric="pass_rate", min=options.min_pass_rate))
        if options.min_score is not None:
            wanted.append(RunGate(metric="score_mean", min=options.min_score))
        variants: list[str] = []
        if self.live.experiment.is_there:
            chosen = self.live.experiment.chosen
            wanted += [RunGate(**gate.model_dump(), standing=True) for gate in chosen.gates]
            variants = [variant.name for variant in chosen.variants if variant.name and chosen.compares]
        planned = [trial for trial in self.book.plan.values() if not trial.marked]
        return [
            *proportion_gates(self._proportions()),
            *(gate for suite in self.suites for gate in suite.gates()),
            *run_gates(wanted, self.finals(), planned, variants),
        ]

    def _happened(self, status: int) -> Happened:
        counted = self.stopped_by_count()
        by_collection = bool(self.task_errors or self.state.module_errors) and not self.went_on()
        other_stop = self.stop is not None and not by_collection and not counted and not self.internal
        return Happened(
            pytest_status=status,
            internal_error=self.internal,
            interrupted=bool(self.live.interrupts.count) or (other_stop and self.refused is None),
            refused=self.refused.code if self.refused is not None else None,
            task_errors=tuple(e.code for e in self.task_errors),
            module_errors=self.state.module_errors,
            went_on=self.went_on(),
            raised=tuple(e.code for e in self.raised),
            dry_run=self.state.options.dry_run,
            lost_output=self.book.trouble is not None,
            gate_fell=any(gate.held is False for gate in self.gates()),
            undecided=self._is_undecided(),
            ordinary_failed=self.state.ordinary["failed"] + self.state.ordinary["error"],
            ordinary_passed=sum(self.state.ordinary.values()),
        )

    def _is_undecided(self) -> bool:
        """Whether a gate over repeats had verdicts, but too few: its misses count as expected, and nobody would see it."""
        return self.book.closed and any(p.held is None and p.passes + p.misses > 0 for _, p in self._proportions())

    def _proportions(self) -> list[tuple[PlannedTrial, Proportion]]:
        """The gates over repeats that count: what a task declares to fail may fall."""
        return [(trial, proportion) for trial, proportion in self.book.proportions().values() if trial.xfail is None]

    def exit_code(self, status: int) -> int | None:
        """spec codes.md; None where pytest's own stands: nothing here was about tasks, or nothing was to run."""
        if self.state.no_plan and not self.task_errors and self.refused is None:
            return None
        return exit_code(self.finals(), self._happened(status)) if self.about_tasks() else None

    def errors(self, code: int) -> list[ErrorEntry]:
        """errors[] of the envelope, as the user of this front door needs them."""
        invocation = called(self.config)
        return [addressed(line, invocation, self.state.options) for line in self._errors(code)]

    def _errors(self, code: int) -> list[ErrorEntry]:
        found = [entry(e) for e in self.task_errors]
        if self.refused is not None:
            found.append(entry(self.refused))
        elif code == 3:
            known = self.stop is not None and as_error(self.stop)
            found.append(entry(known or CodeprobeError("INTERNAL_ERROR", "pytest ended with exit code 3")))
        elif code == 2 and not (self.state.module_errors and not self.went_on() and not self.live.interrupts.count):
            found.append(entry(self._interrupted()))
        elif code == 5 and (why := self.no_tasks()) is not None:
            found.append(entry(why))
        if self.book.trouble is not None:
            found.append(entry(self.book.trouble))
        return [*found, *map(entry, self.raised), *map(entry, self.fallen_gates()), *trial_errors(self.finals())]

    def _interrupted(self) -> CodeprobeError:
        """What is there, and how what is missing can be run."""
        run_dir = self.live.shown_run_dir()
        finals = self.finals()
        left = [final.node_id for final in finals if final.status == "not_run"]
        remedy = None
        if run_dir is not None and not left:
            remedy = f"All trials have ended; their results are in {run_dir}."
        elif run_dir is not None:
            done = f"{len(finals) - len(left)} of {len(finals)} results are in {run_dir}"
            remedy = f"A human decides whether to go on: {done}, and --codeprobe-resume --codeprobe-run-dir={run_dir} runs the rest."
        return CodeprobeError(
            "INTERRUPTED",
            stop_text(self.stop),
            remediation=remedy,
            detail={"run_dir": run_dir, "not_run": left[:_LISTED], "not_run_count": len(left)},
        )

    def beside(self) -> list[Usage]:
        """What was used beside the trials, and is paid for as they are."""
        return [*(self.canary.usages() if self.canary is not None else ()), *self.book.calls.usages()]

    def fallen_gates(self) -> list[CodeprobeError]:
        """CANARY_GATE_FAILED for each canary whose verdict is another than it declares."""
        return [gate_error(f, self.book.plan[f.node_id].expect, self.live.shown_run_dir()) for f in self.finals() if f.gate == "fell"]

    @functools.cached_property
    def estimate(self) -> dict[str, Any] | None:
        """What a dry run foretells, once each trial has its record; None without one."""
        if not self.state.options.dry_run:
            return None
        from pytest_codeprobe.plugin.dry_run import estimated

        return estimated(self.live)

    def no_tasks(self) -> CodeprobeError | None:
        """NO_TASKS where tasks were asked for and none ran; None where that is not so, or something worse has happened."""
        asked = self.state.options.console or self.state.options.agent is not None
        if self.book.taken and not self.book.plan:
            return None  # there are tests, which may call trials
        worse = self.task_errors or self.state.module_errors or self.refused is not None or self.stop is not None
        if not asked or worse or self.state.no_plan or any(f.attempts or f.status != "skipped" for f in self.finals()):
            return None
        if self.state.options.dry_run and any(f.reason == DRY_RUN for f in self.finals()):
            return None
        where = ", ".join(str(a) for a in self.config.args) or f"{self.config.rootpath / 'tasks'}, which is no folder"
        finals = self.finals()
        if finals:
            reasons = ", ".join(sorted({f.reason or f.status for f in finals}))
            return CodeprobeError(
                "NO_TASKS",
                f"all {len(finals)} tasks were skipped: {reasons}",
                remediation="Select other tasks, or another agent.",
                detail={"rootdir": str(self.config.rootpath)},
            )
        patterns = " ".join(self.state.options.files)
        return CodeprobeError(
            "NO_TASKS",
            f"no task was found or selected in {where}",
            remediation=(
                f"Name a folder that holds task files (ini codeprobe_files: {patterns}), and check -k, -m, --codeprobe-tags and node ids."
            ),
            detail={
                "paths": [str(a) for a in self.config.args],
                "patterns": list(self.state.options.files),
                "rootdir": str(self.config.rootpath),
            },
        )

    def envelope_line(self, code: int) -> str | None:
        """The envelope; None where there is no place for it."""
        if not self.book.taken and not (self.state.output is not None and self.state.output.json):
            return None
        seconds = monotonic() - self._began
        invocation, errors = called(self.config), self.errors(code)
        finals = [*self.finals(), *self.book.calls.final.values()]
        warnings = list(dict.fromkeys([*self.warnings, *(w for f in finals for w in f.warnings)]))
        if self.state.module_errors:
            warnings.append(f"{self.state.module_errors} test module(s) could not be collected; see pytest's report")
        facts = RunFacts(
            run_id=self.state.run_id,
            run_dir=self.live.shown_run_dir(),
            exit_code=code,
            started_at=stamp(_moment(self._started)),
            ended_at=stamp(_moment(self._started + seconds)),  # a clock that jumps makes no run end before it began
            duration_seconds=round(seconds, 3),
            experiment=self.live.experiment.name,
            ordinary=dict(self.state.ordinary),
            warnings=[spelled(w, console=invocation.console) for w in warnings],
            next_steps=next_steps(self.finals(), errors, code, invocation, self._trials_folder()),
            estimate=self.estimate,
            canary=self.canary.as_json() if self.canary is not None else None,
            beside=self.beside(),
            calls=tuple(self.book.calls.final.values()),
            suites=self.suites,
            gates=self.gates(),
        )
        return json_line(envelope(self.finals(), errors, facts))

    def _trials_folder(self) -> Path | None:
        """As it can be typed in the folder where the run was started."""
        if self.live.shown_run_dir() is None:
            return None
        folder, here = self.live.folder.path / "trials", self.config.invocation_params.dir
        return folder.relative_to(here) if folder.is_relative_to(here) else folder

    def take_warnings(self, text: str | None) -> None:
        """What another process, or this one, warns of: a JSON list."""
        if text is not None:
            self.warnings.extend(w for w in json.loads(text) if w not in self.warnings)

    def take_left_out(self, told: Mapping[str, Sequence[str]]) -> None:
        """What collection left out in one process."""
        for name, known in self.left_out.items():
            self.left_out[name] = sorted({*known, *told[name]})


def _moment(seconds: float) -> Any:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC)
