"""Sandboxes and the processes in them, as the trial and the criteria see them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from pytest_codeprobe.model.context import reason_of

if TYPE_CHECKING:
    from pytest_codeprobe.model.context import Context
    from pytest_codeprobe.model.trial import Trial

#: what a process is for: decides which stop of the run ends it, and which environment rules hold
Role = Literal["session", "grader", "setup", "post_run"]
#: limits of sandbox.limits that a process tree hits as a whole, as causes of its end
RESOURCES = ("memory_mb", "pids", "disk_mb")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What a container engine holds for a command, which is then the engine's client: how the keeper ends it. Paths are absolute."""

    stop_argv: Sequence[str]  #: TERM to all of it; nobody waits for that
    end_argv: Sequence[
        str
    ]  #: ends it, and exits with 0 once nothing is known of it any more; may be run at any time, as often as one likes
    env: Mapping[str, str]  #: whole environment of both


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessLimits:
    """Bounds that the keeper holds by itself, so that they hold while pytest is busy or stopped."""

    timeout: float | None = None  #: seconds from the start
    grace: float = 5.0  #: seconds between TERM and KILL
    output_bytes: int | None = None  #: of stdout and stderr together; then both must be regular files. None: not held
    rlimits: Mapping[str, tuple[int, int]] = field(default_factory=dict)  #: NAME without RLIMIT_: (soft, hard)
    wrapper: str = ""  #: program name that TERM spares, such as bwrap
    groups: Sequence[tuple[str, str]] = ()  #: folders of control groups for the command, each with that of the keeper's own
    outside: Outside | None = None  #: what there is beside the process tree


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """How a process tree ended; nothing of it is left, except where `proved` is false."""

    status: int | None  #: exit status, -N for signal N, None if it was not seen to end
    #: exit, stopped, stopped:<reason of the run>, timeout, output, of RESOURCES, owner, lost (no keeper), "log: why" (not written),
    #: "enclosure: why" (not made), "taken: why" (its enclosure ended first)
    cause: str
    user: float = 0.0  #: CPU seconds
    system: float = 0.0  #: CPU seconds
    max_rss_kb: int = 0  #: of the largest single process
    left: int = 0  #: processes that outlived the command and were ended
    output_bytes: int = 0
    proved: bool = True  #: false: it can't be shown that nothing is alive; such a trial is an error
    throttled: int = 0  #: of `periods`, those in which it had used up its processors (sandbox.limits.cpus)
    periods: int = 0

    @property
    def stopped(self) -> str | None:
        """The reason of a record where the run ended it, also by its own end: pytest, or xdist's controller, was killed."""
        if self.cause == "owner":
            return "interrupted"
        return reason_of(self.cause) if self.cause.startswith("stopped:") else None

    @property
    def trouble(self) -> str | None:
        """Why nothing can be made of the process, however it did; None if there is no reason."""
        if not self.proved:
            return "it can't be shown that nothing of it is alive"
        if self.cause.startswith("enclosure:"):
            return f"its sandbox could not be made: {self.cause.removeprefix('enclosure: ')}"
        if self.cause.startswith("taken:"):
            said = self.cause.removeprefix("taken:").strip()
            return "its sandbox was ended from outside" + (f"; stderr ends with: {said}" if said else "")
        if self.cause == "lost":
            return "its keeper was killed, and it with that"
        return f"its output could not be written: {self.cause.removeprefix('log: ')}" if self.cause.startswith("log:") else None


@dataclass(frozen=True, slots=True)
class WarmProgram:
    """A Python program that is kept loaded, so that a command can be a fork of it. Equal ones share one process.

    No code of a task or an agent may run in it: the program has to load nothing that these can write, under an environment that
    they have no say in.
    """

    argv: tuple[str, ...]  #: interpreter, its options, children/warm.py, the program, its arguments; all as in the command's own argv
    env: tuple[tuple[str, str], ...] = ()  #: whole environment while it is loaded; a fork gets the command's


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """What to run. `env` is the whole environment, `cwd` a path as the sandbox's inside sees it (None: the workspace)."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: Path | None = None
    stdin: bytes | None = None  #: content of standard input; None: /dev/null
    stdin_fd: int | None = None  #: instead of `stdin`: an open descriptor, such as one end of a socketpair
    reads: Sequence[Path] = ()  #: files and folders beside the sandbox that it needs; a driver that isolates shows them read-only
    mentions: str = ""  #: the task's text of it: what is named there and is a program of this machine is shown like the first of `argv`
    door: Path | None = None  #: a folder: the process tree has a network of its own, whose proxy is served from outside through it
    warm: WarmProgram | None = None  #: a fork of this does the same as `argv`, sooner; for drivers that can


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """A command that has ended, with bounded output."""

    exit: ProcessExit
    stdout: str
    stderr: str
    duration: float  #: seconds


class Process(Protocol):
    """A running process tree with an owner that ends it."""

    def wait(self, timeout: float | None = None) -> ProcessExit | None:
        """The end once nothing of the tree is left; None when the time is over first."""

    def stop(self, grace: float) -> None:
        """TERM to the whole tree, KILL after `grace` seconds, at once if it is 0. Does not wait."""

    def destroy(self, timeout: float = 2.0) -> ProcessExit:
        """KILL the tree and wait for the proof, also where the keeper itself is stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One path that the session left different from the baseline."""

    path: str  #: relative to the workspace, POSIX; bytes that are no UTF-8 as surrogate escapes
    kind: Literal["added", "modified", "deleted"]
    size: int | None = None  #: bytes afterwards; None for deleted
    mode: int | None = None  #: file mode afterwards
    note: str = ""  #: "symlink", "fifo", "too large: sha256 …"


class Sandbox(Protocol):
    """One trial's private place: a workspace, a HOME, a TMPDIR, logs. Paths are the harness's view."""

    @property
    def driver(self) -> str:
        """Name of the driver that made it."""

    @property
    def root(self) -> Path:
        """The private folder (mode 0700) that holds all below; and `cli`, the stand-ins that a session may call and the socket by which
        they ask, where the task has `record_cli`: a driver that isolates has to show it to sessions, at its own path. Where it has
        `setup`, also `python`, the trial's own environment: to sessions and the commands before them, which write there.
        """

    @property
    def workspace(self) -> Path:
        """The folder the agent works in; graders work in it too, once the agent is gone."""

    @property
    def home(self) -> Path:
        """HOME of the session."""

    @property
    def tmp(self) -> Path:
        """TMPDIR of the session."""

    @property
    def logs(self) -> Path:
        """Raw logs; the agent has no business here."""

    @property
    def template(self) -> Path:
        """The laid-out workspace as templates alone make it, immutable: what protected files are restored from."""

    def prepare(self) -> None:
        """Make the folders and lay out the workspace. CodeprobeError SANDBOX_FAILED if it can't be done."""

    def snapshot(self) -> None:
        """Take the baseline that changes() compares with; called after pre_run."""

    def start(self, command: Command, *, role: Role, stdout: Path, stderr: Path, limits: ProcessLimits) -> Process:
        """Start a command under a keeper. OSError if it can't be started."""

    def run(self, command: Command, *, role: Role, timeout: float, output_bytes: int = 1 << 20) -> CommandResult:
        """Start, wait and read the output; for short commands of tasks, graders and fixtures."""

    def changes(self) -> Sequence[Change]:
        """Paths that differ from the baseline, sorted; found without trusting what the agent controls."""

    def touched(self, wanted: Callable[[str], bool]) -> Sequence[Change]:
        """Those of the changes whose path is wanted: all of them, where changes() lists a bounded number. Sizes, modes are left out."""

    def write_diff(self, target: Path, *, max_file_bytes: int = 10_000_000) -> None:
        """`diff.patch` of the changes: binary safe, without `.git` folders, files over the cap as a note."""

    def restore(self, paths: Sequence[str]) -> None:
        """Put these paths of the workspace back as the baseline had them, with a new mtime; what it did not have is removed.

        Symlinks on the way are replaced by the baseline's folders, never followed.
        """

    def keep(self, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
        """Copy the workspace to `target`, which does not exist yet; symlinks as links. `partial`: something was left out."""

    def move(self, target: Path, ignore: Sequence[str]) -> Literal["whole", "partial"]:
        """As keep(), but by rename where it can be; the workspace is gone afterwards."""

    def delete(self) -> Sequence[str]:
        """Remove everything; a list of what could not be removed. Idempotent."""


class Driver(Protocol):
    """A kind of sandbox."""

    name: str
    isolates: bool  #: the agent's own tools can't reach beyond the sandbox

    def unavailable(self, context: Context) -> str | None:
        """Why it can't be used on this machine; None if it can."""

    def unsupported(self, trial: Trial) -> Sequence[tuple[str, str]]:
        """Fields set for this trial that the driver can't hold: (dotted path, what would hold it). Of a built-in one by the trial alone."""

    def create(self, trial: Trial, context: Context) -> Sandbox:
        """A new sandbox for one attempt; nothing is made on disk before prepare()."""


class ProcessStarter(Protocol):
    """Starts commands under keepers; one per pytest process, usable from any thread."""

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: int,
        stdout: int,
        stderr: int,
        limits: ProcessLimits,
        role: Role,
        agent: str = "",
        stop_dir: str = "",
        warm: WarmProgram | None = None,
    ) -> Process:
        """OSError if the command can't be started. `stop_dir`: the run's folder of stop flags, watched for the role.

        `warm`: what the command may be forked from instead of being started anew.
        """
