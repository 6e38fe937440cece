"""The experiment of a run, found and read at its first use: most of what collects needs neither it nor the models it takes."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.tasks.paths import DEFAULTS

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.tasks.expand import Plan
    from pytest_codeprobe.tasks.experiments import Experiment
    from pytest_codeprobe.tasks.layers import Layer


class RunExperiment:
    """What --codeprobe-experiment names, else experiments/default.yaml. One for each process."""

    def __init__(self, live: Live) -> None:
        self._live, self._asked = live, live.state.options.experiment

    @functools.cached_property
    def chosen(self) -> Experiment:
        """The one that holds; of no name where there is none.

        NO_EXPERIMENT, AMBIGUOUS_EXPERIMENT; TASK_INVALID in an experiments/default.yaml that nobody named.
        """
        from pytest_codeprobe.tasks.experiments import find_experiment, load_experiment

        config, settings = self._live.config, self._live.settings
        folder = self._live.folder_of_flags
        file = None if self._asked is None else find_experiment(self._asked, rootdir=config.rootpath, folder=folder)
        return load_experiment(file, settings)

    @functools.cached_property
    def is_there(self) -> bool:
        """Whether there is one at all, without reading it."""
        return self._asked is not None or (self._live.config.rootpath / DEFAULTS).is_file()

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
        """What header, plan and envelope call it; None without one, or where it can't be read."""
        with contextlib.suppress(CodeprobeError):
            return self.chosen.name if self.is_there else None
        return None

    @functools.cached_property
    def flags(self) -> Layer:
        """What flags set, the highest layer. OVERRIDE_INVALID."""
        from pytest_codeprobe.tasks.overrides import flags_layer

        return flags_layer(self._live.state.options, self._live.settings)

    @functools.cached_property
    def plan(self) -> Plan:
        """How tasks become trials. As `chosen`, and OVERRIDE_INVALID."""
        from pytest_codeprobe.tasks.configure import Layers
        from pytest_codeprobe.tasks.expand import Plan
        from pytest_codeprobe.tasks.overrides import given

        options, settings = self._live.state.options, self._live.settings
        around = Layers(below=self.chosen.layers, flags=self.flags, given=tuple(given(options)))
        return Plan(
            settings=settings,
            experiment=self.chosen,
            flags=around,
            repeats=options.repeats,
            sample=options.sample,
            sample_per_stratum=options.sample_per_stratum,
            drawn_seed=options.drawn_seed,
            include_skipped=options.include_skipped,
        )
