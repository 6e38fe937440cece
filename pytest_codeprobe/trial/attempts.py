"""The attempts of one trial: run a session within the time that is left, and decide whether another one is due."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NoReturn

from pytest_codeprobe.agents.base.transcripts import MAX_BYTES
from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.agent import Agent, SessionCommand, SessionParser, SessionRequest
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.config import Simulation
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import FINAL_MESSAGE, Attempt, DialogResult, LimitHit, Usage, no_usage
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.trial.dialog import Dialog
from pytest_codeprobe.trial.drift import drift_check
from pytest_codeprobe.trial.environment import mock_folders
from pytest_codeprobe.trial.interim import Interim
from pytest_codeprobe.trial.recorder import recording
from pytest_codeprobe.trial.session import Session, SessionOutcome
from pytest_codeprobe.trial.spending import Spending, cost_at_most, usage_of
from pytest_codeprobe.trial.standins import make_executable

if TYPE_CHECKING:
    from pytest_codeprobe.trial.handle import SandboxHandle
    from pytest_codeprobe.trial.store import AttemptStore

RETRY_WAIT = 5.0  #: seconds before attempt 2 where the provider names none
MAX_RETRY_AFTER = 60.0
_LOOK = 0.25  #: seconds between two looks at the run's stop flags


class Attempts:
    """Counts and bounds them. `number` is that of the running one; `earlier` are those of tries before a rerun."""

    def __init__(
        self,
        trial: Trial,
        context: Context,
        agent: Callable[[], Agent],
        may_start: Callable[[], None],
        store: AttemptStore,
        number: int,
        earlier: Sequence[Attempt],
        deadline: float | None,
        interim: Interim,
    ) -> None:
        """`interim`: what looks at the criteria between the exchanges of a dialog."""
        self._interim = interim
        self._trial, self._context, self._agent, self._store, self._deadline = trial, context, agent, store, deadline
        self._may_start = may_start
        self._spending = Spending(trial, context, agent, may_start)
        self._first = number
        self.session_time = 0.0
        self.number = number
        self.done = list(earlier)
        self.prepare_time = 0.0  #: seconds, of all attempts
        self.began = False  #: the agent of the running attempt may have touched the workspace
        self.outcome: SessionOutcome | None = None
        self.transcript: Transcript | None = None
        self.cli_calls: bytes | None = None  #: what stand-ins of the last session were called with
        self.limit: LimitHit | None = None
        self._running: tuple[Session, SessionParser] | None = None  #: of the running attempt
        self._earlier_dialog: DialogResult | None = None
        self.dialog: Dialog | None = None  #: the same, where there is a simulated user

    def take_over(
        self,
        outcome: SessionOutcome | None,
        transcript: Transcript | None,
        limit: LimitHit | None,
        cli_calls: bytes | None,
        dialog: DialogResult | None,
    ) -> None:
        """The session is an earlier one, whose attempt is noted already."""
        self._earlier_dialog = dialog
        self.outcome, self.transcript, self.limit, self.began = outcome, transcript, limit, True
        self.cli_calls = cli_calls

    def next(self) -> None:
        """Another attempt, in a fresh sandbox."""
        self.number += 1
        self.began = False
        self._running = self.cli_calls = self.dialog = None

    def reserve(self) -> None:
        """Have money kept back for the attempt that comes; see Spending."""
        self._spending.reserve(self.number)

    @property
    def waited(self) -> float:
        """Seconds in which the trial waited for money: they are not its own time."""
        return self._spending.waited

    def usage(self, *, own: bool = False) -> Usage:
        """Tokens and money of all attempts so far; `own`: without the earlier ones."""
        return _sum([attempt.usage for attempt in self.done if not own or attempt.number >= self._first])

    def bill(self) -> Usage:
        """The same with what a simulated user has used."""
        return _sum([attempt.bill for attempt in self.done])

    def dialog_result(self) -> DialogResult | None:
        """How the dialog of the last attempt went, with what the user has used in all of them."""
        if self.dialog is None:
            return self._earlier_dialog
        used = [attempt.user_usage for attempt in self.done if attempt.user_usage is not None]
        return self.dialog.result().model_copy(update={"usage": _sum(used)})

    def one(self, sandbox: Sandbox, log: logging.Logger) -> SessionOutcome | None:
        """One session; None for an agent that starts nothing. Stopped where the run ended it."""
        agent, context = self._agent(), self._context
        self._make_executable(sandbox)
        sandbox.snapshot()
        self.began = True
        driver = context.registry.drivers.get(sandbox.driver)
        request = SessionRequest(
            trial=self._trial,
            context=context,
            prompt=self._trial.prompt or "",
            sandbox=sandbox,
            isolates=driver is not None and driver.isolates,
            executable=agent.find(context),
            redact=self._store.clean,  # knows the command's own secrets, too, once there are any
        )
        simulation = self._trial.simulation if agent.is_session else None
        command = agent.command(request) if simulation is None else None
        if command is None and simulation is None:
            self._announce()
            self._note(None)
            return None
        self.reserve()  # where nobody asked for prepare()
        with recording(self._trial, sandbox, context) as calls:
            if simulation is not None:
                outcome = self._dialog(simulation, request, log)
            else:
                assert command is not None
                outcome = self._session(command, request, log)
        self.outcome = outcome
        self.cli_calls = calls()
        if self.cli_calls is not None:
            self._store.calls(sandbox, self.cli_calls)
        context.network.settle(self._trial, "session")
        self.session_time += outcome.duration
        self.limit = outcome.limit_hit
        self._note(outcome)  # first of all: what it cost is known, whatever comes
        self._settle(self.done[-1].bill, outcome.unpriced, outcome.at_most)
        overflowed = self._take_transcript()
        if self.transcript is not None:
            size = self._store.transcript(sandbox, self.transcript)
            context.events.emit("transcript", node_id=self._trial.node_id, attempt=self.number, bytes=size)
        if len(outcome.final_message) > FINAL_MESSAGE:
            self._store.answer(sandbox, outcome.final_message)
        if outcome.stopped:
            raise Stopped(outcome.stopped)
        if overflowed and outcome.end.code is None:
            self._raise_overflow()
        return self.outcome

    def _session(self, command: SessionCommand, request: SessionRequest, log: logging.Logger) -> SessionOutcome:
        """The agent's work, in one go."""
        agent = self._agent()
        self._store.add_secrets(command.secrets)
        drift = drift_check(self._context.snapshot, agent, self._trial)
        session = Session(agent, request, self._deadlines(), log, self._spending, drift=drift)
        parser = agent.parser(request)
        self._running = session, parser
        return session.run(command, parser, self._announce)

    def _dialog(self, simulation: Simulation, request: SessionRequest, log: logging.Logger) -> SessionOutcome:
        """The same in exchanges with a simulated user."""
        self._deadlines()
        with self._interim.beside(request.sandbox, log) as check:
            self.dialog = Dialog(
                simulation, self._agent(), request, log=log, spending=self._spending, store=self._store,
                deadlines=self._time_left, announce=self._announce, check=check,
            )  # fmt: skip
            return self.dialog.run()

    def _take_transcript(self) -> bool:
        """Take what the session said, if the run wants it; whether there was too much of it."""
        assert self.outcome is not None
        if self.dialog is not None:
            self.transcript = self.dialog.transcript()
            return self.dialog.overflowed
        assert self._running is not None
        parser = self._running[1]
        if self._context.options.trace_overflow != "off":
            self.transcript = parser.transcript()
            warnings = tuple(dict.fromkeys((*self.outcome.warnings, *parser.warnings)))  # it may have been cut only now
            self.outcome = replace(self.outcome, warnings=warnings)
        return parser.overflowed

    def _make_executable(self, sandbox: Sandbox) -> None:
        for folder in mock_folders(self._trial, sandbox):
            try:
                make_executable(folder)
            except OSError as error:
                raise CodeprobeError("SANDBOX_FAILED", f"sandbox.mock_path_dirs: {folder}: {error.strerror}") from error

    def _raise_overflow(self) -> NoReturn:
        limit = self._context.options.trace_max_bytes or MAX_BYTES
        error = CodeprobeError(
            "TRACE_OVERFLOW_FIRED", f"the transcript is over its limit of {limit} bytes", detail={"limit": limit, "attempt": self.number}
        )
        self.done[-1] = self.done[-1].model_copy(update={"code": error.code, "reason": error.message})
        raise error

    def _announce(self) -> None:
        self._context.events.emit("trial_started", node_id=self._trial.node_id, attempt=self.number)

    def _time_left(self, used: float = 0.0) -> dict[str, tuple[float, float]]:
        """Name of a limit -> (seconds left, its value). `used`: seconds that this attempt has taken, beside preparing."""
        limits, taken = self._trial.limits, self.session_time + used
        found = {"task_timeout": (limits.task_timeout - taken, limits.task_timeout)}
        if limits.turn_timeout is not None:
            found["turn_timeout"] = (limits.turn_timeout, limits.turn_timeout)
        if self._deadline is not None:
            found["timeout"] = (self._deadline - self.prepare_time - taken, self._deadline)
        return found

    def _deadlines(self) -> dict[str, tuple[float, float]]:
        """The same. SANDBOX_FAILED where preparing has used up all of one."""
        found = self._time_left()
        for name, (left, value) in found.items():
            if left <= 0:
                self.limit = LimitHit(name=name, value=value)
                raise CodeprobeError(
                    "SANDBOX_FAILED", f"no time is left for the session: {name} = {value:g} s", remediation="Raise the limit."
                )
        return found

    def _note(self, outcome: SessionOutcome | None) -> None:
        now = stamp(self._context.clock.now())
        usage = outcome.usage if outcome is not None and self._agent().is_session else no_usage()
        ended = outcome.exit if outcome is not None else None
        self.done.append(
            Attempt(
                number=self.number,
                cause=self._cause(),
                code=outcome.end.code if outcome is not None else None,
                reason=outcome.end.reason if outcome is not None else None,
                started_at=outcome.started_at if outcome is not None else now,
                duration_seconds=round(outcome.duration, 3) if outcome is not None else 0.0,
                exit_status=ended.status if ended is not None else None,
                exit_cause=ended.cause if ended is not None else None,
                usage=usage,
                user_usage=self.dialog.user_usage() if self.dialog is not None else None,
            )
        )

    def _note_unfinished(self, code: str | None, reason: str | None) -> None:
        """The running attempt is over without an outcome: it left evidence, which a rerun must not overwrite, and perhaps a bill."""
        if any(a.number == self.number for a in self.done):
            return
        usage = self.dialog.usage() if self.dialog is not None else no_usage()
        if self._running is not None and self._running[0].started and self._agent().is_session:
            usage = usage_of(self._running[1], self._context)
        self.done.append(
            Attempt(
                number=self.number,
                cause=self._cause(),
                code=code,
                reason=reason,
                started_at=stamp(self._context.clock.now()),
                duration_seconds=0.0,
                usage=usage,
                user_usage=self.dialog.user_usage() if self.dialog is not None else None,
            )
        )

    def close(self, code: str | None, reason: str | None, *, unfinished: bool) -> None:
        """The trial is over: nothing is kept back for it any more. `unfinished`: an attempt may have begun that has not ended."""
        if unfinished:
            self._note_unfinished(code, reason)
        usage = next((a.bill for a in self.done if a.number == self._spending.attempt), no_usage())
        at_most = cost_at_most(self._running[1], usage, self._context) if self._running is not None else None
        if self.dialog is not None:
            at_most = self.dialog.at_most()
        self._settle(usage, at_most=at_most)

    def release(self) -> None:
        """Keep nothing back any more for an attempt that has not begun, and perhaps never will: others may wait for it."""
        if not self.began:
            self._settle(no_usage())

    def _settle(self, usage: Usage, unpriced: str | None = None, at_most: float | None = None) -> None:
        try:
            self._spending.settle(usage, unpriced, at_most=at_most)
        except CodeprobeError as trouble:  # of the ledger: what the session did is graded all the same
            warning = f"{self._trial.node_id}: {trouble}"
            if warning not in self._store.warnings:
                self._store.warnings.append(warning)

    def _cause(self) -> Literal["first", "retry", "rerun"]:
        if self.number != self._first:
            return "retry"
        return "rerun" if self._first > 1 else "first"

    def is_worth_another(self, outcome: SessionOutcome) -> bool:
        """Once, after a provider fault or a crash before the first model reply; nothing else is tried again."""
        if self.number != self._first or outcome.limit_hit is not None or self._context.network.has_attempts(self._trial):
            return False
        crashed = outcome.end.code == "AGENT_CRASHED" and not outcome.replied and self._agent().is_session
        return outcome.end.code == "LLM_UNAVAILABLE" or crashed

    def wait_for_another(self, outcome: SessionOutcome, handle: SandboxHandle, log: logging.Logger) -> None:
        """Wait as the provider asks, then say that the trial is tried again; the error where it can't be."""
        code, reason = outcome.end.code or "", outcome.end.reason or ""
        if not handle.can_renew:
            raise CodeprobeError(
                code,
                f"{reason}; not tried again, since the workspace was prepared by hand",
                remediation="Register the preparation with codeprobe_sandbox.on_prepare(callback), so that a second attempt can repeat it.",
            )
        wait = RETRY_WAIT if outcome.end.retry_after is None else min(outcome.end.retry_after, MAX_RETRY_AFTER)
        log.info("another attempt in %g s: %s %s", wait, code, reason)
        clock = self._context.clock
        until = clock.monotonic() + wait
        while (left := until - clock.monotonic()) > 0:
            self._may_start()
            clock.sleep(min(left, _LOOK))
        self._spending.reserve(self.number + 1)
        told = self._store.redactor.text(reason)  # a line of stderr may quote the key that was refused
        self._context.events.emit("trial_retried", node_id=self._trial.node_id, attempt=self.number + 1, cause=code, reason=told)

    def raise_for(self, outcome: SessionOutcome) -> None:
        """The session's own error, as an exception; a refused credential stops all other trials of the agent."""
        if outcome.end.code is None:
            return
        if outcome.end.code == "AUTH_FAILED" and not self._context.network.has_attempts(self._trial):  # who knows who said 403
            with contextlib.suppress(OSError):  # a full disk: the controller tells the others, by the record
                self._context.stops.raise_flag("auth", outcome.by or self._agent().name)
        end = outcome.end
        raise CodeprobeError(outcome.end.code, end.reason or outcome.end.code, remediation=end.remediation, detail=end.detail)


def _sum(usages: Sequence[Usage]) -> Usage:
    """Nothing is known of none."""
    total: Usage | None = None
    for usage in usages:
        total = usage if total is None else total.plus(usage)
    return total if total is not None else Usage()
