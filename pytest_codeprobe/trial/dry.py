"""What can be told of a trial while nothing of it starts: no session, no command of the task, nothing of the project's hooks."""

from __future__ import annotations

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes import choose
from pytest_codeprobe.trial.grade import pointless


class DryChecks:
    """Looks at the trials of one process. What several of them share, such as a template, is tried once."""

    def __init__(self, context: Context, *, own_sandboxes: bool) -> None:
        """`own_sandboxes`: a hook of the project makes them, so nobody can tell here whether they can be made."""
        self._context, self._own = context, own_sandboxes
        self._tried: dict[str, CodeprobeError | None] = {}

    def check(self, trial: Trial) -> str | None:
        """Why the real run would skip it, or None. CodeprobeError with the code that the trial would end with."""
        registry = self._context.registry
        criteria = [registry.criteria[c["type"]].model_validate(c) for c in trial.criteria]
        reason = pointless(registry.agent(trial.agent.type or ""), trial, criteria)
        if reason is None and not self._own and (wrong := self._sandbox(trial)) is not None:
            raise wrong
        return reason

    def _sandbox(self, trial: Trial) -> CodeprobeError | None:
        """What the driver, or the laying out of the workspace, has to say; nothing of it is left."""
        config = trial.sandbox
        key = config.model_dump_json(include={"driver", "template_sources", "git", "docker", "setup", "protected"})
        if key not in self._tried:
            try:
                sandbox = choose(config.driver, self._context.registry, self._context).create(trial, self._context)
                sandbox.prepare()
                sandbox.delete()
                self._tried[key] = None
            except CodeprobeError as error:
                self._tried[key] = error
        return self._tried[key]
