"""The criteria between the exchanges of a dialog: on a copy of the workspace, in a sandbox of its own that is deleted at the end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.trees import copy_tree, empty_folder
from pytest_codeprobe.trial import setup
from pytest_codeprobe.trial.criteria import Evidence, TrialCriteria
from pytest_codeprobe.trial.grade import Verdict
from pytest_codeprobe.trial.session import SessionOutcome
from pytest_codeprobe.trial.store import AttemptStore

#: what the criteria say after an exchange; None: nobody asked
Check = Callable[[SessionOutcome, Transcript | None], Verdict | None]


@dataclass(frozen=True, slots=True)
class Interim:
    """Of one trial."""

    trial: Trial
    context: Context
    make_sandbox: Callable[[Trial, Context], Sandbox]
    criteria: TrialCriteria
    store: AttemptStore

    @contextmanager
    def beside(self, sandbox: Sandbox, log: logging.Logger) -> Iterator[Check]:
        """While a dialog goes on in a sandbox whose baseline is taken. SANDBOX_FAILED where no copy can be made."""
        wanted = self.trial.simulation
        if wanted is None or wanted.check_criteria == "end_of_dialog":
            yield lambda *_: None
            return
        copy = self.make_sandbox(self.trial, self.context)
        copy.prepare()
        try:
            setup.share(self.trial, self.context, sandbox, copy)
            _lay(sandbox, copy)  # as pre_run has left it: what is protected is put back from this
            copy.snapshot()

            def check(outcome: SessionOutcome, transcript: Transcript | None) -> Verdict:
                _lay(sandbox, copy)
                evidence = Evidence(sandbox=copy, changes=sandbox.changes(), outcome=outcome, transcript=transcript)
                return self.criteria.judge(evidence, log)

            yield check
        finally:
            self.store.warnings.extend(f"{self.trial.node_id}: could not be deleted: {path}" for path in copy.delete())


def _lay(source: Sandbox, target: Sandbox) -> None:
    try:
        if left := empty_folder(target.workspace):
            raise CodeprobeError("SANDBOX_FAILED", f"{left[0]} could not be removed")
        if source.workspace.is_dir() and not source.workspace.is_symlink():
            copy_tree(str(source.workspace), str(target.workspace), small=False)
    except OSError as error:
        raise CodeprobeError("SANDBOX_FAILED", f"{source.workspace}: {error.strerror or error}") from error
