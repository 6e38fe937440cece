"""The canary: a small built-in task whose outcome is known beforehand, so that a broken set-up is found before it is paid for.

The agent writes a nonce, made for this run, into a file through its own tools and repeats it in its answer. It is run and graded
as any trial, but stands in no plan and in no count.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import TrialResult, Usage
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.run.asking import Answer, ask_versions
from pytest_codeprobe.run.proofs import Fingerprint, Key, Proof, ProofStore, plugin_major, system
from pytest_codeprobe.trial.run import MakeSandbox
from pytest_codeprobe.trial.run import run as run_trial

Mode = Literal["off", "auto", "require", "renew"]
#: proved: done in this run; stored: by an earlier one; stopped: by the run, before there was a verdict
State = Literal["proved", "stored", "failed", "stopped", "not_needed"]
TIMEOUT, TURNS = 120.0, 5
FILE = "codeprobe-canary.txt"
_VERSION_TIMEOUT = 10.0  #: seconds for all CLIs; a machine may be busy, and no answer is another fingerprint
#: of an agent's settings, what says how it is started; what a task says of its own work is none of the canary's business
_SETTINGS = ("type", "model", "permission_mode", "args", "command", "effort", "max_thinking_tokens", "env", "project_settings")
_KEPT_LIMITS = ("setup_timeout", "provider_patience", "max_usd", "max_total_tokens")


def canary_trial(sample: Trial, key: Key, nonce: str) -> Trial:
    """The built-in task for the agent, and in the kind of sandbox, of another trial."""
    names = [*_SETTINGS, key.agent]
    settings = {name: value for name, value in sample.agent.model_dump(exclude_unset=True).items() if name in names}
    sandbox = sample.sandbox.model_dump(include={"driver", "network", "env", "env_passthrough", "limits", "docker"}, exclude_unset=True)
    limits = sample.limits.model_dump(include=set(_KEPT_LIMITS), exclude_unset=True)
    return Trial(
        node_id=f"canary::{key.name}",
        task_id="canary",
        folder=f"_canary/{key.name}",
        task_file=sample.task_file,
        line=sample.line,
        prompt=(
            f"Use your tools to write the text {nonce} into a new file called {FILE} in your current directory. "
            f"When the file is there, answer with that text and nothing else: {nonce}"
        ),
        description="canary",
        agent=AgentConfig.model_validate(settings),
        sandbox=SandboxConfig.model_validate(sandbox),
        limits=RunLimits.model_validate({**limits, "task_timeout": TIMEOUT, "max_turns": TURNS}),
        criteria=(
            {"type": "file_contains", "path": FILE, "includes": [nonce]},
            {"type": "answer_contains", "includes": [nonce]},
        ),
    )


def probe(sample: Trial, key: Key, context: Context, make_sandbox: MakeSandbox) -> TrialResult:
    """Run the built-in task once, as `sample` would be started. Its record, which is in the run dir too; no proof is made of it."""
    return run_trial(canary_trial(sample, key, f"canary-{secrets.token_hex(8)}"), context, make_sandbox)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one (agent, model, driver)."""

    key: Key
    state: State
    fingerprint: Fingerprint | None = None
    proof: str | None = None  #: file, relative to rootdir; None where there is none
    proved_at: str | None = None
    result: TrialResult | None = None  #: of this run

    def as_json(self) -> dict[str, Any]:
        """As data.canary shows it."""
        result = self.result
        return {
            "agent": self.key.agent,
            "model": self.key.model,
            "driver": self.key.driver,
            "state": self.state,
            "proof": self.proof,
            "proved_at": self.proved_at,
            "fingerprint": self.fingerprint.model_dump(mode="json") if self.fingerprint is not None else None,
            "status": result.status if result is not None else None,
            "code": result.code if result is not None else None,
            "reason": result.reason if result is not None else None,
            "cost_usd": result.cost_usd if result is not None else None,
            "duration_seconds": result.duration_seconds if result is not None else None,
            "folder": result.folder if result is not None else None,
        }


class Canary:
    """Decides, for each (agent, model, driver) of a run, whether it needs the canary; runs those that do, one after the other."""

    def __init__(self, mode: Mode, context: Context, make_sandbox: MakeSandbox, warn: Callable[[str], None]) -> None:
        self.mode, self._context, self._make_sandbox, self._warn = mode, context, make_sandbox, warn
        self._store = ProofStore(context.rootdir)
        self._due: list[tuple[Trial, Outcome]] = []
        self.outcomes: list[Outcome] = []
        self.failure: CodeprobeError | None = None  #: CANARY_PROOF_FAILED, of the first that failed

    def examine(self, samples: Mapping[Key, Trial]) -> None:
        """Before anything is run: CANARY_PROOF_REQUIRED or CANARY_MISMATCH where the run is to be refused."""
        agents = {key: self._context.registry.agent(key.agent) for key in samples}
        needed = {key: agent for key, agent in agents.items() if agent.calls_model and agent.is_session}
        versions = ask_versions(_once(needed.values()), self._context, _VERSION_TIMEOUT)
        for key, sample in samples.items():
            if key not in needed:
                self.outcomes.append(Outcome(key=key, state="not_needed"))
                continue
            outcome = self._examined(key, self._fingerprint(sample, agents[key], versions.get(agents[key].name)))
            self.outcomes.append(outcome)
            if outcome.state == "stopped":  # until it has run
                self._due.append((sample, outcome))

    def _fingerprint(self, sample: Trial, agent: Agent, said: Answer | None) -> Fingerprint:
        return Fingerprint(
            agent_version=said.version if said is not None else None,
            arguments=tuple(self._context.redactor.text(text) for text in _arguments(sample.agent, agent, self._context.options.backend)),
            os=system(),
            plugin_major=plugin_major(),
        )

    def _examined(self, key: Key, fingerprint: Fingerprint) -> Outcome:
        due = Outcome(key=key, state="stopped", fingerprint=fingerprint)
        found = self._store.read(key)
        if self.mode == "renew":
            return due
        if isinstance(found, Proof):
            if differences := found.fingerprint.differences(fingerprint):
                raise _mismatch(key, self._store.shown(key), differences)
            return replace(due, state="stored", proof=self._store.shown(key), proved_at=found.proved_at)
        if self.mode == "require":
            why = f"there is no proof of {key}" if found is None else f"the proof of {key} {found}"
            raise CodeprobeError(
                "CANARY_PROOF_REQUIRED",
                f"{why}: {self._store.shown(key)}",
                remediation="Run with --codeprobe-canary auto, which makes the proof with one small task before anything else.",
                detail={"agent": key.agent, "model": key.model, "driver": key.driver, "proof": self._store.shown(key)},
            )
        if found is not None:
            self._warn(f"{self._store.shown(key)} {found}; the canary runs again")
        return due

    def run(self) -> None:
        """Run what is due; after the first failure, or where the run is told to stop, nothing more."""
        for sample, outcome in self._due:
            if self.failure is not None or self._context.stops.forbids_start(outcome.key.agent) is not None:
                return
            done = self._ran(outcome, probe(sample, outcome.key, self._context, self._make_sandbox))
            self.outcomes[self.outcomes.index(outcome)] = done

    def _ran(self, outcome: Outcome, result: TrialResult) -> Outcome:
        key = outcome.key
        if result.status == "passed":
            return self._keep(replace(outcome, state="proved", result=result), result)
        if result.status in ("not_run", "skipped"):
            if self._context.stops.forbids_start(key.agent) is None:  # else the whole run hears of it; here, of this canary alone
                self.failure = _failed(key, result)
            return replace(outcome, result=result)
        if result.status == "failed":  # an error says nothing of what the agent can do
            try:
                self._store.remove(key)
            except OSError as error:
                self._warn(f"{self._store.shown(key)} can't be removed: {error.strerror}")
        self.failure = _failed(key, result)
        return replace(outcome, state="failed", result=result)

    def _keep(self, outcome: Outcome, result: TrialResult) -> Outcome:
        assert outcome.fingerprint is not None
        key, now = outcome.key, stamp(self._context.clock.now())
        proof = Proof(
            agent=key.agent,
            model=key.model,
            driver=key.driver,
            fingerprint=outcome.fingerprint,
            run_id=self._context.run_id,
            proved_at=now,
            duration_seconds=result.duration_seconds,
            cost_usd=result.cost_usd,
        )
        try:
            self._store.write(key, proof)
        except OSError as error:  # the agent has shown what it can; the next run asks again
            self._warn(f"the canary's proof can't be kept: {self._store.shown(key)}: {error.strerror}")
            return outcome
        return replace(outcome, proof=self._store.shown(key), proved_at=now)

    def usages(self) -> list[Usage]:
        """Tokens and money of what was run."""
        return [o.result.usage for o in self.outcomes if o.result is not None and o.result.attempts]

    def as_json(self) -> dict[str, Any]:
        """data.canary."""
        return {"mode": self.mode, "proofs": [outcome.as_json() for outcome in self.outcomes]}


def _arguments(config: AgentConfig, agent: Agent, backend: str | None) -> Iterable[str]:
    """How the adapter starts the agent, as far as tasks and command line have a say in it."""
    values: dict[str, Any] = {name: getattr(config, name) for name in _SETTINGS if name not in ("type", "model", "env")}
    defaults = AgentConfig.model_fields
    for name, value in values.items():
        if name == "permission_mode" or value != defaults[name].default:
            yield f"{name}={_text(value)}"
    if table := config.table(agent.name):
        yield f"{agent.name}={_text(table)}"
    if backend is not None and backend != "direct":
        yield f"backend={backend}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, default=str)


def _once(agents: Iterable[Agent]) -> Sequence[Agent]:
    return list({agent.name: agent for agent in agents}.values())


def _mismatch(key: Key, proof: str, differences: Mapping[str, Mapping[str, Any]]) -> CodeprobeError:
    shown = "; ".join(f"{name.replace('_', ' ')}: {_shown(pair['old'])} -> {_shown(pair['new'])}" for name, pair in differences.items())
    return CodeprobeError(
        "CANARY_MISMATCH",
        f"the proof of {key} was made under other circumstances: {shown}",
        detail={"agent": key.agent, "model": key.model, "driver": key.driver, "proof": proof, "differences": dict(differences)},
    )


def _shown(value: Any) -> str:
    if value is None:
        return "unknown"
    return (", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value)


def _failed(key: Key, result: TrialResult) -> CodeprobeError:
    why = f"{result.code}: {result.reason}" if result.code else result.reason or result.status
    return CodeprobeError(
        "CANARY_PROOF_FAILED",
        f"{key} did not do the canary's task: {why}",
        remediation="Run `codeprobe doctor`, and look at the canary's folder; nothing else was started.",
        detail={
            "agent": key.agent,
            "model": key.model,
            "driver": key.driver,
            "status": result.status,
            "trial_code": result.code,
            "reason": result.reason,
            "folder": result.folder,
        },
    )
