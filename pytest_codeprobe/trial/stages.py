"""How far a trial is: its phase, what its stages have answered or raised, and how long they took."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Literal, TypeVar

from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import Phase
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.trial.record import as_ours

T = TypeVar("T")


class Stages:
    """Of one trial. `passes`: what stands as it was raised; `waited`: seconds so far that are not the trial's own time."""

    def __init__(self, trial: Trial, context: Context, passes: tuple[type[BaseException], ...], waited: Callable[[], float]) -> None:
        self._trial, self._context, self._passes, self._waited = trial, context, passes, waited
        self._over: dict[str, tuple[object, BaseException | None]] = {}
        self.phase: Phase = "prepare"
        self.timings: dict[str, float] = {}  #: seconds, by stage

    def once(self, stage: Literal["prepare", "session", "grade"], work: Callable[[], T]) -> T:
        """A stage runs once; asked again it answers, or raises, the same."""
        if stage not in self._over:
            if stage != "grade":
                self.phase = stage
            began, waited = monotonic(), self._waited()
            try:
                with self._context.network.acting(self._trial, "harness"):
                    self._over[stage] = (work(), None)
            except BaseException as raised:  # noqa: BLE001  # raised again below, and whenever the stage is asked again
                self._over[stage] = (None, raised if isinstance(raised, (Exception, *self._passes)) else as_ours(raised))
            self.timings[stage] = round(monotonic() - began - (self._waited() - waited), 4)
        value, error = self._over[stage]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # stored by the same stage

    def failed(self, phase: Phase, trouble: Exception) -> None:
        """Something after the stages went wrong."""
        self.phase = phase
        self._over[f"finish {phase}"] = (None, trouble)

    def raised(self, error: BaseException | None) -> bool:
        """Whether the exception comes from one of the trial's own stages, not from a fixture or a test of the user's."""
        return error is not None and any(error is raised for _, raised in self._over.values())
