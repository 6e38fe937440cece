"""The fixtures of a trial. Each only asks the item's TrialRun for a stage; each can be overridden in a conftest.py."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.plugin.state import STATE

if TYPE_CHECKING:
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.called import Caller
    from pytest_codeprobe.plugin.views import ScoreView, SessionView
    from pytest_codeprobe.trial.handle import SandboxHandle
    from pytest_codeprobe.trial.run import TrialRun


def _run_of(request: pytest.FixtureRequest) -> TrialRun:
    return request.config.stash[STATE].activate().run_of(request.node)


@pytest.fixture
def codeprobe_trial(request: pytest.FixtureRequest) -> Trial:
    """What is to run: the task, resolved (:class:`pytest_codeprobe.model.trial.Trial`)."""
    return _run_of(request).trial


@pytest.fixture
def codeprobe_sandbox(request: pytest.FixtureRequest) -> SandboxHandle:
    """A live sandbox with the workspace laid out: `path`, `run()`, `read_text()`, `write_text()`, `on_prepare()`."""
    return _run_of(request).prepare()


@pytest.fixture
def codeprobe_session(request: pytest.FixtureRequest, codeprobe_sandbox: SandboxHandle) -> SessionView:
    """Runs the agent: `transcript`, `usage`, `final_message`, `limit_hit`, `exit_status`."""
    from pytest_codeprobe.plugin.views import SessionView

    run = _run_of(request)
    run.session()
    return SessionView(run)


@pytest.fixture
def codeprobe_score(request: pytest.FixtureRequest, codeprobe_sandbox: SandboxHandle, codeprobe_session: SessionView) -> ScoreView:
    """Grades what the agent left: `passed`, `score`, `criteria`."""
    from pytest_codeprobe.plugin.views import ScoreView

    run = _run_of(request)
    run.score()
    return ScoreView(run)


@pytest.fixture(scope="session")
def codeprobe_run(request: pytest.FixtureRequest) -> Caller:
    """Runs a trial from any test, or a fixture of any scope: `codeprobe_run("…")` or `codeprobe_run(task="tasks/….yaml")`."""
    return request.config.stash[STATE].activate().caller
