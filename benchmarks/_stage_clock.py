"""A pytest plugin for overhead.py: clocks around the parts of a trial, their sums written to the file that STAGE_CLOCK names."""

from __future__ import annotations

import atexit
import functools
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_spent: dict[str, list[float]] = {}  # stage -> milliseconds: wall, CPU of the thread
_open: list[list[float]] = []  # for each clock that runs what others inside it have taken


def _clock(owner: Any, name: str, stage: str) -> None:
    """Count what a method takes under a stage, without what is counted under another one meanwhile."""
    call: Callable[..., Any] = getattr(owner, name)

    @functools.wraps(call)
    def clocked(*args: Any, **kwargs: Any) -> Any:
        inner = [0.0, 0.0]
        _open.append(inner)
        wall, cpu = time.perf_counter(), time.thread_time()
        try:
            return call(*args, **kwargs)
        finally:
            took = (time.perf_counter() - wall) * 1000, (time.thread_time() - cpu) * 1000
            _open.pop()
            total = _spent.setdefault(stage, [0.0, 0.0])
            for index in (0, 1):
                total[index] += took[index] - inner[index]
                if _open:
                    _open[-1][index] += took[index]

    setattr(owner, name, clocked)


def pytest_configure() -> None:
    """Put the clocks in."""
    from pytest_codeprobe.model.sandbox import ProcessExit
    from pytest_codeprobe.plugin.controller import Controller
    from pytest_codeprobe.plugin.protocol import TrialProtocol
    from pytest_codeprobe.run.spool import Spool
    from pytest_codeprobe.sandboxes.base import BaseSandbox
    from pytest_codeprobe.sandboxes.keeper import KeptProcess, Spawner
    from pytest_codeprobe.trial.run import TrialRun
    from pytest_codeprobe.trial.store import AttemptStore

    _clock(pytest.Session, "perform_collect", "collect")
    _clock(TrialProtocol, "pytest_collection_finish", "plan")
    for owner, name, stage in (
        (TrialRun, "prepare", "prepare: folders, workspace"),
        (TrialRun, "session", "session: environment, transcript"),
        (BaseSandbox, "snapshot", "snapshot"),
        (Spawner, "start", "start of keeper and command"),
        (KeptProcess, "wait", "waiting for their end"),
        (BaseSandbox, "changes", "changes"),
        (BaseSandbox, "write_diff", "diff"),
        (AttemptStore, "freeze", "keep the workspace"),
        (TrialRun, "score", "grade"),
        (TrialRun, "finish", "record"),
        (AttemptStore, "evidence", "keep logs and transcript"),
        (AttemptStore, "write", "result.json"),
        (BaseSandbox, "delete", "delete"),
        (Spool, "emit", "events of trials"),
        (Controller, "logged", "events and records of the run"),
    ):
        _clock(owner, name, stage)
    finish = KeptProcess._finish

    def finished(process: KeptProcess, result: ProcessExit) -> None:
        _spent.setdefault("commands", [0.0, 0.0])[1] += (result.user + result.system) * 1000
        finish(process, result)

    KeptProcess._finish = finished  # type: ignore[method-assign, assignment]  # what the command's own processes took
    atexit.register(_write)  # when the spawner is gone, and with it all keepers


def _write() -> None:
    for name, who in (("pytest's process", resource.RUSAGE_SELF), ("children", resource.RUSAGE_CHILDREN)):
        usage = resource.getrusage(who)
        _spent[name] = [0.0, (usage.ru_utime + usage.ru_stime) * 1000]
    Path(os.environ["STAGE_CLOCK"]).write_text(json.dumps(_spent), encoding="utf-8")
