"""Waits that are not a trial's own time: for money, and for a provider that asked for patience. On a clock that only waits move."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_codeprobe import criteria, sandboxes
from pytest_codeprobe.agents.scripted import ScriptedAgent, ScriptedParser
from pytest_codeprobe.model.agent import SessionEnd, SessionRequest
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.model.context import Balance, Claim, Context, Registry
from pytest_codeprobe.model.result import TrialResult
from pytest_codeprobe.model.sandbox import ProcessExit, Sandbox
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.run.stops import StopFolder
from pytest_codeprobe.sandboxes.keeper import Spawner
from pytest_codeprobe.text import Redactor
from pytest_codeprobe.trial.run import TrialRun

LIMIT = 30.0  #: seconds; of the trial's limits, and less than what it waits for money
LONG = 3600.0


class Clock:
    """Stands still but for sleep(); what happens at a moment of it happens there."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.at: dict[float, Any] = {}

    def now(self) -> datetime:
        return datetime.fromtimestamp(self.seconds, UTC)

    def monotonic(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds
        for moment in [m for m in self.at if m <= self.seconds]:
            self.at.pop(moment)()


class Slow:
    """A ledger that has money after a time only."""

    def __init__(self, clock: Clock, *free_from: float) -> None:
        self.clock, self.free_from = clock, list(free_from)

    def reserve(self, claim: Claim) -> int | Literal["wait", "no"]:
        return "wait" if self.clock.seconds < self.free_from[claim.attempt - 1] else claim.attempt

    def book(self, entry: int, spent: float, *, at_most: bool = False) -> Balance:
        return self.balance()

    def settle(self, entry: int, spent: float | None, *, assumed: float | None = None) -> Balance:
        return self.balance()

    def unpriced(self, agent: str, asked: str, model: str) -> None: ...

    def balance(self) -> Balance:
        return Balance(limit=9, spent=0, reserved=0)


class Busy(ScriptedAgent):
    """Its provider asks for a time of patience, or says nothing of one; where it may try again it works."""

    name = "busy"

    def __init__(self, retry_after: float | None) -> None:
        self.retry_after, self.sessions = retry_after, 0

    def parser(self, request: SessionRequest) -> ScriptedParser:
        self.sessions += 1
        return BusyParser(request, self)


class BusyParser(ScriptedParser):
    def __init__(self, request: SessionRequest, agent: Busy) -> None:
        super().__init__(request)
        self.busy = agent

    def end(self, exit: ProcessExit, *, stopped_for: str | None, stderr_tail: str) -> SessionEnd:
        if self.busy.sessions > 1:
            return super().end(exit, stopped_for=stopped_for, stderr_tail=stderr_tail)
        return SessionEnd(code="LLM_UNAVAILABLE", reason="429", retry_after=self.busy.retry_after)


@pytest.fixture(scope="module")
def spawner() -> Iterator[Spawner]:
    made = Spawner()
    yield made
    made.close()


class Rig:
    """Runs one trial, and says what it took on its own clock."""

    def __init__(self, folder: Path, spawner: Spawner, agent: Busy, *free_from: float) -> None:
        self.clock, self.events = Clock(), list[str]()
        self.stops = StopFolder(folder / "stop")
        kinds = {k.model_fields["type"].annotation.__args__[0]: k for k in criteria.BUILTIN}  # type: ignore[union-attr]
        self.context = Context(
            run_id="r",
            run_dir=folder,
            rootdir=folder,
            options=RunOptions(),
            registry=Registry(agents={agent.name: agent}, drivers={d.name: d for d in sandboxes.BUILTIN}, criteria=kinds),
            environ={"PATH": "/usr/local/bin:/usr/bin:/bin"},
            clock=self.clock,
            events=self,
            stops=self.stops,
            processes=spawner,
            redactor=Redactor(),
            python=sys.executable,
            scratch=folder / "scratch",
            ledger=Slow(self.clock, *free_from) if free_from else None,
        )
        self.trial = Trial(
            node_id="t.yaml::t",
            task_id="t",
            folder="default/t/r001",
            task_file=str(folder / "t.yaml"),
            prompt="do it",
            limits=RunLimits(task_timeout=LIMIT, setup_timeout=LIMIT, turn_timeout=LIMIT),
            agent=AgentConfig.model_validate({"type": "busy", "busy": {"steps": [{"write": {"path": "a", "content": "x"}}]}}),
            sandbox=SandboxConfig(),
            criteria=({"type": "file_exists", "path": "a"},),
        )

    def emit(self, event: str, **fields: Any) -> None:
        self.events.append(event)

    def run(self) -> TrialResult:
        def make(trial: Trial, context: Context) -> Sandbox:
            return sandboxes.choose(trial.sandbox.driver, context.registry, context).create(trial, context)

        life = TrialRun(self.trial, self.context, make, deadline=LIMIT)
        try:
            return life.whole()
        finally:
            assert not life.delete()


def test_a_wait_for_money_is_nobodys_time(tmp_path: Path, spawner: Spawner) -> None:
    """Before the first attempt and before the second: limits of half a minute, and hours of waiting."""
    rig = Rig(tmp_path, spawner, Busy(1.0), LONG, 3 * LONG)
    result = rig.run()
    assert (result.status, len(result.attempts), rig.clock.seconds) == ("passed", 2, 3 * LONG)
    assert result.duration_seconds == pytest.approx(1.0), "the wait for the provider, and nothing else on this clock"
    assert max(result.timings.values()) < LIMIT
    assert rig.events.count("trial_retried") == 1


@pytest.mark.parametrize(("asked", "waited"), [(None, 5.0), (0.75, 0.75), (59.0, 59.0), (60.5, 60.0), (86400.0, 60.0)])
def test_as_long_as_the_provider_asked_for_but_a_minute_at_most(
    tmp_path: Path, spawner: Spawner, asked: float | None, waited: float
) -> None:
    """No time-out of the trial counts it, and the second attempt has a fresh sandbox and all of its time."""
    rig = Rig(tmp_path, spawner, Busy(asked))
    result = rig.run()
    assert rig.clock.seconds == pytest.approx(waited)
    assert (result.status, [a.code for a in result.attempts]) == ("passed", ["LLM_UNAVAILABLE", None])


@pytest.mark.parametrize(("flag", "free_from"), [("time", ()), ("interrupt", ()), ("time", (LONG,)), ("budget", (LONG,))])
def test_a_wait_ends_with_the_run(tmp_path: Path, spawner: Spawner, flag: str, free_from: tuple[float, ...]) -> None:
    """Within a quarter of a second, whether it is for the provider or for money."""
    rig = Rig(tmp_path, spawner, Busy(50.0), *free_from)
    rig.clock.at[3.0] = lambda: rig.stops.raise_flag(flag)
    result = rig.run()
    assert (result.status, result.reason) == ("not_run", {"interrupt": "interrupted"}.get(flag, flag))
    assert len(result.attempts) == (0 if free_from else 1)
    assert rig.clock.seconds == pytest.approx(3.0, abs=0.25)
