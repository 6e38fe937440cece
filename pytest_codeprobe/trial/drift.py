"""A session held to a capability snapshot, from the moment at which it says what it can use."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pytest_codeprobe.model.agent import Agent, SessionEnd, SessionParser
from pytest_codeprobe.model.capabilities import Capabilities, Comparison, compare
from pytest_codeprobe.model.context import Snapshot
from pytest_codeprobe.model.trial import Trial

ENOUGH = "enough"  #: why a session is ended that has said what there was to hear


@dataclass(slots=True)
class DriftCheck:
    """One for each session of the snapshot's agent."""

    snapshot: Snapshot
    agent: Agent
    trial: Trial
    found: Comparison | None = None

    def look(self, parser: SessionParser) -> str | None:
        """ENOUGH once the session has shown that it drifted: what it would do now is paid for in vain."""
        if self.found is None and (now := parser.capabilities()) is not None:
            self.found = self._compared(now)
            return ENOUGH if self.found.drifted else None
        return None

    def _compared(self, now: Capabilities) -> Comparison:
        config, known = self.trial.agent, self.snapshot.content
        if self.snapshot.bare:
            known, now = known.without_servers(), now.without_servers()
        return compare(
            known,
            now,
            removed=lambda tool: self.agent.takes_away(config, tool),
            own_servers=frozenset(config.mcp_servers or ()),
            asked_model=config.model,
        )

    def end(self, end: SessionEnd, parser: SessionParser) -> SessionEnd:
        """The session's end, or CAPABILITY_DRIFT in its place."""
        if self.found is None and parser.replied and end.code is None:
            self.found = self._compared(Capabilities(agent=self.agent.name, version=None, model=None, tools=(), mcp_servers=()))
        if self.found is None or not self.found.drifted:
            return end
        return SessionEnd(
            code="CAPABILITY_DRIFT",
            reason=f"differs from the snapshot {self.snapshot.path}: {self.found.drift()}",
            remediation=f"If the change is meant, record it again: {self._again()}",
            detail={"snapshot": self.snapshot.path, "agent": self.agent.name, **self.found.as_json()},
        )

    def _again(self) -> str:
        wanted = ["codeprobe", "capabilities", "-T", self.agent.name]
        wanted += ["-m", self.trial.agent.model] if self.trial.agent.model else []
        if self.trial.agent.mcp_servers:
            wanted.append(self.trial.task_file)
        return f"`{shlex.join([*wanted, '-o', self.snapshot.path])}`."

    def warnings(self) -> list[str]:
        """What the session has beyond the snapshot, and what could not be compared."""
        if self.found is None or self.found.drifted or self.snapshot.bare:
            return []
        told, asked, known = [], self.trial.agent.model, self.snapshot.content
        if asked is not None and asked not in (known.asked_model, known.model):
            told.append(
                f"agent {self.agent.name} is asked for model {asked}, and the snapshot {self.snapshot.path} holds for "
                f"{known.model or 'another'}: models are not compared"
            )
        if added := self.found.additions():
            told.append(f"agent {self.agent.name} has more than the snapshot {self.snapshot.path}: {added}")
        return told


def drift_check(snapshot: Snapshot | None, agent: Agent, trial: Trial) -> DriftCheck | None:
    """None where there is no snapshot, or one of another agent."""
    return DriftCheck(snapshot, agent, trial) if snapshot is not None and snapshot.content.agent == agent.name else None
