"""What loading depends on beside the files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytest_codeprobe.model.context import Registry
from pytest_codeprobe.tasks.paths import PathRules


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """What loading depends on beside the file."""

    rootdir: Path
    registry: Registry
    unknown_fields: str = "error"  #: "error", or "warn" for top-level ones
    template_roots: tuple[str, ...] = ()  #: folders outside the repository that tasks may refer to
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))  #: for variables in paths and env

    def rules(self, file: Path) -> PathRules:
        """Where the paths of a file may lead."""
        return PathRules.of(file, self.rootdir, self.template_roots)
