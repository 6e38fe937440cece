"""--codeprobe-dry-run: every item is told of as skipped, and nothing of it starts; what the run would take is estimated.

Set-up, call and teardown of items never come: no fixture, no hook of a conftest.py around them, no session, no test.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.amounts import dollars, span
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import DRY_RUN
from pytest_codeprobe.plugin.checks import maker_of_sandboxes
from pytest_codeprobe.plugin.collect import TaskItem, no_agent
from pytest_codeprobe.plugin.marked import MARKED
from pytest_codeprobe.run.asking import Answer, ask_versions
from pytest_codeprobe.run.estimate import History, estimate
from pytest_codeprobe.text import one_line
from pytest_codeprobe.trial.dry import DryChecks

if TYPE_CHECKING:
    from pytest_codeprobe.model.agent import Agent
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live

_VERSION_TIMEOUT = 2.0  #: seconds
_HOOK = "pytest_codeprobe_make_sandbox"
_VERSIONS = pytest.StashKey[dict[str, Answer]]()


class DryRun:
    """Hooks of the process that would run items: pytest itself, or a worker."""

    def __init__(self, live: Live) -> None:
        self.live = live
        self._checks: DryChecks | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        """In the place of pytest's own."""
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        stops = (KeyboardInterrupt, pytest.exit.Exception)
        info: pytest.CallInfo[None] = pytest.CallInfo.from_call(lambda: self._tell(item), when="setup", reraise=stops)
        report = item.ihook.pytest_runtest_makereport(item=item, call=info)
        if isinstance(report.longrepr, tuple):  # the skip was raised here, and is said of the item's place
            path, line, _ = item.reportinfo()
            report.longrepr = (str(path), (line or 0) + 1, report.longrepr[2])
        item.ihook.pytest_runtest_logreport(report=report)
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        assert self.live.protocol is not None
        self.live.protocol.delete(item)
        return True

    def _tell(self, item: pytest.Item) -> None:
        """Raise what the item's set-up would end with, at best a skip; of a trial with its record."""
        protocol, holder = self.live.protocol, item if isinstance(item, TaskItem) else item.stash.get(MARKED, None)
        assert protocol is not None
        if holder is None:
            pytest.skip(_skip_of(item) or DRY_RUN)
        chosen = self.live.chosen(holder)

        def check(trial: Trial) -> str:
            return holder.skip_reason or _skip_of(item) or (self._check(trial) or DRY_RUN if chosen else no_agent(self.live))

        protocol.conclude(item, protocol.new_run(item).whole(check))

    def _check(self, trial: Trial) -> str | None:
        if self._checks is None:
            foreign = maker_of_sandboxes(self.live)
            if foreign is not None:
                self.live.warn(f"dry run: sandboxes are made by {_HOOK} in {foreign}, which was not called")
            self._checks = DryChecks(self.live.context, own_sandboxes=foreign is not None, warn=self.live.warn)
        return self._checks.check(trial)


def _skip_of(item: pytest.Item) -> str | None:
    """The reason of a plain skip mark; conditions are not evaluated, that could run anything."""
    mark = item.get_closest_marker("skip")
    if mark is None:
        return None
    return str(mark.kwargs.get("reason") or next(iter(mark.args), "") or "unconditional skip")


# ---- the controller's part


def check_versions(live: Live, names: Sequence[str]) -> None:
    """Warn where an agent's CLI does not tell its version: it is there, but may not work."""
    for name, answer in versions(live, [live.registry.agent(name) for name in names]).items():
        if answer.version is None:
            wrong = answer.trouble or f"it names none: {one_line(answer.first_line) or 'nothing is printed'}"
            live.warn(f"agent {name}: its version is unknown: `--version`: {wrong}")


def versions(live: Live, agents: Sequence[Agent]) -> dict[str, Answer]:
    """What each agent's CLI says of its version, or its package does, which starts nothing. Each is asked once."""
    known = live.config.stash.setdefault(_VERSIONS, {})
    unsaid = []
    for agent in agents:
        found = agent.find(live.context) if agent.executable is not None and agent.name not in known else None
        if found is not None and (version := packaged_version(found)) is not None:
            known[agent.name] = Answer(version)
        elif found is not None:
            unsaid.append(agent)
    known.update(ask_versions(unsaid, live.context, _VERSION_TIMEOUT))
    return {agent.name: known[agent.name] for agent in agents if agent.name in known}


def packaged_version(program: str) -> str | None:
    """The version that the npm package of a program says it has: nothing needs to be started then."""
    folder = Path(os.path.realpath(program)).parent
    for place in (folder, *folder.parents):
        if place.parent.name != "node_modules" and not place.parent.name.startswith("@"):
            continue
        with contextlib.suppress(OSError, ValueError, RecursionError):
            version = json.loads((place / "package.json").read_bytes()).get("version")
            return version if isinstance(version, str) and version else None
    return None


def estimated(live: Live) -> dict[str, Any] | None:
    """What the run would take, from the trials that the dry run found nothing wrong with; None if there is none."""
    controller = live.controller
    if controller is None or not controller.book.plan:
        return None
    book = controller.book
    trials = [t for t in book.plan.values() if (final := book.final.get(t.node_id)) is not None and final.reason == DRY_RUN]
    runs_dir = live.config.rootpath / live.state.options.runs_dir
    history = History.read(runs_dir, trials, but=live.state.run_id)

    def is_free(name: str) -> bool:
        with contextlib.suppress(CodeprobeError):
            agent = live.registry.agent(name)
            return not agent.is_session and not agent.calls_model
        return False

    def may_cache(name: str) -> bool:
        with contextlib.suppress(CodeprobeError):
            return live.registry.agent(name).calls_model
        return True

    canaries = controller.canary.foretold()
    return estimate(trials, history, parallel=_parallel(live), is_free=is_free, may_cache=may_cache, canaries=canaries)


def _parallel(live: Live) -> int:
    """Trials at once: jobs, or the workers of xdist."""
    if not live.state.xdist:
        return live.jobs
    specs = [str(spec).partition("*") for spec in live.config.getoption("tx", None) or ()]
    return sum(int(number) if star and number.isdigit() else 1 for number, star, _ in specs) or 1


def table(told: Mapping[str, Any]) -> Iterator[str]:
    """The estimate as a person reads it."""
    trials, measured, runs = told["trials"], told["measured_trials"], told["runs"]
    known = f"{measured} of them measured in {runs} earlier run{'s' * (runs != 1)}" if measured else "none was measured before"
    yield f"estimate for {trials} trial{'s' * (trials != 1)}, {told['parallel']} at a time; {known}"
    yield f"  {'':8}{'low':>14}{'expected':>14}{'high':>14}"
    for label, name, words in (("tokens", "tokens", _count), ("cost", "cost_usd", dollars), ("time", "duration_seconds", _span)):
        row = told[name]
        cells = "".join(f"{'unknown' if row[k] is None else words(row[k]):>14}" for k in ("low", "expected", "high"))
        unknown = row["unknown_trials"]
        yield f"  {label:8}{cells}" + (f"   not measured: {unknown} trial{'s' * (unknown != 1)}" if unknown and measured else "")


def _span(seconds: float) -> str:
    return span(round(seconds, 1))


def _count(value: float) -> str:
    return f"{value:,.0f}"
