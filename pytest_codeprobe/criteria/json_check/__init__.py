"""json_check: a JSON file, its schema, and what is in it."""

from __future__ import annotations

from pytest_codeprobe.criteria.json_check.criterion import JsonCheck, same

__all__ = ["JsonCheck", "same"]
