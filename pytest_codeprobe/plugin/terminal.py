"""What a person sees beside pytest's own report: one header line, one section at the end."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.model.result import VERDICTS
from pytest_codeprobe.options import spelled
from pytest_codeprobe.plugin.collect import no_agent
from pytest_codeprobe.plugin.discover import lines_of
from pytest_codeprobe.plugin.failure import money
from pytest_codeprobe.run.book import Final
from pytest_codeprobe.run.envelope import counts, tokens
from pytest_codeprobe.run.envelope import money as run_money
from pytest_codeprobe.text import one_line, span

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live

_SHOWN = 3


class Terminal:
    """Hooks of the controller; nothing is printed where pytest's reporter is off."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self._said = False  #: the header line, under xdist

    def pytest_report_collectionfinish(self) -> list[str]:
        """Once the plan is known, before the first trial. Under xdist see pytest_xdist_node_collection_finished."""
        return list(self._header())

    @pytest.hookimpl(optionalhook=True, trylast=True)
    def pytest_xdist_node_collection_finished(self) -> None:
        reporter = self.live.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and not self._said and self.live.config.get_verbosity() >= 0:
            lines = list(self._header())
            self._said = bool(lines)
            for line in lines:
                if reporter.isatty:  # xdist's status stands there without an end, and comes again below
                    reporter.rewrite("", erase=True)
                    reporter.write("\r")
                reporter.write_line(line)

    def _header(self) -> Iterator[str]:
        controller = self.live.controller
        if controller is None or not controller.book.plan:
            return
        plan = list(controller.book.plan.values())
        agents = sorted({t.agent or "none chosen" for t in plan})
        models = sorted({t.model for t in plan if t.model})
        drivers = sorted({t.driver for t in plan})
        workers = self.live.config.getoption("numprocesses", None) if self.live.state.xdist else None
        spread = self.live.state.spread
        parts = [
            f"{len(plan)} trial{'s' * (len(plan) != 1)}",
            f"agent {', '.join(agents)}",
            *([f"model {', '.join(models)}"] if models else []),
            *([f"experiment {name}"] if (name := self.live.experiment.name) is not None else []),
            f"driver {', '.join(drivers)}",
            *([f"{workers} workers"] if workers else []),
            *([f"{self.live.jobs} jobs{' (-n of addopts is set aside)' if spread.set_aside else ''}"] if self.live.jobs > 1 else []),
            *(["offline"] if self.live.state.options.offline else []),
            *controller.budget.shown(),
            f"run dir {self.live.shown_run_dir()}",
        ]
        yield "codeprobe: " + ", ".join([*(["dry run"] if self.live.state.options.dry_run else []), *parts])
        yield from (f"codeprobe: warning: {said}" for said in controller.slips)

    @pytest.hookimpl(tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        controller = self.live.controller
        if controller is None:
            return
        controller.close()
        lines = list(self._summary(controller.ending.finals()))
        if not lines:
            return
        if controller.book.plan and terminalreporter.verbosity >= 0:
            terminalreporter.write_sep("=", "codeprobe")  # after the end of a progress line
        for line in lines:
            terminalreporter.write_line(line)

    def _summary(self, finals: Sequence[Final]) -> Iterator[str]:
        controller = self.live.controller
        assert controller is not None
        prefix = "" if controller.book.plan else "codeprobe: "
        reason = no_agent(self.live)
        if without := sum(f.reason == reason for f in finals):
            yield f"codeprobe: {without} task{'s' * (without != 1)} skipped: {reason}"
        if controller.book.plan:
            yield from self._trials(finals)
            if controller.ending.estimate is not None:
                from pytest_codeprobe.plugin.dry_run import table

                yield from table(controller.ending.estimate)
        elif (why := controller.ending.no_tasks()) is not None:
            yield f"codeprobe: {why.code}: {why.message}"
            yield f"  {spelled(why.remediation, console=self.live.state.options.console)}"
        yield from (f"{prefix}{line}" for line in lines_of(controller.left_out))
        if controller.book.plan:
            notes = dict.fromkeys([*controller.ending.warnings, *(w for f in finals for w in f.warnings)])
            yield from (f"warning: {one_line(w, 300)}" for w in notes)
            yield f"run dir: {self.live.shown_run_dir()}"

    def _trials(self, finals: Sequence[Final]) -> Iterator[str]:
        tally = counts(finals)
        words = [f"{n} {name.removeprefix('tasks_').replace('_', ' ')}" for name, n in tally.items() if n and name != "tasks_total"]
        words = [f"{word}{_reasons(finals, word.partition(' ')[2].replace(' ', '_'))}" for word in words]
        total = tally["tasks_total"]
        yield f"{total} trial{'s' * (total != 1)}: {', '.join(words)}"
        verdicts = [f for f in finals if f.status in VERDICTS]
        passed = sum(f.status == "passed" for f in verdicts)
        errors = tally["tasks_error"]
        if verdicts:
            rate = f"pass rate {passed / len(verdicts):.0%} of graded trials ({passed}/{len(verdicts)})"
            if errors:
                rate += f", {passed / (len(verdicts) + errors):.0%} with errors as misses ({passed}/{len(verdicts) + errors})"
            yield rate
        assert self.live.controller is not None
        ending = self.live.controller.ending
        cost, complete = run_money(finals, ending.beside())
        known = {k: v for k, v in tokens(finals, ending.beside()).items() if v}
        spent = f"cost {money(cost)}" + ("" if complete or cost is None else " and more: the cost of some trials is unknown")
        if known:
            spent += ", tokens: " + ", ".join(f"{v:,} {k.removesuffix('_tokens').replace('_', ' ')}" for k, v in known.items())
        if ending.beside() or any(f.attempts for f in finals):  # else there was nothing to pay for
            yield spent
        slowest = sorted((f for f in finals if f.duration_seconds and f.attempts), key=lambda f: -(f.duration_seconds or 0))[:_SHOWN]
        if slowest:
            yield "slowest: " + ", ".join(f"{f.task_id} {span(round(f.duration_seconds or 0, 1))}" for f in slowest)
        for error in ending.raised:
            yield f"{error.code}: {one_line(error.message, 400)}"
        for fallen in ending.fallen_gates():
            yield f"error: {fallen.code}: {one_line(fallen.message, 200)}"
        yield from self.live.controller.canary.lines()
        for final in [f for f in finals if f.status == "error"][:10]:
            yield f"error: {final.node_id}: {final.code}: {one_line(final.reason or '', 160)}"


def _reasons(finals: Sequence[Final], status: str) -> str:
    """Why trials were not run, or skipped: ` (budget)`, ` (3 budget, 1 interrupted)`, ` (agent oracle: the task has no solution)`."""
    if status not in ("not_run", "skipped"):
        return ""
    counts = Counter(one_line(f.reason or "", 80) for f in finals if f.status == status)
    words = [f"{n} {reason}" if len(counts) > 1 else reason for reason, n in counts.most_common(_SHOWN)]
    return f" ({', '.join(words)})" if any(counts) else ""
