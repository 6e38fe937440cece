"""The other side of `sandbox.record_cli`: hears what the stand-ins were called with, answers, and keeps the log.

One thread for each session that has such programs, from its start to its end. Whatever writes into the socket, it takes bounded memory
and time, and a call that was heard can't be taken back by the session.
"""

# ruff: noqa: PTH103
# (beside a running session: plain calls)
from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import shlex
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

import pytest_codeprobe
from pytest_codeprobe.criteria.cli.matching import SlowPattern, fits
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.context import Clock, Context
from pytest_codeprobe.model.invocations import CliResponse, RecordedCli
from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.trial.environment import interpreter_inside, shims_of

MAX_LOG = 16 << 20  #: bytes; later calls are answered and counted, no more
MAX_CALL = 8 << 20  #: bytes of one call: more than a system takes as arguments
MAX_RECORD = 1 << 20  #: bytes of one call's line; of a longer one the end is left out, and the line says so
MAX_WAITING = 64 << 20  #: bytes of all calls that have not come in whole
MAX_CONNECTIONS = 128
PATIENCE = 30.0  #: seconds that a call may take from its first byte to its answer
_LAST_SECONDS = 60.0  #: that the thread has for what it was sent before the end
MATCHING = 1.0  #: seconds in which the answer to a call is to be found
_HEAD = 8  # digits of a call's length
_CHUNK = 1 << 16
_PROGRAM = Path(pytest_codeprobe.__file__).resolve().parent / "children" / "cli_shim.py"
_LONGEST_PATH = 100  # of a socket; systems take 104 to 108 bytes


@contextlib.contextmanager
def recording(trial: Trial, sandbox: Sandbox, context: Context) -> Iterator[Callable[[], bytes | None]]:
    """While a session runs. What is handed out tells the log once it is over; None where the task records nothing.

    SANDBOX_FAILED where the programs can't be laid out.
    """
    if not trial.sandbox.record_cli:
        yield lambda: None
        return
    folder = shims_of(sandbox)
    try:
        _lay_programs(folder, trial.sandbox.record_cli, interpreter_inside(sandbox) or context.python)
        recorder = Recorder(folder, trial.sandbox.record_cli, context.clock)
    except OSError as error:
        raise CodeprobeError("SANDBOX_FAILED", f"sandbox.record_cli: {folder}: {error.strerror or error}") from error
    try:
        yield recorder.log
    finally:
        recorder.close()


def _lay_programs(folder: Path, tools: Sequence[RecordedCli], python: str) -> None:
    os.makedirs(folder / "bin", mode=0o700)
    for entry in tools:
        start = shlex.join([python, "-I", "-S", "-B", str(_PROGRAM), str(folder), entry.tool])
        program = folder / "bin" / entry.tool
        program.write_text(f'#!/bin/sh\nexec {start} "$@"\n', encoding="utf-8", errors="surrogateescape")
        program.chmod(0o755)
        if not os.access(program, os.X_OK):  # a shell would go on to the real program
            raise OSError(errno.EACCES, "nothing may be executed there; point TMPDIR to a file system that is not mounted noexec")


def _listen(folder: Path) -> socket.socket:
    """A listening socket `calls` in the folder, however long the folder's path is."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        path = str(folder / "calls")
        if len(os.fsencode(path)) <= _LONGEST_PATH or sys.platform != "linux":
            listener.bind(path)
        else:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                listener.bind(f"/proc/self/fd/{descriptor}/calls")
            finally:
                os.close(descriptor)
        listener.listen(MAX_CONNECTIONS)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener


@dataclass(slots=True, eq=False)
class _Caller:
    """One connection."""

    channel: socket.socket
    until: float
    came: bytearray = field(default_factory=bytearray)
    answer: memoryview | None = None

    @property
    def wanted(self) -> int | None:
        """Bytes of the whole call, head included; None as long as that is not known, -1 for what is none."""
        if len(self.came) < _HEAD:
            return None
        head = bytes(self.came[:_HEAD])
        return _HEAD + int(head) if head.isdigit() and int(head) <= MAX_CALL else -1


class Recorder:
    """Listens from the moment it is made. OSError where it can't. close() ends it; log() tells what was called."""

    def __init__(self, folder: Path, tools: Sequence[RecordedCli], clock: Clock) -> None:
        self._tools = {entry.tool: entry for entry in tools}
        self._clock, self._folder = clock, folder
        self._lines: list[bytes] = []
        self._size = self._lost = self._waiting = 0
        self._trouble: Exception | None = None
        self._callers: set[_Caller] = set()
        self._selector = selectors.DefaultSelector()
        self._listener = _listen(folder)
        self._ours, self._theirs = socket.socketpair()
        self._open = self._short = False
        self._listening(on=True)
        self._selector.register(self._theirs, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="codeprobe-record-cli", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # a limit on threads
            self._release()
            raise OSError(f"no thread could be started: {error}") from error

    def close(self) -> None:
        """Take what was sent before, answer nobody any more. SANDBOX_FAILED where it had stopped listening by itself, or does not end."""
        self._ours.close()
        self._thread.join(_LAST_SECONDS)
        if self._thread.is_alive():
            raise CodeprobeError("SANDBOX_FAILED", "sandbox.record_cli: what was called can't be taken in")
        if self._trouble is not None:
            raise CodeprobeError(
                "SANDBOX_FAILED", f"sandbox.record_cli: {type(self._trouble).__name__}: {self._trouble}"
            ) from self._trouble

    def log(self) -> bytes:
        """A JSON object on each line: argv, tool, exit, ts, rule. A last one has the number of those that were `lost` for want of room."""
        last = [json.dumps({"lost": self._lost}).encode() + b"\n"] if self._lost else []
        return b"".join([*self._lines, *last])

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
            self._drain()
        except Exception as error:  # noqa: BLE001  # raised by close()
            self._trouble = error
        finally:
            self._release()

    def _turn(self) -> bool:
        """One look at who has something to say; False once it is over."""
        for key, _ in self._selector.select(1.0 if self._callers or not self._open else None):
            if key.fileobj is self._theirs:
                return False
            if key.fileobj is self._listener:
                self._accept()
            else:
                self._serve(key.data)
        now = monotonic()
        for caller in [c for c in self._callers if c.until < now]:
            self._drop(caller)
        self._listening(on=len(self._callers) < MAX_CONNECTIONS and not self._short)
        self._short = False
        return True

    def _accept(self) -> None:
        try:
            channel, _ = self._listener.accept()
        except BlockingIOError:  # gone again
            return
        except OSError:  # no descriptor is free: it is asked again in a while
            self._short = True
            return
        channel.setblocking(False)
        caller = _Caller(channel, monotonic() + PATIENCE)
        self._callers.add(caller)
        self._selector.register(channel, selectors.EVENT_READ, caller)

    def _listening(self, *, on: bool) -> None:
        if on != self._open:
            if on:
                self._selector.register(self._listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(self._listener)
            self._open = on

    def _serve(self, caller: _Caller) -> None:
        if caller.answer is not None:
            self._send(caller)
        elif self._read(caller):
            self._drop(caller)
        elif (told := self._told(caller)) is not None:
            answer = self._answer(told)
            if answer is None:
                self._drop(caller)
                return
            caller.answer = memoryview(answer)
            self._selector.modify(caller.channel, selectors.EVENT_WRITE, caller)
            self._send(caller)

    def _read(self, caller: _Caller) -> bool:
        """Take what has come; True where nothing can come of it."""
        try:
            chunk = caller.channel.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        caller.came += chunk
        self._waiting += len(chunk)
        return not chunk or caller.wanted == -1 or self._waiting > MAX_WAITING

    def _told(self, caller: _Caller) -> list[str] | None:
        """Tool and arguments, once they are there."""
        wanted = caller.wanted
        if wanted is None or len(caller.came) < wanted:
            return None
        return [os.fsdecode(part) for part in bytes(caller.came[_HEAD:wanted]).split(b"\0")]

    def _send(self, caller: _Caller) -> None:
        assert caller.answer is not None
        try:
            caller.answer = caller.answer[caller.channel.send(caller.answer) :]
        except BlockingIOError:
            return
        except OSError:
            self._drop(caller)
            return
        if not caller.answer:
            self._drop(caller)

    def _drop(self, caller: _Caller) -> None:
        self._callers.discard(caller)
        self._waiting -= len(caller.came)
        self._selector.unregister(caller.channel)
        caller.channel.close()

    def _drain(self) -> None:
        """The session is over: calls that it had sent whole count, though nobody is left to be answered."""
        self._listener.setblocking(False)
        with contextlib.suppress(OSError):
            for _ in range(MAX_CONNECTIONS):
                channel, _ = self._listener.accept()
                channel.setblocking(False)
                self._callers.add(_Caller(channel, 0.0))
        for caller in self._callers:
            if caller.answer is None:
                with contextlib.suppress(OSError):
                    while (told := self._told(caller)) is None and caller.wanted != -1 and (chunk := caller.channel.recv(_CHUNK)):
                        caller.came += chunk
                    if told is not None and told[0] in self._tools:
                        self._note(told[0], told[1:], None, None)

    def _release(self) -> None:
        for caller in self._callers:
            caller.channel.close()
        for end in (self._listener, self._theirs):
            end.close()
        self._selector.close()
        with contextlib.suppress(OSError):
            (self._folder / "calls").unlink()

    # ---- calls

    def _answer(self, told: Sequence[str]) -> bytes | None:
        """What a program is to print and how to exit; None for one that the task does not record."""
        tool, argv = told[0], told[1:]
        entry = self._tools.get(tool)
        if entry is None:
            return None
        rule = _rule(entry.responses, argv)
        found: RecordedCli | CliResponse = entry if rule is None else entry.responses[rule]
        self._note(tool, argv, found.exit_code, rule)
        out, err = (text.encode("utf-8", "surrogatepass") for text in (found.stdout, found.stderr))
        return b"%d %d %d\n" % (found.exit_code, len(out), len(err)) + out + err

    def _note(self, tool: str, argv: Sequence[str], status: int | None, rule: int | None) -> None:
        ts = stamp(self._clock.now())
        line = json.dumps({"argv": list(argv), "tool": tool, "exit": status, "ts": ts, "rule": rule})
        if len(line) > MAX_RECORD:
            short = [part[:1000] for part in argv[:100]]
            line = json.dumps({"argv": short, "tool": tool, "exit": status, "ts": ts, "rule": rule, "truncated": True})
        if self._size + len(line) >= MAX_LOG:
            self._lost += 1
            return
        self._lines.append(line.encode("ascii") + b"\n")
        self._size += len(line) + 1


def _rule(responses: Sequence[CliResponse], argv: Sequence[str]) -> int | None:
    """The number of the first response that fits. Where the expressions take too long on these arguments, there is none."""
    until = monotonic() + MATCHING
    with contextlib.suppress(SlowPattern):
        for number, response in enumerate(responses):
            if fits(response.when, argv, until):
                return number
    return None
