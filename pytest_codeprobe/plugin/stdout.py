"""stdout in the JSON modes: nothing but JSON reaches it, whatever happens. Standard library and pytest only."""

from __future__ import annotations

import os
import sys

import pytest


class Output:
    """The real stdout. Written by os.write: no buffer that could be flushed late; a closed pipe ends the writing, not the run."""

    def __init__(self, config: pytest.Config) -> None:
        namespace = config.known_args_namespace
        self._config = config
        self.lines = bool(getattr(namespace, "codeprobe_json_lines", False))
        self.json = self.lines or bool(getattr(namespace, "codeprobe_json", False))
        self._stop: BaseException | None = None  #: what pytest itself caught; before pytest_sessionstart is over it skips sessionfinish
        self._fd: int | None = None
        self._envelope_written = False
        if self.json:
            taken = getattr(namespace, "codeprobe_stdout", None)  # `codeprobe` has done it already
            self._fd = int(taken) if taken is not None else _take_stdout()
            config.add_cleanup(self._last_resort)
            config.pluginmanager.register(self, "codeprobe-stdout")

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Keep what pytest catches: at the cleanup it is no longer in flight. The first is the cause."""
        self._stop = self._stop or excinfo.value

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """The same for Ctrl-C and pytest.exit()."""
        self._stop = self._stop or excinfo.value

    @property
    def answered(self) -> bool:
        """Whether an envelope is written, or none is wanted."""
        return self._envelope_written or not self.json

    def event(self, line: str) -> None:
        """One event, if events are wanted."""
        if self.lines:
            self._write(line)

    def lines_on_terminal(self) -> bool:
        """Whether event lines go to a terminal."""
        return self.lines and self._fd is not None and os.isatty(self._fd)

    def envelope(self, line: str) -> None:
        """The last line."""
        if self.json and not self._envelope_written:
            self._envelope_written = True
            self._write(line)

    def _write(self, line: str) -> None:
        data = line.encode() + b"\n"
        while self._fd is not None and data:
            try:
                data = data[os.write(self._fd, data) :]
            except BlockingIOError:
                _wait_writable(self._fd)
            except OSError:
                self._fd = None

    def _last_resort(self) -> None:
        """A cleanup of the config: the run was refused before there was a session that could write the envelope."""
        error = sys.exc_info()[1] or self._stop
        if error is None or self._envelope_written:
            return
        from pytest_codeprobe.plugin.refusal import refusal_line

        self.envelope(refusal_line(error, self._config))


def _take_stdout() -> int:
    sys.stdout.flush()
    fd = os.dup(1)
    os.dup2(2, 1)  # for good: what a conftest prints at exit must not follow the envelope
    return fd


def _wait_writable(fd: int) -> None:
    import select

    select.select([], [fd], [], 1.0)


OUTPUT = pytest.StashKey[Output]()
