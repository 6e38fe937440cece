"""One trial from a workspace to its record, stage by stage or in one go. Needs no pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Literal

from pytest_codeprobe.errors import CodeprobeError, Skipped, Stopped
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import DECIDED, Attempt, LimitHit, Phase, TrialResult, Usage
from pytest_codeprobe.model.sandbox import Change, CommandResult, Sandbox
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.text import Redactor
from pytest_codeprobe.trial.attempts import Attempts
from pytest_codeprobe.trial.commands import TaskCommands
from pytest_codeprobe.trial.criteria import Evidence, TrialCriteria
from pytest_codeprobe.trial.filing import counted, written
from pytest_codeprobe.trial.grade import Verdict
from pytest_codeprobe.trial.handle import SandboxHandle
from pytest_codeprobe.trial.interim import Interim
from pytest_codeprobe.trial.preserve import TrialLog
from pytest_codeprobe.trial.record import Facts, build_record, classify, phase_of_attempt
from pytest_codeprobe.trial.session import SessionOutcome
from pytest_codeprobe.trial.stages import Stages
from pytest_codeprobe.trial.store import AttemptStore

MakeSandbox = Callable[[Trial, Context], Sandbox]


class TrialRun:
    """One trial's life. A stage runs once; asked again it answers, or raises, the same.

    `number` is that of the first attempt (a rerun goes on counting), `earlier` the attempts before it. `deadline` bounds
    prepare and session together, in seconds. `overridden`: the sandbox fixture is the user's own. `passes`: what code of the
    user's raises to tell the caller something, such as pytest.skip(); anything else that it raises is the trial's error.
    """

    def __init__(
        self,
        trial: Trial,
        context: Context,
        make_sandbox: MakeSandbox,
        *,
        number: int = 1,
        earlier: Sequence[Attempt] = (),
        deadline: float | None = None,
        overridden: bool = False,
        passes: tuple[type[BaseException], ...] = (KeyboardInterrupt,),
    ) -> None:
        self.trial, self.context, self.overridden = trial, context, overridden
        self.handle = SandboxHandle(self)
        self.result: TrialResult | None = None
        self.verdict: Verdict | None = None
        self.changes: Sequence[Change] = ()
        self._make_sandbox, self._passes = make_sandbox, passes
        self._sandbox: Sandbox | None = None
        self._agent: Agent | None = None
        self._log: TrialLog | None = None
        self._stages = Stages(trial, context, passes, lambda: self._attempts.waited)
        self._began = context.clock.monotonic()
        self._started_at = stamp(context.clock.now())
        self._frozen = False
        self._forbidden: CodeprobeError | None = None  #: what the trial tried on the network
        self._commands = TaskCommands(trial, context, deadline, lambda: self.session_began)
        self._store = AttemptStore(context, trial)
        self._criteria = TrialCriteria(trial, context, self.agent, self._store.clean)
        interim = Interim(trial, context, make_sandbox, self._criteria, self._store)
        self._attempts = Attempts(trial, context, self.agent, self._may_start, self._store, number, earlier, deadline, interim)

    # ---- stages
    def prepare(self) -> SandboxHandle:
        """A sandbox with the workspace laid out and pre_run done."""

        def work() -> SandboxHandle:
            self._may_start()
            if self.context.proportions is not None and self.context.proportions.decided(self.trial):
                raise Skipped(DECIDED)
            self._criteria.read()
            if reason := self._criteria.pointless():
                raise Skipped(reason)
            self._attempts.reserve()
            self._lay_out()
            return self.handle

        return self._stages.once("prepare", work)

    def session(self) -> SessionOutcome | None:
        """The agent's work, with the one retry; None for an agent that starts nothing."""

        def work() -> SessionOutcome | None:
            self._may_start()
            assert self._log is not None
            outcome = self._attempts.one(self.current_sandbox(), self._log.logger)
            if outcome is not None and self._attempts.is_worth_another(outcome):
                self._attempts.wait_for_another(outcome, self.handle, self._log.logger)
                self.handle.renew()
                self._stages.phase = "session"
                outcome = self._attempts.one(self.current_sandbox(), self._log.logger)
            if outcome is not None:
                self._attempts.raise_for(outcome)
            return outcome

        return self._stages.once("session", work)

    def score(self) -> Verdict:
        """What the criteria make of what is there."""

        def work() -> Verdict:
            self._freeze()
            self._stages.phase = "grade"
            self.verdict = self._grade()
            if self.verdict.skipped:
                raise Skipped(self.verdict.skipped)
            return self.verdict

        return self._stages.once("grade", work)

    def whole(self, dry: Callable[[Trial], str] | None = None) -> TrialResult:
        """All stages, for a caller outside pytest. Raises only what `passes`. `dry`, in their place, says why it skips, or raises."""
        try:
            if dry is not None:
                self._stages.once("prepare", lambda: self._dry(dry))
            self.prepare()
            self.session()
            self.score()
        except self._passes:
            self._attempts.release()  # whoever is to finish it may be waiting for this very money
            raise
        except Exception as error:  # noqa: BLE001  # finish() makes the record of it
            return self.finish(error)
        return self.finish()

    def finish(
        self, error: BaseException | None = None, *, outcome: Literal["passed", "failed"] | None = None, reason: str | None = None
    ) -> TrialResult:
        """The one record, on disk before anybody else sees it. Idempotent, but an error that comes after the verdict beats it.

        `outcome` is pytest's, for a marked test or a strict xfail: it is the status then, and the grade stands in `verdict`;
        `reason` says why the two differ.
        """
        if self.result is not None and (error is None or self.result.status not in ("passed", "failed")) and outcome is None:
            return self.result
        first = self.result is None
        warnings: list[str] = []
        given, phase = error, self._stages.phase  # closing goes on to other phases, where an earlier error did not arise
        if first:
            error = self._close_stages(error, warnings)
            self._forbidden = self.context.network.end(self.trial)
        phase = phase if error is given else self._stages.phase
        if self._forbidden is not None:  # whatever else happened may be due to it
            error, phase = self._forbidden, phase_of_attempt(self._forbidden, phase)
        if error is None and outcome is None and self.verdict is None:
            error = CodeprobeError("VERIFIER_FAILED", "no verdict: the fixture codeprobe_score was overridden and never asked for one")
        ours = error is self._forbidden or self.raised(error)
        ending = classify(error, ours=ours, phase=phase if ours or first else "set-up")
        if ending.status is None:
            ending = replace(ending, reason=reason)
        self._attempts.close(ending.code, ending.reason, unfinished=first and self._sandbox is not None)
        self.result = counted(build_record(self._facts(warnings), ending, outcome), self.trial, self.context, self._facts)
        if self._sandbox is not None or self.result.status == "error":
            self._write(outcome)
        return self.result

    def raised(self, error: BaseException | None) -> bool:
        """Whether the exception comes from one of the trial's own stages, not from a fixture or a test of the user's."""
        return self._stages.raised(error)

    def _write(self, outcome: Literal["passed", "failed"] | None) -> None:
        assert self.result is not None
        self.result = written(self.result, self._store, self._facts, outcome=outcome)

    def delete(self) -> Sequence[str]:
        """Remove the private folder; what could not be removed."""
        return () if self._sandbox is None else self._sandbox.delete()

    def usage(self, *, own: bool = False) -> Usage:
        """Tokens and money of all attempts so far; `own`: without those before a rerun, or of an earlier run."""
        return self._attempts.usage(own=own)

    def frozen_changes(self) -> Sequence[Change]:
        """What the session changed; freezes the workspace if that has not happened yet."""
        self._freeze()
        return self.changes

    @property
    def attempts(self) -> tuple[Attempt, ...]:
        """All attempts so far, earlier ones included."""
        return tuple(self._attempts.done)

    @property
    def redactor(self) -> Redactor:
        """Knows the secrets of this trial."""
        return self._store.redactor

    @property
    def outcome(self) -> SessionOutcome | None:
        """The last session; None before it, and for an agent that starts nothing."""
        return self._attempts.outcome

    @property
    def transcript(self) -> Transcript | None:
        """What the last session said."""
        return self._attempts.transcript

    @property
    def session_began(self) -> bool:
        """Whether the agent may have touched the workspace."""
        return self._attempts.began

    @property
    def limit(self) -> LimitHit | None:
        """The limit that stopped the session, or the preparation."""
        return self._attempts.limit or self._commands.limit

    # ---- for the handle
    def current_sandbox(self) -> Sandbox:
        """The sandbox of the attempt that runs now."""
        assert self._sandbox is not None, "prepare() has not been called"
        return self._sandbox

    def command(self, command: str, *, timeout: float, extra: Mapping[str, str]) -> CommandResult:
        """A shell command in the workspace, for fixtures."""
        return self._commands.run(self.current_sandbox(), command, timeout, log=self._log.logger if self._log else None, extra=extra)

    def renew(self) -> None:
        """Keep the evidence of this attempt and lay out a fresh workspace."""
        self._keep_evidence()
        old = self.current_sandbox()
        self._attempts.next()
        try:
            self._lay_out()
        finally:
            if self._sandbox is not old:  # else there is no new one, and post_run still needs a workspace
                self._store.warnings.extend(f"{self.trial.node_id}: could not be deleted: {path}" for path in old.delete())

    # ---- prepare
    def _may_start(self) -> None:
        if reason := self.context.stops.forbids_start(self.trial.agent.type or ""):
            raise Stopped(reason)

    def agent(self) -> Agent:
        """The adapter of this trial."""
        if self._agent is None:
            self._agent = self.context.registry.agent(self.trial.agent.type or "")
        return self._agent

    def _dry(self, check: Callable[[Trial], str]) -> None:
        self._may_start()
        raise Skipped(check(self.trial))

    def _lay_out(self) -> None:
        self._stages.phase = "prepare"
        began = monotonic()
        sandbox = self._make_sandbox(self.trial, self.context)
        sandbox.prepare()
        self._sandbox = sandbox
        self._store.warnings.extend(w for w in getattr(sandbox, "unheld", ()) if w not in self._store.warnings)
        self._log = TrialLog(sandbox.logs / "trial.log")
        self._log.logger.info("attempt %d of %s in %s", self._attempts.number, self.trial.node_id, sandbox.driver)
        self._commands.lay_setup(sandbox)
        self._criteria.preflight(self._evidence(()))
        self._commands.pre_run(sandbox, began, self._attempts.prepare_time + self._attempts.session_time, self._log.logger)
        driver = self.context.registry.drivers.get(sandbox.driver)
        if driver is None or not driver.isolates:  # else whoever changes it has the right to
            self._criteria.before_session()
        self._attempts.prepare_time += monotonic() - began

    # ---- freeze and grade
    def _freeze(self) -> None:
        if self._frozen or self._sandbox is None or not self.session_began:
            return
        self._stages.phase = "freeze"
        self._frozen = True
        began = monotonic()
        self.changes = self._sandbox.changes()
        self._keep()
        self._stages.timings["freeze"] = round(monotonic() - began, 4)

    def _keep(self) -> None:
        self._store.freeze(self.current_sandbox())

    def _grade(self) -> Verdict:
        assert self._log is not None
        verdict = self._criteria.judge(self._evidence(self.changes), self._log.logger)
        if self.agent().name == "oracle":  # who tries a task with its own solution wants to hear it
            self._store.warnings.extend(self._criteria.exposed(self.changes))
        if self.limit is not None and self.trial.limits.on_limit == "fail":
            return Verdict(passed=False, score=verdict.score, criteria=verdict.criteria, skipped=verdict.skipped)
        return verdict

    def _evidence(self, changes: Sequence[Change]) -> Evidence:
        return Evidence(
            sandbox=self.current_sandbox(),
            changes=changes,
            outcome=self.outcome,
            transcript=self.transcript,
            cli_calls=self._attempts.cli_calls,
        )

    # ---- finish
    def _close_stages(self, error: BaseException | None, warnings: list[str]) -> BaseException | None:
        """Freeze, preserve, post_run; trouble in here is the trial's error unless there is one already."""
        if self._sandbox is None:
            return error
        steps: tuple[tuple[Phase, Callable[[], None]], ...] = (
            ("freeze", self._freeze),
            ("preserve", self._keep_evidence),
            ("preserve", self._post_run),
        )
        for phase, step in steps:
            try:
                step()
            except Stopped as stop:
                error = error or stop
            except Exception as trouble:  # noqa: BLE001  # the trial's error, or a warning beside it
                if error is None:
                    self._stages.failed(phase, trouble)
                    error = trouble
                else:
                    warnings.append(f"{self.trial.node_id}: {phase}: {trouble}")
        return error

    def _keep_evidence(self) -> None:
        if self._log is not None:
            self._log.close()
            self._log = None
        self._store.evidence(self.current_sandbox(), self._attempts.number)

    def _post_run(self) -> None:
        self._store.warnings.extend(self._commands.post_run(self.current_sandbox()))

    def _facts(self, warnings: Sequence[str] = ()) -> Facts:
        return Facts(
            trial=self.trial,
            context=self.context,
            attempts=self.attempts,
            usage=self.usage(),
            cost_usd=self._attempts.bill().cost_usd,
            dialog=self._attempts.dialog_result(),
            outcome=self.outcome,
            verdict=self.verdict,
            limit=self.limit,
            changes=self.changes,
            kept=self._store.kept,
            driver=self._sandbox.driver if self._sandbox else None,
            agent=self._agent,
            timings=dict(self._stages.timings),
            started_at=self._started_at,
            duration=self.context.clock.monotonic() - self._began - self._attempts.waited,
            began=self._sandbox is not None,
            redactor=self._store.redactor,
            warnings=(*self._store.warnings, *(self.outcome.warnings if self.outcome else ()), *warnings),
        )


def run(trial: Trial, context: Context, make_sandbox: MakeSandbox) -> TrialResult:
    """One trial, from nothing to its record; the private folder is gone afterwards."""
    life = TrialRun(trial, context, make_sandbox)
    try:
        return life.whole()
    finally:
        life.delete()
