"""sandbox.setup of one trial: packages that all share, what lies of them in its own folder, and what its processes find there."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.environments import EnvironmentStore, NodeSet
from pytest_codeprobe.sandboxes.thin import PythonSet, lay_thin, lay_whole, paths_named
from pytest_codeprobe.sandboxes.trees import copy_tree, failed, is_folder, remove_tree
from pytest_codeprobe.sandboxes.visible import program_places
from pytest_codeprobe.trial.environment import allowlisted

#: what pip and npm see of the harness's environment beside the allowlist: where the user's settings for them are, and how to log in
_NAMES = frozenset(
    {"HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_CACHE_HOME", "NETRC", "NPM_TOKEN", "NODE_AUTH_TOKEN", "SSH_AUTH_SOCK"}
)
_COMPILERS = frozenset({"CC", "CXX", "AR", "CFLAGS", "CPPFLAGS", "CXXFLAGS", "LDFLAGS", "CPATH", "LIBRARY_PATH", "PKG_CONFIG_PATH"})
_PREFIXES = ("pip_", "npm_config_", "git_ssh")
#: settings of theirs that would put the packages elsewhere, or others in
_OTHERWISE = frozenset(
    {"pip_target", "pip_prefix", "pip_root", "pip_user", "pip_python", "pip_requirement", "pip_editable", "pip_dry_run", "pip_report"}
    | {"pip_isolated", "pip_log", "pip_ignore_installed", "npm_config_prefix", "npm_config_global", "npm_config_location"}
    | {"npm_config_dry_run", "npm_config_package_lock_only", "npm_config_global_style", "npm_config_local_prefix"}
)


@dataclass(frozen=True, slots=True)
class Setup:
    """What a trial has of it. Its own parts are `python`, an environment, and `node_modules`, both in its private folder."""

    python: PythonSet | None = None
    node: NodeSet | None = None

    def places(self, sandbox: Sandbox) -> list[Path]:
        """What its processes have to be shown to read. A session, and commands before it, work in `python` besides."""
        found: list[Path] = []
        if self.python is not None:
            found += [self.python.folder, *program_places(Path(self.python.program), {}), Path(self.python.prefix), python_of(sandbox)]
        if self.node is not None:
            found += [self.node.folder, modules_of(sandbox), *self.node.programs]
        return found

    def installed(self, sandbox: Sandbox) -> Path | None:
        """Where the session has put further Python packages."""
        return python_of(sandbox) / self.python.site if self.python is not None else None


_NOTHING = Setup()


def python_of(sandbox: Sandbox) -> Path:
    """The trial's own Python environment."""
    return sandbox.root / "python"


def modules_of(sandbox: Sandbox) -> Path:
    """Where node looks once it finds nothing in the workspace, which lies beside."""
    return sandbox.root / "node_modules"


def is_wanted(trial: Trial) -> bool:
    """Whether the task asks for anything."""
    setup = trial.sandbox.setup
    return setup is not None and (setup.python is not None or (setup.node is not None and bool(setup.node.packages)))


def setup_of(trial: Trial, context: Context) -> Setup:
    """What the trial asks for, made if it is the first of the run. SANDBOX_FAILED, OFFLINE_NET_ATTEMPT, Stopped."""
    setup = trial.sandbox.setup
    if setup is None or not is_wanted(trial):
        return _NOTHING
    store = _store(context)
    return Setup(
        python=store.python(setup.python, trial) if setup.python is not None else None,
        node=store.node(setup.node, trial) if setup.node is not None and setup.node.packages else None,
    )


def check(trial: Trial, context: Context) -> None:
    """Whether there is what it would be made with; nothing is. SANDBOX_FAILED if not."""
    assert trial.sandbox.setup is not None
    _store(context).try_out(trial.sandbox.setup, trial)


_OF_RUN: list[tuple[tuple[str, Path], EnvironmentStore]] = []
_OF_RUN_LOCK = threading.Lock()


def _store(context: Context) -> EnvironmentStore:
    key = context.run_id, context.run_dir
    with _OF_RUN_LOCK:
        if not _OF_RUN or _OF_RUN[0][0] != key:
            _OF_RUN[:] = [(key, EnvironmentStore(context, installers_environment(context.environ)))]
        return _OF_RUN[0][1]


def installers_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What pip and npm see: the user's settings and credentials for them, which no trial gets, and no keys of models."""
    named = {
        name: value
        for name, value in environ.items()
        if name in _NAMES or name in _COMPILERS or (name.lower().startswith(_PREFIXES) and name.lower() not in _OTHERWISE)
    }
    return {"PATH": os.defpath, **allowlisted(environ), **named}


# ---- in a trial's folder


def lay(trial: Trial, context: Context, sandbox: Sandbox) -> None:
    """Make the trial's own parts, in a sandbox that is prepared. SANDBOX_FAILED, OFFLINE_NET_ATTEMPT, Stopped."""
    setup = setup_of(trial, context)
    keeps_out = _keeps_out(context, sandbox)
    try:
        if setup.python is not None:
            if keeps_out:
                lay_thin(setup.python, python_of(sandbox))
            else:  # a session could write into what all share
                lay_whole(setup.python, python_of(sandbox))
        _lay_modules(setup, sandbox, keeps_out=keeps_out)
        if trial.sandbox.setup is not None and trial.sandbox.setup.node is not None:
            _own_modules(sandbox.workspace)
    except OSError as error:
        raise failed(
            "sandbox.setup: the trial's own environment could not be laid out in", error, error.filename or sandbox.root
        ) from error


def _keeps_out(context: Context, sandbox: Sandbox) -> bool:
    """Whether no session can write into what all share."""
    driver = context.registry.drivers.get(sandbox.driver)
    return driver is not None and driver.isolates


def _lay_modules(setup: Setup, sandbox: Sandbox, *, keeps_out: bool) -> None:
    if setup.node is None:
        return
    place = modules_of(sandbox)
    if keeps_out:
        place.symlink_to(setup.node.folder)
    else:
        place.mkdir()
        copy_tree(str(setup.node.folder), str(place), small=False)


def _own_modules(workspace: Path) -> None:
    """npm installs into the nearest folder that has one of these: not beside the workspace, then."""
    if not any((workspace / name).exists() for name in ("package.json", "node_modules")):
        (workspace / "node_modules").mkdir()


def share(trial: Trial, context: Context, source: Sandbox, target: Sandbox) -> None:
    """What a sandbox that only grades has of the one that works. SANDBOX_FAILED."""
    setup = setup_of(trial, context)
    try:
        if setup.python is not None:
            python_of(target).symlink_to(python_of(source))
        _lay_modules(setup, target, keeps_out=_keeps_out(context, target))
    except OSError as error:
        raise failed("sandbox.setup: nothing could be laid in", error, target.root) from error


def put_back(trial: Trial, context: Context, sandbox: Sandbox) -> None:
    """Before grading: what all share is as it was made, and what node finds beside the workspace is that. SANDBOX_FAILED."""
    setup = setup_of(trial, context)
    if _keeps_out(context, sandbox):
        return  # from both
    for made in (setup.python, setup.node):
        if made is not None:
            _store(context).check(made)
    if setup.node is None:
        return
    place = modules_of(sandbox)
    try:
        if left := remove_tree(place):
            raise CodeprobeError("SANDBOX_FAILED", f"sandbox.setup: what the session left could not be removed: {left[0]}")
        _lay_modules(setup, sandbox, keeps_out=False)
    except OSError as error:
        raise failed("sandbox.setup: packages could not be put back in", error, place) from error


def tools_python(trial: Trial, context: Context, sandbox: Sandbox) -> Callable[[Path], None] | None:
    """What lays the `python` of graders into their tools: with the packages asked for, and what the session has installed beside.

    No line of a `.pth` file and no sitecustomize of the session's runs when it starts. None where no packages are asked for.
    """
    setup = setup_of(trial, context)
    made, installed = setup.python, setup.installed(sandbox)
    if made is None or installed is None:
        return None

    def lay_python(folder: Path) -> None:
        before = [installed, *paths_named(installed, sandbox.workspace)] if is_folder(installed) else []
        lay_thin(made, folder, before=before, quiet=True)

    return lay_python
