"""A terminal in which pytest runs: a real pseudo-terminal, and an emulator that says what a person sees on it."""

from __future__ import annotations

import os
import pty
import re
import shlex
import termios
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pyte

from tests.front_door import Project, Run

#: what a person's shell has; empty is as good as absent for all of these
ENVIRONMENT = {
    "TERM": "xterm-256color",
    **dict.fromkeys(("CI", "BUILD_NUMBER", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "PY_COLORS"), ""),
}
STREAMS = ("stdin", "stdout", "stderr")
LIVE = re.compile(r"codeprobe: \d+ r")


def transcript(screen: pyte.HistoryScreen) -> list[str]:
    """What has left a screen at its top, and the screen, without empty rows at the end."""
    left = [_text(row, screen.columns) for row in screen.history.top]
    return "\n".join([*left, *rows_of(screen)]).rstrip("\n").split("\n")


def rows_of(screen: pyte.Screen) -> list[str]:
    """What is on a screen, without blanks at the ends of rows. pyte's own `display` fails on the half of a wide letter."""
    return [_text(screen.buffer[number], screen.columns) for number in range(screen.lines)]


def _text(row: Mapping[int, pyte.screens.Char], columns: int) -> str:
    return "".join(row[column].data for column in range(columns)).rstrip()


class Terminal:
    """One terminal. Its screen is what the emulator has made of all that was written to it."""

    def __init__(self, columns: int = 80, rows: int = 24) -> None:
        self.master, self.slave = pty.openpty()
        self.name = os.ttyname(self.slave)
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000)
        self._stream = pyte.ByteStream(self.screen)
        self._lock = threading.Lock()
        self.raw = bytearray()  #: all that was written
        self.most_lines = 0  #: live lines on the screen at once, at any moment
        self.resize(columns, rows)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def resize(self, columns: int, rows: int) -> None:
        with self._lock:
            self.screen.resize(rows, columns)
            termios.tcsetwinsize(self.slave, (rows, columns))

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self.master, 1 << 16)
            except OSError:  # nobody has it open any more
                return
            with self._lock:
                self.raw += data
                self._stream.feed(data)
                self.most_lines = max(self.most_lines, sum(bool(LIVE.search(row)) for row in rows_of(self.screen)))

    @property
    def rows(self) -> list[str]:
        """The screen, without blanks at the ends of rows."""
        with self._lock:
            return rows_of(self.screen)

    @property
    def transcript(self) -> list[str]:
        """See transcript()."""
        with self._lock:
            return transcript(self.screen)

    @property
    def cursor(self) -> tuple[int, int]:
        """Row and column, from 0."""
        with self._lock:
            return self.screen.cursor.y, self.screen.cursor.x

    def live(self) -> str:
        """The live line, or the empty string. It can only stand alone, in the row below the cursor's, with nothing after it."""
        with self._lock:
            rows, below = rows_of(self.screen), self.screen.cursor.y + 1
        found = [number for number, row in enumerate(rows) if LIVE.search(row)]
        if not found:
            return ""
        assert found == [below], rows
        assert rows[below].startswith("codeprobe: "), rows
        assert not any(rows[below + 1 :]), rows
        return rows[below]

    def start(self, project: Project, *args: str, mode: str = "plain", env: dict[str, str] | None = None, junit: bool = True,
              streams: tuple[str, ...] = STREAMS, before: tuple[str, ...] = ()) -> Run:  # fmt: skip
        """Start pytest as the shell of this terminal would; the streams that are not named go to files. `before`: see Project.start()."""
        signs = {"stdin": "<", "stdout": ">", "stderr": "2>"}
        ways = " ".join(f"{signs[stream]}{shlex.quote(self.name)}" for stream in streams)
        # the first process of a session becomes the owner of a terminal that it opens: Ctrl-C reaches it
        prefix = ("/bin/sh", "-c", f'exec "$@" {ways}', "sh", *before)
        return project.start(*args, mode=mode, env=ENVIRONMENT | (env or {}), prefix=prefix, junit=junit)

    def type(self, text: str) -> None:
        """As on the keyboard."""
        os.write(self.master, text.encode())

    def wait_for(self, run: Run, condition: Callable[[str], object]) -> None:
        """Until the live line fulfils it."""

        def holds() -> bool:
            try:
                return bool(condition(self.live()))
            except AssertionError:  # between two writes; it stays so if something is wrong
                return False

        try:
            run.poll(holds)
        except AssertionError as error:
            raise AssertionError(f"{error}\n" + "\n".join(self.rows)) from None

    def ended(self, run: Run) -> Run:
        """Wait for the end of the run, and for all that it wrote."""
        run.wait()
        self.close()
        return run

    def close(self) -> None:
        """No more output. Can be called again."""
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1
            self._reader.join(10)
            os.close(self.master)


@contextmanager
def terminal(columns: int = 80, rows: int = 24) -> Iterator[Terminal]:
    """A terminal that is closed at the end."""
    made = Terminal(columns, rows)
    try:
        yield made
    finally:
        made.close()
