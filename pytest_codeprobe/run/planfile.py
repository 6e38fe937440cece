"""plan.json of a run that is to be gone on with. Standard library only: read before there is a sign of a task."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def newest_plan(run_dir: Path) -> dict[str, Any] | None:
    """plan.json, or the newest of those that earlier resumes have put aside: one that was killed may have left none."""
    return next(plans(run_dir), None)


def plans(run_dir: Path) -> Iterator[dict[str, Any]]:
    """All that can be read, the newest first: each resume makes one of its own, perhaps of fewer trials."""
    aside = sorted(run_dir.glob("plan.json.*"), key=number_of, reverse=True)
    for path in (run_dir / "plan.json", *aside):
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(found, dict) and "run_id" in found:
                yield found


def number_of(path: Path) -> int:
    """Of `plan.json.<n>`; 0 for another name."""
    suffix = path.suffix.removeprefix(".")
    return int(suffix) if suffix.isdecimal() else 0
