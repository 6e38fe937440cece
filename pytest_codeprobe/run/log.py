"""run.log: what happened in a run, for a person: the trials' own logs in the order in which they ended, and what is said of the whole."""

from __future__ import annotations

import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pytest_codeprobe.text import Redactor, plain

#: a line of trial.log that begins an entry; what follows without a time belongs to it
_LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(\d{3}) ([A-Z]+) (.*)", re.DOTALL)
_MAX_TRIAL_LOG = (
    1 << 20
)  #: bytes that are read of one: our own say far less, but under a driver that doesn't isolate a session can add to it
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that was logged."""

    time: float  #: seconds since the epoch
    level: int  #: of `logging`
    text: str  #: more than one line, perhaps

    def line(self) -> str:
        """As run.log shows it."""
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.time))
        return f"{stamp},{int(self.time * 1000) % 1000:03d} {logging.getLevelName(self.level)} {self.text}\n"


class RunLog:
    """Appends entries to run.log, each trial's in one write, without secrets; tells `also` of each. From any thread."""

    def __init__(self, path: Path, redactor: Redactor, *, also: Callable[[Entry], None], failed: Callable[[OSError], None]) -> None:
        self._path, self._redactor, self._also, self._failed = path, redactor, also, failed
        self._lock = threading.Lock()
        self._broken = False  # a full disk, say: what follows a gap would mislead

    def say(self, level: int, text: str) -> None:
        """Something of the run as a whole, now."""
        self._write([Entry(time.time(), level, self._redactor.text(plain(text)))])

    def trial(self, name: str, logs: list[Path], ended: str) -> None:
        """What the attempts of a trial have logged, each in a file of its own, and how it ended."""
        entries = [entry for number, log in enumerate(logs, 1) for entry in _entries(log, name if len(logs) < 2 else f"{name} #{number}")]
        self._write([*entries, Entry(time.time(), logging.INFO, f"{name}: {self._redactor.text(plain(ended))}")])

    def _write(self, entries: list[Entry]) -> None:
        data = "".join(entry.line() for entry in entries).encode("utf-8", "backslashreplace")
        with self._lock:
            if not self._broken:
                try:
                    fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
                    try:
                        while data:
                            data = data[os.write(fd, data) :]
                    finally:
                        os.close(fd)
                except OSError as error:
                    self._broken = True
                    self._failed(error)
            for entry in entries:
                self._also(entry)


def _entries(log: Path, name: str) -> Iterator[Entry]:
    """Those of a trial.log, which has been through the redactor; nothing where there is none, or something else in its place."""
    head: Entry | None = None
    lines: list[str] = []

    def whole(head: Entry) -> Entry:
        return Entry(head.time, head.level, "\n  ".join([head.text, *lines])) if lines else head

    for line in _text(log).splitlines():
        found = _LINE.fullmatch(line)
        if found is None and head is not None:
            lines.append(line)
            continue
        if head is not None:
            yield whole(head)
        head, lines = _entry(found, name) if found is not None else Entry(time.time(), logging.INFO, f"{name}: {line}"), []
    if head is not None:
        yield whole(head)


def _entry(found: re.Match[str], name: str) -> Entry:
    level = logging.getLevelNamesMapping().get(found[3], logging.INFO)
    try:
        moment = time.mktime(time.strptime(found[1], "%Y-%m-%d %H:%M:%S")) + int(found[2]) / 1000
    except (ValueError, OverflowError):
        moment = time.time()
    return Entry(moment, level, f"{name}: {found[4]}")


def _text(log: Path) -> str:
    try:
        fd = os.open(log, _FLAGS)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                return ""
            read = file.read(_MAX_TRIAL_LOG + 1)
            more = "\n[… the rest is in trial.log …]" if len(read) > _MAX_TRIAL_LOG else ""
            return plain(read[:_MAX_TRIAL_LOG].decode("utf-8", "replace")) + more
    except OSError:
        return ""
