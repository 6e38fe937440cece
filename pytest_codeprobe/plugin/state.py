"""What one pytest process knows of the run, from pytest_configure on. Light: standard library, pytest and options only."""

from __future__ import annotations

import glob
import itertools
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.options import BUILT, RunOptions, resolve
from pytest_codeprobe.plugin.spread import BOTH, CHOICE, SPREAD, Spread
from pytest_codeprobe.plugin.stdout import OUTPUT, Output

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live

WORKER_INPUT = "codeprobe"


class State:
    """One for each process, in config.stash. `live` is None until the first sign of a task."""

    def __init__(self, config: pytest.Config) -> None:
        given = json.loads(getattr(config, "workerinput", {}).get(WORKER_INPUT, "null"))
        self.config = config
        self.worker = given is not None or hasattr(config, "workerinput")
        self.worker_id: str = getattr(config, "workerinput", {}).get("workerid", "main")
        self.xdist = not self.worker and getattr(config.option, "dist", "no") != "no"
        self.began = time.monotonic()  #: of the run: the clock on the wall may jump
        self.spread = config.stash.get(SPREAD, Spread())
        if given is not None:
            self.options = RunOptions.from_json(given["options"])
            self.run_id, self.run_dir = str(given["run_id"]), Path(given["run_dir"])
            self.default_place = bool(given["default_place"])
            self.named: frozenset[str] = frozenset(given["named"])
            self.versions: dict[str, str | None] = given["versions"]
        else:
            self.options = _with_paths(_resolve(config), config)
            self.run_id = _new_run_id()
            self.default_place = self.options.run_dir is None
            self.run_dir = self._place(config)
            if self.options.resume or self.options.regrade is not None:
                self._go_on()
            self.named = frozenset(_named(config))
            self.versions = {}  #: of the CLIs of agents, as they are now; under resume
        #: trials at once inside this process
        self.jobs = (self.options.jobs or 1) if self.spread.jobs_hold and not self.worker else 1
        option = config.option
        self.no_start = bool(getattr(option, "setuponly", False) or getattr(option, "setupplan", False))
        # these collect, and nothing runs
        listing = ("collectonly", "showfixtures", "show_fixtures_per_test")
        self.no_plan = self.no_start or any(getattr(option, name, False) for name in listing)
        self.live: Live | None = None
        self.ordinary: Counter[str] = Counter()  #: outcomes of ordinary tests, also of those before the first sign of a task
        self.module_errors = 0  #: ordinary test modules that could not be collected, likewise
        if self.xdist:
            config.pluginmanager.register(self, "codeprobe-state")

    @pytest.hookimpl(tryfirst=True)
    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """In an xdist controller, which learns of collection by its failures alone, perhaps before the first sign of a task."""
        if self.live is None and hasattr(report, "codeprobe"):
            from pytest_codeprobe.plugin import late

            late.reported(self.activate(), report)
        elif not hasattr(report, "codeprobe"):
            self.module_errors += bool(report.failed)

    @property
    def is_about_tasks(self) -> bool:
        """As far as the command line, environment and ini tell before anything is collected."""
        return self.options.console or self.options.agent is not None or any(n.endswith((".yaml", ".yml")) for n in self.named)

    def count(self, report: pytest.TestReport) -> None:
        """An ordinary test's report."""
        if report.when == "call" or not report.passed:
            xfail = hasattr(report, "wasxfail")
            name = {"passed": "xpassed", "skipped": "xfailed"}.get(report.outcome, report.outcome) if xfail else str(report.outcome)
            self.ordinary["error" if name == "failed" and report.when != "call" else name] += 1

    def _go_on(self) -> None:
        """As the run whose run dir it is. Where there is none, that is told later."""
        from pytest_codeprobe.run.planfile import newest_plan

        plan = newest_plan(self.run_dir if self.options.regrade is None else Path(self.options.regrade))
        if plan is not None:
            options = plan.get("options")
            seed = options.get("drawn_seed") if isinstance(options, dict) else None
            if self.options.resume:
                self.run_id = str(plan["run_id"])
            elif isinstance(options, dict) and isinstance(options.get("invoked_in"), str):
                self.options = replace(self.options, invoked_in=options["invoked_in"])  # its flags are that run's
            self.options = replace(self.options, drawn_seed=seed if isinstance(seed, int) else 0)

    def _place(self, config: pytest.Config) -> Path:
        if self.options.run_dir is not None:
            place = Path(config.invocation_params.dir, self.options.run_dir).absolute()
            # `latest` may point to another run in the midst of this one
            return Path(os.path.realpath(place)) if self.options.resume else place  # never raises
        return (config.rootpath / self.options.runs_dir / self.run_id).absolute()

    @property
    def output(self) -> Output | None:
        """The JSON modes' stdout; None in a worker."""
        return self.config.stash.get(OUTPUT, None)

    def for_worker(self, *, local: bool) -> str:
        """What workers are told: one JSON string, since execnet takes builtins only. On another host nothing is named: no task starts."""
        return json.dumps(
            {
                "options": self.options.to_json(),
                "run_id": self.run_id,
                "run_dir": str(self.run_dir),
                "default_place": self.default_place,
                "named": sorted(self.named) if local else [],
                "versions": self.versions,
            }
        )

    def collecting(self) -> Live:
        """Load what it takes to collect tasks; called at the first task file."""
        if self.live is None:
            from pytest_codeprobe.plugin.live import Live

            self.live = Live(self)
        return self.live

    def activate(self) -> Live:
        """Load what a run with tasks needs; called at every other sign of a task, and once tasks are collected that may run."""
        live = self.collecting()
        live.register()
        return live


def _resolve(config: pytest.Config) -> RunOptions:
    command_line = {o.dest: getattr(config.option, o.dest, None) for o in BUILT}
    try:
        if config.stash.get(SPREAD, Spread()).both:
            from pytest_codeprobe.errors import CodeprobeError

            raise CodeprobeError("USAGE_ERROR", BOTH, remediation=CHOICE)
        options = resolve(command_line, os.environ, _ini(config), console=bool(getattr(config.option, "codeprobe_console", False)))
        if config.option.codeprobe_regrade is not None:
            options = replace(options, regrade=os.path.abspath(config.invocation_params.dir / config.option.codeprobe_regrade))
        options = replace(options, check=bool(config.option.codeprobe_check), invoked_in=str(config.invocation_params.dir))
        return _settled(replace(options, drawn_seed=int.from_bytes(os.urandom(4))), config.invocation_params.args)
    except Exception as error:
        raise _usage_error(error, config) from error


def _settled(options: RunOptions, typed: Sequence[str]) -> RunOptions:
    """The options with each override in its place. What stands in `typed` does not come from addopts."""
    if not options.set:
        return options
    from pytest_codeprobe.tasks.overrides import settle

    words = [word.partition("=")[0] for word in itertools.takewhile(lambda word: word != "--", typed)]
    names = tuple(option.name for option in BUILT if option.flag in words)
    return settle(replace(options, typed=names, typed_sets=words.count("--codeprobe-set")))


def _with_paths(options: RunOptions, config: pytest.Config) -> RunOptions:
    """Files that were named relative to where pytest was started, or to rootdir, mean the same in every process."""
    if options.suite is not None:
        options = replace(options, suite=os.path.abspath(config.invocation_params.dir / options.suite))
    if options.regrade is not None and (place := config.invocation_params.dir / options.regrade).is_symlink():
        options = replace(options, regrade=os.path.realpath(place))  # `latest` will be this very run
    return replace(options, bind=tuple(os.path.abspath(config.rootpath / os.path.expanduser(name)) for name in options.bind))


def expand_arguments(config: pytest.Config) -> None:
    """Put files in the place of globs, and `tasks/` of rootdir in that of no path for `codeprobe run` (testpaths never count there).

    Not public in pytest: `args`, `args_source`.
    """
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        config.args = [name for argument in config.args for name in _globbed(argument, config.invocation_params.dir)]
    elif getattr(config.option, "codeprobe_console", False):
        tasks = config.rootpath / "tasks"
        config.args = [str(tasks)] if tasks.is_dir() else []  # nothing to collect: NO_TASKS, where pytest would say usage error


def _globbed(argument: str, folder: Path) -> list[str]:
    path, colons, rest = argument.partition("::")
    if not glob.has_magic(path) or (folder / path).exists():
        return [argument]
    found = sorted(glob.glob(path, root_dir=folder, recursive=True))
    return [name + colons + rest for name in found] or [argument]


def _named(config: pytest.Config) -> Iterator[str]:
    """Absolute paths that stand on the command line; what testpaths or we set does not count."""
    if config.args_source is pytest.Config.ArgsSource.ARGS:
        for argument in config.args:
            yield os.path.abspath(config.invocation_params.dir / argument.partition("::")[0])


def _ini(config: pytest.Config) -> Any:
    return config.getini


def _usage_error(error: Exception, config: pytest.Config) -> BaseException:
    from pytest_codeprobe.errors import CodeprobeError
    from pytest_codeprobe.plugin.refusal import refused

    return refused(error, config) if isinstance(error, CodeprobeError) else error


def _new_run_id() -> str:
    """UTC time to the millisecond and four random characters: sorts by time, is never reused."""
    now = time.time()
    tail = "".join("abcdefghijklmnopqrstuvwxyz0123456789"[b % 36] for b in os.urandom(4))
    return time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + f"{int(now * 1000) % 1000:03d}Z-{tail}"


STATE = pytest.StashKey[State]()
