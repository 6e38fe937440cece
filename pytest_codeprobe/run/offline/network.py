"""The Network (model/network.py) of a run under --codeprobe-offline: the guard and the sink, and who tried what."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_codeprobe.errors import CodeprobeError, with_frames
from pytest_codeprobe.model.network import DOOR_PORT, Component, Endpoint
from pytest_codeprobe.model.sandbox import Role
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.run.offline.guard import Acting, acting
from pytest_codeprobe.run.offline.hosts import Policy, Rule
from pytest_codeprobe.run.offline.sink import Port, Sink
from pytest_codeprobe.run.offline.upstream import PROXY_VARIABLES, Upstream
from pytest_codeprobe.text import one_line, plain

_log = logging.getLogger(__name__)
_COMPONENTS: Mapping[Role, Component] = {"session": "agent", "grader": "grader", "setup": "setup", "post_run": "post_run"}
_WITHOUT = "localhost,127.0.0.1,::1"
_MAX_PLACES = 200  #: that are told apart in one trial
_SHOWN, _IN_DETAIL = 3, 50
_MAX_HOST = 255  #: characters; what a client asks for may be anything


@dataclass(frozen=True, slots=True)
class _Place:
    """Who tried where."""

    component: Component
    by: str
    host: str
    port: int | None

    def __str__(self) -> str:
        who = self.component if not self.by else self.by if self.component == "criterion" else f"{self.component} of {self.by}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{who} tried {host}" + (f":{self.port}" if self.port is not None else "")


@dataclass(eq=False, slots=True)
class _Life:
    """What is known of a trial while it runs."""

    by: str = ""  #: which criterion looks
    agents: dict[str, Policy] = field(default_factory=dict)  #: by the agent: a simulated user may be another
    ports: dict[tuple[Role, str, Upstream], Port] = field(default_factory=dict)
    actings: list[Acting] = field(default_factory=list)
    tried: dict[_Place, int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, component: Component, by: str) -> Callable[[str, int | None], None]:
        """What takes down the attempts of one component."""

        def tried(host: str, port: int | None) -> None:
            place = _Place(component, by, one_line(plain(host), _MAX_HOST), port)
            with self.lock:
                if place in self.tried or len(self.tried) < _MAX_PLACES:
                    self.tried[place] = self.tried.get(place, 0) + 1

        return tried


class Offline:
    """See the module. `allow`: as ini codeprobe_offline_allow; `endpoints`: where a trial's agent asks its model; whether it has one."""

    def __init__(
        self,
        allow: Iterable[str],
        endpoints: Callable[[Trial], Iterable[Endpoint]],
        calls_model: Callable[[Trial], bool] = lambda _: True,
    ) -> None:
        self._policy, self._endpoints, self._calls_model = Policy(map(Rule.parse, allow)), endpoints, calls_model
        self._sink = Sink()
        self._lives: dict[str, _Life] = {}

    def close(self) -> None:
        """No port and no thread of it is left."""
        self._sink.close()

    def _life(self, trial: Trial) -> _Life:
        return self._lives.setdefault(trial.node_id, _Life())

    @contextmanager
    def acting(self, trial: Trial, component: Component, by: str = "") -> Iterator[None]:
        """See Network."""
        life = self._life(trial)
        who = Acting(self._policy, life.note(component, by))
        life.actings.append(who)
        before, life.by = life.by, by
        try:
            with acting(who):
                yield
        finally:
            life.by = before

    def apart(self, trial: Trial, role: Role) -> bool:
        """See Network."""
        if trial.sandbox.network == "off":
            return True
        if role == "setup":  # what the task installs may come from a server on this machine
            return False
        return role != "session" or not self._calls_model(trial)

    def environment(self, trial: Trial, role: Role, environ: Mapping[str, str], door: Path | None = None) -> Mapping[str, str]:
        """See Network."""
        life = self._life(trial)
        key = role, life.by if role == "grader" else "", Upstream.of(environ)
        if key not in life.ports or door is not None:
            try:
                if key not in life.ports:
                    life.ports[key] = self._sink.open(self._policy_of(trial, role), key[2], life.note(_COMPONENTS[role], key[1]))
                if door is not None:
                    self._sink.await_door(life.ports[key], door)
            except OSError as error:
                what = f"offline: no port for what the {_COMPONENTS[role]} asks: {str(error) or type(error).__name__}"
                raise CodeprobeError("SANDBOX_FAILED", what) from error
        url = life.ports[key].url if door is None else f"http://127.0.0.1:{DOOR_PORT}"
        held = {name: value for name, value in environ.items() if name.lower() not in PROXY_VARIABLES}
        for name in sorted(PROXY_VARIABLES):
            held[name] = held[name.upper()] = _WITHOUT if name == "no_proxy" else url
        return {"NODE_USE_ENV_PROXY": "1", **held}  # without it Node's own fetch goes past them

    def came_out(self, trial: Trial, role: Role, door: Path) -> bool:
        """See Network. OSError where the sink does not answer."""
        life = self._lives.get(trial.node_id)
        ports = [port for key, port in life.ports.items() if key[0] == role] if life is not None else []
        return all(self._sink.has_let_in(port, door) for port in ports)

    def _policy_of(self, trial: Trial, role: Role) -> Policy:
        if trial.sandbox.network == "off":  # nothing is reached, though it is heard who asks
            return Policy(())
        if role != "session":
            return self._policy
        life = self._life(trial)
        name = trial.agent.type or ""
        if name not in life.agents:
            life.agents[name] = self._policy.plus(self._endpoints(trial))
        return life.agents[name]

    def settle(self, trial: Trial, role: Role) -> None:
        """See Network. OSError where the sink does not answer."""
        life = self._lives.get(trial.node_id)
        for key in [key for key in life.ports if key[0] == role] if life is not None else ():
            assert life is not None
            self._sink.settle(life.ports.pop(key))

    def has_attempts(self, trial: Trial) -> bool:
        """See Network."""
        life = self._lives.get(trial.node_id)
        return life is not None and bool(life.tried)

    def allows(self, host: str, port: int | None) -> bool:
        """See Network."""
        return self._policy.allows(host, port)

    def end(self, trial: Trial) -> CodeprobeError | None:
        """See Network."""
        life = self._lives.get(trial.node_id)
        if life is None:
            return None
        try:
            for role in _COMPONENTS:
                self.settle(trial, role)
        except OSError as error:
            _log.error("%s\n%s", trial.node_id, with_frames(error))  # it may parse
            return CodeprobeError("SANDBOX_FAILED", f"what the trial asked the network for can't be told: {type(error).__name__}: {error}")
        finally:
            self._lives.pop(trial.node_id, None)
            for who in life.actings:
                who.over = True
        return _error(trial, life.tried) if life.tried else None


def _error(trial: Trial, tried: Mapping[_Place, int]) -> CodeprobeError:
    places = list(tried)
    more = f", and {len(places) - _SHOWN} more" if len(places) > _SHOWN else ""
    hosts = " ".join(list(dict.fromkeys(place.host for place in places))[:_SHOWN])
    return CodeprobeError(
        "OFFLINE_NET_ATTEMPT",
        f"offline: {', '.join(map(str, places[:_SHOWN]))}{more}",
        remediation=f"Take the access out of the task, or allow it: `codeprobe_offline_allow = {hosts}` in pytest's ini file.",
        detail={"component": places[0].component, "host": places[0].host, "attempts": _detail(trial, places[:_IN_DETAIL], tried)},
    )


def _detail(trial: Trial, places: Sequence[_Place], tried: Mapping[_Place, int]) -> list[dict[str, Any]]:
    return [
        {"node_id": trial.node_id, "component": p.component, "by": p.by or None, "host": p.host, "port": p.port, "count": tried[p]}
        for p in places
    ]
