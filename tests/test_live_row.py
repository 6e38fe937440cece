"""The live line's parts: what it says, where it may be drawn, what it leaves of streams and of other processes."""

from __future__ import annotations

import os
import pty
import signal
import termios
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import TextIO

import pyte
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_codeprobe.plugin import live_line
from pytest_codeprobe.run.book import Progress
from tests.terminals import transcript


@pytest.mark.parametrize(
    ("progress", "seconds", "said"),
    [
        (Progress(300, 12, 57, 50, 41, 2, 1.239), 190.9, "codeprobe: 12 running, 57/300 done, 82% passed, 2 errors, $1.24, 3m10s"),
        (Progress(1, 1, 0, 0, 0, 0, None), 0.4, "codeprobe: 1 running, 0/1 done, 0s"),
        (Progress(9, 0, 9, 0, 0, 1, 0.0), 3725.0, "codeprobe: 0 running, 9/9 done, 1 error, $0.00, 1h02m"),
    ],
)
def test_what_it_says(progress: Progress, seconds: float, said: str) -> None:
    assert live_line.line(progress, seconds) == said


def test_it_says_what_the_others_wait_for() -> None:
    progress = Progress(9, 1, 0, 0, 0, 0, None)
    assert live_line.line(progress, 2.0, canaries=1) == "codeprobe: 1 running, 0/9 done, waiting for 1 canary, 2s"
    assert ", waiting for 2 canaries, " in live_line.line(progress, 2.0, canaries=2)


class Strip:
    """A terminal without a process, and a stream that leads to it, as sys.stdout does."""

    def __init__(self) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (4, 24))
        self.stream: TextIO = os.fdopen(slave, "w", encoding="utf-8")
        self.screen = pyte.HistoryScreen(24, 4, history=1000)
        self._feed = pyte.ByteStream(self.screen).feed

    def read(self) -> bytes:
        """All that was written."""
        os.write(self.stream.fileno(), b"\0")  # which no terminal shows
        data = b""
        while not data.endswith(b"\0"):
            data += os.read(self.master, 1 << 16)
        self._feed(data)
        return data

    def close(self) -> None:
        self.stream.close()
        os.close(self.master)


@pytest.fixture
def strip() -> Iterator[Strip]:
    made = Strip()
    yield made
    made.close()


#: what is written to a terminal: parts of lines, ends of lines, colours, a message to the window, what moves the cursor, wide letters
PIECES = st.sampled_from(
    [
        ".",
        "abcdefg",
        "x" * 23,
        "x" * 24,
        "\n",
        "one\ntwo",
        "\r",
        "a\rbcd",
        "\t",
        "é",
        "課題",
        "\x1b[31mred\x1b[0m",
        "\x1b]9;4;1\x07",
        "\x1b[K",
    ]
)


@given(st.lists(st.tuples(PIECES, st.sampled_from(["", "a line", "a line that is longer than the row"])), max_size=20))
@settings(max_examples=60)
def test_nothing_of_it_stays(steps: Sequence[tuple[str, str]]) -> None:
    """Whatever is written, and whenever the line is drawn: in the end it is as if it had not been."""
    screens = []
    for with_line in (True, False):
        strip = Strip()
        row = live_line.Row(strip.stream, (), column=0, colour=True) if with_line else None
        for text, shown in steps:
            strip.stream.write(text)
            strip.stream.flush()
            if row is not None:
                row.show(shown)
            strip.read()
        if row is not None:
            row.close()
        strip.stream.write("\nend\n")
        strip.stream.flush()
        strip.read()
        screens.append((transcript(strip.screen), strip.screen.cursor.x))
        strip.close()
    assert screens[0] == screens[1]


def test_it_is_drawn_again_only_when_it_must(strip: Strip) -> None:
    row = live_line.Row(strip.stream, (), column=0, colour=False)
    row.show("a line")
    assert b"a line" in strip.read()
    row.show("a line")
    strip.stream.write(".")  # in the row above, colours or not: nothing to do
    strip.stream.write("\x1b[32m.\x1b[0m")
    assert strip.read() == b".\x1b[32m.\x1b[0m\0"
    strip.stream.write("\n")
    assert b"a line" in strip.read()
    row.close()


@pytest.mark.parametrize("text", ["x" * 24, "x" * 48, "課" * 12, "ab\r", "\t", "\x1b[5C"])
def test_not_where_nobody_knows_what_is_right_of_the_cursor(strip: Strip, text: str) -> None:
    """At the edge terminals differ in where the cursor is."""
    row = live_line.Row(strip.stream, (), column=0, colour=False)
    row.show("a line")
    strip.read()
    strip.stream.write(text)
    row.show("a line")
    assert strip.read() == b"\x1b[J" + text.encode() + b"\0"
    strip.stream.write("\n")
    row.show("a line")
    assert b"a line" in strip.read()
    row.close()


def test_a_terminal_that_is_gone(strip: Strip) -> None:
    row = live_line.Row(strip.stream, (), column=0, colour=False)
    master, strip.master = strip.master, os.open(os.devnull, os.O_RDONLY)
    os.close(master)
    row.show("a line")
    row.close()


@pytest.mark.parametrize("column", [0, 7])
def test_a_terminal_without_a_size(strip: Strip, column: int) -> None:
    """As a pseudo-terminal is before anybody has set one."""
    termios.tcsetwinsize(strip.stream.fileno(), (0, 0))
    row = live_line.Row(strip.stream, (strip.stream,), column=column, colour=False)
    row.show("a line")
    row.close()
    assert strip.read() == b"\0"


def test_streams_are_given_back(strip: Strip) -> None:
    row = live_line.Row(strip.stream, (strip.stream,), column=0, colour=False)
    assert "write" in vars(strip.stream)
    row.close()
    row.close()
    assert "write" not in vars(strip.stream)


def test_a_forked_process_writes_by_itself(strip: Strip) -> None:
    """It has no follower, and a lock that was held at that moment stays so for ever."""
    row = live_line.Row(strip.stream, (), column=0, colour=False)
    row.show("a line")
    held, over = threading.Event(), threading.Event()

    def hold() -> None:
        with row._lock:
            held.set()
            over.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 on: this is what goes wrong with threads
        child = os.fork()
    if child == 0:
        strip.stream.write("from the child")
        row.close()
        strip.stream.flush()
        os._exit(7)
    until = time.monotonic() + 30
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < until:
        time.sleep(0.01)
    over.set()
    holder.join()
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 7 << 8)
    assert b"from the child" in strip.read()
    row.close()


@pytest.mark.joint
def test_private_names_of_pytest(pytestconfig: pytest.Config, strip: Strip) -> None:
    """If this fails, pytest's reporter has changed: find out where it writes, or there is no live line."""
    reporter = pytest.TerminalReporter(pytestconfig, strip.stream)
    reporter.write("12345")
    found = live_line.terminal(reporter)
    assert found is not None
    assert (found[0], found[1]) == (strip.stream, 5)
    reporter.flush()
    with open(os.devnull, "w") as file:  # noqa: PTH123
        assert live_line.terminal(pytest.TerminalReporter(pytestconfig, file)) is None
