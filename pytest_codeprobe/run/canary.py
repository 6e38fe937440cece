"""The canary: a small built-in task whose outcome is known beforehand, so that a broken set-up is found before it is paid for.

It is run and graded as any trial, but stands in no plan and in no count. What is asked: run/known_task.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.config import RunLimits
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import TrialResult, Usage
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.run.asking import Answer
from pytest_codeprobe.run.configuration import canary_agent, canary_sandbox
from pytest_codeprobe.run.known_task import known_task
from pytest_codeprobe.run.proofs import Fingerprint, Key, Proof, ProofStore, plugin_major, system
from pytest_codeprobe.text import one_line
from pytest_codeprobe.trial.run import MakeSandbox
from pytest_codeprobe.trial.run import run as run_trial

Mode = Literal["off", "auto", "require", "renew"]
#: proved: done in this run; stored: by an earlier one; stopped: by the run, before there was a verdict; due: a dry run foretells it
State = Literal["proved", "stored", "failed", "stopped", "due", "not_needed"]
Ask = Callable[[Sequence[Agent]], Mapping[str, Answer]]  #: versions of CLIs, by the agents' names; those without one are left out
_BOUNDS = ("max_usd", "max_total_tokens")
_WIDENED = ("setup_timeout", "provider_patience", *_BOUNDS)


def canary_trial(sample: Trial, key: Key, agent: Agent, limits: RunLimits) -> Trial:
    """The built-in task for the agent, and in the kind of sandbox, of another trial."""
    base = Trial(
        node_id=f"canary::{key.name}",
        task_id="canary",
        folder=f"_canary/{key.name}",
        task_file=sample.task_file,
        line=sample.line,
        prompt=None,
        description="canary",
        agent=canary_agent(sample.agent),
        sandbox=canary_sandbox(sample.sandbox),
        limits=limits,
        criteria=(),
    )
    return known_task(agent, base, "canary")


def widest(limits: Iterable[Mapping[str, Any]]) -> RunLimits:
    """Limits of a canary, from those of the trials that it stands for: what one of them may take, it may take.

    Where each has a bound, but not all the same one, it has both.
    """
    given = list(limits)
    found = {name: max(one[name] for one in given) for name in _WIDENED if given and all(one.get(name) is not None for one in given)}
    if found.keys().isdisjoint(_BOUNDS) and all(any(one.get(name) is not None for name in _BOUNDS) for one in given):
        found |= {name: max(told) for name in _BOUNDS if (told := [one[name] for one in given if one.get(name) is not None])}
    return RunLimits.model_validate(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A trial that a canary stands for, with the limits of all that it stands for."""

    trial: Trial
    limits: RunLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of one key."""

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
            "configuration": dict(self.key.configuration),
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
    """Decides for each key of a run whether it needs the canary; runs those that do, one after the other.

    `dry`: nothing is run, and a CLI that does not tell its version is no reason to refuse.
    """

    def __init__(
        self, mode: Mode, context: Context, make_sandbox: MakeSandbox, warn: Callable[[str], None], ask: Ask, *, dry: bool = False
    ) -> None:
        self.mode, self._context, self._make_sandbox, self._warn, self._ask, self._dry = mode, context, make_sandbox, warn, ask, dry
        self.store = ProofStore(context.rootdir)
        self._due: list[tuple[Sample, Outcome]] = []
        self.outcomes: list[Outcome] = []
        self.failure: CodeprobeError | None = None  #: of the first that failed
        self.forbids = False  #: nothing else may start: one has failed, or could not be run

    def examine(self, samples: Mapping[Key, Sample]) -> None:
        """Before anything is run: CANARY_PROOF_REQUIRED or CANARY_MISMATCH where the run is to be refused."""
        agents = {key: self._context.registry.agent(key.agent) for key in samples}
        needed = {key: agent for key, agent in agents.items() if agent.calls_model and agent.is_session}
        versions = self._ask(list({agent.name: agent for agent in needed.values()}.values()))
        for key, sample in samples.items():
            if key not in needed:
                self.outcomes.append(Outcome(key=key, state="not_needed"))
                continue
            outcome = self._examined(key, versions.get(agents[key].name))
            self.outcomes.append(outcome)
            if outcome.state in ("stopped", "due"):
                self._due.append((sample, outcome))

    def _examined(self, key: Key, said: Answer | None) -> Outcome:
        unknown = _unknown(key, said)
        if unknown is not None and not self._dry:
            raise unknown
        version = None if said is None else said.version or one_line(self._context.redactor.text(said.first_line), 100) or None
        fingerprint = None if unknown is not None else Fingerprint(agent_version=version, os=system(), plugin_major=plugin_major())
        due = Outcome(key=key, state="due" if self._dry else "stopped", fingerprint=fingerprint)  # until it has run
        found = self.store.read(key)
        if self.mode == "renew":
            return due
        if isinstance(found, Proof):
            if fingerprint is None:
                self._warn(f"whether {self.store.shown(key)} still holds can't be told: the version of agent {key.agent} is unknown")
            elif differences := found.fingerprint.differences(fingerprint):
                raise _mismatch(key, self.store.shown(key), differences)
            return replace(due, state="stored", proof=self.store.shown(key), proved_at=found.proved_at)
        if self.mode == "require":
            raise self._required(key, found)
        if found is not None:
            self._warn(f"{self.store.shown(key)} {found}; the canary runs again")
        return due

    def _required(self, key: Key, found: str | None) -> CodeprobeError:
        why = f"there is no proof of {key}" if found is None else f"the proof of {key} {found}"
        alike = next((proof.key for proof in self.store.others(key.agent) if proof.key.is_like(key) and proof.key != key), None)
        differs = key.differs_in(alike) if alike is not None else []
        but = f"; there is one that differs in {', '.join(differs)}" if differs else ""
        return CodeprobeError(
            "CANARY_PROOF_REQUIRED",
            f"{why}: {self.store.shown(key)}{but}",
            remediation="Run with --codeprobe-canary auto, which makes the proof with one small task before anything else.",
            detail={**_names(key), "proof": self.store.shown(key), "differs_in": differs},
        )

    def foretold(self) -> list[Mapping[str, Any]]:
        """Of each that a dry run has found to be due: cost, tokens and time of the last that is most alike; an empty one if unknown."""
        told: list[Mapping[str, Any]] = []
        for _, outcome in self._due:
            known = sorted(self.store.others(outcome.key.agent), key=lambda proof: _distance(outcome.key, proof.key))
            told.append(known[0].model_dump(include={"cost_usd", "tokens", "duration_seconds"}) if known else {})
        return told

    def run(self, began: Callable[[Outcome], None], ended: Callable[[Outcome], None]) -> None:
        """Run what is due; after the first failure, or where the run is told to stop, nothing more. Tells of each before and after."""
        for sample, outcome in self._due:
            if self.forbids or self._context.stops.forbids_start(outcome.key.agent) is not None:
                return
            began(outcome)
            done = self._ran(outcome, self._result(sample, outcome.key))
            self.outcomes[self.outcomes.index(outcome)] = done
            ended(done)

    def _result(self, sample: Sample, key: Key) -> TrialResult:
        context, agent = self._context, self._context.registry.agent(key.agent)
        if context.snapshot is not None:
            context = replace(context, snapshot=replace(context.snapshot, bare=True))
        return run_trial(canary_trial(sample.trial, key, agent, sample.limits), context, self._make_sandbox)

    def _ran(self, outcome: Outcome, result: TrialResult) -> Outcome:
        key = outcome.key
        if result.status == "passed":
            return self._keep(replace(outcome, state="proved", result=result), result)
        if result.status in ("not_run", "skipped"):
            # the whole run may hear of it, or this canary alone: what has no proof is not paid for
            self.forbids = True
            if result.reason not in ("budget", "time") and self._context.stops.forbids_start(key.agent) is None:
                self.failure = _failed(key, result)
            return replace(outcome, result=result)
        if result.status == "failed":  # an error says nothing of what the agent can do
            try:
                self.store.remove(key)
            except OSError as error:
                self._warn(f"{self.store.shown(key)} can't be removed: {error.strerror}")
        self.failure, self.forbids = _failed(key, result), True
        return replace(outcome, state="failed", result=result)

    def _keep(self, outcome: Outcome, result: TrialResult) -> Outcome:
        assert outcome.fingerprint is not None
        key, now = outcome.key, stamp(self._context.clock.now())
        proof = Proof(
            agent=key.agent,
            model=key.model,
            driver=key.driver,
            configuration=dict(key.configuration),
            fingerprint=outcome.fingerprint,
            run_id=self._context.run_id,
            proved_at=now,
            duration_seconds=result.duration_seconds,
            cost_usd=result.cost_usd,
            tokens=result.usage.total_tokens,
        )
        try:
            self.store.write(key, proof)
        except OSError as error:  # the agent has shown what it can; the next run asks again
            self._warn(f"the canary's proof can't be kept: {self.store.shown(key)}: {error.strerror}")
            return outcome
        return replace(outcome, proof=self.store.shown(key), proved_at=now)

    def usages(self) -> list[Usage]:
        """Tokens and money of what was run."""
        return [o.result.usage for o in self.outcomes if o.result is not None and o.result.attempts]

    def as_json(self) -> dict[str, Any]:
        """data.canary."""
        return {"mode": self.mode, "proofs": [outcome.as_json() for outcome in self.outcomes]}


def _names(key: Key) -> dict[str, Any]:
    return {"agent": key.agent, "model": key.model, "driver": key.driver}


def _distance(key: Key, other: Key) -> tuple[bool, bool, int]:
    return key.model != other.model, key.driver != other.driver, len(key.differs_in(other))


def _unknown(key: Key, said: Answer | None) -> CodeprobeError | None:
    """A proof holds for a version: one that nobody knows can neither be compared nor kept."""
    if said is None or said.version is not None or (said.trouble is None and said.first_line):
        return None
    return CodeprobeError(
        "NO_BACKENDS_CONFIGURED",
        f"agent {key.agent}: `--version` of its CLI: {said.trouble or 'nothing is printed'}; the canary's proof holds for one version",
        remediation="See whether the CLI answers to --version here; a machine that is too busy may answer later.",
        detail={"agent": key.agent},
    )


def _mismatch(key: Key, proof: str, differences: Mapping[str, Mapping[str, Any]]) -> CodeprobeError:
    told = [f"{name.replace('_', ' ')}: {pair['old'] or 'unknown'} -> {pair['new'] or 'unknown'}" for name, pair in differences.items()]
    return CodeprobeError(
        "CANARY_MISMATCH",
        f"the proof of {key} was made under other circumstances: {'; '.join(told)}",
        detail={**_names(key), "proof": proof, "differences": dict(differences)},
    )


def _failed(key: Key, result: TrialResult) -> CodeprobeError:
    """What kept it from a verdict, by its own code; CANARY_PROOF_FAILED where it has one, and it is not the right one."""
    place = {**_names(key), "canary": True, "status": result.status, "reason": result.reason, "folder": result.folder}
    if result.code is not None:
        message = f"in the canary of {key}: {result.reason or result.code}; nothing else was started"
        return CodeprobeError(result.code, message, remediation=result.remediation, detail={**result.detail, **place})
    limit = f" (stopped at {result.limit_hit.name} = {result.limit_hit.value:g})" if result.limit_hit is not None else ""
    return CodeprobeError(
        "CANARY_PROOF_FAILED",
        f"{key} did not do the canary's task: {result.reason or result.status}{limit}",
        remediation="Run `codeprobe doctor`, and look at the canary's folder; nothing else was started.",
        detail=place,
    )
