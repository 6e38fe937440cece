"""Fixtures of the project's own tests."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.cost import Costs
from tests.front_door import MODES, Project, make_project


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--costs", action="store_true", help="list the files and tests that took the most processor time")


def pytest_configure(config: pytest.Config) -> None:
    """What the tests start ignores no signal, even where they run under nohup: a program inherits SIG_IGN, but not a handler."""
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)
    config.pluginmanager.register(Costs())
    # how long an example takes says how busy the machine is
    settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("busy")


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A fresh folder in which real pytest is run."""
    yield from make_project(tmp_path)


@pytest.fixture(params=list(MODES))
def mode(request: pytest.FixtureRequest) -> str:
    """Every way in which a run can be spread; a test that takes it must hold in all of them."""
    return str(request.param)
