"""A record's way out of its trial: counted among those of its repeats, and written. What goes wrong there is in the record."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import TrialResult
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.trial.record import Facts, build_record, classify
from pytest_codeprobe.trial.store import AttemptStore


def counted(result: TrialResult, trial: Trial, context: Context, facts: Callable[[], Facts]) -> TrialResult:
    """The verdict among those of its repeats."""
    if context.proportions is None:
        return result
    if result.status not in ("passed", "failed"):
        context.proportions.give_back(trial)
        return result
    try:
        return result.model_copy(update={"miss": context.proportions.take(trial, result.status)})
    except CodeprobeError as trouble:
        return _in_error(trouble, facts)


def written(
    result: TrialResult, store: AttemptStore, facts: Callable[[], Facts], *, outcome: Literal["passed", "failed"] | None
) -> TrialResult:
    """result.json. Where it can't be written the record says so, and lives on in the report alone.

    `outcome`: pytest's, of a marked test.
    """
    try:
        store.write(result)
        return result
    except CodeprobeError as trouble:
        # no verdict is lost, or one error is enough; a marked test's report has gone its way
        if result.status not in ("passed", "failed") or outcome is not None:
            return result.model_copy(update={"warnings": (*result.warnings, str(trouble))})
        return _in_error(trouble, facts)


def _in_error(trouble: CodeprobeError, facts: Callable[[], Facts]) -> TrialResult:
    return build_record(facts(), classify(trouble, ours=True, phase="preserve"), None)
