"""The exit code of a run, decided from what happened and not from pytest's status, which differs between its modes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pytest_codeprobe.errors import error_codes
from pytest_codeprobe.model.result import DRY_RUN, VERDICTS
from pytest_codeprobe.run.final import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Happened:
    """What pytest saw beside the trials."""

    pytest_status: int
    internal_error: bool = False
    interrupted: bool = False  #: by a signal, pytest.exit, or another plugin's stop; not by -x
    refused: str | None = None  #: code of a refusal before any trial
    task_errors: tuple[str, ...] = ()  #: codes of broken task files
    module_errors: int = 0  #: ordinary test modules that could not be imported
    went_on: bool = False  #: --continue-on-collection-errors
    raised: tuple[str, ...] = ()  #: codes of the run as a whole that arose while trials ran
    dry_run: bool = False
    lost_output: bool = False  #: the run dir is not whole
    gate_fell: bool = False  #: a bound on figures of several trials
    undecided: bool = False  #: repeats had verdicts, but too few for the gate over them
    ordinary_failed: int = 0
    ordinary_passed: int = 0  #: and skipped: anything that pytest itself counts as having run


def exit_code(finals: Iterable[Final], happened: Happened) -> int:
    """spec codes.md, "Exit codes": the first line that applies."""
    finals = list(finals)
    counting = [f for f in finals if not f.expected and f.gate is None]
    failed = any(f.status == "failed" for f in counting) or happened.ordinary_failed > 0 or happened.gate_fell
    if happened.internal_error or happened.pytest_status == 3:
        return 3
    if happened.interrupted or (happened.module_errors and not happened.went_on):
        return 2
    if happened.refused is not None:
        return error_codes()[happened.refused].exit_code
    if happened.pytest_status == 4 or (happened.task_errors and not happened.went_on):
        return 4
    if failed or happened.module_errors:
        return 1
    if happened.task_errors:
        return 4
    if (
        happened.lost_output
        or happened.undecided
        or happened.raised
        or any(f.status in ("error", "not_run") or f.gate == "fell" for f in finals)
    ):
        return 6
    ran = any(f.status in VERDICTS or (happened.dry_run and f.reason == DRY_RUN) for f in finals) or happened.ordinary_passed > 0
    return 0 if ran else 5
