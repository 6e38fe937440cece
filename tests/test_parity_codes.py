"""Each code of the contract in every mode of parallelism: the same errors and exit code, and one final record for each trial.

How many trials a code that stops a run has reached is no part of it, and so no count and no detail; a command is what the user typed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.front_door import MODES, Project, Run, make_project
from tests.test_error_codes import PROVOKED, spelled_for

#: refused from the command line alone, by the one process that there is then
EARLY = frozenset(
    {
        "USAGE_ERROR",
        "UNKNOWN_BACKEND",
        "INVALID_PERMISSION_MODE",
        "NO_EXPERIMENT",
        "AMBIGUOUS_EXPERIMENT",
        "NO_SUITE_MATCH",
        "SANDBOX_UNAVAILABLE",
    }
)
#: these say nothing of a run's trials, or need a mode of their own: a worker that dies is one of xdist's
ELSEWHERE = frozenset({"DOCTOR_CHECKS_FAILED", "WORKER_DIED"})
#: refused, and so the run dir and its files are those of the run before
REFUSED = frozenset({"RESUME_MISMATCH", "RUN_DIR_IN_USE"})


class Spread(Project):
    """A project whose runs are all in one mode."""

    mode = "plain"

    def run(self, *args: str, mode: str = "plain", **more: Any) -> Run:
        assert mode == "plain", "the provocation chooses a mode itself"
        return super().run(*args, mode=self.mode, **more)

    def codeprobe(self, *args: str, **more: Any) -> Run:
        return super().codeprobe(*args, *(["--", *MODES[self.mode]] if self.mode == "xdist" else []), **more)


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Callable[[str], Spread]]:
    """A new project for a mode."""
    made = []

    def make(mode: str) -> Spread:
        (tmp_path / mode).mkdir()
        projects = make_project(tmp_path / mode)
        made.append(projects)
        project = Spread(**vars(next(projects)))
        project.mode = mode
        return project

    yield make
    for projects in made:
        next(projects, None)


@pytest.mark.parametrize("code", sorted(PROVOKED.keys() - ELSEWHERE))
def test_a_code_is_the_same_in_every_mode(fresh: Callable[[str], Spread], code: str) -> None:
    seen = {}
    for mode in ("plain", "xdist") if code in EARLY else MODES:
        project = fresh(mode)
        run = PROVOKED[code](project)
        text = json.dumps(run.lines[-1]).replace(str(project.path.parent), "…")
        envelope = json.loads(re.sub(r"(?<=runs/)\w+-\w{4}|(?<=process )\d+ since [\w.:-]+", "…", text))
        if run.wrote:
            run.assert_nothing_left()
        if run.wrote and code != "INTERNAL_ERROR" and code not in REFUSED:
            run.assert_consistent()
        if mode == "plain" and run.args[0] != "run":
            error = envelope["errors"][0]
            spelled_for("pytest", [error["message"], error["remediation"], *(error["command"] or ()), *envelope["warnings"]], run.stderr)
        errors = [{k: v for k, v in e.items() if k not in ("count", "detail", "command")} for e in envelope["errors"]]
        ends = {r["node_id"]: (r["status"], r["code"]) for r in envelope["data"]["results"] if r["status"] != "not_run"}
        seen[mode] = {
            "exit": run.code,
            "status": envelope["status"],
            "errors": errors,
            "trials": envelope["data"]["tasks_total"],
            "ends": ends,
        }
    assert seen["plain"]["errors"][0]["code"] == code
    for mode, other in seen.items():
        assert other == seen["plain"], mode
