"""What a person sees beside pytest's own report: one header line, one section at the end."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.amounts import span
from pytest_codeprobe.model.result import VERDICTS
from pytest_codeprobe.options import spelled
from pytest_codeprobe.plugin.collect import no_agent
from pytest_codeprobe.plugin.comparison import repeat_lines, variant_lines
from pytest_codeprobe.plugin.discover import lines_of
from pytest_codeprobe.plugin.failure import money
from pytest_codeprobe.run.decision import Decision
from pytest_codeprobe.run.envelope import counts, tokens
from pytest_codeprobe.run.envelope import money as run_money
from pytest_codeprobe.run.final import Final
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.run.suites import GateResult
from pytest_codeprobe.text import one_line

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live

_SHOWN = 3
_SHOWN_GATES = 10


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
        if controller is None or not controller.book.taken:
            return
        plan = list(controller.book.plan.values())
        agents = sorted({t.agent or "none chosen" for t in plan})
        models = sorted({t.model for t in plan if t.model})
        drivers = sorted({self.live.driver_of(t) for t in plan})
        workers = self.live.config.getoption("numprocesses", None) if self.live.state.xdist else None
        spread = self.live.state.spread
        if not plan:
            agents = [self.live.state.options.agent or "of each trial"]
        parts = [
            f"{len(plan)} trial{'s' * (len(plan) != 1)}{' and those that tests call' if controller.book.may_call else ''}",
            f"agent {', '.join(agents)}",
            *([f"model {', '.join(models)}"] if models else []),
            *([f"experiment {name}"] if (name := self.live.experiment.name) is not None else []),
            *([f"driver {', '.join(drivers)}"] if drivers else []),
            *([f"{workers} workers"] if workers else []),
            *([f"{self.live.jobs} jobs{' (-n of addopts is set aside)' if spread.set_aside else ''}"] if self.live.jobs > 1 else []),
            *(["offline"] if self.live.state.options.offline else []),
            *controller.budget.shown(),
            *([_resumed(plan)] if self.live.resume is not None else []),
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
        if controller.book.taken and terminalreporter.verbosity >= 0:
            terminalreporter.write_sep("=", "codeprobe")  # after the end of a progress line
        for line in lines:
            terminalreporter.write_line(line)

    def _summary(self, finals: Sequence[Final]) -> Iterator[str]:
        controller = self.live.controller
        assert controller is not None
        prefix = "" if controller.book.taken else "codeprobe: "
        reason = no_agent(self.live)
        if without := sum(f.reason == reason for f in finals):
            yield f"codeprobe: {without} task{'s' * (without != 1)} skipped: {reason}"
            if self.live.state.options.experiment is not None and not self.live.state.options.console:
                yield "codeprobe: an agent that an experiment or a task names counts where the task's file is named, and in `codeprobe run`"
        if controller.book.taken:
            yield from self._trials(finals)
            if controller.ending.estimate is not None:
                from pytest_codeprobe.plugin.dry_run import table

                yield from table(controller.ending.estimate)
        elif (why := controller.ending.no_tasks()) is not None:
            yield f"codeprobe: {why.code}: {why.message}"
            yield f"  {spelled(why.remediation, console=self.live.state.options.console)}"
        yield from (f"{prefix}{line}" for line in lines_of(controller.ending.left_out))
        if controller.book.taken:
            notes = dict.fromkeys([*controller.ending.warnings, *(w for f in finals for w in f.warnings)])
            yield from (f"warning: {one_line(w, 300)}" for w in notes)
            yield f"run dir: {self.live.shown_run_dir()}"
            yield from self._rest(finals)

    def _rest(self, finals: Sequence[Final]) -> Iterator[str]:
        """How what was not run can be run."""
        options = self.live.state.options
        why = {f.reason for f in finals if f.status == "not_run"} - {"refused"}
        if why and not options.dry_run and options.regrade is None:
            flags = f"--codeprobe-resume --codeprobe-run-dir={shlex.quote(str(self.live.shown_run_dir()))}"
            more = " and a larger budget" if "budget" in why else ""
            yield f"to run the rest: the same call with {spelled(flags, console=options.console)}{more}"

    def _trials(self, finals: Sequence[Final]) -> Iterator[str]:
        tally = counts(finals)
        words = [f"{n} {name.removeprefix('tasks_').replace('_', ' ')}" for name, n in tally.items() if n and name != "tasks_total"]
        words = [f"{word}{_reasons(finals, word.partition(' ')[2].replace(' ', '_'))}" for word in words]
        total = tally["tasks_total"]
        if total:
            yield f"{total} trial{'s' * (total != 1)}: {', '.join(words)}"
        assert self.live.controller is not None
        yield from _called(self.live.controller.book.calls.final.values())
        verdicts = [f for f in finals if f.status in VERDICTS]
        passed = sum(f.status == "passed" for f in verdicts)
        errors = sum(f.status == "error" for f in finals)
        if verdicts:
            rate = f"pass rate {passed / len(verdicts):.0%} of graded trials ({passed}/{len(verdicts)})"
            if errors:
                rate += f", {passed / (len(verdicts) + errors):.0%} with errors as misses ({passed}/{len(verdicts) + errors})"
            yield rate
        ending = self.live.controller.ending
        cost, complete = run_money(finals, ending.beside())
        known = {k: v for k, v in tokens(finals, ending.beside()).items() if v}
        spent = f"cost {money(cost)}" + ("" if complete or cost is None else " and more: the cost of some trials is unknown")
        if known:
            spent += ", tokens: " + ", ".join(f"{v:,} {k.removesuffix('_tokens').replace('_', ' ')}" for k, v in known.items())
        if ending.beside() or any(f.attempts for f in finals):  # else there was nothing to pay for
            yield spent
        if limits := Counter(f.limit_hit["name"] for f in finals if f.limit_hit is not None):
            number = sum(limits.values())
            yield f"{number} trial{'s' * (number != 1)} hit a limit: {', '.join(f'{name} {n}' for name, n in limits.most_common())}"
        yield from self._compared(finals)
        yield from _gates(ending.gates())
        if self.live.resume is not None:
            from pytest_codeprobe.run.resume import listed

            plan = self.live.controller.book.plan.values()
            yield from self.live.resume.differences(finals)
            yield from listed({t.node_id: Decision(t.resumed or ("run" if t.starts else "skip"), t.again) for t in plan})
        slowest = sorted((f for f in finals if f.duration_seconds and f.attempts), key=lambda f: -(f.duration_seconds or 0))[:_SHOWN]
        if slowest:
            yield "slowest: " + ", ".join(f"{_name(f)} {span(round(f.duration_seconds or 0, 1))}" for f in slowest)
        for error in ending.raised:
            yield f"{error.code}: {one_line(error.message, 400)}"
        for fallen in ending.fallen_gates():
            yield f"error: {fallen.code}: {one_line(fallen.message, 200)}"
        yield from self.live.controller.canary.lines()
        for final in [f for f in finals if f.status == "error"][:10]:
            yield f"error: {final.node_id}: {final.code}: {one_line(final.reason or '', 160)}"

    def _compared(self, finals: Sequence[Final]) -> Iterator[str]:
        assert self.live.controller is not None
        book, plan = self.live.controller.book, self.live.controller.book.plan.values()
        yield from variant_lines(finals, list(dict.fromkeys(t.variant_id for t in plan if t.variant_id is not None)))
        yield from repeat_lines(finals, plan, {gate: proportion.needed for gate, (_, proportion) in book.proportions().items()})


def _gates(gates: Sequence[GateResult]) -> Iterator[str]:
    """Those that fell, and in one line for each reason those that can't be judged."""
    fallen = [gate for gate in gates if gate.held is False]
    for gate in fallen[:_SHOWN_GATES]:
        yield f"gate fell: {_bound(gate)}"
    if len(fallen) > _SHOWN_GATES:
        yield f"gates fell: {len(fallen) - _SHOWN_GATES} more: data.gates of envelope.json"
    undecided: dict[str, list[GateResult]] = {}
    for gate in gates:
        if gate.held is None:
            undecided.setdefault(gate.why, []).append(gate)
    for why, same in undecided.items():
        reason = f" ({why})" if why else ""
        if len(same) == 1:
            yield f"gate not judged: {_bound(same[0])}{reason}"
        else:
            more = f" and {len(same) - _SHOWN} more" if len(same) > _SHOWN else ""
            yield f"{len(same)} gates not judged: {', '.join(gate.name for gate in same[:_SHOWN])}{more}{reason}"


def _bound(gate: GateResult) -> str:
    return f"{gate.name}: needs {gate.threshold:g}" + ("" if gate.value is None else f", is {gate.value:g}")


def _called(finals: Collection[Final]) -> Iterator[str]:
    tally = Counter(final.status.replace("_", " ") for final in finals)
    if finals:
        yield f"{len(finals)} called by tests: {', '.join(f'{n} {status}' for status, n in tally.items())}"
    for final in [f for f in finals if f.status == "error"][:_SHOWN]:
        yield f"error: {final.node_id}: {final.code}: {one_line(final.reason or '', 160)}"


def _name(final: Final) -> str:
    """Of its item, without the file."""
    return final.node_id.partition("::")[2] or final.node_id


def _resumed(plan: Sequence[PlannedTrial]) -> str:
    kept, graded = (sum(trial.resumed == what for trial in plan) for what in ("keep", "grade"))
    words = f"{kept} kept, {sum(trial.starts for trial in plan)} to run"
    return f"{words}, {graded} to grade again" if graded else words


def _reasons(finals: Sequence[Final], status: str) -> str:
    """Why trials were not run, or skipped: ` (budget)`, ` (3 budget, 1 interrupted)`, ` (agent oracle: the task has no solution)`."""
    if status not in ("not_run", "skipped"):
        return ""
    counts = Counter(one_line(f.reason or "", 80) for f in finals if f.status == status)
    words = [f"{n} {reason}" if len(counts) > 1 else reason for reason, n in counts.most_common(_SHOWN)]
    return f" ({', '.join(words)})" if any(counts) else ""
