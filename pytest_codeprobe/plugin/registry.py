"""Which agents, drivers and criteria a process knows: the built-ins, and what hooks bring beside them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.model.context import Registry

if TYPE_CHECKING:
    from pytest_codeprobe.model.agent import Agent
    from pytest_codeprobe.model.criterion import Criterion
    from pytest_codeprobe.model.sandbox import Driver


@dataclass(frozen=True, slots=True, kw_only=True)
class Brought:
    """What hooks bring beside the built-ins, in the order of registration."""

    agents: tuple[Agent, ...]
    drivers: tuple[Driver, ...]
    criteria: Mapping[str, type[Criterion]]  #: by type


def ask_hooks(config: pytest.Config) -> Brought:
    """What they bring now."""
    hook = config.hook
    return Brought(
        agents=_in_order(hook.pytest_codeprobe_agents(config=config)),
        drivers=_in_order(hook.pytest_codeprobe_drivers(config=config)),
        criteria=_by_type(_in_order(hook.pytest_codeprobe_criteria(config=config))),
    )


def registry_with(brought: Brought) -> Registry:
    """Built-ins and what the hooks brought; of one name the last registered wins."""
    from pytest_codeprobe import agents, criteria, sandboxes
    from pytest_codeprobe.tasks.availability import KNOWN_AGENTS

    return Registry(
        agents={agent.name: agent for agent in (*agents.BUILTIN, *brought.agents)},
        drivers={driver.name: driver for driver in (*sandboxes.BUILTIN, *brought.drivers)},
        criteria={**_by_type(criteria.BUILTIN), **brought.criteria},
        later=KNOWN_AGENTS,  # where one is there, it is found first
    )


def _in_order(groups: Sequence[Iterable[Any]]) -> tuple[Any, ...]:
    """Of the answers of a hook: pluggy calls the last registered first."""
    return tuple(thing for group in reversed(groups) for thing in group)


def _by_type(criteria: Iterable[Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for kind in criteria:
        field = kind.model_fields["type"]
        for name in getattr(field.annotation, "__args__", ()):
            found[str(name)] = kind
    return found
