"""What loading depends on beside the files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pytest_codeprobe.model.context import Registry
from pytest_codeprobe.tasks.paths import Places


@dataclass(frozen=True, kw_only=True)  # no slots: what is the same for many files is found once and kept
class LoadSettings:
    """What loading depends on beside the file."""

    rootdir: Path
    registry: Registry
    unknown_fields: str = "error"  #: "error", or "warn" for top-level ones
    template_roots: tuple[str, ...] = ()  #: folders outside the repository that tasks may refer to
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))  #: for variables in paths and env

    @cached_property
    def places(self) -> Places:
        """Finds what files name."""
        return Places(self.rootdir, self.template_roots)

    @cached_property
    def agent_names(self) -> Mapping[str, str]:
        """Names and aliases of agents -> their names."""
        return {name: agent.name for agent in self.registry.agents.values() for name in (agent.name, *agent.aliases)}
