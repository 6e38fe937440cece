"""One trial from a workspace to its record, stage by stage or in one go. Needs no pytest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from time import monotonic
from typing import Literal, TypeVar

from pytest_codeprobe.errors import CodeprobeError, Skipped, Stopped
from pytest_codeprobe.model.agent import Agent
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.model.result import Attempt, LimitHit, Phase, TrialResult, Usage
from pytest_codeprobe.model.sandbox import Change, CommandResult, Sandbox
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.text import Redactor
from pytest_codeprobe.trial.attempts import Attempts
from pytest_codeprobe.trial.commands import TaskCommands
from pytest_codeprobe.trial.exposed import exposed
from pytest_codeprobe.trial.grade import TrialGrading, Verdict, grading_timeout, judge, pointless
from pytest_codeprobe.trial.graders import GradersPlace
from pytest_codeprobe.trial.handle import SandboxHandle
from pytest_codeprobe.trial.interim import Interim, Said
from pytest_codeprobe.trial.preserve import TrialLog
from pytest_codeprobe.trial.protect import put_back
from pytest_codeprobe.trial.record import Facts, as_ours, build_record, classify, phase_of_attempt
from pytest_codeprobe.trial.session import SessionOutcome
from pytest_codeprobe.trial.store import AttemptStore

MakeSandbox = Callable[[Trial, Context], Sandbox]
T = TypeVar("T")


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
        self._stages: dict[str, tuple[object, BaseException | None]] = {}
        self._phase: Phase = "prepare"
        self._timings: dict[str, float] = {}
        self._began = context.clock.monotonic()
        self._started_at = stamp(context.clock.now())
        self._frozen = False
        self._forbidden: CodeprobeError | None = None  #: what the trial tried on the network
        self._commands = TaskCommands(trial, context, deadline, lambda: self.session_began)
        self._store = AttemptStore(context, trial)
        interim = Interim(trial, context, make_sandbox, self._interim, self._store)
        self._attempts = Attempts(trial, context, self.agent, self._may_start, self._store, number, earlier, deadline, interim)
        self._criteria: tuple[Criterion, ...] = ()

    # ---- stages
    def prepare(self) -> SandboxHandle:
        """A sandbox with the workspace laid out and pre_run done."""

        def work() -> SandboxHandle:
            self._may_start()
            if self.context.proportions is not None and self.context.proportions.decided(self.trial):
                raise Skipped("decided")
            self._criteria = self._read_criteria()
            if reason := pointless(self.agent(), self.trial, self._criteria):
                raise Skipped(reason)
            self._attempts.reserve()
            self._lay_out()
            return self.handle

        return self._once("prepare", work)

    def session(self) -> SessionOutcome | None:
        """The agent's work, with the one retry; None for an agent that starts nothing."""

        def work() -> SessionOutcome | None:
            self._may_start()
            assert self._log is not None
            outcome = self._attempts.one(self.current_sandbox(), self._log.logger)
            if outcome is not None and self._attempts.is_worth_another(outcome):
                self._attempts.wait_for_another(outcome, self.handle, self._log.logger)
                self.handle.renew()
                self._phase = "session"
                outcome = self._attempts.one(self.current_sandbox(), self._log.logger)
            if outcome is not None:
                self._attempts.raise_for(outcome)
            return outcome

        return self._once("session", work)

    def score(self) -> Verdict:
        """What the criteria make of what is there."""

        def work() -> Verdict:
            self._freeze()
            self._phase = "grade"
            self.verdict = self._grade()
            if self.verdict.skipped:
                raise Skipped(self.verdict.skipped)
            return self.verdict

        return self._once("grade", work)

    def whole(self, dry: Callable[[Trial], str] | None = None) -> TrialResult:
        """All stages, for a caller outside pytest. Raises only what `passes`. `dry`, in their place, says why it skips, or raises."""
        try:
            if dry is not None:
                self._once("prepare", lambda: self._dry(dry))
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
        given, phase = error, self._phase  # closing goes on to other phases, where an earlier error did not arise
        if first:
            error = self._close_stages(error, warnings)
            self._forbidden = self.context.network.end(self.trial)
        phase = phase if error is given else self._phase
        if self._forbidden is not None:  # whatever else happened may be due to it
            error, phase = self._forbidden, phase_of_attempt(self._forbidden, phase)
        if error is None and outcome is None and self.verdict is None:
            error = CodeprobeError("VERIFIER_FAILED", "no verdict: the fixture codeprobe_score was overridden and never asked for one")
        ours = error is self._forbidden or self.raised(error)
        ending = classify(error, ours=ours, phase=phase if ours or first else "set-up")
        if ending.status is None:
            ending = replace(ending, reason=reason)
        self._attempts.close(ending.code, ending.reason, unfinished=first and self._sandbox is not None)
        self.result = self._counted(build_record(self._facts(warnings), ending, outcome))
        if self._sandbox is not None or self.result.status == "error":
            self._write(outcome)
        return self.result

    def _counted(self, result: TrialResult) -> TrialResult:
        """The verdict among those of its repeats."""
        if self.context.proportions is None:
            return result
        if result.status not in ("passed", "failed"):
            self.context.proportions.give_back(self.trial)
            return result
        try:
            return result.model_copy(update={"miss": self.context.proportions.take(self.trial, result.status)})
        except CodeprobeError as trouble:
            return build_record(self._facts([]), classify(trouble, ours=True, phase="preserve"), None)

    def raised(self, error: BaseException | None) -> bool:
        """Whether the exception comes from one of the trial's own stages, not from a fixture or a test of the user's."""
        return error is not None and any(error is raised for _, raised in self._stages.values())

    def _write(self, outcome: Literal["passed", "failed"] | None) -> None:
        """result.json. Where it can't be written the record says so, and lives on in the report alone."""
        assert self.result is not None
        try:
            self._store.write(self.result)
        except CodeprobeError as trouble:
            # no verdict is lost, or one error is enough; a marked test's report has gone its way
            if self.result.status not in ("passed", "failed") or outcome is not None:
                self.result = self.result.model_copy(update={"warnings": (*self.result.warnings, str(trouble))})
            else:
                self.result = build_record(self._facts([]), classify(trouble, ours=True, phase="preserve"), None)

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
    def _once(self, stage: str, work: Callable[[], T]) -> T:
        if stage not in self._stages:
            if stage != "grade":
                self._phase = "prepare" if stage == "prepare" else "session"
            began, waited = monotonic(), self._attempts.waited
            try:
                with self.context.network.acting(self.trial, "harness"):
                    self._stages[stage] = (work(), None)
            except BaseException as raised:  # noqa: BLE001  # raised again below, and whenever the stage is asked again
                self._stages[stage] = (None, raised if isinstance(raised, (Exception, *self._passes)) else as_ours(raised))
            self._timings[stage] = round(monotonic() - began - (self._attempts.waited - waited), 4)
        value, error = self._stages[stage]
        if error is not None:
            raise error
        return value  # type: ignore[return-value]  # stored by the same stage

    def _read_criteria(self) -> tuple[Criterion, ...]:
        return tuple(self.context.registry.criteria[c["type"]].model_validate(c) for c in self.trial.criteria)

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
        self._phase = "prepare"
        began = monotonic()
        sandbox = self._make_sandbox(self.trial, self.context)
        sandbox.prepare()
        self._sandbox = sandbox
        self._log = TrialLog(sandbox.logs / "trial.log")
        self._log.logger.info("attempt %d of %s in %s", self._attempts.number, self.trial.node_id, sandbox.driver)
        self._preflight()
        self._commands.pre_run(sandbox, began, self._attempts.prepare_time + self._attempts.session_time, self._log.logger)
        self._attempts.prepare_time += monotonic() - began

    def _preflight(self) -> None:
        wanted = [c for c in self._criteria if c.enabled]
        grading = self._grading((), timeout=60.0)
        for criterion in wanted:
            criterion.preflight(grading)

    # ---- freeze and grade
    def _freeze(self) -> None:
        if self._frozen or self._sandbox is None or not self.session_began:
            return
        self._phase = "freeze"
        self._frozen = True
        began = monotonic()
        self.changes = self._sandbox.changes()
        self._keep()
        self._timings["freeze"] = round(monotonic() - began, 4)

    def _keep(self) -> None:
        self._store.freeze(self.current_sandbox())

    def _grade(self) -> Verdict:
        sandbox = self.current_sandbox()
        assert self._log is not None
        if sandbox.workspace.is_symlink() or not sandbox.workspace.is_dir():
            sandbox.workspace.unlink(missing_ok=True)
            sandbox.workspace.mkdir()  # what the agent put in its place is nothing that it made here
        put_back(sandbox, self.trial.sandbox.protected)
        grading = self._grading(self.changes, timeout=grading_timeout(self.trial, self._criteria))
        has_session = self.agent().is_session
        verdict = judge(self._criteria, grading, has_session=has_session, log=self._log.logger)
        if self.agent().name == "oracle":  # who tries a task with its own solution wants to hear it
            self._store.warnings.extend(exposed(self.trial.task_id, self._criteria, self.trial.sandbox.protected, self.changes))
        if self.limit is not None and self.trial.limits.on_limit == "fail":
            return Verdict(passed=False, score=verdict.score, criteria=verdict.criteria, skipped=verdict.skipped)
        return verdict

    def _interim(self, copy: Sandbox, changes: Sequence[Change], said: Said) -> Verdict:
        """Between the exchanges of a dialog: what the criteria make of a copy."""
        assert self._log is not None
        put_back(copy, self.trial.sandbox.protected)
        grading = self._grading(changes, timeout=grading_timeout(self.trial, self._criteria), where=(copy, *said))
        return judge(self._criteria, grading, has_session=True, log=self._log.logger)

    def _grading(self, changes: Sequence[Change], *, timeout: float, where: tuple[Sandbox, *Said] | None = None) -> TrialGrading:
        """`where`: another place than the attempt's own sandbox, and another session."""
        sandbox, outcome, transcript = where or (self.current_sandbox(), self.outcome, self.transcript)
        outcome = outcome if self.agent().is_session else None
        message = outcome.final_message if outcome else None
        return TrialGrading(
            trial=self.trial,
            context=self.context,
            sandbox=sandbox,
            place=GradersPlace(self.trial, self.context, sandbox, message, transcript),
            outcome=outcome,
            transcript=transcript if outcome else None,
            changes=changes,
            timeout=timeout,
            redact=self._store.clean,
            cli_calls=self._attempts.cli_calls,
        )

    # ---- finish
    def _close_stages(self, error: BaseException | None, warnings: list[str]) -> BaseException | None:
        """Freeze, preserve, post_run; trouble in here is the trial's error unless there is one already."""
        if self._sandbox is None:
            return error
        for phase, step in (("freeze", self._freeze), ("preserve", self._keep_evidence), ("preserve", self._post_run)):
            try:
                step()
            except Stopped as stop:
                error = error or stop
            except Exception as trouble:  # noqa: BLE001  # the trial's error, or a warning beside it
                if error is None:
                    self._phase = phase  # type: ignore[assignment]  # two words of Phase
                    self._stages[f"finish {phase}"] = (None, trouble)
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

    def _facts(self, warnings: Sequence[str]) -> Facts:
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
            timings=dict(self._timings),
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
