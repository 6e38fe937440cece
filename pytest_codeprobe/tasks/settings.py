"""What loading depends on beside the files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_codeprobe.model.context import Registry
from pytest_codeprobe.options.table import AUTO_DRIVERS
from pytest_codeprobe.tasks.dialect import Dialect
from pytest_codeprobe.tasks.paths import Places
from pytest_codeprobe.tasks.repositories import Commits

if TYPE_CHECKING:
    from pytest_codeprobe.model.agent import Agent


@dataclass(frozen=True, kw_only=True)  # no slots: what is the same for many files is found once and kept
class LoadSettings:
    """What loading depends on beside the file."""

    rootdir: Path
    registry: Registry
    dialect: Dialect = "native"  #: of files that name none
    unknown_fields: str = "error"  #: "error", or "warn" for top-level ones
    template_roots: tuple[str, ...] = ()  #: folders outside the repository that tasks may refer to
    invoked_in: Path | None = None  #: the folder that relative paths on the command line are relative to; None: rootdir
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))  #: for variables in paths and env
    #: what driver `auto` comes to on this machine, and why it is none that isolates
    auto: Callable[[], tuple[str, str | None]] = field(default=lambda: (AUTO_DRIVERS[-1], None), compare=False)
    warn: Callable[[str], None] = field(default=lambda _: None, compare=False)  #: says something once, for what is no task file's own

    @cached_property
    def places(self) -> Places:
        """Finds what files name."""
        return Places(self.rootdir, self.template_roots)

    @cached_property
    def commits(self) -> Commits:
        """Looks up what template sources of type repo name."""
        return Commits(self.environ)

    @cached_property
    def agents_by_name(self) -> Mapping[str, Agent]:
        """Also by their aliases; of one name the first, as in Registry.agent()."""
        return {name: agent for agent in reversed([*self.registry.agents.values()]) for name in (agent.name, *agent.aliases)}

    @cached_property
    def agent_names(self) -> Mapping[str, str]:
        """Names and aliases of agents -> their names."""
        return {name: agent.name for name, agent in self.agents_by_name.items()}
