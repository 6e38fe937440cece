"""--codeprobe-offline, where pytest comes in: the network of this process's trials, and the refusal before the first one."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from pytest_codeprobe.model.network import Network, Unheld

if TYPE_CHECKING:
    from pytest_codeprobe.model.network import Endpoint
    from pytest_codeprobe.model.trial import Trial
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.run.plan import PlannedTrial

_CLOSED = "docker"  #: the one that gives a network of its own to all
_APART = "bubblewrap"  #: the driver that gives what needs no model a network of its own


def network_of(live: Live) -> Network:
    """What trials of this process may reach, and who hears of the rest."""
    if not live.state.options.offline:
        return Unheld()
    from pytest_codeprobe.run.offline.network import Offline

    def endpoints(trial: Trial) -> Iterable[Endpoint]:
        return live.registry.agent(trial.agent.type or "").endpoints(trial, live.context)

    def calls_model(trial: Trial) -> bool:
        return live.registry.agent(trial.agent.type or "").calls_model

    offline = Offline(live.state.options.offline_allow, endpoints, calls_model)
    live.config.add_cleanup(offline.close)
    return offline


def needs(live: Live, trial: Trial) -> list[tuple[str, str, int | None]]:
    """What the trial's workspace has to be fetched from: URL as it may be shown, host, port. Asked under --codeprobe-offline only."""
    urls = [source for source in trial.sandbox.template_sources if source.url is not None]
    if not urls or not live.state.options.offline:
        return []
    from pytest_codeprobe.sandboxes.sources import repositories_of
    from pytest_codeprobe.tasks.repositories import shown_url

    asked = ((shown_url(source.url or ""), repositories_of(live.context).asks(source)) for source in urls)
    return [(shown, place.host, place.port) for shown, place in asked if place is not None]


def check_offline(live: Live, plan: Collection[PlannedTrial]) -> None:
    """In the controller, before anything starts: refuse where a credential will not hold, and say what is not held."""
    if not live.state.options.offline:
        return
    from pytest_codeprobe.plugin.refusal import refused
    from pytest_codeprobe.run.offline.preflight import check_credentials, check_fetches

    error = check_credentials(plan, live.context) or check_fetches(plan, live.context)
    if error is not None:
        raise refused(error, live.config) from error
    starting = [t for t in plan if t.starts]
    drivers = sorted({live.driver_of(t) for t in starting} - {_APART, _CLOSED})
    if drivers:
        live.warn(
            f"offline: under driver {', '.join(drivers)} agents and graders are held by proxy variables alone; "
            'a program that ignores them, or makes sockets of its own, is not (docs: "Offline runs")'
        )
    reaching = [t for t in starting if live.driver_of(t) == _APART and t.network != "off"]
    agents = sorted({t.agent for t in reaching if t.agent is not None and live.registry.agent(t.agent).calls_model})
    if agents:
        live.warn(
            f"offline: sessions of agent {', '.join(agents)} need the network also under driver {_APART}, and are held by proxy variables "
            'alone; a program that ignores them, or makes sockets of its own, is not (docs: "Offline runs")'
        )
