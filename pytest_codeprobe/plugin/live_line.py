"""A line below pytest's own while trials run: how many, how far, the pass rate, the cost. On a terminal only, never in a log."""

from __future__ import annotations

import os
import re
import select
import sys
import threading
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TextIO

import pytest

from pytest_codeprobe.plugin.failure import money

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.run.book import Progress

_COLOUR, _PLAIN = "\x1b[36m", "\x1b[0m"
#: what takes no column: colours, and messages to the terminal itself (title, progress in the task bar)
_UNSEEN = re.compile(r"\x1b\[[0-9;]*m|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")
_SELECTABLE = 1024  #: select() takes no higher descriptor
_NARROWEST = 20  #: columns; below, nothing that is left of the line would say anything


class LiveLine:
    """Hooks of the controller. Draws nothing until a terminal is there, nor once anything else may be writing to it."""

    def __init__(self, live: Live) -> None:
        self._live = live
        self._began = live.clock.monotonic()
        self._row: Row | None = None
        self._tried = False
        self._in_item = False  #: pytest runs an item in this process
        self._bare = False  #: it did, and output was not captured, at the last look

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """The line's time, without xdist, whose controller knows no plan yet. It is gone before anything about the end is printed."""
        self._begin()
        try:
            return (yield)
        finally:
            self.end()

    def pytest_runtest_logstart(self) -> None:
        """The line's first moment under xdist."""
        self._begin()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self) -> Generator[None, object, object]:
        self._in_item = True
        try:
            return (yield)
        finally:
            self._in_item = False

    def pytest_enter_pdb(self) -> None:
        """A person has the terminal."""
        if self._row is not None:
            self._row.pause()

    def pytest_leave_pdb(self) -> None:
        if self._row is not None:
            self._row.go_on()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """For a controller of xdist that was in its loop already when it met the first task."""
        self.end()

    def _begin(self) -> None:
        controller = self._live.controller
        if self._tried or controller is None or not controller.book.plan:
            return
        self._tried = True
        if not _is_wanted(self._live):
            return
        config = self._live.config
        found = terminal(config.pluginmanager.get_plugin("terminalreporter"))
        if found is None:
            return
        stream, column, colour = found
        self._row = Row(stream, (sys.stdout, sys.stderr), column=column, colour=colour)
        config.add_cleanup(self.end)
        controller.follower.also(self._look)

    def end(self) -> None:
        """Leave the terminal as it would be without us. Can be called again."""
        if self._row is not None:
            self._row.close()

    def _look(self) -> None:
        """In the controller's follower, five times a second."""
        controller, row = self._live.controller, self._row
        assert controller is not None
        assert row is not None
        # capsys.disabled() and the like: the test, or a program that it started, may be writing
        before, self._bare = self._bare, self._in_item and row.is_bare()
        if not self._bare:
            progress = controller.book.progress()
            if self._live.engine is not None:  # what is over, and waits for pytest to hear of it, runs no more
                progress = replace(progress, running=min(progress.running, self._live.jobs))
            row.show(line(progress, self._live.clock.monotonic() - self._began, canaries=controller.gate.holds_up))
        elif before:  # not for the moment between an item's start and that of its capture
            row.show("")


def line(progress: Progress, seconds: float, *, canaries: int = 0) -> str:
    """`12 running, 57/300 done, …`; what is not known yet is left out. `canaries`: so many the other trials wait for."""
    parts = [f"{progress.running} running", f"{progress.done}/{progress.total} done"]
    if canaries:
        parts.append("waiting for 1 canary" if canaries == 1 else f"waiting for {canaries} canaries")
    if progress.graded:
        parts.append(f"{progress.passed / progress.graded:.0%} passed")
    if progress.errors:
        parts.append(f"{progress.errors} error{'s' * (progress.errors != 1)}")
    if progress.cost_usd is not None:
        parts.append(money(progress.cost_usd))
    return f"codeprobe: {', '.join(parts)}, {_time(seconds)}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes:02}m"
    return f"{minutes}m{rest:02}s" if minutes else f"{rest}s"


def _is_wanted(live: Live) -> bool:
    """Whether a person may be watching a terminal to which nothing but pytest's reporter writes."""
    config, environ = live.config, os.environ
    output = live.state.output
    has_logging = config.pluginmanager.has_plugin("logging")  # not under -p no:logging
    logs = has_logging and (config.getoption("log_cli_level") is not None or config.getini("log_cli"))
    captured = config.getoption("capture") == "fd" and config.pluginmanager.has_plugin("capturemanager")
    return (
        sys.platform != "win32"
        and environ.get("TERM", "") not in ("", "dumb", "unknown")
        and not (environ.get("CI") or environ.get("BUILD_NUMBER"))  # some of them show their logs through a terminal
        and config.get_verbosity() > -2
        and bool(captured and not logs)
        and not (output is not None and output.lines_on_terminal())
    )


def terminal(reporter: object) -> tuple[TextIO, int, bool] | None:
    """Where pytest's reporter writes, if that is a terminal; the column that it believes to be in; whether it uses colours.

    The one place for private names of pytest: `_tw`, `_file`. A reporter of another kind, which draws as it likes, has none.
    """
    if type(reporter) is not pytest.TerminalReporter:
        return None
    writer: Any = getattr(reporter, "_tw", None)
    stream = getattr(writer, "_file", None)
    if stream is None or not _is_terminal(stream):
        return None
    return stream, writer.width_of_current_line, writer.hasmarkup


def _is_terminal(stream: TextIO) -> bool:
    try:
        return os.isatty(stream.fileno())
    except (OSError, ValueError, AttributeError):  # closed, or only something like a stream
        return False


class Row:
    """The row below the cursor's on a terminal that others write to, from any thread.

    Their streams' `write` is put aside for one that erases the row before the cursor can get there, and draws it again. What is drawn
    goes by a descriptor of its own: while pytest captures, number 1 leads elsewhere. The cursor is always put back where it was.
    """

    def __init__(self, stream: TextIO, others: Iterable[TextIO], *, column: int, colour: bool) -> None:
        self._fd = os.dup(stream.fileno())
        self._stream = stream
        self._style = (_COLOUR, _PLAIN) if colour else ("", "")
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._text = ""
        self._drawn = self._paused = False
        self._closed = self._fd >= _SELECTABLE
        self._size = os.terminal_size((0, 0))
        self._column = column  #: of the cursor, at most; below 0: not known
        self._exact = True  #: each character up to there is known to take one column
        self._guarded: list[tuple[TextIO, Callable[[str], int]]] = []
        for one in {id(s): s for s in (stream, *others) if _is_terminal(s)}.values():
            one.flush()
            if not self._guard(one) and one is stream:
                self._closed = True

    # ---- from the follower
    def show(self, text: str) -> None:
        """Draw a line (an empty one: none), unless it stands there already or this is no moment for it. Never waits."""
        if not self._lock.acquire(blocking=False):  # somebody is writing; the terminal may have been stopped (Ctrl-S)
            return
        try:
            if self._closed or self._paused or not self._is_ours():
                return
            if not text:
                self._hide()
            elif not self._drawn or text != self._text or self._measured() != self._size:
                self._text = text
                self._draw()
        finally:
            self._lock.release()

    def is_bare(self) -> bool:
        """Whether what the process writes reaches the terminal now: pytest does not capture it."""
        return _is_terminal(self._stream)

    def _is_ours(self) -> bool:
        """Whether the terminal takes output at once, and another job (`fg`, `bg`) does not have it."""
        if not select.select([], [self._fd], [], 0)[1]:
            return False
        try:
            return os.tcgetpgrp(self._fd) == os.getpgrp()
        except OSError:  # not the terminal of this session: it has no jobs
            return True

    # ---- from pytest's thread
    def pause(self) -> None:
        """Erase it, and draw nothing until go_on()."""
        with self._lock:
            self._paused = True
            self._hide()

    def go_on(self) -> None:
        """After pause()."""
        self._paused = False

    def close(self) -> None:
        """Erase it and give the streams back. In a process that was forked from this one: nothing."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._erase()
            self._closed = True
            for stream, write in self._guarded:
                if vars(stream).get("write") is write:  # else somebody has put another around it, which goes on through ours
                    del stream.write
            self._guarded.clear()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    # ---- what others write
    def _guard(self, stream: TextIO) -> bool:
        """Put our `write` in the place of a stream's; False for one that is no stream of Python's own, and stays as it is."""
        original = stream.write

        def write(text: str, /) -> int:
            if self._closed or os.getpid() != self._pid or not _is_terminal(stream):
                return original(text)
            with self._lock:
                return self._pass_on(text, stream, original)

        try:
            stream.write = write  # type: ignore[method-assign]
        except AttributeError:
            return False
        self._guarded.append((stream, write))
        return True

    def _pass_on(self, text: str, stream: TextIO, original: Callable[[str], int]) -> int:
        column, exact = self._after(text)
        was_drawn = self._drawn
        if "\n" in text or not 0 <= column < self._size.columns:
            self._erase()
        count = original(text)
        stream.flush()  # what we draw passes by its buffer
        self._column, self._exact = column, exact
        if was_drawn and not self._drawn:
            self._draw()
        return count

    def _after(self, text: str) -> tuple[int, bool]:
        """Column and exactness once this is written."""
        _, newline, tail = text.rpartition("\n")
        column, exact = (0, True) if newline else (self._column, self._exact)
        shown = _UNSEEN.sub("", tail)
        if column < 0 or not shown.isprintable():  # a tab, a carriage return, another sequence: until the line ends
            return -1, exact
        if shown.isascii():
            return column + len(shown), exact
        return column + 2 * len(shown), False

    # ---- the row; with the lock held
    def _draw(self) -> None:
        """In a row of its own, where the cursor's can be left alone: a terminal that waits to wrap has no one place to go back to."""
        self._size = self._measured()
        columns, column = self._size.columns, self._column
        if self._size.lines < 2 or columns < _NARROWEST:  # 0 where the terminal does not know its size
            return
        if not (0 <= column < columns or (self._exact and column > 0 and column % columns > 0)):
            return
        room = columns - 1
        text = self._text if len(self._text) <= room else self._text[: room - 3] + "..."
        before, after = self._style
        self._drawn = True
        # erase all from the cursor on; make room for a row below; there and back. Index, unlike a newline, keeps the column.
        self._emit(f"\x1b[J\x1bD\x1b[A\x1b7\x1bD\r{before}{text}{after}\x1b8")

    def _erase(self) -> None:
        if self._drawn:
            self._emit("\x1b[J")
            self._drawn = False

    def _hide(self) -> None:
        """For somebody who does not write through us. Until a line of pytest's ends nobody knows where the cursor is."""
        self._erase()
        self._column = -1

    def _measured(self) -> os.terminal_size:
        try:
            return os.get_terminal_size(self._fd)
        except OSError:
            return os.terminal_size((0, 0))

    def _emit(self, text: str) -> None:
        data = text.encode("ascii")
        try:
            while data and not self._closed:
                data = data[os.write(self._fd, data) :]
        except OSError:  # the terminal is gone
            self._closed = True
