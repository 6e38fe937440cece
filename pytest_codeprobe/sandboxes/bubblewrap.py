"""Driver `bubblewrap`: a file system, process numbers, and if wanted a network of its own for each process tree. Linux with `bwrap`.

What it shows is listed, never "everything but": the system's folders without what is secret in them, interpreters, the program that is
started, and of the trial what the role may see. So neither the repository nor other trials, the task's folder, hidden tests or HOME are
there. All capabilities are dropped: started by root it would keep them, and could mount anew what is read-only.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.network import DOOR_PORT
from pytest_codeprobe.model.sandbox import Command, Process, ProcessExit, Role
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.base import BaseSandbox, Enclosed, StoreOfRun, network_wanted, scratch_of
from pytest_codeprobe.sandboxes.keyrings import keyring_filter
from pytest_codeprobe.sandboxes.visible import (
    HIDDEN_FILES,
    HIDDEN_FOLDERS,
    SYSTEM,
    TOP,
    certificates,
    covered,
    found,
    harness,
    narrowed,
    own_python,
    program_places,
    resolver,
    roots_own,
)
from pytest_codeprobe.sandboxes.watched import WatchedProcess
from pytest_codeprobe.sandboxes.workspace import TemplateStore

PROGRAM = "bwrap"
_TMP_BYTES = 1 << 30  #: of /tmp and the like inside, each; TMPDIR is on disk
_PROBE_SECONDS = 20.0
_WORD = re.compile(r"[\w./+@%:,-]+")  #: as long as a name of a program can be, wherever it stands: to show one too many is no harm
_WORDS = 1000  #: that are looked up
_PAUSES = (0.0, 0.1, 0.4)  #: seconds before each try
_DOOR = Path(__file__).resolve().parents[1] / "children" / "door.py"
#: parts of the private folder that a role works in, beside the workspace
_PARTS_OF: Mapping[Role, tuple[str, ...]] = {
    "session": ("home", "tmp", "cli", "python"),
    "setup": ("setup", "home", "tmp", "python"),
    "post_run": ("setup",),
    "grader": ("grade",),
}
#: bwrap tells in a file of ours how the command ended: else the enclosure could not be made; and reads a filter, if there is one
_START = 'exec 3>"$1"; [ -z "$2" ] || exec 4<"$2"; shift 2; exec "$@"'


class BubblewrapSandbox(BaseSandbox):
    """An attempt's folder, shown to its processes as far as their role allows."""

    driver = "bubblewrap"
    wrapper = PROGRAM
    wrappers = 2  # one outside, and the first process inside

    def __init__(self, trial: Trial, context: Context, templates: TemplateStore, program: str, *, filtered: bool) -> None:
        super().__init__(trial, context, templates)
        self._program, self._filtered = program, filtered
        self._hidden: list[Path] | None = None  #: folders of users' where the system's are shown

    def door(self, role: Role) -> Path | None:
        """Where the run is offline and the role needs no model."""
        if not self.context.network.apart(self.trial, role):
            return None
        folder = self.root / f"door-{next(self._numbers)}"
        folder.mkdir(0o700)
        return folder

    def enclosed(self, command: Command, role: Role, stderr: Path) -> Enclosed:
        """The command within bwrap. FileNotFoundError if its program is not there."""
        inside = command.cwd or self.workspace
        program = found(command.argv[0], command.env, inside)
        if not program.exists():
            raise FileNotFoundError(2, os.strerror(2), str(program))
        own = [self.workspace, *(self.root / part for part in _PARTS_OF[role] if (self.root / part).is_dir())]
        shown = [*harness(), *resolver(), *map(Path, self.context.options.bind), *command.reads, *certificates(command.env)]
        for path in (program, *_those_there(command, inside)):
            if not path.is_relative_to(self.root):  # what lies there may be the agent's, who names no place of ours
                shown += program_places(path, command.env)
        through: list[str] = []
        if command.door is not None:
            shown.append(command.door)
            through = [own_python(), "-I", "-S", "-B", str(_DOOR), str(command.door), str(DOOR_PORT)]
        if self._hidden is None:
            self._hidden = covered(self._of_users())
        status, hidden = self.logs / f"bwrap-{next(self._numbers)}", self._hidden
        argv = [
            "/bin/sh", "-c", _START, "bwrap", str(status), self._filter(), self._program, "--json-status-fd", "3",
            *(("--seccomp", "4") if self._filtered else ()),
            *_walls_of_run(network=self.trial.sandbox.network != "off" and command.door is None, room_mb=self.trial.sandbox.limits.disk_mb),
            *(word for place in hidden for word in ("--tmpfs", str(place))),
            *(word for place in narrowed(shown, hidden) for word in ("--ro-bind", os.path.realpath(place), str(place))),
            *(word for place in own for word in ("--bind", str(place), str(place))),
            *(word for place in ("/", "/dev", *map(str, hidden)) for word in ("--remount-ro", place)),  # of no bounded size
            "--chdir", str(inside), "--", *through, str(program), *command.argv[1:],
        ]  # fmt: skip
        return Enclosed(argv, "/", lambda process: _Watched(process, status, stderr))

    def _filter(self) -> str:
        """Path of the filter's file; empty where there is none."""
        if not self._filtered:
            return ""
        path = self.logs / "keyrings.bpf"
        if not path.exists():
            path.write_bytes(keyring_filter())
        return str(path)

    def _of_users(self) -> Iterator[Path]:
        """What nobody is to see who works here, wherever a machine has it."""
        yield from (self.context.rootdir, self.context.run_dir, scratch_of(self.context), Path(os.path.expanduser("~")))  # noqa: PTH111
        folder = Path(self.trial.task_file).parent
        yield next((each for each in (folder, *folder.parents) if (each / ".git").exists()), folder)


def _those_there(command: Command, folder: Path) -> Iterator[Path]:
    """The files of programs that the command's text names; what is not there is for the command itself to miss."""
    for word in list(dict.fromkeys(_WORD.findall(command.mentions)))[:_WORDS]:
        with contextlib.suppress(OSError, ValueError):
            if "/" not in word:
                yield found(word, command.env, folder)
            elif word.startswith("/") and Path(word).is_file() and os.access(word, os.X_OK):
                yield Path(word)


class _Watched(WatchedProcess):
    """A process whose end is only its own where bwrap says that it ran."""

    maker = PROGRAM

    def __init__(self, process: Process, status: Path, stderr: Path) -> None:
        super().__init__(process, stderr)
        self._status = status

    def looked_at(self, ended: ProcessExit) -> ProcessExit:
        """See the class."""
        return ended if ended.cause != "exit" or has_run(self._status) else self.not_made(ended)


def has_run(status: Path) -> bool:
    """Whether the file of `--json-status-fd` has the command's exit code."""
    try:
        lines = status.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    for line in lines:
        try:
            if "exit-code" in json.loads(line):
                return True
        except ValueError:
            continue
    return False


def walls(*, network: bool, room_mb: int | None = None) -> Iterator[str]:
    """What is the same for each command: namespaces, no capabilities, the system's folders, read-only.

    `room_mb`: of /tmp and the like, each, if that is less than they have anyway.
    """
    size = _TMP_BYTES if room_mb is None else min(_TMP_BYTES, room_mb << 20)
    yield from ("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try", "--die-with-parent", "--cap-drop", "ALL")
    if not network:
        yield "--unshare-net"
    for place in ("/tmp", "/var", "/run"):
        yield from ("--size", str(size), "--tmpfs", place)
    yield from ("--dir", "/var/tmp", "--proc", "/proc", "--dev", "/dev", "--size", str(size), "--tmpfs", "/dev/shm")
    for place in SYSTEM:
        if Path(place).is_dir():
            yield from ("--ro-bind", place, place)
    for place in TOP:
        if Path(place).is_symlink():
            yield from ("--symlink", str(Path(place).readlink()), place)
        elif Path(place).is_dir():
            yield from ("--ro-bind", place, place)
    files, folders = roots_own()
    for place in sorted(files.union(HIDDEN_FILES)):
        if Path(place).exists():
            yield from ("--ro-bind", os.devnull, place)
    for place in sorted(folders.union(HIDDEN_FOLDERS)):
        if Path(place).is_dir() and folders.isdisjoint(map(str, Path(place).parents)):
            yield from ("--tmpfs", place, "--remount-ro", place)


@functools.cache
def _walls_of_run(*, network: bool, room_mb: int | None) -> tuple[str, ...]:
    """The same for all trials of a process: the system's folders stay what they are."""
    return tuple(walls(network=network, room_mb=room_mb))


class BubblewrapDriver:
    """Files, processes and network by namespaces. Needs Linux and `bwrap`."""

    name = "bubblewrap"
    isolates = True

    def __init__(self) -> None:
        self._templates = StoreOfRun()
        self._lock = threading.Lock()
        self._tried: dict[str | None, tuple[str | None, bool]] = {}  #: program -> why it can't be used, whether it takes a filter

    def unavailable(self, context: Context) -> str | None:
        """Found out by doing it, once in each process."""
        if sys.platform != "linux":
            return "it needs Linux"
        return self._found(_find(context))[0]

    def _found(self, program: str | None) -> tuple[str | None, bool]:
        with self._lock:
            if program not in self._tried:
                self._tried[program] = _tried(program)
            return self._tried[program]

    def unsupported(self, trial: Trial) -> Sequence[tuple[str, str]]:
        """What it can't hold: networks that are neither on nor off."""
        config, missing = trial.sandbox, []
        if config.network not in ("on", "off"):
            missing.append(("sandbox.network", network_wanted(config.network)))
        if config.docker is not None:
            missing.append(("sandbox.docker", "driver docker"))
        return missing

    def create(self, trial: Trial, context: Context) -> BubblewrapSandbox:
        """A new sandbox; nothing is on disk before its prepare()."""
        program = _find(context)
        return BubblewrapSandbox(trial, context, self._templates.of(context), program or PROGRAM, filtered=self._found(program)[1])


def _find(context: Context) -> str | None:
    return shutil.which(PROGRAM, path=context.environ.get("PATH", os.defpath))


def _tried(program: str | None) -> tuple[str | None, bool]:
    """Why it can't be used, and whether with a filter of system calls, which not every system has.

    Tried thrice: what a machine lacks for a moment must not make a run one without walls.
    """
    if program is None:
        return "there is no program `bwrap` on PATH: install the package bubblewrap", False
    for wait in _PAUSES:
        time.sleep(wait)
        if _try(program, filtered=True) is None:
            return None, True
    return _try(program, filtered=False), False


def _try(program: str, *, filtered: bool) -> str | None:
    """Why it does not work, in its own words."""
    with tempfile.TemporaryFile() as file:
        file.write(keyring_filter())
        file.seek(0)
        filter_by = ["--seccomp", str(file.fileno())] if filtered else []
        return _exits(
            [program, *filter_by, *walls(network=False), "--", "/bin/sh", "-c", "exit 7"], keep=[file.fileno()] if filtered else []
        )


def _exits(argv: Sequence[str], keep: Sequence[int]) -> str | None:
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_SECONDS, env={}, pass_fds=keep)
    except (OSError, subprocess.SubprocessError) as error:
        return f"`bwrap` can't be started: {error}"
    if done.returncode == 7:
        return None
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"`bwrap` does not work here: {said[-1] if said else f'exit status {done.returncode}'}"
