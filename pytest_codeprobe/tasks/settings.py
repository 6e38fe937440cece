"""What loading depends on beside the files."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from pytest_codeprobe.model.context import Registry
from pytest_codeprobe.tasks.paths import Folders, PathRules


@dataclass(frozen=True, kw_only=True)  # no slots: what is the same for many files is found once and kept
class LoadSettings:
    """What loading depends on beside the file."""

    rootdir: Path
    registry: Registry
    unknown_fields: str = "error"  #: "error", or "warn" for top-level ones
    template_roots: tuple[str, ...] = ()  #: folders outside the repository that tasks may refer to
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))  #: for variables in paths and env

    def rules(self, file: Path) -> PathRules:
        """Where the paths of a file may lead."""
        home = self._folders.repository_of(file.parent) or self.rootdir
        return PathRules(file.parent, (home, *(self.rootdir / root for root in self.template_roots)), self._folders)

    @cached_property
    def _folders(self) -> Folders:
        return Folders()

    @cached_property
    def agent_names(self) -> Mapping[str, str]:
        """Names and aliases of agents -> their names."""
        return {name: agent.name for agent in self.registry.agents.values() for name in (agent.name, *agent.aliases)}
