"""What can be told of a trial while nothing of it starts: no session, no command of the task, nothing of the project's hooks."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent, SessionRequest
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.criterion import Criterion
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes import choose
from pytest_codeprobe.trial import setup
from pytest_codeprobe.trial.environment import session_environment
from pytest_codeprobe.trial.grade import TrialGrading, pointless
from pytest_codeprobe.trial.graders import GradersPlace

#: drivers in which a session and its graders find the programs of this machine
_SEES_PROGRAMS = frozenset({"tempdir", "bubblewrap"})
#: fields of a sandbox that its workspace, the search for programs and what looks at them depend on
_LAYS_OUT = {"driver", "template_sources", "git", "docker", "setup", "protected", "env", "env_passthrough", "limits"}
_SECONDS = 60.0  #: that all preflights of a task have


class DryChecks:
    """Looks at the trials of one process. What several of them share, such as a template, is tried once."""

    def __init__(self, context: Context, *, own_sandboxes: bool, warn: Callable[[str], None]) -> None:
        """`own_sandboxes`: a hook of the project makes them, so nobody can tell here whether they can be made."""
        self._context, self._own, self._warn = context, own_sandboxes, warn
        self._tried: dict[str, CodeprobeError | None] = {}

    def check(self, trial: Trial) -> str | None:
        """Why the real run would skip it, or None. CodeprobeError with the code that the trial would end with."""
        registry = self._context.registry
        criteria = [registry.criteria[c["type"]].model_validate(c) for c in trial.criteria]
        agent = registry.agent(trial.agent.type or "")
        reason = pointless(agent, trial, criteria)
        if reason is not None or self._own:
            return reason
        wanted = [criterion for criterion in criteria if criterion.enabled]
        key = self._key(trial, wanted)
        if key not in self._tried:
            try:
                self._look(trial, agent, wanted)
                self._tried[key] = None
            except CodeprobeError as error:
                self._tried[key] = error
        if (wrong := self._tried[key]) is not None:
            raise wrong
        self._missing_graders(trial, criteria)
        return None

    @staticmethod
    def _key(trial: Trial, criteria: Sequence[Criterion]) -> str:
        """All that _look() depends on."""
        parts = [trial.sandbox.model_dump_json(include=_LAYS_OUT), trial.agent.model_dump_json(), str(bool(trial.pre_run))]
        parts += [trial.solution.model_dump_json() if trial.solution is not None else ""]
        looking = [c.model_dump_json() for c in criteria if type(c).preflight is not Criterion.preflight]
        return "\n".join((*parts, *looking, *([str(Path(trial.task_file).parent)] if looking else [])))

    def _look(self, trial: Trial, agent: Agent, criteria: Sequence[Criterion]) -> None:
        """What the driver, the laying out of the workspace, the criteria and the agent have to say; nothing of it is left."""
        sandbox = choose(trial.sandbox.driver, self._context.registry, self._context).create(trial, self._context)
        try:
            sandbox.prepare()
            for words in getattr(sandbox, "unheld", ()):
                self._warn(words)
            if setup.is_wanted(trial):
                setup.check(trial, self._context)
                self._warn(
                    "dry run: the packages of sandbox.setup are not installed, and no criterion is asked whether it has what it needs"
                )
            else:
                self._preflight(trial, sandbox, criteria)
            self._command(trial, agent, sandbox)
        finally:
            for left in sandbox.delete():
                self._warn(f"dry run: could not be deleted: {left}")

    def _preflight(self, trial: Trial, sandbox: Sandbox, criteria: Sequence[Criterion]) -> None:
        """As the real run asks them before its session: hidden tests that do not parse, packages that they need."""
        place = GradersPlace(trial, self._context, sandbox, None, None)
        grading = TrialGrading(
            trial=trial, context=self._context, sandbox=sandbox, place=place, outcome=None, transcript=None, changes=(),
            timeout=_SECONDS, redact=self._context.redactor.text,
        )  # fmt: skip
        for criterion in criteria:
            criterion.preflight(grading)

    def _command(self, trial: Trial, agent: Agent, sandbox: Sandbox) -> None:
        """Whether there is a program that the session could be started with.

        pre_run may still bring one, and a fixture may put one into the workspace.
        """
        driver = self._context.registry.drivers.get(sandbox.driver)
        request = SessionRequest(
            trial=trial,
            context=self._context,
            prompt=trial.prompt or "",
            sandbox=sandbox,
            isolates=driver is not None and driver.isolates,
            executable=agent.find(self._context),
        )
        command = agent.command(request)
        if command is None or trial.pre_run or setup.is_wanted(trial) or sandbox.driver not in _SEES_PROGRAMS:
            return
        program = command.argv[0]
        path = session_environment(trial, self._context, sandbox, command.env).get("PATH")
        inside = "/" in program and not Path(program).is_absolute()
        found = shutil.which(str(sandbox.workspace / program) if inside else program, path=path)
        if found is None and inside:
            self._warn(f"dry run: {trial.node_id}: the templates have no program {program!r}, which agent {agent.name} would start")
        elif found is None:
            raise CodeprobeError(
                "AGENT_CRASHED",
                f"agent {agent.name}: there is no program {program!r}",
                remediation="Install the program, or correct agent.command.",
                detail={"program": program},
            )

    def _missing_graders(self, trial: Trial, criteria: Sequence[Criterion]) -> None:
        """Warn of programs that criteria name and this machine does not have: a session, or pre_run, may still bring them."""
        if setup.is_wanted(trial):
            return
        if choose(trial.sandbox.driver, self._context.registry, self._context).name not in _SEES_PROGRAMS:
            return
        for number, criterion in enumerate(criteria, 1):
            for program in criterion.programs() if criterion.enabled else ():
                if shutil.which(program, path=self._context.environ.get("PATH")) is None and program not in ("python", "python3"):
                    self._warn(f"dry run: {trial.node_id}: criterion {number} ({criterion.type}): there is no program {program!r} here")
