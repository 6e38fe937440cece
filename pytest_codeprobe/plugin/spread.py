"""Threads or workers: which of --codeprobe-jobs and pytest-xdist's -n holds where both are given. Standard library and pytest only."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import pytest

BOTH = "--codeprobe-jobs and -n exclude each other"
CHOICE = (
    "Use --codeprobe-jobs N to run many sessions at once on this machine: they wait for a model and need no worker each. "
    "Use -n N where ordinary tests or graders need the processors."
)


@dataclass(frozen=True, slots=True)
class Spread:
    """What became of the two."""

    both: bool = False  #: both were typed, or neither was and both stand in addopts
    set_aside: bool = False  #: -n of addopts gave way to jobs that were typed
    jobs_hold: bool = True  #: False: -n holds, and jobs from elsewhere are left out


SPREAD = pytest.StashKey[Spread]()


def settle(config: pytest.Config) -> Spread:
    """Take -n back where it only stands in addopts and jobs were typed. Before xdist's own pytest_configure makes its workers."""
    option = config.option
    if not (getattr(option, "numprocesses", None) or getattr(option, "dist", "no") != "no" or getattr(option, "distload", False)):
        return Spread()
    if getattr(option, "codeprobe_jobs", None) is None:
        return Spread(jobs_hold=False)
    jobs, workers = _typed(config.invocation_params.args)
    if jobs and not workers:
        option.numprocesses, option.dist, option.tx, option.distload = None, "no", [], False
        return Spread(set_aside=True)
    return Spread(both=jobs == workers, jobs_hold=False)


def _typed(arguments: Sequence[object]) -> tuple[bool, bool]:
    """Whether jobs, and whether xdist's workers, stand on the command line itself, not in addopts."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("-d", dest="workers", action="store_const", const="d")
    parser.add_argument("-n", "--numprocesses", "--dist", "--tx", dest="workers")
    parser.add_argument("--codeprobe-jobs", dest="jobs", nargs="?", const="")
    known, _ = parser.parse_known_args([str(a) for a in arguments])
    return known.jobs is not None, known.workers is not None
