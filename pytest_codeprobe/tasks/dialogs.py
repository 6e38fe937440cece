"""A simulated user held against what the tested agent, and the one that plays the user, can do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.config import AgentConfig, Simulation
from pytest_codeprobe.tasks.availability import KNOWN_AGENTS
from pytest_codeprobe.tasks.problems import FieldPath
from pytest_codeprobe.tasks.settings import LoadSettings

USER = "claude"  #: who plays the user where nobody is named
_ALWAYS = frozenset({"type", "env", "permission_mode"})  #: agent fields that need no entry in Agent.supports
Add = Callable[[FieldPath, str], None]


def with_user(simulation: Simulation, agent: Agent, settings: LoadSettings, judge: str | None, add: Add) -> Simulation | None:
    """The same with an `agent` that names a type. None where none of it counts: an agent without a session has nobody to talk to.

    NO_BACKENDS_CONFIGURED where nobody says which model plays the user; other faults are added.
    """
    if not simulation.enabled or not agent.is_session:
        return None
    if not agent.resumes:
        able = sorted(a.name for a in settings.registry.agents.values() if a.resumes)
        add(
            ("simulation",),
            f"'simulation' needs an agent that can go on with its session, and {agent.name} can't (these can: {', '.join(able)})",
        )
    config, at = simulation.agent or AgentConfig(), ("simulation", "agent")
    if config.type is None:
        config = _judges(config, judge)
    user = settings.agents_by_name.get(config.type or "")
    if user is None:
        if config.type not in KNOWN_AGENTS:
            settings.registry.agent(config.type or "")  # raises
        add((*at, "type"), f"agent {config.type!r} is not available yet")
        return None
    if not user.is_session:
        add((*at, "type"), f"agent {user.name} can't play a user: it says nothing")
    for name in AgentConfig.model_fields:
        if name not in _ALWAYS and name not in user.supports and getattr(config, name) != AgentConfig.model_fields[name].default:
            add((*at, name), f"simulation.agent.{name} is not supported by {user.name}")
    if config.permission_mode not in user.permission_modes:
        add((*at, "permission_mode"), f"simulation.agent.permission_mode: {config.permission_mode} is not supported by {user.name}")
    return simulation.model_copy(update={"agent": config.model_copy(update={"type": user.name})})


def _judges(given: AgentConfig, model: str | None) -> AgentConfig:
    """Claude with the judge's model in a session without tools, but for what is given."""
    if given.model is None and model is None:
        raise CodeprobeError(
            "NO_BACKENDS_CONFIGURED",
            "a simulated user is asked for, and nothing says which model plays it",
            remediation="Set judge.model in the experiment, or simulation.agent in the task.",
        )
    own: dict[str, Any] = {"model": model, "permission_mode": "default", "allowed_tools": (), "project_settings": False}
    return given.model_copy(update={"type": USER, **{k: v for k, v in own.items() if k not in given.model_fields_set}})
