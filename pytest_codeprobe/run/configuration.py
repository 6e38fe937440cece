"""How the agent of a trial is started, as far as its task and the command line have a say in it, with no value that may be a secret.

Names stand in clear, values as a digest: a proof is a file that people keep and hand on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from pytest_codeprobe.model.config import AgentConfig, SandboxConfig
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.text import is_secret_name

#: of an agent's settings, those that say how it is started; what a task says of its own work is none of the canary's business
SETTINGS = ("permission_mode", "args", "command", "effort", "max_thinking_tokens", "project_settings")
SANDBOX = ("network", "env_passthrough", "docker")  #: of the sandbox, what may keep an agent from working, beside `env`
_PLAIN = frozenset({"permission_mode", "project_settings"})  #: one of a few words each
_DIGITS = 16


def configuration(trial: Trial, backend: str | None, clean: Callable[[str], str]) -> dict[str, str]:
    """Name -> value or digest, of what is not left at its default. `clean` takes out secrets: a key that changes is no other setting."""

    def told(name: str, value: Any) -> str:
        text = value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)
        if name in _PLAIN or name == "backend":
            return text
        return hashlib.sha256(f"{name}\0{clean(text)}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]

    found = dict(_given(trial))
    if backend not in (None, "direct"):
        found["backend"] = backend
    secret = {f"{place}.{name}" for place, env in _environments(trial) for name in env if is_secret_name(name)}
    return {name: "secret" if name in secret else told(name, value) for name, value in sorted(found.items())}


def digest(known: dict[str, str]) -> str:
    """The same in one word."""
    return hashlib.sha256(json.dumps(known, sort_keys=True).encode()).hexdigest()[:_DIGITS]


def _given(trial: Trial) -> Iterator[tuple[str, Any]]:
    agent, sandbox = trial.agent, trial.sandbox
    yield "permission_mode", agent.permission_mode
    for config, names, prefix in ((agent, SETTINGS, ""), (sandbox, SANDBOX, "sandbox.")):
        fields = type(config).model_fields
        for name in names:
            if (value := getattr(config, name)) != fields[name].default:
                yield f"{prefix}{name}", value.model_dump(mode="json") if hasattr(value, "model_dump") else value
    for place, env in _environments(trial):
        for name, value in env.items():
            yield f"{place}.{name}", value
    for name, value in agent.table(agent.type or "").items():
        yield f"{agent.type}.{name}", value


def _environments(trial: Trial) -> tuple[tuple[str, dict[str, str]], ...]:
    return ("env", trial.agent.env), ("sandbox.env", trial.sandbox.env)


def canary_agent(config: AgentConfig) -> AgentConfig:
    """Of a task's agent, what the configuration tells of."""
    names = {"type", "model", "env", *SETTINGS, config.type or ""}
    return AgentConfig.model_validate({name: value for name, value in config.model_dump(exclude_unset=True).items() if name in names})


def canary_sandbox(config: SandboxConfig) -> SandboxConfig:
    """Of a task's sandbox, the same."""
    return SandboxConfig.model_validate(config.model_dump(include={"driver", "env", *SANDBOX}, exclude_unset=True))
