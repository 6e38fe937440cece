"""Gates over repeats: their places on disk, which several processes take and give back at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_codeprobe.run.plan import planned
from pytest_codeprobe.run.proportion import ProportionGates, complete_gates
from pytest_codeprobe.tasks.expand import expand
from tests.task_files import MINIMAL, load_one, plan, settings


def test_a_place_that_another_process_takes_away_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trials = list(expand(load_one(tmp_path, MINIMAL + "repeats: 3\nmin_passes: 2\n"), plan(settings(tmp_path))))
    gates = ProportionGates(tmp_path / "gates")
    gates.judge(complete_gates(map(planned, trials)))
    first, second, _ = trials
    gates.take(first, "failed")
    gates.take(second, "failed")
    read = Path.read_bytes

    def taken_away(path: Path) -> bytes:
        """The other has seen the place in the listing, and its holder was faster."""
        found = read(path)
        if found == b"2" and path.is_relative_to(tmp_path / "gates"):
            path.unlink()
            raise FileNotFoundError(path)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", taken_away)
        assert gates.take(first, "passed") is None
    standing = gates.standing(first)
    assert (standing.passes, standing.misses) == (1, 0)
