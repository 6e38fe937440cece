"""Refusals before anything starts: options that are wrong together with what is installed, and a run in which nothing could run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.plugin.collect import HasTrial
from pytest_codeprobe.plugin.refusal import called, refused
from pytest_codeprobe.plugin.suite import suite_of
from pytest_codeprobe.run.asking import ask_versions
from pytest_codeprobe.run.folder import prepare_place
from pytest_codeprobe.sandboxes import choose, registered
from pytest_codeprobe.sandboxes.openfiles import make_room
from pytest_codeprobe.sandboxes.visible import never_bound
from pytest_codeprobe.tasks.availability import check_driver

_VERSION_SECONDS = 10.0  #: that a CLI has to tell its version

if TYPE_CHECKING:
    from pytest_codeprobe.model.context import Snapshot
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.plugin.resume import Resume
    from pytest_codeprobe.run.plan import PlannedTrial


def check_options(live: Live) -> None:
    """Refuse what the command line says wrong about agents, modes, drivers and the run dir, before anything is collected."""
    options = live.state.options
    try:
        if options.agent is not None:
            agent = live.registry.agent(options.agent)
            if options.permission_mode is not None and options.permission_mode not in agent.permission_modes:
                raise CodeprobeError(
                    "INVALID_PERMISSION_MODE",
                    f"agent {agent.name} does not know permission mode {options.permission_mode!r}",
                    remediation=f"It takes: {', '.join(agent.permission_modes)}. Which of them it gets is for a human to decide.",
                )
        if options.driver is not None:
            from pytest_codeprobe.tasks.overrides import ALIASES, given

            typed = (flag for path, flag in given(options) if path == ALIASES["driver"])
            check_driver(options.driver, live.registry.drivers, next(typed, "ini codeprobe_driver, or CODEPROBE_DRIVER"))
            if "driver" in options.on_command_line and not live.state.no_plan and maker_of_sandboxes(live) is None:
                registered(options.driver, live.registry)
        if options.experiment is not None:  # experiments/default.yaml is nobody's but the tasks': what is wrong with it stops them alone
            _ = live.experiment.plan
        elif options.set:
            _ = live.experiment.flags
        if options.suite is not None:
            suite_of(live.config)
        named_snapshot(live)
        if live.resume is not None and not (live.resume.ours and not live.state.no_plan):
            _ = live.resume.earlier
        elif live.resume is not None:
            _resume(live, live.resume)
        if options.run_dir is not None and not options.resume and not live.state.no_plan:
            prepare_place(live.state.run_dir, default_place=False)
    except CodeprobeError as error:
        raise refused(error, live.config, early=True) from error


def _resume(live: Live, resume: Resume) -> None:
    """Take the run over: from here on it is this one, and nobody else's."""
    state = live.state
    resume.check()  # a lock file would else be left in a folder of something else
    try:
        live.lock.take(stamp(live.clock.now()))
        resume.make_way()
    except OSError as error:
        raise CodeprobeError(
            "USAGE_ERROR", f"run directory {state.run_dir}: {error.strerror}", remediation="Free disk space, or mend its permissions."
        ) from error
    agents = [live.registry.agent(name) for name in resume.agents() if name in live.registry.agents]
    state.versions = {name: answer.version for name, answer in ask_versions(agents, live.context, _VERSION_SECONDS).items()}


def named_snapshot(live: Live) -> Snapshot | None:
    """The capability snapshot that sessions are held to. CodeprobeError where it can't be used."""
    given = live.state.options.capabilities
    if given is None:
        return None
    from pytest_codeprobe.run.capabilities import read_snapshot

    return read_snapshot(given, (live.config.invocation_params.dir, live.config.rootpath))


def refuse_other_hosts(live: Live) -> None:
    """Before xdist connects to them: a trial needs the run dir and its controller's processes at hand."""
    for spec in live.config.getoption("tx", None) or ():
        place = str(spec).rpartition("*")[2]
        if not place.startswith("popen") or "//via=" in place:
            error = CodeprobeError(
                "USAGE_ERROR",
                f"--tx {spec}: tasks run in workers on this machine only",
                remediation="Use -n N for the tasks, and a run of its own for tests on other machines.",
            )
            raise refused(error, live.config) from error


def refuse_what_cannot_run(live: Live, trials: Sequence[HasTrial]) -> None:
    """Once all is collected: options that are wrong, `codeprobe run` and resume without any agent, more jobs than may have files open."""
    error = live.fault
    needs_one = live.state.options.console or live.resume is not None  # skips would take the place of what the run has
    if needs_one and not live.state.no_plan and error is None:
        waiting = [t for t in trials if t.skip_reason is None]
        if waiting and not any(live.chosen(t) for t in waiting):
            error = CodeprobeError(
                "NO_BACKENDS_CONFIGURED",
                f"no agent is chosen for {len(waiting)} task{'s' * (len(waiting) != 1)}",
                remediation=f"Pass --codeprobe-agent NAME, one of: {', '.join(sorted(live.registry.agents))}.",
            )
    if error is None and live.jobs > 1 and not live.state.no_plan:
        try:
            at_once = min(live.jobs, sum(t.skip_reason is None and live.may_start(t) for t in trials))
            make_room(at_once, offline=live.state.options.offline)
        except CodeprobeError as no_room:
            error = no_room
    if error is not None:
        raise refused(error, live.config) from error


def maker_of_sandboxes(live: Live) -> str | None:
    """Who beside us makes sandboxes, rather than wrapping what the driver makes."""
    for impl in live.config.hook.pytest_codeprobe_make_sandbox.get_hookimpls():
        if impl.plugin is not live.protocol and not (impl.wrapper or impl.hookwrapper):
            name = Path(str(impl.plugin_name))
            root = live.config.rootpath
            return str(name.relative_to(root)) if name.is_absolute() and name.is_relative_to(root) else str(name)
    return None


def make_ready(live: Live, plan: Collection[PlannedTrial]) -> None:
    """What the controller needs of the plan's surroundings. Refuse where it can't be had, and to pay for all twice."""
    from pytest_codeprobe.plugin.conftests import load_for_plan

    try:
        if live.state.xdist and live.config.getoption("dist") == "each":
            raise CodeprobeError(
                "USAGE_ERROR", "--dist each would run every task in every worker", remediation="Use --dist load, or leave --dist out."
            )
        if live.state.xdist:
            load_for_plan(live, plan)
        named_snapshot(live)
    except CodeprobeError as error:
        raise refused(error, live.config) from error


def check_agents(live: Live, plan: Collection[PlannedTrial]) -> list[str]:
    """The agents that the plan starts. Refuse before anything is paid: a driver or an agent whose CLI or credentials are missing here."""
    try:
        _check_driver_here(live, plan)
    except CodeprobeError as error:
        raise refused(error, live.config) from error
    declared: dict[str, frozenset[str]] = {}
    for trial in plan:
        if trial.agent is not None and trial.starts:
            names = frozenset(trial.variables)
            declared[trial.agent] = declared.get(trial.agent, names) & names
            if trial.user is not None:
                own = frozenset(trial.users_variables)
                declared[trial.user] = declared.get(trial.user, own) & own
    backend = live.state.options.backend or "direct"
    for name, names in declared.items():
        agent = live.registry.agent(name)
        if agent.calls_model and backend not in agent.backends:
            live.warn(f"backend {backend}: agent {name} gets no variables for it; name those that it needs in sandbox.env_passthrough")
        missing = agent.unavailable(live.context, names)
        if missing is not None and not _is_inside(live, name, plan):
            raise refused(missing, live.config) from missing
    return list(declared)


def _is_inside(live: Live, name: str, plan: Collection[PlannedTrial]) -> bool:
    """Whether an agent whose CLI is not on this machine runs in images only, which may have it; nobody can say so beforehand."""
    agent = live.registry.agent(name)
    if agent.executable is None or agent.find(live.context) is not None:
        return False
    return all(live.driver_of(trial) == "docker" for trial in plan if trial.starts and name in (trial.agent, trial.user))


def _check_driver_here(live: Live, plan: Collection[PlannedTrial]) -> None:
    """Once, in the place of one error for each trial. SANDBOX_UNAVAILABLE where the driver of all trials can't be used on this machine."""
    if maker_of_sandboxes(live) is not None:
        return
    if live.state.options.driver is not None:
        choose(live.state.options.driver, live.registry, live.context)
    for name in live.state.options.bind if any(trial.starts for trial in plan) else ():
        if (why := never_bound(Path(name))) is not None:
            live.warn(f"codeprobe_bind: {name} {why}")
    if any(trial.starts and trial.driver == "auto" for trial in plan) and (why := live.auto[1]) is not None:
        live.warn(
            f"sandbox: trials run under driver {live.auto[0]}, which is no security boundary: {why} "
            "(to say that it is meant: --codeprobe-driver tempdir)"
        )


def slips(live: Live, plan: Collection[PlannedTrial]) -> Iterator[str]:
    """What the user, above all one of `codeprobe run`, has perhaps not meant; told before anything is paid."""
    if live.resume is not None and (said := live.resume.another_experiment()) is not None:
        yield said
    if live.resume is not None and plan and (said := live.resume.another_run(trial.folder for trial in plan)) is not None:
        yield said
    if not live.state.options.console or live.state.options.regrade is not None:  # that takes all from the run that it grades
        return
    if (said := live.experiment.not_applied()) is not None:
        yield said
    model = live.state.options.model
    if model is None or not any(typed.startswith("-m") for typed in called(live.config).ours()):
        return
    aliases = {alias for name in {t.agent for t in plan if t.agent} for alias in live.registry.agent(name).model_aliases}
    tagged = sum(model in trial.tags for trial in plan)
    if tagged or (model not in aliases and live.context.prices.find(model) is None):
        why = f"{tagged} trial{'s have' if tagged > 1 else ' has'} that mark" if tagged else "none of that name is known here"
        yield f"-m {model} chooses the model, and {why}; to select by mark: -- -m {model}"
