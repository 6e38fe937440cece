"""What becomes of a command in a container: whether it ran at all, and which limits it hit."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from time import monotonic

from pytest_codeprobe.model.config import SandboxLimits
from pytest_codeprobe.model.network import DOOR_PORT
from pytest_codeprobe.model.sandbox import RESOURCES, Process, ProcessExit
from pytest_codeprobe.sandboxes.engines import Engine
from pytest_codeprobe.sandboxes.hierarchies import places_of
from pytest_codeprobe.sandboxes.watched import WatchedProcess

NO_PYTHON, _MISSING = "no-python", 127
_MOST = 1 << 16  #: bytes of a report that are read
_LAST = 1 << 20  #: bytes of a log in whose end the last words of the first process are looked for
_LOOK_EVERY = 1.0  #: seconds between two questions where the container is

#: the first process in a container: sets the environment, runs the command, then says in the report what the kernel counted. Nothing
#: but the shell's own words after the start, since a limit of processes may be used up. Its names are none of a task's variables.
FIRST = r"""
. "$1"; _report=$2; _end=$3; _own=$4; _host=$5; _door=$6; _children=$7; shift 7
ulimit -c 0
echo ran >>"$_report"
if [ -n "$_own" ]; then
    if command -v "$_own" >/dev/null 2>&1; then shift; set -- "$_own" "$@"
    elif [ -n "$_host" ]; then shift; set -- "$_host" "$@"
    elif [ "$_own" = python3 ]; then echo no-python >>"$_report"; printf %s "$_end" >&2; exit 127
    fi
fi
if [ -n "$_door" ] && command -v python3 >/dev/null 2>&1 && _program=$(command -v "$1"); then
    shift; set -- python3 -I -S -B "$_children/door.py" "$_door" PORT "$_program" "$@"
fi
exec 9>&2 2>/dev/null  # a shell tells of signals that ended what it runs
( exec "$@" 2>&9 9>&- ); status=$?
stopping=; while read -r key value; do [ "$key" = stopping ] && stopping=yes; done <"$_report"
while [ -n "$stopping" ]; do set -- /proc/[0-9]*; [ $# -gt 1 ] && sleep 0.1 || break; done
count() { [ -r "$2" ] && while read -r key value; do
    [ "$key" = "$3" ] && [ "$value" -gt 0 ] && echo "$1 $value" >>"$_report"
done <"$2"; return 0; }
top=/sys/fs/cgroup
for file in $top/memory/memory.oom_control $top/memory.events; do count memory_mb $file oom_kill; done
for file in $top/pids/pids.events $top/pids.events; do count pids $file max; done
for file in $top/cpu/cpu.stat $top/cpu.stat; do count throttled $file nr_throttled; count periods $file nr_periods; done
tries=0; until printf %s "$_end" >&9 || [ $tries = 100000 ]; do tries=$((tries+1)); done  # it may not block, and be full
exit $status
""".replace("PORT", str(DOOR_PORT))


class Report:
    """A file that the first process in a container writes. The command can write it too, which gains it nothing that it could not do."""

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
                lines = file.read(_MOST).decode("utf-8", "replace").splitlines()
        except OSError:
            return {}
        words = (line.partition(" ") for line in lines)
        return {word: int(number) if number.isdecimal() else 0 for word, _, number in words}

    def _stamp(self) -> tuple[int, int, int]:
        found = self.path.stat()
        return found.st_size, found.st_mtime_ns, found.st_ctime_ns


class EndMark:
    """What the first process writes as its last words, after the command's end: an engine that dies before has its client end too.

    They come with the errors of the command, which can write there itself, but nobody can take back what was written: so no command
    makes its own end look like the engine's. They are taken out of the log again.
    """

    def __init__(self) -> None:
        self.text = f"<codeprobe: end {secrets.token_hex(8)}>"
        self._lock = threading.Lock()
        self._seen: bool | None = None

    def taken_from(self, log: Path) -> bool:
        """Whether they are in the log of a process that has ended; they no longer are then."""
        with self._lock:
            if self._seen is None:
                self._seen = self._take(log)
            return self._seen

    def _take(self, log: Path) -> bool:
        mark = self.text.encode("ascii")
        try:
            with log.open("r+b") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - _LAST))
                began, last = file.tell(), file.read(_LAST)
                at = last.rfind(mark)
                if at >= 0:  # what other processes of the command wrote after it stays
                    file.seek(began + at)
                    file.write(last[at + len(mark) :])
                    file.truncate()
                return at >= 0
        except FileNotFoundError:
            return False


class Counters:
    """The limits of one container, as the kernel counts them: while it lives in its control groups, then in its report."""

    def __init__(self, engine: Engine, name: str, limits: SandboxLimits, report: Report) -> None:
        self._engine, self._name, self._limits, self._report = engine, name, limits, report
        self._files: dict[str, tuple[Path, str]] = {}
        self._sought = 0.0

    @property
    def ends(self) -> bool:
        """Whether there is a limit that ends a session."""
        return self._limits.memory_mb is not None or self._limits.pids is not None

    def hit(self) -> str | None:
        """The limit that was hit."""
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
        self,
        process: Process,
        report: Report,
        stderr: Path,
        end: EndMark,
        image: str,
        lacks_python: Callable[[], bool],
        client: str,
    ) -> None:
        """`lacks_python`: asks the image itself, since what runs in a container can write in its report."""
        super().__init__(process, stderr)
        self.by_hand = f" (by hand: {client} run --rm {image} /bin/sh -c 'echo it works')"
        self._report, self._end, self._image, self._lacks_python = report, end, image, lacks_python

    def looked_at(self, ended: ProcessExit) -> ProcessExit:
        """See the class."""
        came_to_its_end = self._end.taken_from(self._stderr)
        if ended.cause != "exit":
            return ended
        if not self._report.begun:  # whatever the status: a shell that may not read what is mounted ends with its own
            return self.not_made(ended)
        if not came_to_its_end:
            return self.taken_away(ended)
        if ended.status == _MISSING and NO_PYTHON in self._report.read() and self._lacks_python():
            return self.not_made(
                ended, f"image {self._image} has no python3 on its PATH, which this needs: install Python 3.11 or newer in the image"
            )
        return ended
