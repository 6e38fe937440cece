"""What the sandboxes of all drivers share: the private folder, its parts, and starting commands in it."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shlex
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import Change, Command, CommandResult, Outside, Process, ProcessExit, ProcessLimits, Role, WarmProgram
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes import cgroups
from pytest_codeprobe.sandboxes.changes import MAX_FILE_BYTES
from pytest_codeprobe.sandboxes.held import HeldProcess
from pytest_codeprobe.sandboxes.leftout import what_grades
from pytest_codeprobe.sandboxes.mounts import detach, layers_unusable
from pytest_codeprobe.sandboxes.openfiles import limits_of_start
from pytest_codeprobe.sandboxes.overlaid import OverlaidWorkspace
from pytest_codeprobe.sandboxes.room import Room, charged
from pytest_codeprobe.sandboxes.room import unheld as room_unheld
from pytest_codeprobe.sandboxes.sources import repositories_of
from pytest_codeprobe.sandboxes.streams import input_of, open_log, text_of
from pytest_codeprobe.sandboxes.sweep import new_folder
from pytest_codeprobe.sandboxes.trees import failed, remove_tree
from pytest_codeprobe.sandboxes.watched import ThroughDoor
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, TemplateStore, Workspace
from pytest_codeprobe.text import one_line

_PATIENCE = 60.0  # seconds beyond its limits that a short command's keeper gets to say that all is over
_PARTS = ("workspace", "home", "tmp", "logs")


def scratch_of(context: Context) -> Path:
    """Where the private folders of a run lie: never in the repository."""
    return context.scratch or Path(tempfile.gettempdir())


def passed_over(environ: Mapping[str, str], place: Path) -> str | None:
    """The TMPDIR that was asked for, where Python can't use it, and has taken `place` without a word; None where it is used."""
    asked = environ.get("TMPDIR")
    return asked if asked and os.path.abspath(asked) != str(place) else None  # noqa: PTH100  # as tempfile does it


def network_wanted(network: str | Sequence[str]) -> str:
    """What a task needs that asks for a network which is neither on nor off."""
    if isinstance(network, str) and network != "model":
        return f"on or off, in quotes, not {network!r}"
    return "the gateway, which is not available yet: say on or off"


@dataclass(frozen=True, slots=True)
class Enclosed:
    """A command as the keeper starts it."""

    argv: Sequence[str]
    cwd: str  #: the keeper's
    watched: Callable[[Process], Process] = lambda process: process  #: looks closer at the end
    env: Mapping[str, str] | None = None  #: of what the keeper starts, where that is not the command's
    outside: Outside | None = None  #: what there is beside the process tree
    doorless: Callable[[], bool] = lambda: False  #: whether the command may have started without opening its door


class StoreOfRun:
    """The templates of one driver: those of the run that is on. Those of an earlier run in this process go when its last sandbox does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._store: tuple[tuple[str, Path, Path], TemplateStore] | None = None

    def of(self, context: Context) -> TemplateStore:
        """The store of the context's run."""
        key = (context.run_id, context.run_dir, scratch_of(context))
        with self._lock:
            if self._store is None or self._store[0] != key:
                self._store = (key, TemplateStore(key[2], repositories_of(context), context.warn))
            return self._store[1]


class BaseSandbox:
    """One attempt's private folder: `workspace`, `home`, `tmp` and `logs`; `grade` once a grader needs a place.

    A driver's own class says how commands are wrapped (`enclosed`, `warm`, `rlimits`, `make_group`) and may lay the workspace out
    in another way (`make_workspace`).
    """

    driver = ""
    wrapper = ""  #: name of the program that `enclosed` starts in the command's place; TERM spares it
    python: str | None = None  #: the interpreter inside, by name; None: the one that runs the harness
    wrappers = 0  #: processes of it, which do not count for `pids`

    def __init__(self, trial: Trial, context: Context, templates: TemplateStore) -> None:
        self.trial, self.context = trial, context
        self._templates = templates
        self._root: Path | None = None
        self._parts: dict[str, Path] = {}
        self._template: Path | None = None
        self._space: Workspace | None = None
        self._numbers = itertools.count(1)
        self._groups: list[cgroups.Group] = []  # of all that was started
        self._running: list[Process] = []
        self._room: Room | None = None

    @property
    def unheld(self) -> Sequence[str]:
        """Sentences on limits that are set and that this machine can't hold; the same in each sandbox."""
        limits = self.trial.sandbox.limits
        return [*cgroups.unheld(limits), *room_unheld(limits, scratch_of(self.context))]

    @property
    def root(self) -> Path:
        """The private folder. SANDBOX_FAILED before prepare() and after delete()."""
        if self._root is None:
            raise CodeprobeError("SANDBOX_FAILED", "the sandbox is not prepared")
        return self._root

    def _part(self, name: str) -> Path:
        try:
            return self._parts[name]
        except KeyError:
            return self.root / name

    @property
    def workspace(self) -> Path:
        """The folder the agent works in."""
        return self._part("workspace")

    @property
    def home(self) -> Path:
        """HOME of the session."""
        return self._part("home")

    @property
    def tmp(self) -> Path:
        """TMPDIR of the session."""
        return self._part("tmp")

    @property
    def logs(self) -> Path:
        """Raw logs; the agent has no business here."""
        return self._part("logs")

    @property
    def template(self) -> Path:
        """The workspace as templates alone make it; to be read only."""
        if self._template is None:
            raise CodeprobeError("SANDBOX_FAILED", "the sandbox is not prepared")
        return self._template

    # what a driver may do in its own way

    def enclosed(self, command: Command, role: Role, stderr: Path) -> Enclosed:
        """What the keeper starts, with its errors in the file `stderr`. OSError if it can't be started."""
        return Enclosed(command.argv, str(command.cwd or self.workspace))

    def door(self, role: Role) -> Path | None:
        """A new folder, where `enclosed` will give the next process tree a network of its own and the run's network is to be told."""
        return None

    def warm(self, command: Command) -> WarmProgram | None:
        """What the command may be forked from. None: it starts anew, as it must where `enclosed` wraps it."""
        return None

    def rlimits(self) -> Mapping[str, tuple[int, int]]:
        """Limits that every process here gets; a command's own come on top."""
        return {"CORE": (0, 0), **limits_of_start()}

    def make_group(self) -> cgroups.Group | None:
        """What holds the next process tree to the trial's limits; None where nothing does, or the driver by itself. See `unheld`."""
        try:
            group = cgroups.make(charged(self.trial.sandbox.limits, self._room), beside=self.wrappers)
        except OSError as error:
            raise failed("sandbox.limits: no control group could be made in", error, Path(error.filename or "/sys/fs/cgroup")) from error
        if group is not None:
            self._groups.append(group)
        return group

    def make_workspace(self) -> tuple[Workspace, Path]:
        """How this workspace is laid out and compared, and the template it is made from."""
        template = self._templates.get(self.trial.sandbox, what_grades(self.trial))
        baseline = self.root / "baseline"
        layers = self.root / "layers"
        if self._room is None:
            if template.small or template.linked or layers_unusable(str(self.root)):
                return CopiedWorkspace(template, self.workspace, baseline), template.tree
            layers.mkdir(0o700)
        return OverlaidWorkspace(template, self.workspace, baseline, layers, self._is_idle), template.tree

    def make_room(self) -> Room | None:
        """What holds `disk_mb`; None where nothing does, or the driver by itself. See `unheld`."""
        limits = self.trial.sandbox.limits
        if limits.disk_mb is None or room_unheld(limits, self.root):
            return None
        return Room(self.root / "layers", limits.disk_mb, (self.home, self.tmp))

    def _is_idle(self) -> bool:
        """Whether nothing that was started here is alive."""
        return all(process.wait(0) is not None for process in self._running)

    # the life of a sandbox

    def prepare(self) -> None:
        """Make the folders and lay out the workspace. CodeprobeError SANDBOX_FAILED if it can't be done; then nothing is left."""
        if self._root is not None:
            raise CodeprobeError("SANDBOX_FAILED", "the sandbox is prepared already")
        parent = scratch_of(self.context)
        try:
            self._root = root = new_folder(parent)
            self._parts = {part: root / part for part in _PARTS}
            for path in self._parts.values():
                path.mkdir(0o700)
        except OSError as error:
            self.delete()
            raise failed("no private folder could be made in", error, parent) from error
        try:
            self._room = self.make_room()
            self._space, self._template = self.make_workspace()
            self._space.lay_out()
        except BaseException as error:
            self.delete()
            if isinstance(error, OSError):
                raise failed("sandbox.limits.disk_mb: no place of that size could be made in", error, root) from error
            raise

    def snapshot(self) -> None:
        """Take the baseline that changes() compares with."""
        self._laid().snapshot()

    def start(self, command: Command, *, role: Role, stdout: Path, stderr: Path, limits: ProcessLimits) -> Process:
        """Start a command under a keeper, its output in new files (mode 0600); the same path twice takes both in order.

        OSError if it can't be started, or a log file is there already.
        """
        door = self.door(role)
        env = self.context.network.environment(self.trial, role, command.env, door)
        enclosed = self.enclosed(dataclasses.replace(command, env=env, door=door), role, stderr)
        if role in ("grader", "post_run"):
            self._after_session()
        group = self.make_group()
        limits = dataclasses.replace(
            limits,
            rlimits={**self.rlimits(), **limits.rlimits},
            wrapper=self.wrapper,
            groups=group.doors if group is not None else (),
            outside=enclosed.outside,
        )
        opened: list[int] = []
        try:
            stdin = command.stdin_fd
            if stdin is None:
                stdin = input_of(command.stdin, self.root)
                opened.append(stdin)
            out = open_log(stdout)
            opened.append(out)
            err = out
            if stderr != stdout:
                err = open_log(stderr)
                opened.append(err)
            process = self.context.processes.start(
                enclosed.argv,
                env=env if enclosed.env is None else enclosed.env,
                cwd=enclosed.cwd,
                stdin=stdin,
                stdout=out,
                stderr=err,
                limits=limits,
                role=role,
                agent=self.trial.agent.type or "",
                stop_dir=str(self.context.stops.folder),
                warm=self.warm(command),
            )
            if group is not None:
                group.settle()
        except BaseException as error:
            if group is not None:
                group.remove()
                if isinstance(error, OSError) and str(error.filename).endswith("/cgroup.procs"):
                    raise failed("sandbox.limits: no process can be put into", error, Path(error.filename)) from error
            raise
        finally:
            for fd in opened:
                os.close(fd)
        held = process if group is None and self._room is None else HeldProcess(process, group, limits.grace, self._room)
        started = enclosed.watched(held)
        if door is not None:
            started = ThroughDoor(started, stderr, partial(self.context.network.came_out, self.trial, role, door), enclosed.doorless)
        self._running = [*(process for process in self._running if process.wait(0) is None), started]
        return started

    def run(self, command: Command, *, role: Role, timeout: float, output_bytes: int = 1 << 20) -> CommandResult:
        """Start a short command, wait for it and read its output: at most `output_bytes` of each stream, head and tail.

        `timeout` in seconds. What it writes is bounded by the trial's output_mb. OSError if it can't be started; SANDBOX_FAILED if
        its output could not be written or its end can't be proved.
        """
        number = next(self._numbers)
        stdout, stderr = self.logs / f"run-{number}.out", self.logs / f"run-{number}.err"
        for log in (stdout, stderr):  # a session could have put something there, to break what looks at its work
            remove_tree(log)
        limits = ProcessLimits(timeout=timeout, output_bytes=int(self.trial.sandbox.limits.output_mb * (1 << 20)))
        began = self.context.clock.monotonic()
        try:
            ended = self._wait(self.start(command, role=role, stdout=stdout, stderr=stderr, limits=limits), limits)
            duration = self.context.clock.monotonic() - began
            if ended.trouble is not None:
                raise CodeprobeError(
                    "SANDBOX_FAILED", f"{one_line(shlex.join(command.argv))}: {ended.trouble}", detail={"cause": ended.cause}
                )
            return CommandResult(exit=ended, stdout=text_of(stdout, output_bytes), stderr=text_of(stderr, output_bytes), duration=duration)
        finally:
            for log in (stdout, stderr):
                remove_tree(log)

    def _wait(self, process: Process, limits: ProcessLimits) -> ProcessExit:
        try:
            ended = process.wait((limits.timeout or 0) + limits.grace + _PATIENCE)
        except BaseException:  # an interrupt: nothing may outlive it
            process.destroy()
            raise
        return process.destroy() if ended is None else ended

    def changes(self) -> Sequence[Change]:
        """Paths that differ from the baseline, sorted; looked up anew at each call."""
        self._with_room(lambda room: room.spare())
        return self._laid().changes()

    def touched(self, wanted: Callable[[str], bool]) -> Sequence[Change]:
        """Those of the changes whose path is wanted, however many there are."""
        return self._laid().touched(wanted)

    def write_diff(self, target: Path, *, max_file_bytes: int = MAX_FILE_BYTES) -> None:
        """A patch of what the last changes() found, relative to the baseline; what it leaves out is named at its top."""
        self._laid().write_diff(target, max_file_bytes=max_file_bytes)

    def restore(self, paths: Sequence[str]) -> None:
        """Put these paths back as the baseline had them, with a new mtime; what it did not have is removed. Follows no link."""
        self._after_session()
        self._laid().restore(paths)

    def keep(self, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
        """Copy the workspace to `target`, which does not exist yet."""
        return self._laid().keep(target, ignore)

    @property
    def renames(self) -> bool:
        """Whether move() can be cheaper than keep(): else what is kept directly is a copy, and the workspace stays."""
        return self._laid().renames

    def move(self, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
        """As keep(), but by rename where it can be."""
        return self._laid().move(target, ignore)

    def _with_room(self, work: Callable[[Room], None]) -> None:
        if self._room is not None:
            try:
                work(self._room)
            except OSError as error:
                raise failed("sandbox.limits.disk_mb: no more room could be given to", error, self.root) from error

    def _after_session(self) -> None:
        self._with_room(lambda room: room.widen())

    def _laid(self) -> Workspace:
        if self._space is None:
            raise CodeprobeError("SANDBOX_FAILED", "the sandbox is not prepared")
        return self._space

    def delete(self) -> Sequence[str]:
        """Remove everything; a list of what could not be removed, at most 20 paths. Idempotent."""
        if self._root is None:
            return []
        for holder in (self._space, self._room):
            if holder is not None:
                holder.release()
        mounted = detach(str(self._root)) if (self._root / "layers").is_dir() else []  # an interrupt may have come in between
        left = [*mounted, *remove_tree(self._root), *(folder for group in self._groups for folder in group.remove())]
        if not left:
            self._groups = []
            self._root = self._space = self._room = None
            self._parts = {}
        return left
