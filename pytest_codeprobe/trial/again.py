"""Trials whose session is an earlier one: told again as they were, or graded again from what was kept of them."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import SessionEnd
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import AgentInfo, Fingerprint, TrialResult
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.trees import copy_tree, empty_folder
from pytest_codeprobe.trial.handle import SandboxHandle
from pytest_codeprobe.trial.preserve import copy_log
from pytest_codeprobe.trial.run import MakeSandbox, TrialRun
from pytest_codeprobe.trial.session import SessionOutcome
from pytest_codeprobe.trial.store import CALLS

#: what a record tells of the session alone
_OF_SESSION = ("agent", "limit_hit", "dialog", "final_message", "stderr_tail", "changed_files", "changed_total")


class KeptTrial(TrialRun):
    """Its earlier record stands. No stage runs."""

    def __init__(self, trial: Trial, context: Context, make_sandbox: MakeSandbox, record: TrialResult) -> None:
        super().__init__(trial, context, make_sandbox, earlier=record.attempts)
        # of its gate, which may be another one by now, or none, with places of its own
        miss = context.proportions.miss_of(trial) if context.proportions is not None else None
        self.result = record.model_copy(update={"cached": True, "node_id": trial.node_id, "miss": miss})

    def finish(self, *_: Any, **__: Any) -> TrialResult:
        """The record."""
        assert self.result is not None
        return self.result

    def whole(self, *_: Any, **__: Any) -> TrialResult:
        """The record."""
        return self.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """What is left of a session that is over."""

    record: TrialResult
    folder: Path  #: of the trial, in its run dir
    ours: bool  #: it is the folder that this trial writes to

    @property
    def workspace(self) -> Path:
        """What the session left."""
        return self.folder / "artifacts"

    def transcript(self) -> Transcript | None:
        """Of the last attempt; None where none was kept."""
        with contextlib.suppress(OSError, ValueError):
            return Transcript.model_validate_json((self._attempt() / "transcript.json").read_bytes())
        return None

    def cli_calls(self) -> bytes | None:
        """What stand-ins of the last attempt were called with; None where there were none."""
        with contextlib.suppress(OSError):
            return (self._attempt() / CALLS).read_bytes()
        return None

    def final_message(self) -> str:
        """Of the last attempt, whole."""
        with contextlib.suppress(OSError, UnicodeDecodeError):
            return (self._attempt() / "answer.txt").read_text(encoding="utf-8")
        return self.record.final_message

    def _attempt(self) -> Path:
        return self.folder / f"attempt-{self.record.attempts[-1].number}"


class Regrading(TrialRun):
    """Criteria again, on the kept workspace, in a sandbox that is laid out and prepared as it was for the session."""

    def __init__(self, trial: Trial, context: Context, make_sandbox: MakeSandbox, past: Past, **more: Any) -> None:
        number = past.record.attempts[-1].number
        super().__init__(trial, context, make_sandbox, number=number, earlier=past.record.attempts, **more)
        self._past = past

    def prepare(self) -> SandboxHandle:
        """The workspace as the session left it. SANDBOX_FAILED where that is not there."""

        def work() -> SandboxHandle:
            self._may_start()
            self._criteria.read()
            self._lay_out()
            sandbox = self.current_sandbox()
            sandbox.snapshot()
            try:
                if left := empty_folder(sandbox.workspace):
                    raise CodeprobeError("SANDBOX_FAILED", f"{left[0]} could not be removed")
                copy_tree(str(self._past.workspace), str(sandbox.workspace), small=False)
            except OSError as error:
                raise CodeprobeError("SANDBOX_FAILED", f"{self._past.workspace}: {error.strerror}") from error
            past, record = self._past, self._past.record
            self._attempts.take_over(self._outcome(), past.transcript(), record.limit_hit, past.cli_calls(), record.dialog)
            return self.handle

        return self._stages.once("prepare", work)

    def session(self) -> SessionOutcome | None:
        """The earlier one."""
        self.prepare()
        return self.outcome

    def finish(self, *given: Any, **more: Any) -> TrialResult:
        """As ever; the record says that the session is an earlier one."""
        self.result = found = self._regraded(super().finish(*given, **more))
        return found

    def _write(self, outcome: Literal["passed", "failed"] | None) -> None:
        """The record of the session stands where its grading was stopped or skipped."""
        assert self.result is not None
        self.result = self._regraded(self.result)
        if not (self._past.ours and self.result.status in ("not_run", "skipped")):
            super()._write(outcome)

    def _regraded(self, result: TrialResult) -> TrialResult:
        """The record with what its session was asked, which may be something else than this trial is.

        Where grading came to nothing, it has all that is known of the session, which can be graded another time and need not be paid again.
        """
        if result.regraded:
            return result
        past = self._past.record
        session = {name: getattr(past, name) for name in _OF_SESSION} if result.status == "error" else {}
        if result.status == "error" and self._past.ours:
            session["kept"] = past.kept
        fingerprint = Fingerprint(session=past.fingerprint.session, grade=result.fingerprint.grade)
        return result.model_copy(update={**session, "fingerprint": fingerprint, "regraded": True})

    def _outcome(self) -> SessionOutcome | None:
        record = self._past.record
        if not self.agent().is_session:
            return None
        return SessionOutcome(
            end=SessionEnd(),
            exit=None,
            limit_hit=record.limit_hit,
            usage=record.attempts[-1].usage,
            info=record.agent or AgentInfo(name=self.agent().name),
            final_message=self._past.final_message(),
            replied=True,
            stderr_tail=record.stderr_tail,
            warnings=(),
            unpriced=None,
            at_most=None,
            started_at=record.started_at,
            duration=record.attempts[-1].duration_seconds,
        )

    def _keep(self) -> None:
        """In its own folder all is kept already; else a copy goes along, to be graded once more."""
        kept: Literal["whole", "partial", "none"] = self._past.record.kept
        if self._past.ours:
            self._store.kept = kept
        else:
            self._store.freeze(self.current_sandbox())
            self._store.take_attempts(self._past.folder, [attempt.number for attempt in self._past.record.attempts])

    def _keep_evidence(self) -> None:
        """The log of the grading alone: those of the session stay as they are."""
        if self._log is not None:
            self._log.close()
            self._log = None
        copy_log(f"{self.current_sandbox().logs}/trial.log", f"{self._store.folder}/regrade.log", self._store.redactor)
