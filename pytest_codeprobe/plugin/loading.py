"""This package's modules load as installed, without pytest's rewriting of assertions.

pytest rewrites all that a distribution with a plugin brings, compiles it anew in each process where it can't write bytecode (an image made
with PYTHONDONTWRITEBYTECODE, a read-only environment), and then does not look at what the installer compiled. There is nothing to rewrite
here: half the time to start is saved there, an eighth where pytest has its own bytecode.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

_WITHIN = "pytest_codeprobe."


class _AsInstalled:
    """A finder (of `sys.meta_path`) for what is below this package."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """The interpreter's own answer; None for all else."""
        return PathFinder.find_spec(name, path, target) if name.startswith(_WITHIN) else None


sys.meta_path.insert(0, _AsInstalled)
