"""The experiment of a run, found and read at its first use: most of what collects needs neither it nor the models it takes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.tasks.paths import DEFAULTS

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.tasks.experiments import Experiment


class RunExperiment:
    """What --codeprobe-experiment names, else experiments/default.yaml. One for each process."""

    def __init__(self, live: Live) -> None:
        self._live, self._asked = live, live.state.options.experiment

    @functools.cached_property
    def chosen(self) -> Experiment | None:
        """The one that was asked for. NO_EXPERIMENT, AMBIGUOUS_EXPERIMENT."""
        if self._asked is None:
            return None
        from pytest_codeprobe.tasks.experiments import find_experiment, load_experiment

        config = self._live.config
        found = load_experiment(
            find_experiment(self._asked, rootdir=config.rootpath, folder=config.invocation_params.dir), self._live.settings
        )
        for note in found.notes:
            self._live.warn(note)
        return found

    def not_applied(self) -> str | None:
        """Several are there, and none was named: whoever expects one of them would read the wrong results. None where that is not so."""
        rootdir = self._live.config.rootpath
        if self._asked is not None or not (rootdir / DEFAULTS.parent).is_dir() or (rootdir / DEFAULTS).is_file():
            return None
        from pytest_codeprobe.tasks.experiments import available

        there = available(rootdir)
        return f"no experiment was applied: name one of {', '.join(there)} with --codeprobe-experiment" if len(there) > 1 else None

    @functools.cached_property
    def name(self) -> str | None:
        """What header, plan and envelope call it; None without one."""
        from pytest_codeprobe.tasks.experiments import name_of

        with contextlib.suppress(CodeprobeError):
            if self.chosen is not None:
                return self.chosen.name
            file = self._live.config.rootpath / DEFAULTS
            return name_of(file) if file.is_file() else None
        return None

    @functools.cached_property
    def defaults(self) -> Mapping[str, Any]:
        """The layer below all tasks."""
        if self.chosen is not None:
            return self.chosen.defaults
        from pytest_codeprobe.tasks.layers import load_defaults

        return load_defaults(self._live.settings)
