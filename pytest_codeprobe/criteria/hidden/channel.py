"""One child process that runs hidden tests, and what of its records can be believed."""

from __future__ import annotations

import json
import secrets
import selectors
import signal
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2s
from pathlib import Path
from time import monotonic
from typing import Any, Literal

from pytest_codeprobe.criteria.base import broken
from pytest_codeprobe.criteria.hidden.layout import pytest_parts, pytest_places
from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.criterion import Grading
from pytest_codeprobe.model.sandbox import RESOURCES, Command, Process, ProcessExit, ProcessLimits, WarmProgram

OUTPUTS = ("stdout", "stderr")  #: files in the folder of a child
_CHILDREN = Path(__file__).resolve().parents[2] / "children"
_RUNNER, _WARM = str(_CHILDREN / "hidden_runner.py"), str(_CHILDREN / "warm.py")
_OPTIONS = ("-I", "-B")
#: variables that work before Python looks at its own, so that no fork can catch up with them
_BEFORE = ("LD_", "DYLD_", "MALLOC_", "GLIBC_", "GCONV_", "LOCPATH")
OUTPUT_BYTES = 64 << 20
_MAX_LINE = 64 << 20  #: bytes of one record: all ids of a very large suite
_POLL = 0.2  #: seconds between looks at the process while nothing arrives
_LEAVING = 5.0  #: seconds that the keeper's own limit lies behind ours
_MOMENT = 0.5  #: seconds from the last record, or the end of the channel, to the end of the process tree

#: how a child ended, as far as its own records go
Ending = Literal["end", "foreign", "timeout", "closed", ""]
Outcome = str  #: passed, failed, skipped, xfail, or "died (why)"


@dataclass(slots=True)
class Run:
    """What the children of one criterion have shown so far."""

    names: list[str] = field(default_factory=list)  #: tests that the hidden sources promise
    ids: dict[str, bool] | None = None  #: collected node ids; True = marked to fail by the tests themselves
    tests: dict[str, Outcome] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  #: node id: first line of what went wrong
    texts: dict[str, str] = field(default_factory=dict)  #: node id: the report's text
    facts: list[dict[str, Any]] = field(default_factory=list)  #: all other records
    lost_files: dict[str, str] = field(default_factory=dict)  #: path: why importing it ended the process
    may_xfail: bool = False  #: the hidden sources speak of tests that are expected to fail
    excused: frozenset[str] = frozenset()  #: those of the names that the sources may mark so
    strip: str = ""  #: what node ids begin with before what the names begin with
    begun: bool = False  #: the last child came so far that what follows is due to the tests or the code under test
    touched: bool = False  #: collection of a test module has begun
    complete: bool = False  #: the last child sent its final record
    forged: bool = False  #: something else than the runner wrote to the channel
    reason: str = ""  #: how the last child ended otherwise
    limit: str = ""  #: of sandbox.limits, that one of the children hit
    current: str | None = None  #: test that runs
    importing: str | None = None  #: file that is being imported
    marks: set[str] = field(default_factory=set)

    def has(self, kind: str) -> dict[str, Any] | None:
        """The first record of a kind."""
        return next((f for f in self.facts if f["kind"] == kind), None)

    def take(self, record: dict[str, Any]) -> None:
        """Believe one authentic record, as far as it fits to those before it."""
        kind, node = record["kind"], record.get("id")
        self.begun |= kind != "names"
        if kind == "names":
            self.names = self.names or record["names"]
            self.excused = self.excused or frozenset(record["excused"])
        elif kind == "collecting":
            self.importing, self.touched = record["file"], True
        elif kind == "has collected":
            self.importing = None
        elif kind == "collected":
            known = frozenset(self.names)
            self.ids = {**{i: mark and self._may_fail(i, known) for i, mark in record["ids"].items()}, **(self.ids or {})}
        elif kind == "start":
            self.forged |= self.current is not None or node in self.tests
            self.current, self.marks = node, set()
        elif kind == "phase":
            self._phase(record)
        elif kind == "finish":
            self._finish(node)
        else:
            fact = {k: v for k, v in record.items() if k != "n"}
            if fact not in self.facts:  # a fresh child sees the same again
                self.facts.append(fact)
            self.complete = kind == "end"

    def _may_fail(self, node: str, known: frozenset[str]) -> bool:
        """Whether the tests themselves can have marked it: the code under test can set a mark as well."""
        name = self.base(node)
        return self.may_xfail and (name in self.excused or name not in known)

    def base(self, node: str) -> str:
        """A node id as `names` has it."""
        return node.removeprefix(self.strip).partition("[")[0]

    def _phase(self, record: dict[str, Any]) -> None:
        if self.current is None:
            self.forged = True
            return
        outcome = record["outcome"]
        if record["xfail"] and (self.ids or {}).get(self.current) and outcome != "failed":
            outcome = "xfail"  # without a mark, pytest.xfail() was called: no excuse, the outcome stays "skipped"
        self.marks.add(outcome)
        if outcome in ("failed", "skipped"):
            where = "" if record["when"] == "call" else f"{record['when']}: "
            self.failures.setdefault(self.current, where + (record["message"] or outcome))
            self.texts.setdefault(self.current, record["text"])

    def _finish(self, node: str | None) -> None:
        if node is None or node != self.current or node in self.tests:
            self.forged = True
            return
        order = ("failed", "skipped", "xfail", "passed")
        self.tests[node] = next((mark for mark in order if mark in self.marks), "failed")
        self.current = None


def warm_program(python: str, env: Mapping[str, str], host: Mapping[str, str]) -> WarmProgram | None:
    """pytest and the runner, loaded, under an interpreter; None where what `env` asks for takes a new one.

    Loaded it is shared: what the task sets may point into a workspace, what the `host` sets too can't.
    """
    early = {name: value for name, value in env.items() if name.startswith(_BEFORE)}
    if any(host.get(name) != value for name, value in early.items()):
        return None
    encoding = {name: value for name, value in env.items() if name == "LANG" or name.startswith("LC_")}
    return WarmProgram((python, *_OPTIONS, _WARM, _RUNNER, pytest_parts()), tuple(sorted({**early, **encoding}.items())))


def run_child(
    grading: Grading,
    config: Mapping[str, Any],
    run: Run,
    *,
    python: str,
    env: Mapping[str, str],
    warm: WarmProgram | None,
    folder: Path,
    deadline: float,
    test_timeout: float,
) -> None:
    """Run one child to its end and add what it shows to `run`. Whatever it does, this ends by `deadline` (monotonic).

    `warm`: what it is forked from where the driver can; then `run.begun` may stay False for a reason that a new interpreter does not
    have. CodeprobeError VERIFIER_FAILED if it can't be started or its end can't be proved; Stopped where the run ended it.
    """
    run.begun = run.complete = run.forged = False
    run.reason, run.current, run.importing = "", None, None
    ours, theirs = socket.socketpair()
    argv = [python, *_OPTIONS, _RUNNER, pytest_parts()]
    command = Command(argv=argv, env=env, stdin_fd=theirs.fileno(), reads=pytest_places(), warm=warm)
    seconds = max(0.1, deadline - monotonic())
    limits = ProcessLimits(timeout=seconds + _LEAVING, grace=0.0, output_bytes=OUTPUT_BYTES, rlimits={"CORE": (0, 0)})
    with ours:
        try:
            with theirs:
                process = grading.start(command, stdout=folder / OUTPUTS[0], stderr=folder / OUTPUTS[1], limits=limits)
        except OSError as error:
            if warm is not None:
                return
            if run.has("ready"):  # it could be started before: the code under test has seen to that
                run.reason = f"it could not be started again: {error.strerror}"
                return
            raise broken(f"{python} could not be started: {error}") from error
        ending: Ending = "timeout"
        try:
            ending = _Listener(ours, config, run, process).listen(deadline, test_timeout)
        finally:  # where it ended by itself, how it did is worth a moment
            end = process.wait(_MOMENT) if ending in ("end", "closed", "") else None
            by_itself = end is not None
            end = end or process.destroy()
    if end.stopped is not None and not run.complete:
        raise Stopped(end.stopped)
    if not end.proved or (by_itself and end.trouble is not None and not run.complete):
        raise CodeprobeError("SANDBOX_FAILED", f"the process of the hidden tests: {end.trouble}")
    if end.cause in RESOURCES:
        run.limit = grading.trial.sandbox.limits.said(end.cause)
    run.reason = "" if ending == "end" else run.limit or _why(ending, end)


def _why(ending: Ending, end: ProcessExit) -> str:
    if ending == "timeout":
        return "timeout"
    if ending == "foreign":
        return "foreign bytes on the result channel"
    if end.cause == "output":
        return f"more than {OUTPUT_BYTES >> 20} MiB of output"
    if end.cause == "timeout":
        return "timeout"
    if end.status is not None and end.status < 0 and end.cause == "exit":
        return _signal_name(-end.status)
    if end.cause == "exit":
        return f"exit status {end.status}"
    return "the result channel was closed" if ending == "closed" else end.cause


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class _Listener:
    def __init__(self, channel: socket.socket, config: Mapping[str, Any], run: Run, process: Process) -> None:
        self.channel, self.run, self.process = channel, run, process
        self.key, self.number, self.buffer = secrets.token_bytes(32), 0, bytearray()
        self.outgoing = memoryview(json.dumps({**config, "key": self.key.hex()}).encode() + b"\n")

    def listen(self, deadline: float, test_timeout: float) -> Ending:
        """Until the final record, the end of the process, foreign bytes, or the clock."""
        self.channel.setblocking(False)
        limit = deadline
        with selectors.DefaultSelector() as selector:
            selector.register(self.channel, selectors.EVENT_READ | selectors.EVENT_WRITE)
            while True:
                now = monotonic()
                if now >= limit:
                    return "timeout"
                ready = selector.select(min(_POLL, limit - now))
                if not ready and self.process.wait(0) is not None and not selector.select(0):
                    return ""
                for _, mask in ready:
                    if mask & selectors.EVENT_WRITE and not self._send():
                        selector.modify(self.channel, selectors.EVENT_READ)
                    if mask & selectors.EVENT_READ:
                        before = self.number
                        if (ending := self._receive()) is not None:
                            return ending
                        if self.number > before and self.run.has("ready"):
                            limit = min(deadline, monotonic() + test_timeout)

    def _send(self) -> bool:
        """Write on; False once nothing is left to write."""
        try:
            self.outgoing = self.outgoing[self.channel.send(self.outgoing) :]
        except BlockingIOError:
            return True
        except OSError:
            return False  # it has closed its end: reading tells
        return bool(self.outgoing)

    def _receive(self) -> Ending | None:
        try:
            chunk = self.channel.recv(1 << 16)
        except BlockingIOError:
            return None
        except OSError:
            chunk = b""
        if not chunk:
            return "closed"
        self.buffer += chunk
        if b"\n" not in chunk:
            return self._foreign() if len(self.buffer) > _MAX_LINE else None
        *lines, rest = self.buffer.split(b"\n")
        self.buffer = rest
        for line in lines:
            record = self._open(bytes(line))
            if record is None:
                return self._foreign()
            self.run.take(record)
            if self.run.forged:
                return self._foreign()
            if self.run.complete:
                return "end"
        return None

    def _open(self, line: bytes) -> dict[str, Any] | None:
        """The record if it is authentic and the next one."""
        mac, _, body = line.partition(b" ")
        if not secrets.compare_digest(mac, blake2s(body, key=self.key).hexdigest().encode()):
            return None
        record = json.loads(body)
        if not isinstance(record, dict) or record.get("n") != self.number:
            return None
        self.number += 1
        return record

    def _foreign(self) -> Ending:
        self.run.forged = True
        return "foreign"
