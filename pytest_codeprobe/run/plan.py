"""The plan: the list of a run's trials, known before the first one starts, the same in every process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from pytest_codeprobe.model.base import Model
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.run.decision import Decision
from pytest_codeprobe.text import Redactor

Gate = Literal["held", "fell"]
CANARY = "canary"  #: the tag of tasks that go first and decide whether anything else starts


class PlannedTrial(Model):
    """One trial as plan.json lists it: who it is and what bounds it, nothing secret."""

    node_id: str
    task_id: str
    variant_id: str | None
    row_id: str | None
    repeat: int
    repeats: int = 1
    rows: int = 1
    min_passes: int | None = None
    thresholds: tuple[tuple[int, str, dict[str, float]], ...] = ()  #: number and type of each criterion that has some, and they
    folder: str
    task_file: str
    agent: str | None
    model: str | None
    user: str | None = None  #: the agent that plays a simulated user
    users_variables: tuple[str, ...] = ()  #: names that the task gives that one's session
    driver: str
    network: str | tuple[str, ...] = "on"
    limits: dict[str, Any]
    expect: str = "pass"
    tags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  #: names that the task itself gives the session
    marked: bool = False
    xfail: str | None = None  #: the task's own reason
    starts: bool = True  #: False: it is known to be skipped, or its agent has nothing to do
    resumed: Literal["keep", "grade"] | None = None  #: under resume: the earlier result stands, or its workspace is graded again
    gated: bool = False  #: under regrade: nothing is kept of it, but it is one of the repeats that its gate was judged by
    again: str = ""  #: under resume: why an earlier result does not stand
    fetches: tuple[tuple[str, str, int | None], ...] = ()  #: under offline, what its workspace needs of servers: URL, host, port
    configuration: str | None = None  #: how its agent is started, in one word that tells nothing; of a run with a canary

    @property
    def is_canary(self) -> bool:
        """Whether the rest waits for its verdict."""
        return CANARY in self.tags

    @property
    def counts(self) -> bool:
        """Whether it is in the run as far as the gate over its repeats is concerned."""
        return self.starts or self.resumed is not None or self.gated

    @property
    def is_of_suite(self) -> bool:
        """Whether figures over its task's trials are of interest: it has rows, or thresholds for them."""
        return self.row_id is not None or bool(self.thresholds)

    def gate(self, status: str) -> Gate | None:
        """What a final status means for the rest; None for other trials, and for a canary that was not run."""
        if not self.is_canary or status in ("skipped", "not_run"):
            return None
        return "held" if status == {"pass": "passed", "fail": "failed"}.get(self.expect) else "fell"


def planned(
    trial: Trial,
    *,
    starts: bool = True,
    configuration: str | None = None,
    decision: Decision | None = None,
    fetches: Iterable[tuple[str, str, int | None]] = (),
) -> PlannedTrial:
    """The plan's line of a trial. `decision`: what resume makes of its earlier result."""
    kind = decision.kind if decision is not None else "run"
    user = trial.simulation.agent if trial.simulation is not None else None
    resumed = kind if kind in ("keep", "grade") else None
    return PlannedTrial(
        node_id=trial.node_id,
        task_id=trial.task_id,
        variant_id=trial.variant_id,
        row_id=trial.row_id,
        repeat=trial.repeat,
        repeats=trial.repeats,
        rows=trial.rows,
        min_passes=trial.min_passes,
        thresholds=tuple((n, c["type"], c["suite_thresholds"]) for n, c in enumerate(trial.criteria) if c.get("suite_thresholds")),
        folder=trial.folder,
        task_file=trial.task_file,
        agent=trial.agent.type,
        model=trial.agent.model,
        user=None if user is None else user.type,
        users_variables=() if user is None else tuple(sorted(user.env)),
        driver=trial.sandbox.driver,
        network=trial.sandbox.network,
        limits=trial.limits.model_dump(exclude_none=True),
        expect=trial.expect,
        tags=trial.tags,
        variables=tuple(sorted({*trial.sandbox.env, *trial.agent.env})),
        marked=trial.marked,
        xfail=trial.xfail,
        starts=starts and kind == "run",
        resumed=resumed,
        gated=decision is not None and decision.gated,
        again=decision.why if decision is not None else "",
        fetches=tuple(fetches),
        configuration=configuration,
    )


def make_plan(
    run_id: str,
    version: str,
    rootdir: str,
    options: RunOptions,
    trials: Iterable[PlannedTrial],
    *,
    experiment: str | None = None,
    calls: bool = False,
    redactor: Redactor,
) -> dict[str, Any]:
    """plan.json. It must not differ between the processes of a run: no times, no worker in it. `calls`: tests may call further trials."""
    shown = {k: v for k, v in dataclasses.asdict(options).items() if k != "secrets"}
    shown["set"] = redactor.json(options.set)
    return {
        "schema_version": "1",
        "run_id": run_id,
        "plugin_version": version,
        "rootdir": rootdir,
        "experiment": experiment,
        "options": shown,
        "calls": calls,
        "trials": [t.model_dump(mode="json") for t in trials],
    }
