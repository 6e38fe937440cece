"""Where a trial's evidence goes: its folder of the run dir, through the redactor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import TrialResult, result_text
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.keeping import carry
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.text import MIN_SECRET, Redactor, write_whole
from pytest_codeprobe.trial.environment import short_secrets, trial_secrets
from pytest_codeprobe.trial.preserve import copy_log, fresh, preserve_mode, scrub_tree

CALLS = "calls.jsonl"
_LOGS = ("agent.stdout", "agent.stderr", "trial.log", "transcript.json", "answer.txt", CALLS)


class AttemptStore:
    """Writes a trial's folder. `kept` and `warnings` are filled as it goes."""

    def __init__(self, context: Context, trial: Trial) -> None:
        self._trial = trial
        self._folder = self.folder = context.run_dir / "trials" / trial.folder
        self._mode = preserve_mode(context.options.preserve)
        self.redactor = context.redactor
        self.add_secrets(trial_secrets(trial, context))
        self.also: list[str] = []  #: names of further logs of the running attempt
        self.kept: Literal["whole", "partial", "none"] = "none"
        self.warnings = [
            f"the value of {name} is shorter than {MIN_SECRET} characters and is not redacted" for name in short_secrets(trial, context)
        ]

    def add_secrets(self, values: frozenset[str]) -> None:
        """Further values that must not leave the trial."""
        if not values <= set(self.redactor.secrets):
            self.redactor = Redactor({*self.redactor.secrets, *values})

    def clean(self, text: str) -> str:
        """A text without the secrets that are known by now."""
        return self.redactor.text(text)

    def transcript(self, sandbox: Sandbox, transcript: Transcript) -> int:
        """Lay transcript.json among the raw logs; its size in bytes."""
        content = (transcript.model_dump_json(exclude_none=True) + "\n").encode()

        def work() -> None:
            write_whole(fresh(sandbox.logs / "transcript.json"), content)  # makes no folder: one that is gone is an error

        self._guard(work)
        return len(content)

    def calls(self, sandbox: Sandbox, content: bytes) -> None:
        """Lay the log of recorded programs among the raw logs."""
        self._guard(lambda: write_whole(fresh(sandbox.logs / CALLS), content))

    def freeze(self, sandbox: Sandbox) -> None:
        """The diff, and what is kept of the workspace, before any grader touches it."""

        def work() -> None:
            self._folder.mkdir(parents=True, exist_ok=True)
            # a kill must not leave a secret in the run dir: with secrets about, only what is clean gets there
            folder = sandbox.logs if self.redactor else self._folder
            sandbox.write_diff(fresh(folder / "diff.patch"))
            if self.redactor:
                copy_log(f"{folder}/diff.patch", f"{self._folder}/diff.patch", self.redactor)
            if self._mode != "none":
                self._keep(sandbox)

        self._guard(work)

    def _keep(self, sandbox: Sandbox) -> None:
        target = self._folder / "artifacts"
        remove_tree(target)
        # with secrets about, it is cleaned before it leaves the private folder: kill -9 must not leave one in the run dir
        place = fresh(sandbox.root / "kept") if self.redactor else target
        try:
            self._keep_in(sandbox, place)
            if place != target:
                if removed := scrub_tree(place, self.redactor):
                    self.kept = "partial"
                    self.warnings.append(f"{self._trial.node_id}: {removed} kept files held a secret and were replaced by a mark")
                carry(place, target)
        except BaseException:
            self.kept = "none"
            remove_tree(target)  # half a tree is of no use, and the record needs the room on a full disk
            raise

    def _keep_in(self, sandbox: Sandbox, place: Path) -> None:
        ignore = self._trial.sandbox.ignore_patterns
        if self._mode == "direct" and getattr(sandbox, "renames", True):
            copy = fresh(sandbox.root / "graded")
            sandbox.keep(copy, ())
            self.kept = sandbox.move(place, ignore)
            copy.rename(sandbox.workspace)
        else:
            self.kept = sandbox.keep(place, ignore)

    def evidence(self, sandbox: Sandbox, number: int) -> None:
        """The logs of one attempt."""

        def work() -> None:
            place = self._folder / f"attempt-{number}"
            for name in (*_LOGS, *self.also):
                if not copy_log(f"{sandbox.logs}/{name}", f"{place}/{name}", self.redactor):
                    self.warnings.append(f"{self._trial.node_id}: {name} is not kept: the session put something else in its place")

        self._guard(work)
        self.also.clear()

    def answer(self, sandbox: Sandbox, message: str) -> None:
        """Lay answer.txt among the raw logs: the record holds no more than the beginning of a long answer."""
        self._guard(lambda: write_whole(fresh(sandbox.logs / "answer.txt"), message.encode("utf-8", "replace")))

    def take_attempts(self, folder: Path, numbers: Sequence[int]) -> None:
        """Copy the logs of attempts from the trial's folder in another run."""

        def work() -> None:
            for number in numbers:
                parts = [path.name for path in (folder / f"attempt-{number}").glob("*-[0-9]*.std*")]  # of exchanges
                for name in (*_LOGS, *parts):
                    copy_log(f"{folder}/attempt-{number}/{name}", f"{self._folder}/attempt-{number}/{name}", self.redactor)

        self._guard(work)

    def write(self, result: TrialResult) -> None:
        """result.json."""

        def work() -> None:
            target = self._folder / "result.json"
            try:
                write_whole(target, result_text(result))
            except FileNotFoundError:  # nothing of the trial is here yet
                self._folder.mkdir(parents=True, exist_ok=True)
                write_whole(target, result_text(result))

        self._guard(work)

    def _guard(self, work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            where = error.filename or self._folder
            message = f"{where}: {error.strerror or error}"
            raise CodeprobeError("SANDBOX_FAILED", message, remediation="Check the disk and its permissions.") from error
