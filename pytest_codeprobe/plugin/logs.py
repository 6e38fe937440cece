"""run.log and pytest's --log-file, both written by the controller alone, from the trials' own logs."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.run.log import Entry, RunLog

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.run.book import RunBook
    from pytest_codeprobe.run.final import Final

_OURS = ("codeprobe", "pytest_codeprobe")  #: loggers of the harness


class Logs:
    """The controller's. Nothing is written before there is a plan, and so a run directory."""

    def __init__(self, live: Live, book: RunBook) -> None:
        self._live, self._book = live, book
        self._told = set[str]()  #: node ids
        self._log: RunLog | None = None
        self._handler = _Handler(self)
        self._file: logging.Handler | None = None
        self._level = logging.INFO

    def begin(self) -> None:
        """The plan is there."""
        self._file, self._level = _pytest_log_file(self._live.config), _level(self._live.config)
        self._log = RunLog(
            self._live.folder.path / "run.log",
            self._live.context.redactor,
            also=self._to_pytest,
            failed=lambda e: self._book.note("run.log", e),
        )
        for name in _OURS:
            logging.getLogger(name).addHandler(self._handler)
        self.say(logging.INFO, f"run {self._live.state.run_id}: {len(self._book.plan)} trials")

    def say(self, level: int, text: str) -> None:
        """Something of the run as a whole."""
        if self._log is not None:
            self._log.say(level, text)

    def trial(self, node_id: str) -> None:
        """A trial has come to its final record."""
        final = self._book.final.get(node_id) or self._book.calls.final.get(node_id)
        if self._log is None or final is None or node_id in self._told:
            return
        self._told.add(node_id)
        folder = self._live.folder.trial(final.folder) if final.folder is not None else None
        numbers = range(1, final.attempts + 1)
        self._log.trial(node_id, [folder / f"attempt-{n}" / "trial.log" for n in numbers] if folder is not None else [], _ended(final))

    def calls(self) -> None:
        """Trials that tests have called and that are over by now."""
        for node_id in list(self._book.calls.final):
            self.trial(node_id)

    def close(self, code: int, errors: list[str], warnings: list[str]) -> None:
        """The run is over; what was not told yet comes now."""
        for node_id in self._book.final:
            self.trial(node_id)
        self.calls()
        for text in warnings:
            self.say(logging.WARNING, text)
        for text in errors:
            self.say(logging.ERROR, text)
        self.say(logging.INFO, f"run {self._live.state.run_id} ended with exit code {code}")
        for name in _OURS:
            logging.getLogger(name).removeHandler(self._handler)
        self._log = None

    def _to_pytest(self, entry: Entry) -> None:
        if self._file is None or entry.level < self._level:
            return
        record = logging.LogRecord("codeprobe", entry.level, "", 0, entry.text, None, None)
        record.created, record.msecs = entry.time, int(entry.time * 1000) % 1000
        self._file.handle(record)


class _Handler(logging.Handler):
    """What the harness itself logs in the controller."""

    def __init__(self, logs: Logs) -> None:
        super().__init__()
        self._logs = logs

    def emit(self, record: logging.LogRecord) -> None:
        self._logs.say(record.levelno, self.format(record))


def _ended(final: Final) -> str:
    score = f", score {final.score:.2f}" if final.score is not None else ""
    why = ": ".join(filter(None, (final.code, final.reason)))
    return f"{final.status}{score}" + (f", {why}" if why else "")


def _pytest_log_file(config: pytest.Config) -> logging.Handler | None:
    """The handler of pytest's --log-file; None if no file was asked for. Not public in pytest: the handler's name in its plugin."""
    if not (config.getoption("log_file", None) or _ini(config, "log_file")):
        return None
    handler = getattr(config.pluginmanager.get_plugin("logging-plugin"), "log_file_handler", None)
    return handler if isinstance(handler, logging.Handler) else None


def _level(config: pytest.Config) -> int:
    """What goes to pytest's file: as its options say, else INFO; without one pytest would keep warnings only, and trials warn of little."""
    asked: Any = None
    for name in ("log_file_level", "log_level"):
        asked = asked or config.getoption(name, None) or _ini(config, name)
    text = str(asked or "INFO").upper()
    return int(text) if text.isdecimal() else logging.getLevelNamesMapping().get(text, logging.INFO)


def _ini(config: pytest.Config, name: str) -> Any:
    try:
        return config.getini(name)
    except (KeyError, ValueError):  # -p no:logging
        return None


def leave_to_controller(config: pytest.Config) -> None:
    """A worker of a run about tasks opens no --log-file: each that did would begin it anew, and write over what others wrote."""
    if getattr(config.option, "log_file", None) or _ini(config, "log_file"):
        config.option.log_file = os.devnull
