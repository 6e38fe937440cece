"""Proportion gates: a task whose repeats must pass so many times, decided while the repeats run, by whichever processes run them.

Each repeat that has a verdict takes the first free place among the passes or the misses of its gate: a file that only one can create.
So all processes agree how many there are without a word, and who made the gate impossible.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.run.plan import PlannedTrial


@dataclass(frozen=True, slots=True)
class Proportion:
    """How a gate stands."""

    repeats: int
    needed: int
    passes: int = 0
    misses: int = 0

    @property
    def allowed(self) -> int:
        """Misses with which the gate can still hold."""
        return self.repeats - self.needed

    @property
    def held(self) -> bool | None:
        """None: not decided."""
        if self.passes >= self.needed:
            return True
        return False if self.misses > self.allowed else None


def gate_of(folder: str) -> str:
    """What the repeats of one task, row and variant have in common: their folder without the repeat."""
    return folder.rpartition("/")[0]


def complete_gates(trials: Iterable[PlannedTrial]) -> frozenset[str]:
    """The gates all of whose repeats are in a run: only they are judged."""
    counted: dict[str, int] = {}
    wanted: dict[str, int] = {}
    for trial in trials:
        if trial.min_passes is not None and trial.counts:
            gate = gate_of(trial.folder)
            counted[gate] = counted.get(gate, 0) + 1
            wanted[gate] = trial.repeats
    return frozenset(gate for gate, number in counted.items() if number == wanted[gate])


class ProportionGates:
    """Those of a run, in its folder `gates/`. One for each process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._gates: frozenset[str] = frozenset()

    def judge(self, gates: frozenset[str]) -> None:
        """The plan is known: these are judged, since all their repeats are in the run."""
        self._gates = gates

    def is_gated(self, trial: Trial | PlannedTrial) -> bool:
        """Whether the trial is one of several whose proportion counts."""
        return trial.min_passes is not None and gate_of(trial.folder) in self._gates

    def decided(self, trial: Trial) -> bool:
        """Whether nothing that this repeat does can change its gate."""
        return self.is_gated(trial) and self.standing(trial).held is not None

    def standing(self, trial: Trial) -> Proportion:
        """How the trial's gate stands."""
        names = list(self._places(trial))
        passes = sum(name.startswith("pass-") for name in names)
        return Proportion(trial.repeats, trial.min_passes or 0, passes, len(names) - passes)

    def take(self, trial: Trial, verdict: Literal["passed", "failed"]) -> int | None:
        """Note a verdict; which miss of the gate it is, None for a pass or without a gate. A rerun gives its own place back first.

        SANDBOX_FAILED where it can't be noted: the gate would be judged by too few.
        """
        if not self.is_gated(trial):
            return None
        folder = self._folder / gate_of(trial.folder)
        kind = "pass" if verdict == "passed" else "miss"
        own = str(trial.repeat).encode()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._give_back(trial)
            for number in range(1, trial.repeats + 1):
                with contextlib.suppress(FileExistsError):
                    descriptor = os.open(folder / f"{kind}-{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
                    try:
                        os.write(descriptor, own)
                    finally:
                        os.close(descriptor)
                    return number if kind == "miss" else None
        except OSError as error:
            raise CodeprobeError("SANDBOX_FAILED", f"{folder}: {error.strerror}", remediation="Free disk space, then run again.") from error
        raise CodeprobeError("INTERNAL_ERROR", f"{folder}: more verdicts than repeats")

    def miss_of(self, trial: Trial | PlannedTrial) -> int | None:
        """Which miss of its gate the trial has noted; None where it has noted none, or has no gate."""
        folder, own = self._folder / gate_of(trial.folder), str(trial.repeat).encode()
        for name in self._places(trial) if self.is_gated(trial) else ():
            with contextlib.suppress(OSError, ValueError):
                if name.startswith("miss-") and (folder / name).read_bytes() == own:
                    return int(name.removeprefix("miss-"))
        return None

    def give_back(self, trial: Trial | PlannedTrial) -> None:
        """The verdict that was noted, if one was, is none after all."""
        if self.is_gated(trial):
            with contextlib.suppress(OSError):
                self._give_back(trial)

    def _give_back(self, trial: Trial | PlannedTrial) -> None:
        folder, own = self._folder / gate_of(trial.folder), str(trial.repeat).encode()
        for name in self._places(trial):
            with contextlib.suppress(FileNotFoundError):  # another process has just given its own back
                if (folder / name).read_bytes() == own:
                    (folder / name).unlink()

    def _places(self, trial: Trial | PlannedTrial) -> Iterable[str]:
        with contextlib.suppress(OSError):
            folder = self._folder / gate_of(trial.folder)
            return [entry.name for entry in folder.iterdir() if entry.name.startswith(("pass-", "miss-"))]
        return ()
