"""What becomes of a command in a container: whether it ran at all, and which limits it hit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic

from pytest_codeprobe.model.config import SandboxLimits
from pytest_codeprobe.model.network import DOOR_PORT
from pytest_codeprobe.model.sandbox import RESOURCES, Process, ProcessExit
from pytest_codeprobe.sandboxes.engines import STOPPING, Engine
from pytest_codeprobe.sandboxes.hierarchies import places_of
from pytest_codeprobe.sandboxes.watched import WatchedProcess

_ENDED = b"ended\n"
NO_PYTHON, _MISSING = "no-python", 127
_MOST = 1 << 16  #: bytes of a report that are read, at its begin and at its end
_LARGE = 1 << 20  #: bytes of a report that no first process writes
_KILLED = 137  #: as the shell tells it
_LOOK_EVERY = 1.0  #: seconds between two questions where the container is

#: the first process in a container: sets the environment, runs the command, then says in the report what the kernel counted. Nothing
#: but the shell's own words after the start, since a limit of processes may be used up. Its names are none of a task's variables.
FIRST = r"""
_python=$(command -v python3) || _python=
. "$1"; _report=$2; _own=$3; _host=$4; _door=$5; _children=$6; shift 6
ulimit -c 0
echo ran >>"$_report"
if [ -n "$_own" ]; then
    if command -v "$_own" >/dev/null 2>&1; then shift; set -- "$_own" "$@"
    elif [ -n "$_host" ]; then shift; set -- "$_host" "$@"
    elif [ "$_own" = python3 ]; then echo no-python >>"$_report"; echo ended >>"$_report"; exit 127
    fi
fi
if [ -n "$_door" ] && [ -n "$_python" ] && _program=$(command -v "$1"); then
    shift; set -- "$_python" -I -S -B "$_children/door.py" "$_door" PORT "$_program" "$@"
fi
exec 9>&2 2>/dev/null  # a shell tells of signals that ended what it runs
( exec "$@" 2>&9 9>&- ); status=$?
while [ -e STOPPING ]; do set -- /proc/[0-9]*; [ $# -gt 1 ] && sleep 0.1 || break; done
count() { [ -r "$2" ] && while read -r key value; do
    [ "$key" = "$3" ] && [ "$value" -gt 0 ] && echo "$1 $value" >>"$_report"
done <"$2"; return 0; }
top=/sys/fs/cgroup
for file in $top/memory/memory.oom_control $top/memory.events; do count memory_mb $file oom_kill; done
for file in $top/pids/pids.events $top/pids.events; do count pids $file max; done
for file in $top/cpu/cpu.stat $top/cpu.stat; do count throttled $file nr_throttled; count periods $file nr_periods; done
echo ended >>"$_report"
exit $status
""".replace("PORT", str(DOOR_PORT)).replace("STOPPING", STOPPING)


class Report:
    """A file that the first process in a container writes. So can the command: it is believed where a lie gains nothing."""

    def __init__(self, path: Path) -> None:
        """Make it. OSError."""
        self.path = path
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        self._untouched = self._stamp()

    @property
    def begun(self) -> bool:
        """Whether anything has run: nobody can make a file look as if it had never been written."""
        return self._stamp() != self._untouched

    def read(self) -> Mapping[str, int]:
        """What was said, each word with its number."""
        try:
            with self.path.open("rb") as file:
                began = file.read(_MOST)
                file.seek(max(file.tell(), file.seek(0, os.SEEK_END) - _MOST))
                lines = (began + b"\n" + file.read(_MOST)).decode("utf-8", "replace").splitlines()
        except OSError:
            return {}
        words = (line.partition(" ") for line in lines)
        return {word: int(number) if number.isdecimal() else 0 for word, _, number in words}

    @property
    def size(self) -> int:
        """Bytes."""
        return self._stamp()[0]

    @property
    def ended(self) -> bool:
        """Whether its last line is that of the first process's end."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - len(_ENDED)))
                return file.read() == _ENDED
        except OSError:
            return False

    def _stamp(self) -> tuple[int, int, int]:
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns


class Evidence:
    """Whether the first process came to its end by itself, or the engine ended it.

    What is in the report is believed where it says so: a command that says it in vain has only its own end counted as its own. Where
    it does not, for whatever reason, the engine itself is asked before the container goes (Engine.outside): no command can change that.
    """

    def __init__(self, report: Report, file: Path) -> None:
        self.report, self.file = report, file

    def is_own(self, status: int | None) -> bool:
        """Whether the engine's client ended with the status of the first process, which nobody had killed."""
        return self.report.ended or (status != _KILLED and self._told() == f"exited {status}")

    def _told(self) -> str:
        try:
            return self.file.read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return ""


class Counters:
    """The limits of one container, as the kernel counts them: while it lives in its control groups, then in its report."""

    def __init__(self, engine: Engine, name: str, limits: SandboxLimits, report: Report) -> None:
        self._engine, self._name, self._limits, self._report = engine, name, limits, report
        self._files: dict[str, tuple[Path, str]] = {}
        self._sought = 0.0

    @property
    def ends(self) -> bool:
        """Whether there is a limit that ends a session."""
        return any(getattr(self._limits, name) is not None for name in ("memory_mb", "pids", "disk_mb"))

    def hit(self) -> str | None:
        """The limit that was hit. Of disk_mb: by what goes into the report, which is no place for it."""
        if self._limits.disk_mb is not None and self._report.size > _LARGE:
            return "disk_mb"
        said = self._report.read()
        for name in RESOURCES:
            if getattr(self._limits, name) is not None and (name in said or self._counted(name)):
                return name
        return None

    def throttled(self) -> tuple[int, int]:
        """Periods in which all processors of the limit were used up, of those in which something ran."""
        if self._limits.cpus is None:
            return 0, 0
        said = self._report.read()
        return said.get("throttled", 0), said.get("periods", 0)

    def remove(self) -> list[str]:
        """The engine does that."""
        return []

    def _counted(self, name: str) -> bool:
        if not self._files and monotonic() - self._sought >= _LOOK_EVERY:
            self._files = dict(self._find())
            self._sought = monotonic()
        file, key = self._files.get(name, (None, ""))
        if file is None:
            return False
        try:
            lines = file.read_text(encoding="ascii").splitlines()
        except OSError:
            return False  # it has ended
        return any(line.startswith(f"{key} ") and line.split()[1] != "0" for line in lines)

    def _find(self) -> Iterator[tuple[str, tuple[Path, str]]]:
        """The files with the counters, by what control groups the first process is in."""
        try:
            answer = self._engine.ask("container", "inspect", "--format", "{{.State.Pid}}", self._name, timeout=5.0)
        except OSError:
            return
        pid = answer.output.decode("ascii", "replace").strip()
        if not pid.isdigit() or int(pid) <= 0:
            return
        there = places_of(int(pid))
        for name, controller, files in (
            ("memory_mb", "memory", (("memory.events", "oom_kill"), ("memory.oom_control", "oom_kill"))),
            ("pids", "pids", (("pids.events", "max"),)),
        ):
            for file, key in files if controller in there else ():
                if (path := Path(there[controller], file)).is_file():
                    yield name, (path, key)
                    break


class WatchedContainer(WatchedProcess):
    """A process in a container, whose end is only its own where it ran."""

    maker = "the engine"

    def __init__(
        self, process: Process, evidence: Evidence, stderr: Path, image: str, by_hand: str, lacks_python: Callable[[], bool] | None
    ) -> None:
        """`image`: as the task has it. `by_hand`: a command that shows what the engine does. `lacks_python`: asks the image itself, since
        what runs in a container can write in its report; None where no python3 is wanted.
        """
        super().__init__(process, stderr)
        self.by_hand = f" (by hand, without mounts and limits: {by_hand})"
        self._evidence, self._image, self._lacks_python = evidence, image, lacks_python

    def looked_at(self, ended: ProcessExit) -> ProcessExit:
        """See the class."""
        if ended.cause != "exit":
            return ended
        report = self._evidence.report
        if not report.begun:  # whatever the status: a shell that may not read what is mounted ends with its own
            return self.not_made(ended)
        if not self._evidence.is_own(ended.status):
            return self.taken_away(ended)
        if self._lacks_python is not None and ended.status == _MISSING and NO_PYTHON in report.read() and self._lacks_python():
            return self.not_made(
                ended, f"image {self._image} has no python3 on its PATH, which this needs: install Python 3.11 or newer in the image"
            )
        return ended
