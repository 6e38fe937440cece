"""The pytest plugin's entry point: options, and what it takes to notice a first task file.

Being installed must cost a plain pytest run next to nothing: only pytest, the standard library and light modules of ours
are imported here. The rest loads with the first task (`State.activate`).
"""

from __future__ import annotations

import argparse
import fnmatch
import os
import sys
from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import pytest_codeprobe.plugin.loading  # noqa: F401  before all else of ours
from pytest_codeprobe.options import BUILT, INIS, NEEDS_VALUE
from pytest_codeprobe.plugin.fixtures import codeprobe_run, codeprobe_sandbox, codeprobe_score, codeprobe_session, codeprobe_trial
from pytest_codeprobe.plugin.spread import SPREAD, settle
from pytest_codeprobe.plugin.state import STATE, WORKER_INPUT, State, expand_arguments
from pytest_codeprobe.plugin.stdout import OUTPUT, Output

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.discover import Discovery

__all__ = ["codeprobe_run", "codeprobe_sandbox", "codeprobe_score", "codeprobe_session", "codeprobe_trial"]

MARKER = "codeprobe(task, tag, variant, row): a trial of a coding agent; on a Python test `task` names the task file that its fixtures run"
#: flags that say that the run is about tasks, and are checked before anything is collected
_ABOUT_TASKS = frozenset(
    {
        "agent",
        "model",
        "driver",
        "run-dir",
        "timeout",
        "permission-mode",
        "preserve",
        "dry-run",
        "suite",
        "experiment",
        "set",
        "tags",
        "exclude-tags",
        "include-skipped",
        "repeats",
        "sample",
        "sample-per-stratum",
        "canary",
        "capabilities",
    }
)
DISCOVERY = pytest.StashKey["Discovery"]()
YAML_FOLDERS = pytest.StashKey[dict[Path, bool]]()


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_codeprobe.plugin import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("codeprobe", "coding-agent tasks as tests (pytest-codeprobe)")
    for option in BUILT:
        told = option.help.replace("%", "%%")  # argparse formats it
        if option.kind == "flag":
            group.addoption(option.flag, action="store_true", dest=option.dest, help=told)
        elif option.kind == "list":
            group.addoption(option.flag, nargs="?", const=NEEDS_VALUE, action="append", dest=option.dest, metavar=option.metavar, help=told)
        else:  # a missing value must not fail inside argparse: it would leave no envelope
            group.addoption(option.flag, nargs="?", const=NEEDS_VALUE, default=None, dest=option.dest, metavar=option.metavar, help=told)
        if option.settable:
            parser.addini(option.dest, option.help, type="string", default="")
    # what was typed to `codeprobe run`, as JSON
    group.addoption("--codeprobe-console", default=None, dest="codeprobe_console", help=argparse.SUPPRESS)
    group.addoption("--codeprobe-doctor-probe", action="store_true", dest="codeprobe_doctor_probe", help=argparse.SUPPRESS)
    group.addoption("--codeprobe-stdout", default=None, dest="codeprobe_stdout", help=argparse.SUPPRESS)  # a descriptor
    group.addoption("--codeprobe-regrade", default=None, dest="codeprobe_regrade", help=argparse.SUPPRESS)  # a run dir
    group.addoption("--codeprobe-check", action="store_true", dest="codeprobe_check", help=argparse.SUPPRESS)
    group.addoption("--codeprobe-explain", default=None, dest="codeprobe_explain", help=argparse.SUPPRESS)  # where the answer goes
    group.addoption("--codeprobe-record-capabilities", default=None, dest="codeprobe_record_capabilities", help=argparse.SUPPRESS)
    for ini in INIS:
        parser.addini(ini.name, ini.help, type=ini.type, default=ini.default)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None, None, None]:
    """Before capture saves fd 1 and before a conftest.py can print."""
    if not _in_worker():
        early_config.stash[OUTPUT] = Output(early_config)
    return (yield)


def _in_worker() -> bool:
    return "PYTEST_XDIST_WORKER" in os.environ


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Before xdist makes workers."""
    config.stash[SPREAD] = settle(config)
    if config.option.codeprobe_record_capabilities is not None:
        from pytest_codeprobe.plugin.capabilities import record

        return record(config)
    if config.option.codeprobe_explain is not None:
        from pytest_codeprobe.plugin.explain import explain

        return explain(config)
    if not config.option.codeprobe_doctor:
        return None
    from pytest_codeprobe.plugin.doctor import doctor

    return doctor(config)


@pytest.hookimpl(wrapper=True, tryfirst=True, specname="pytest_cmdline_main")
def pytest_codeprobe_answers(config: pytest.Config) -> Generator[None, int | pytest.ExitCode | None, int | pytest.ExitCode | None]:
    """A flag that ends pytest before there is a run (--help, --fixtures, …) is no answer to those who asked for JSON."""
    code = yield
    output = config.stash.get(OUTPUT, None)
    if output is None or output.answered:
        return code
    from pytest_codeprobe.plugin.refusal import no_run

    return no_run(config, output)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", MARKER)
    expand_arguments(config)  # in workers too: xdist hands them the command line as it was typed
    state = config.stash[STATE] = State(config)
    if state.worker and state.is_about_tasks:
        from pytest_codeprobe.plugin.logs import leave_to_controller

        leave_to_controller(config)


@pytest.hookimpl(trylast=True, specname="pytest_configure")
def pytest_codeprobe_configured(config: pytest.Config) -> None:
    """Once every conftest.py at hand is loaded: load the rest now if the command line is about tasks."""
    state = config.stash[STATE]
    if state.worker and state.options.dry_run:
        state.activate()  # no ordinary test may run, whether there are tasks or not
    if state.worker or state.options.doctor:
        return
    output = config.stash.get(OUTPUT, None)
    named = _ABOUT_TASKS & set(state.options.on_command_line)
    if named or state.options.console or (state.xdist and state.options.agent) or (output is not None and output.json):
        live = state.activate()
        from pytest_codeprobe.plugin.checks import check_options, refuse_other_hosts

        check_options(live)
        if state.xdist and (state.options.agent or state.options.console):
            refuse_other_hosts(live)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker of pytest-xdist is about to start."""
    state = node.config.stash[STATE]
    spec = node.gateway.spec
    node.workerinput[WORKER_INPUT] = state.for_worker(local=bool(spec.popen) and not spec.via)


# ---- collection


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    state = session.config.stash[STATE]
    try:
        return (yield)
    except BaseException:
        if state.live is not None:
            state.activate()  # its hooks at the end of the session
        raise
    finally:
        if state.live is not None:
            state.live.task_files.close()


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")
def pytest_codeprobe_select(session: pytest.Session, items: list[pytest.Item]) -> None:
    """Before -k and -m, so that a suite that matches nothing is told of what was collected."""
    if session.config.stash[STATE].live is not None:
        from pytest_codeprobe.plugin.collect import deselect

        deselect(session.config, items)
    if session.config.stash[STATE].options.suite is not None:
        from pytest_codeprobe.plugin.suite import select

        select(session, items)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """All is collected and selected: load the rest if tasks may run, or if there is something to tell of them."""
    live = config.stash[STATE].live
    if live is not None and not live.has_nothing_to_do(items):
        live.register()


def _discovery(config: pytest.Config) -> Discovery:
    if DISCOVERY not in config.stash:
        from pytest_codeprobe.plugin.discover import Discovery

        config.stash[DISCOVERY] = Discovery(config.stash[STATE])
    return config.stash[DISCOVERY]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    # no import for a project without any YAML beside or above what is collected
    if DISCOVERY not in config.stash and not _has_yaml(collection_path, config) and not _is_norecurse(collection_path, config):
        return None
    return _discovery(config).ignored(collection_path)


def _has_yaml(path: Path, config: pytest.Config) -> bool:
    seen = config.stash.setdefault(YAML_FOLDERS, {})
    for folder in path.parents:
        if folder not in seen:
            try:
                with os.scandir(folder) as entries:  # closed: what is left open is a ResourceWarning, an error for some
                    seen[folder] = any(entry.name.endswith((".yaml", ".yml")) for entry in entries)
            except OSError:
                seen[folder] = False
        if seen[folder]:
            return True
        if folder == config.rootpath:
            break
    return False


def _is_norecurse(path: Path, config: pytest.Config) -> bool:
    """Whether pytest would pass by a folder that may be on the way to what a pattern or the command line names: not each `.git`."""
    if not any(fnmatch.fnmatch(path.name, pattern) for pattern in config.getini("norecursedirs")):
        return False
    state = config.stash[STATE]
    wanted = [*(p.replace("\\", "").split("/") for p in state.options.files), *(Path(p).parts for p in state.named)]
    return any(path.name in parts for parts in wanted)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix not in (".yaml", ".yml"):
        return None
    if not _discovery(parent.config).is_task_file(str(file_path)):
        return None
    live = parent.config.stash[STATE].collecting()
    from pytest_codeprobe.plugin.collect import task_file

    return task_file(live, file_path, parent)


@pytest.hookimpl(trylast=True)  # so that our part comes last in a test's name
def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if metafunc.definition.get_closest_marker("codeprobe") is not None:
        metafunc.config.stash[STATE].activate().cases.parametrize(metafunc)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A Python test with our marker needs the rest too, and one that calls trials."""
    if "codeprobe_run" in getattr(item, "fixturenames", ()) or item.get_closest_marker("codeprobe") is not None:
        state = item.config.stash[STATE]
        if state.live is None or not state.live.is_ours(item):
            state.activate().cases.tag(item)


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker that was refused before it met a task: its controller must hear of it, xdist would only say that nothing was collected."""
    state = session.config.stash[STATE]
    if state.worker and state.live is None and isinstance(sys.exc_info()[1], pytest.UsageError):
        from pytest_codeprobe.plugin import late

        late.session_finished(state.activate(), session)


# ---- signs of tasks in an xdist controller, which collects nothing itself


@pytest.hookimpl(optionalhook=True, specname="pytest_xdist_node_collection_finished", tryfirst=True)
def pytest_codeprobe_node_collected(node: Any) -> None:
    state = node.config.stash[STATE]
    if state.live is None and (state.run_dir / "plan.json").exists():
        from pytest_codeprobe.plugin import late

        late.node_collected(state.activate())


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    node = getattr(report, "node", None)  # set by xdist in its controller
    state = node.config.stash[STATE] if node is not None else None
    if state is None or state.live is not None:
        return
    if hasattr(report, "codeprobe"):
        from pytest_codeprobe.plugin import late

        late.reported(state.activate(), report)
    else:
        state.count(report)
