"""Hooks for conftest.py files and plugins that bring agents, sandbox drivers or criteria of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_codeprobe.model.agent import Agent
    from pytest_codeprobe.model.context import Context
    from pytest_codeprobe.model.criterion import Criterion
    from pytest_codeprobe.model.sandbox import Driver, Sandbox
    from pytest_codeprobe.model.trial import Trial


@pytest.hookspec()
def pytest_codeprobe_agents(config: pytest.Config) -> Iterable[Agent]:  # type: ignore[empty-body]
    """Return adapters for further agents.

    Called once in each process, before the first task is loaded. An agent of the name of a built-in one replaces it.

    :param config: The pytest config object.
    :returns: Instances of :class:`pytest_codeprobe.model.agent.Agent`.

    .. code-block:: python

        from my_package import MyAgent  # docs: "Extending" shows a whole one


        def pytest_codeprobe_agents(config):
            return [MyAgent()]

    Use in conftest plugins: any conftest.py that pytest loads at start, such as the one of rootdir or of a folder that is
    named on the command line.
    """


@pytest.hookspec()
def pytest_codeprobe_drivers(config: pytest.Config) -> Iterable[Driver]:  # type: ignore[empty-body]
    """Return further kinds of sandbox.

    Called once in each process, before the first task is loaded. A driver of the name of a built-in one replaces it.

    :param config: The pytest config object.
    :returns: Objects that satisfy :class:`pytest_codeprobe.model.sandbox.Driver`.

    Use in conftest plugins: as for :func:`pytest_codeprobe_agents`.
    """


@pytest.hookspec()
def pytest_codeprobe_criteria(config: pytest.Config) -> Iterable[type[Criterion]]:  # type: ignore[empty-body]
    """Return further kinds of criteria: strict models whose field `type` has the name as its one literal value.

    Called once in each process, before the first task is loaded. A criterion of the name of a built-in one replaces it.

    :param config: The pytest config object.
    :returns: Subclasses of :class:`pytest_codeprobe.model.criterion.Criterion`.

    Use in conftest plugins: as for :func:`pytest_codeprobe_agents`.
    """


@pytest.hookspec(firstresult=True)
def pytest_codeprobe_make_sandbox(config: pytest.Config, trial: Trial, context: Context) -> Sandbox | None:
    """Make the sandbox of an attempt: for a project whose trials need more than a driver brings, such as a service beside each.

    Called for each attempt, before anything of it is on disk; the sandbox's `prepare()` does that. With --codeprobe-jobs it is
    called in the trial's own thread, many at once. Unlike an override of the fixture `codeprobe_sandbox` it keeps no trial from
    running ahead of its item. What it raises makes the trial an error.

    :param config: The pytest config object.
    :param trial: What is to run (:class:`pytest_codeprobe.model.trial.Trial`).
    :param context: The run's surroundings; `context.registry.drivers` holds the drivers by name.
    :returns: A sandbox, or None to leave it to others. Stops at first non-None result.

    .. code-block:: python

        @pytest.hookimpl(wrapper=True)
        def pytest_codeprobe_make_sandbox(trial, context):
            sandbox = yield  # as the driver makes it
            return WithDatabase(sandbox)  # docs: "Extending" shows a whole one

    Use in conftest plugins: any conftest.py in the folders above the task file.
    """
