"""conftest.py files in xdist's controller, which collects nothing and so loads only those at its start.

The one place for two private names of pytest: `_loadconftestmodules`, and what it raises.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.plugin.canary import is_wanted
from pytest_codeprobe.text import one_line

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.run.plan import PlannedTrial


def load_for_plan(live: Live, plan: Iterable[PlannedTrial]) -> None:
    """What workers have loaded and the controller needs: makers of sandboxes for the canary, agents that are not built in."""
    from pytest_codeprobe.agents import BUILTIN

    trials = [trial for trial in plan if trial.starts and not trial.marked]  # above those of a Python test workers load none either
    known = {name for agent in BUILTIN for name in (agent.name, *agent.aliases)}
    if not is_wanted(live):  # workers know the agents that were there when they met the first task
        trials = trials[:1] if any(trial.agent not in known for trial in trials) else []
    load_conftests(live.config, {trial.task_file for trial in trials})


def load_conftests(config: pytest.Config, files: Iterable[str]) -> None:
    """Load those above the files, as pytest does where it collects; what is loaded stays. USAGE_ERROR where one can't be."""
    for folder in sorted({Path(file).parent for file in files}):
        try:
            config.pluginmanager._loadconftestmodules(
                folder,
                config.getoption("importmode"),
                config.rootpath,
                consider_namespace_packages=config.getini("consider_namespace_packages"),
            )
        except Exception as error:  # of anybody's code
            cause, path = error.__cause__ or error, getattr(error, "path", folder / "conftest.py")
            why = f"{type(cause).__name__}: {one_line(str(cause), 300)}"
            raise CodeprobeError(
                "USAGE_ERROR",
                f"{path}: can't be loaded in xdist's controller, which needs its hooks: {why}",
                remediation="Correct that file, which workers could load, or run without -n.",
            ) from error
