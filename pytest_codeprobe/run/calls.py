"""Trials that tests call by the fixture `codeprobe_run`: nobody knows of them before they begin, and they count in no rate and no gate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from pytest_codeprobe.model.result import TrialResult, Usage
from pytest_codeprobe.run.final import Final
from pytest_codeprobe.run.plan import PlannedTrial

BEGAN, ENDED = "call_began", "call_ended"  #: what the spool says of them, beside what it says of every trial


@dataclass(slots=True)
class Calls:
    """The controller's, by node id: `tests/test_a.py::test_it#1`."""

    began: dict[str, PlannedTrial] = field(default_factory=dict)
    final: dict[str, Final] = field(default_factory=dict)

    def usages(self) -> list[Usage]:
        """Of those that used anything; a simulated user's part of the cost is in it."""
        began = [final for final in self.final.values() if final.attempts]
        rest = [Usage() for final in began if final.cost_usd is None and final.known_usd is not None]  # what nobody knows of it
        return [*(final.usage.model_copy(update={"cost_usd": final.known_usd}) for final in began), *rest]

    def unended(self) -> Iterator[str]:
        """Those without a record."""
        return (node_id for node_id in list(self.began) if node_id not in self.final)


def began_in(fields: Mapping[str, Any]) -> PlannedTrial | None:
    """The trial that a line of the spool says has begun; None where the line is none of ours."""
    try:
        trial = PlannedTrial.model_validate_json(str(fields.get("planned")))
    except ValidationError:
        return None
    return trial if trial.node_id == fields["node_id"] else None


def ended_in(fields: Mapping[str, Any]) -> TrialResult | None:
    """The record that a line of the spool brings; None where the line is none of ours."""
    try:
        record = TrialResult.model_validate_json(str(fields.get("record")))
    except ValidationError:
        return None
    return record if record.node_id == fields["node_id"] else None
