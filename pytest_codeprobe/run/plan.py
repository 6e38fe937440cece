"""The plan: the list of a run's trials, known before the first one starts, the same in every process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Literal

from pytest_codeprobe.model.base import Model
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions

Gate = Literal["held", "fell"]
CANARY = "canary"  #: the tag of tasks that go first and decide whether anything else starts


class PlannedTrial(Model):
    """One trial as plan.json lists it: who it is and what bounds it, nothing secret."""

    node_id: str
    task_id: str
    variant_id: str | None
    row_id: str | None
    repeat: int
    folder: str
    task_file: str
    agent: str | None
    model: str | None
    driver: str
    limits: dict[str, Any]
    expect: str = "pass"
    tags: tuple[str, ...] = ()
    variables: tuple[str, ...] = ()  #: names that the task itself gives the session
    marked: bool = False
    xfail: str | None = None  #: the task's own reason
    starts: bool = True  #: False: it is known to be skipped
    configuration: str | None = None  #: how its agent is started, in one word that tells nothing; of a run with a canary

    @property
    def is_canary(self) -> bool:
        """Whether the rest waits for its verdict."""
        return CANARY in self.tags

    def gate(self, status: str) -> Gate | None:
        """What a final status means for the rest; None for other trials, and for a canary that was not run."""
        if not self.is_canary or status in ("skipped", "not_run"):
            return None
        return "held" if status == {"pass": "passed", "fail": "failed"}.get(self.expect) else "fell"


def planned(trial: Trial, *, starts: bool = True, configuration: str | None = None) -> PlannedTrial:
    """The plan's line of a trial."""
    return PlannedTrial(
        node_id=trial.node_id,
        task_id=trial.task_id,
        variant_id=trial.variant_id,
        row_id=trial.row_id,
        repeat=trial.repeat,
        folder=trial.folder,
        task_file=trial.task_file,
        agent=trial.agent.type,
        model=trial.agent.model,
        driver=trial.sandbox.driver,
        limits=trial.limits.model_dump(exclude_none=True),
        expect=trial.expect,
        tags=trial.tags,
        variables=tuple(sorted({*trial.sandbox.env, *trial.agent.env})),
        marked=trial.marked,
        xfail=trial.xfail,
        starts=starts,
        configuration=configuration,
    )


def make_plan(
    run_id: str, version: str, rootdir: str, options: RunOptions, trials: Iterable[PlannedTrial], *, experiment: str | None = None
) -> dict[str, Any]:
    """plan.json. It must not differ between the processes of a run: no times, no worker in it."""
    shown = {k: v for k, v in dataclasses.asdict(options).items() if k != "secrets"}
    return {
        "schema_version": "1",
        "run_id": run_id,
        "plugin_version": version,
        "rootdir": rootdir,
        "experiment": experiment,
        "options": shown,
        "trials": [t.model_dump(mode="json") for t in trials],
    }
