"""A dialog with a simulated user: exchanges, each a session with a keeper of its own, that go on with one conversation.

A message of the user's and what the agent makes of it are one exchange. Both sides have a sandbox; that of the user is empty. What both
have used counts together for the limits on tokens, money and time, and for the run's budget.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent, Exchange, SessionEnd, SessionParser, SessionRequest
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.config import RunLimits, Simulation
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import AgentInfo, DialogResult, ExchangeResult, LimitHit, Usage, no_usage
from pytest_codeprobe.model.transcript import FinalMetrics, Step, Transcript
from pytest_codeprobe.sandboxes import choose
from pytest_codeprobe.trial.drift import drift_check
from pytest_codeprobe.trial.interim import Check
from pytest_codeprobe.trial.persona import Who, first_words, is_told_its_role, next_words, role_of, users_trial
from pytest_codeprobe.trial.session import Session, SessionOutcome, exceeded
from pytest_codeprobe.trial.sofar import Sofar, Together
from pytest_codeprobe.trial.spending import Spending
from pytest_codeprobe.trial.store import AttemptStore

Stop = Literal["stop_token", "criteria_passed", "max_turns", "max_total_tokens", "silence", "limit", "stopped", "error"]
#: flags that end a running session, and keep the next exchange from beginning
_ENDING = frozenset({"interrupted", "maxfail", "budget", "time", "trace"})


@dataclass(slots=True, kw_only=True)
class _Side:
    """One of the two."""

    who: Who
    agent: Agent
    request: SessionRequest  #: without prompt and exchange
    usage: Usage = field(default_factory=no_usage)  #: of its exchanges that are over
    number: int = 0  #: of exchanges
    session_id: str = ""
    transcript_bytes: int = 0
    info: AgentInfo

    def next_request(self, prompt: str) -> SessionRequest:
        """For its next exchange."""
        self.number += 1
        exchange = Exchange(number=self.number, session_id=self.session_id, usage=self.usage, transcript_bytes=self.transcript_bytes)
        return replace(self.request, prompt=prompt, exchange=exchange)


class Dialog:
    """One for each attempt. run() once; what it has used so far can be asked at any time."""

    def __init__(
        self,
        simulation: Simulation,
        agent: Agent,
        request: SessionRequest,
        *,
        log: logging.Logger,
        spending: Spending,
        store: AttemptStore,
        deadlines: Callable[[float], Mapping[str, tuple[float, float]]],
        announce: Callable[[], None],
        check: Check,
    ) -> None:
        """`deadlines`: by the seconds that the dialog has taken: name of a limit -> (seconds left, its value)."""
        self._simulation, self._trial, self._context = simulation, request.trial, request.context
        self._log, self._spending, self._store, self._check = log, spending, store, check
        self._deadlines, self._announce, self._logs = deadlines, announce, request.sandbox.logs
        self._agent = _Side(who="agent", agent=agent, request=request, info=AgentInfo(name=agent.name))
        self._user = self._make_user(request)
        self._sofar = Sofar(request.context)
        self._running: tuple[_Side, Together] | None = None
        self._outcomes: list[SessionOutcome] = []  # of both sides
        self._answers: list[SessionOutcome] = []  # of the agent
        self._said: list[tuple[Who, str]] = []
        self._exchanges: list[ExchangeResult] = []
        self._transcripts: list[Transcript] = []
        self._limit: LimitHit | None = None
        self._stopped: str | None = None
        self._end = SessionEnd()
        self._by: str | None = None  # whose error it is, where it is the user's
        self.stop: Stop = "error"
        self.started = False  #: a process has been there: it may have spent money
        self.seconds = 0.0  #: of all sessions
        self.overflowed = False  #: a transcript is over its limit, and the run wants no session to go on then

    # ---- what is known of it

    def usage(self) -> Usage:
        """Of the agent."""
        return self._used(self._agent)

    def user_usage(self) -> Usage:
        """Of the user."""
        return self._used(self._user)

    def _used(self, side: _Side) -> Usage:
        if self._running is None or self._running[0] is not side:
            return side.usage
        return side.usage.plus(self._running[1].own())

    def at_most(self) -> float | None:
        """US dollars that both sides have cost at most, where nobody knows what they have cost."""
        most = self._running[1].cost_at_most() if self._running is not None else self._sofar.most
        return most if self.usage().plus(self.user_usage()).cost_usd is None else None

    def result(self) -> DialogResult:
        """For the record; the user's usage is that of this attempt."""
        return DialogResult(stop=self.stop, user=self._user.info, exchanges=tuple(self._exchanges), usage=self.user_usage())

    def transcript(self) -> Transcript | None:
        """Of all exchanges together: a step of source `user` is what the user said. None where none is wanted."""
        if not self._transcripts:
            return None
        first, steps = self._transcripts[0], list[Step]()
        for transcript in self._transcripts:
            steps += [step.model_copy(update={"step_id": len(steps) + n}) for n, step in enumerate(transcript.steps, 1)]
        usage, user = self.usage(), self._user.info
        prompt = [usage.input_tokens, usage.cache_read_tokens, usage.cache_write_tokens]
        known = [n for n in prompt if n is not None]
        played = {"name": user.name, "version": user.version, "model": user.model}
        return first.model_copy(
            update={
                "steps": tuple(steps),
                "agent": self._transcripts[-1].agent,
                "extra": {**(first.extra or {}), "simulated_user": {k: v for k, v in played.items() if v is not None}},
                "final_metrics": FinalMetrics(
                    total_prompt_tokens=sum(known) if known else None,
                    total_completion_tokens=usage.output_tokens,
                    total_cached_tokens=usage.cache_read_tokens,
                    total_cost_usd=usage.cost_usd,
                    total_steps=len(steps),
                ),
            }
        )

    # ---- the loop

    def run(self) -> SessionOutcome:
        """To its end. CodeprobeError, Stopped from what lies below; nothing of either side is alive then."""
        self._user.request.sandbox.prepare()
        try:
            message = self._trial.prompt if self._trial.prompt is not None else self._ask()
            while message is not None:
                self._said.append(("user", message))
                if not self._answer(message) or self._is_over():
                    break
                message = self._ask()
        finally:
            left = self._user.request.sandbox.delete()
            self._store.warnings.extend(f"{self._trial.node_id}: could not be deleted: {path}" for path in left)
        return self._merged()

    def _answer(self, message: str) -> bool:
        """The agent's part of an exchange; False where the dialog ends with it."""
        outcome = self._session(self._agent, message)
        if outcome is None:
            return False
        self._answers.append(outcome)
        self._said.append(("agent", outcome.final_message))
        self._exchanges.append(ExchangeResult(number=len(self._answers), usage=outcome.usage))
        if self.overflowed or not self._goes_on(outcome, ""):
            return False
        verdict = self._check(self._merged(), self.transcript())
        if verdict is not None:
            self._exchanges[-1] = self._exchanges[-1].model_copy(update={"score": verdict.score, "passed": verdict.passed})
            if verdict.passed and self._simulation.stop_on_criteria_pass:
                self.stop = "criteria_passed"
                return False
        return True

    def _is_over(self) -> bool:
        """Whether the user is not asked any more."""
        if len(self._answers) >= self._simulation.max_turns:
            self.stop = "max_turns"
            return True
        counted = self._trial.limits.count_cached_input
        limit = RunLimits(max_total_tokens=self._simulation.max_total_tokens, count_cached_input=counted)
        if exceeded(self._sofar.usage, limit) is not None:
            self.stop = "max_total_tokens"
            return True
        return False

    def _ask(self) -> str | None:
        """The user's next message; None where there is none."""
        outcome = self._session(self._user, self._words())
        if outcome is None or not self._goes_on(outcome, "simulated user: "):
            return None
        said = outcome.final_message
        if self._simulation.stop_token in said:
            self.stop = "stop_token"
        elif not said.strip():
            self.stop = "silence"
        else:
            return said
        if not self._answers:
            self.stop, self._by = "error", self._user.agent.name
            self._end = SessionEnd(code="AGENT_CRASHED", reason="simulated user: it ended the dialog before it had begun")
        return None

    def _words(self) -> str:
        """What the user is asked."""
        side = self._user
        role = "" if is_told_its_role(self._simulation, side.agent) else role_of(self._simulation)
        if side.agent.resumes and side.number > 0:
            return next_words(self._said[-1][1])
        return first_words(role, self._said)

    def _goes_on(self, outcome: SessionOutcome, whose: str) -> bool:
        """Whether the dialog can go on after a session; else it is noted why not."""
        if outcome.end.code is not None:
            self.stop, self._by = "error", self._user.agent.name if whose else None
            self._end = replace(outcome.end, reason=f"{whose}{outcome.end.reason or outcome.end.code}")
        elif outcome.stopped is not None:
            self.stop, self._stopped = "stopped", outcome.stopped
        elif outcome.limit_hit is not None:
            self.stop, self._limit = "limit", outcome.limit_hit
        else:
            return True
        return False

    # ---- one session

    def _session(self, side: _Side, prompt: str) -> SessionOutcome | None:
        """A side's part of an exchange; None where it may not begin any more. The usage in the outcome is of this part alone."""
        deadlines = dict(self._deadlines(self.seconds))
        gone = next((LimitHit(name=name, value=value) for name, (left, value) in deadlines.items() if left <= 0), None)
        reason = self._context.stops.forbids_start(side.agent.name)
        if gone is not None:
            self.stop, self._limit = "limit", gone
            return None
        if reason in _ENDING:
            self.stop, self._stopped = "stopped", reason
            return None
        request = side.next_request(prompt)
        command = side.agent.command(request)
        if command is None:
            raise CodeprobeError("INTERNAL_ERROR", f"agent {side.agent.name} starts no session, which a dialog needs")
        self._store.add_secrets(command.secrets)
        name = f"{side.who}-{side.number}"
        self._store.also.extend((f"{name}.stdout", f"{name}.stderr"))
        drift = drift_check(self._context.snapshot, side.agent, request.trial) if side is self._agent else None
        session = Session(side.agent, request, deadlines, self._log, self._spending, drift=drift, logs=self._logs, name=name)
        parser = side.agent.parser(request)
        self._running = side, Together(parser, self._sofar, self._context)
        try:
            outcome = session.run(command, self._running[1], self._begin)
        except BaseException:
            self.started = self.started or session.started
            raise
        return self._noted(side, outcome, parser)

    def _noted(self, side: _Side, outcome: SessionOutcome, parser: SessionParser) -> SessionOutcome:
        """A session that is over."""
        assert self._running is not None
        own = self._running[1].own()
        self._sofar.add(self._running[1])
        self._running = None
        side.usage, side.info = side.usage.plus(own), outcome.info
        self.seconds += outcome.duration
        self._context.network.settle(side.request.trial, "session")
        outcome = replace(outcome, usage=own)
        side.session_id = parser.session_id or side.session_id
        if side is self._agent and self._context.options.trace_overflow != "off":
            self._take(side, parser.transcript())
            self.overflowed = parser.overflowed
        outcome = replace(outcome, warnings=tuple(dict.fromkeys((*outcome.warnings, *parser.warnings))))  # it may have been cut only now
        self._outcomes.append(outcome)
        return outcome

    def _take(self, side: _Side, transcript: Transcript) -> None:
        if self._transcripts and (self._transcripts[-1].steps[-1].extra or {}).get("truncated"):
            return  # it says so already, and the raw logs have the rest
        if side.number > 1 or self._trial.prompt is None:
            first = transcript.steps[0].model_copy(update={"extra": {"simulated_user": self._user.agent.name}})
            transcript = transcript.model_copy(update={"steps": (first, *transcript.steps[1:])})
        side.transcript_bytes += len(transcript.model_dump_json(exclude_none=True))
        self._transcripts.append(transcript)

    def _make_user(self, request: SessionRequest) -> _Side:
        assert self._simulation.agent is not None
        agent = self._context.registry.agent(self._simulation.agent.type or "")
        trial = users_trial(self._trial, self._simulation, agent)
        sandbox = choose(trial.sandbox.driver, self._context.registry, self._context).create(trial, self._context)
        request = replace(request, trial=trial, sandbox=sandbox, executable=agent.find(self._context))
        return _Side(who="user", agent=agent, request=request, info=AgentInfo(name=agent.name, model=trial.agent.model))

    def _begin(self) -> None:
        if not self.started:
            self.started = True
            self._announce()

    def _merged(self) -> SessionOutcome:
        """All sessions as one. Where the agent has not said a word, what is known is the user's."""
        if not self._outcomes:
            return _nothing(self._context, self._agent.info, self._limit, self._stopped)
        last = (self._answers or self._outcomes)[-1]
        return replace(
            last,
            end=self._end,
            by=self._by,
            limit_hit=self._limit,
            stopped=self._stopped,
            usage=self.usage(),
            info=self._agent.info,
            final_message=self._answers[-1].final_message if self._answers else "",
            replied=any(outcome.replied for outcome in self._answers),
            warnings=tuple(dict.fromkeys(warning for outcome in self._outcomes for warning in outcome.warnings)),
            unpriced=self._sofar.unpriced,
            at_most=self.at_most(),
            started_at=self._outcomes[0].started_at,
            duration=self.seconds,
        )


def _nothing(context: Context, info: AgentInfo, limit: LimitHit | None, stopped: str | None) -> SessionOutcome:
    """Of a dialog that was over before it began."""
    return SessionOutcome(
        end=SessionEnd(), exit=None, limit_hit=limit, usage=no_usage(), info=info, final_message="", replied=False, stderr_tail="",
        warnings=(), unpriced=None, at_most=None, started_at=stamp(context.clock.now()), duration=0.0, stopped=stopped,
    )  # fmt: skip
