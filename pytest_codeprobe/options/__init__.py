"""Every setting of a run: the table (table.py), and how its values are read (values.py). Standard library only."""

from __future__ import annotations

from pytest_codeprobe.options.table import BUILT, INIS, MAX_JOBS, MODES, NEEDS_VALUE, OPTIONS, Ini, Option, RunOptions, spelled
from pytest_codeprobe.options.values import ALLOWED_HOST, resolve

__all__ = [
    "ALLOWED_HOST",
    "BUILT",
    "INIS",
    "MAX_JOBS",
    "MODES",
    "NEEDS_VALUE",
    "OPTIONS",
    "Ini",
    "Option",
    "RunOptions",
    "resolve",
    "spelled",
]
