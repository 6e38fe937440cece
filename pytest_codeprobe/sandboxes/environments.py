"""Sets of packages that tasks ask for: each is installed once for a run, whichever of its processes is first, and then only read.

A set that names the exact version of everything is kept in the user's cache, where later runs find it. Any other goes with its run:
what "the newest" is may be something else by then.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import platform
import re
import shutil
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any, Generic, TypeVar

from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.config import NodeSetup, PythonSetup, SandboxSetup
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.base import scratch_of
from pytest_codeprobe.sandboxes.installing import (
    Installer,
    Interpreter,
    find_interpreter,
    find_npm,
    install_node,
    install_python,
    make_python,
)
from pytest_codeprobe.sandboxes.sealed import seal
from pytest_codeprobe.sandboxes.sources import cache_of
from pytest_codeprobe.sandboxes.sweep import folder_of, new_folder, place_of
from pytest_codeprobe.sandboxes.thin import PythonSet, lay_whole
from pytest_codeprobe.sandboxes.trees import failed, remove_tree
from pytest_codeprobe.sandboxes.turns import turn
from pytest_codeprobe.sandboxes.visible import program_places
from pytest_codeprobe.text import write_whole

_READY = "codeprobe.json"  #: in a folder with packages, once all are there
_EXACT_PYTHON = re.compile(r"[A-Za-z0-9][\w.-]*(\[[\w.,\s-]*\])?\s*==\s*[\w.!+-]+")
_EXACT_NODE = re.compile(r"(@[\w.~-]+/)?[A-Za-z0-9][\w.~-]*@\d+\.\d+\.\d+(-[\w.-]+)?")
_CODE, _MESSAGE, _SEAL = "SANDBOX_FAILED", "message", "seal"


@dataclass(frozen=True, slots=True)
class NodeSet:
    """A `node_modules` with packages, to be read only."""

    folder: Path
    programs: tuple[Path, ...]  #: node and npm, and what they are made of


Made = TypeVar("Made", PythonSet, NodeSet)


@dataclass(frozen=True, slots=True)
class _Recipe(Generic[Made]):
    """How a set is made at a place, and found there again by what was noted then."""

    key: str
    kept: bool  #: for later runs
    make: Callable[[Path, Installer], Mapping[str, Any]]
    load: Callable[[Path, Mapping[str, Any]], Made]


class EnvironmentStore:
    """The sets of one run, in one of its processes. From any thread. Each that could not be made is an error at once the next time."""

    def __init__(self, context: Context, env: Mapping[str, str]) -> None:
        """`env`: of pip and npm."""
        self._context, self._env = context, env
        self._lock = threading.Lock()
        self._made: dict[str, PythonSet | NodeSet] = {}
        self._failed: dict[str, CodeprobeError] = {}
        self._interpreters: dict[str | None, Interpreter] = {}

    def python(self, setup: PythonSetup, trial: Trial) -> PythonSet:
        """The environment of these packages. SANDBOX_FAILED, Stopped."""
        packages = sorted(dict.fromkeys(setup.packages))

        def recipe(installer: Installer) -> _Recipe[PythonSet]:
            python = self._interpreter(setup.version, installer)

            def make(place: Path, installer: Installer) -> Mapping[str, Any]:
                if not packages:
                    site = make_python(python, place, installer)
                else:  # pip, which takes longest, is there already
                    empty = self.python(PythonSetup(version=setup.version), trial)
                    lay_whole(empty, place)
                    install_python(packages, place, installer)
                    site = empty.site
                return {"program": python.program, "prefix": python.prefix, "site": site}

            return _Recipe(
                key=_key("python", python, packages),
                kept=all(_EXACT_PYTHON.fullmatch(package.strip()) for package in packages),
                make=make,
                load=lambda place, noted: PythonSet(place, **{name: noted[name] for name in ("program", "prefix", "site")}),
            )

        return self._of(f"python {setup.version} {packages}", recipe, trial)

    def node(self, setup: NodeSetup, trial: Trial) -> NodeSet:
        """The `node_modules` of these packages. SANDBOX_FAILED, Stopped."""
        packages = sorted(dict.fromkeys(setup.packages))

        def recipe(installer: Installer) -> _Recipe[NodeSet]:
            npm, node = find_npm(installer)
            places = tuple(dict.fromkeys((*program_places(Path(node), self._env), *program_places(Path(npm), self._env))))

            def make(place: Path, installer: Installer) -> Mapping[str, Any]:
                install_node(npm, packages, place, installer)
                return {}

            version = installer.run(node, "--version", cwd=installer.folder, seconds=20.0).said.strip()
            return _Recipe(
                key=_key("node", [os.path.realpath(node), version], packages),
                kept=all(_EXACT_NODE.fullmatch(package.strip()) for package in packages),
                make=make,
                load=lambda place, _: NodeSet(place / "node_modules", places),
            )

        return self._of(f"node {packages}", recipe, trial)

    def try_out(self, setup: SandboxSetup, trial: Trial) -> None:
        """Whether the interpreter and the programs that install are there. SANDBOX_FAILED, Stopped."""
        try:
            folder = new_folder(scratch_of(self._context))
            try:
                installer = Installer(self._context, trial, self._env, folder, monotonic() + trial.limits.setup_timeout)
                if setup.python is not None:
                    self._interpreter(setup.python.version, installer)
                if setup.node is not None and setup.node.packages:
                    find_npm(installer)
            finally:
                remove_tree(folder)
        except OSError as error:
            raise failed("sandbox.setup: nothing can be tried in", error, error.filename or scratch_of(self._context)) from error

    def _interpreter(self, version: str | None, installer: Installer) -> Interpreter:
        if version not in self._interpreters:
            self._interpreters[version] = find_interpreter(version, installer)
        return self._interpreters[version]

    # ---- once

    def _of(self, name: str, recipe: Callable[[Installer], _Recipe[Made]], trial: Trial) -> Made:
        """What is known by a name, made by whoever is the first of all processes of the run to need it."""
        if (made := self._known(name)) is not None:
            return made  # type: ignore[return-value]  # a name has its kind in it
        until = monotonic() + trial.limits.setup_timeout
        try:
            shared = shared_folder(self._context)
            work = shared / hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:24]
            stopped = functools.partial(self._context.stops.forbids_start, trial.agent.type or "")
            with turn(work.with_suffix(".lock"), stopped, trial.limits.setup_timeout) as held:
                if not held:
                    raise CodeprobeError(
                        _CODE,
                        f"sandbox.setup: another process took longer than setup_timeout = {trial.limits.setup_timeout:g} s",
                        remediation="Raise run_limits.setup_timeout.",
                    )
                if (reason := stopped()) is not None:
                    raise Stopped(reason)
                if (made := self._known(name)) is None:
                    made = self._first(name, recipe, work, trial, until)
                return made  # type: ignore[return-value]
        except OSError as error:
            raise failed("sandbox.setup: no packages can be installed in", error, error.filename or scratch_of(self._context)) from error

    def _known(self, name: str) -> PythonSet | NodeSet | None:
        with self._lock:
            if (error := self._failed.get(name)) is not None:
                raise CodeprobeError(error.code, error.message, remediation=error.remediation, detail=error.detail)
            return self._made.get(name)

    def _first(self, name: str, recipe: Callable[[Installer], _Recipe[Made]], work: Path, trial: Trial, until: float) -> Made:
        """The first thread of this process; another process may have been before it."""
        note = work.with_suffix(".json")
        try:
            if (told := _read(note)) is not None:
                raise CodeprobeError(told["code"], told[_MESSAGE], remediation=told["remediation"], detail=told["detail"])
            work.mkdir(exist_ok=True)
            installer = Installer(self._context, trial, self._env, work, until)
            try:
                made = self._make(recipe(installer), installer, work)
            finally:
                remove_tree(work)
                self._context.network.settle(trial, "setup")
        except CodeprobeError as found:
            error = _offline(found) if self._context.network.has_attempts(trial) else found
            with self._lock:
                self._failed[name] = error
            told = {"code": error.code, _MESSAGE: error.message, "remediation": error.remediation, "detail": error.detail}
            write_whole(note, json.dumps(told))
            raise error from found.__cause__
        with self._lock:
            self._made[name] = made
        return made

    def _make(self, recipe: _Recipe[Made], installer: Installer, work: Path) -> Made:
        kept = cache_of(self._context.environ).with_name("environments") if recipe.kept else None
        if kept is None or not _can_write(kept):
            return _made_at(work.with_suffix(".made"), recipe, installer)
        place = kept / recipe.key
        if (noted := _whole(place)) is None:
            stopped = functools.partial(self._context.stops.forbids_start, "")
            with turn(place.with_suffix(".lock"), stopped, max(0.0, installer.until - monotonic())) as held:  # of other runs
                if not held:
                    raise CodeprobeError(_CODE, f"sandbox.setup: another run has not been done with {place} in time")
                return _made_at(place, recipe, installer)
        return recipe.load(place, noted)

    def check(self, made: PythonSet | NodeSet) -> None:
        """SANDBOX_FAILED where a set that this process knows is no longer as it was made."""
        place = made.folder if isinstance(made, PythonSet) else made.folder.parent
        if _whole(place) is None:
            raise CodeprobeError(
                _CODE,
                f"a session changed the packages that trials share, in {place}",
                remediation="Look at what the trials that ran at that time did; a driver that isolates lets no session reach them.",
            )


def _can_write(folder: Path) -> bool:
    """Whether it is there, or can be made, as it can't where the user's home is somebody else's, or read-only."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)


def _made_at(place: Path, recipe: _Recipe[Made], installer: Installer) -> Made:
    """What is there if it is whole; else it is made, in its final place: programs with packages have that in their first lines."""
    noted: Mapping[str, Any] | None = _whole(place)
    if noted is None:
        if left := remove_tree(place):  # of a process that was killed
            raise CodeprobeError(_CODE, f"sandbox.setup: what an earlier run left could not be removed: {left[0]}")
        try:
            noted = recipe.make(place, installer)
            write_whole(place / _READY, json.dumps({**noted, _SEAL: seal(place, without=_READY)}))
        except BaseException:
            shutil.rmtree(place, ignore_errors=True)
            raise
    return recipe.load(place, noted)


def _offline(error: CodeprobeError) -> CodeprobeError:
    return CodeprobeError(
        "OFFLINE_NET_ATTEMPT",
        f"offline: {error.message}",
        remediation="Let pip or npm find the packages on this machine (PIP_NO_INDEX and PIP_FIND_LINKS, a local registry), or allow their "
        "host by `codeprobe_offline_allow` in pytest's ini file. Packages with exact versions are kept by a run that is not offline.",
        detail=error.detail,
    )


def _key(kind: str, interpreter: Sequence[str], packages: Sequence[str]) -> str:
    said = json.dumps([kind, *interpreter, platform.platform(), *packages])
    return f"{kind}-{hashlib.sha256(said.encode('utf-8', 'surrogatepass')).hexdigest()[:24]}"


def _whole(place: Path) -> dict[str, Any] | None:
    """What was noted of a set, if it is there as it was made."""
    noted = _read(place / _READY)
    try:
        return noted if noted is not None and noted.get(_SEAL) == seal(place, without=_READY) else None
    except OSError:
        return None


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# ---- of a run


def shared_folder(context: Context) -> Path:
    """The folder that all processes of the run share, in the place of private ones; it is the controller's. OSError."""
    controller = os.getpid() if context.worker == "main" else os.getppid()
    return folder_of(controller, scratch_of(context), _name(context))


def _name(context: Context) -> str:
    return hashlib.sha256(f"{context.run_id} {context.run_dir}".encode()).hexdigest()[:16]


def forget_shared(context: Context) -> None:
    """In the controller, once nothing of the run is left that could use it."""
    remove_tree(place_of(os.getpid(), scratch_of(context), _name(context)))
