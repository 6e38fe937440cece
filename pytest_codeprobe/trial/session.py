"""One session: start the agent, read what it says as it says it, hold the limits, end it, and say what became of it."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from pytest_codeprobe.agents.base import no_price
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import Agent, SessionCommand, SessionEnd, SessionParser, SessionRequest
from pytest_codeprobe.model.clock import stamp
from pytest_codeprobe.model.config import RunLimits
from pytest_codeprobe.model.context import Context, reason_of
from pytest_codeprobe.model.result import AgentInfo, LimitHit, Usage
from pytest_codeprobe.model.sandbox import RESOURCES, Command, Process, ProcessExit, ProcessLimits
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.text import one_line, shorten
from pytest_codeprobe.trial.drift import ENOUGH, DriftCheck
from pytest_codeprobe.trial.environment import session_environment
from pytest_codeprobe.trial.setup import setup_of
from pytest_codeprobe.trial.spending import Spending, cost_at_most, model_without_price, usage_of

MAX_LINE = 8 << 20  #: bytes of a line that a parser takes
_CHUNK = 1 << 16
_TICK = 0.05  # seconds between two looks at a session that is saying something
_IDLE_TICK = 0.25  # of one that is silent for long: many wait for their model at once
_MONEY_TICK = 0.1  # the same, where what it spends must be known soon
GRACE = 5.0  #: seconds between TERM and KILL
LINGER = 10.0  #: seconds that a CLI may stay after its final event
OWN_END = 5.0  #: seconds in which a CLI may end its session itself, over a limit that it holds too
OWN_END_MONEY = 0.5  #: the same for `max_usd`: what it does meanwhile costs more
_NO_ROOM = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ECHILD)  # of this machine, whatever is to be started
_SAME = {name: name for name in RESOURCES}
Until = Callable[[SessionParser], str | None]  #: why a session is to end, by what its parser knows; None: it goes on
_TAIL = 16_000  # bytes; the record cuts it once it is redacted


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOutcome:
    """What is known of a session once nothing of it is alive."""

    end: SessionEnd
    exit: ProcessExit | None
    limit_hit: LimitHit | None
    usage: Usage
    info: AgentInfo
    final_message: str
    replied: bool
    stderr_tail: str
    warnings: tuple[str, ...]
    unpriced: str | None  #: the model that makes the cost unknown
    at_most: float | None  #: US dollars that it has cost at most where that is so
    started_at: str
    duration: float
    stopped: str | None = None  #: the run's reason that ended it
    by: str | None = None  #: the agent whose end it is, where that is the simulated user's


class LineTail:
    """Reads a growing log line by line; memory stays bounded whatever a line's length."""

    def __init__(self, path: Path, parser: SessionParser) -> None:
        self._file = path.open("rb", buffering=0)  # lives as long as the session
        self._parser = parser
        self._held = b""
        self._offset = 0  #: of the first byte of `_held`, or of the oversized line
        self._skipped = 0  #: bytes of the oversized line that were dropped so far

    def read(self) -> int:
        """Feed what has come since, at most one chunk; the number of bytes read."""
        data = self._file.read(_CHUNK)
        if data:
            self._take(data)
        return len(data)

    def _take(self, data: bytes) -> None:
        *lines, rest = (self._held + data).split(b"\n")
        for line in lines:
            if self._skipped or len(line) > MAX_LINE:
                self._parser.oversized(self._offset, self._skipped + len(line))
                self._offset += self._skipped + len(line) + 1
                self._skipped = 0
            else:
                self._offset += len(line) + 1
                self._parser.feed(line)
        if self._skipped or len(rest) > MAX_LINE:
            self._skipped += len(rest)
            rest = b""
        self._held = rest

    def finish(self) -> None:
        """The log is complete: feed the rest, a last line without its newline too."""
        while self.read():
            pass
        if self._skipped:
            self._parser.oversized(self._offset, self._skipped)
        elif self._held:
            self._parser.feed(self._held)
        self._file.close()


class Watch:
    """Looks at a session's progress and says when it must end, and why."""

    def __init__(self, agent: Agent, parser: SessionParser, limits: RunLimits, context: Context, until: Until | None = None) -> None:
        self._agent, self._parser, self._limits, self._context, self._clock = agent, parser, limits, context, context.clock
        self._until = until
        self._last_output = self._clock.monotonic()
        self._fault_since: float | None = None
        self._final_since: float | None = None
        self._over_since: float | None = None
        self._counts = any((limits.max_turns, limits.max_input_tokens, limits.max_output_tokens, limits.max_total_tokens, limits.max_usd))

    def look(self, read: int) -> str | None:
        """None = go on; else the limit's name, `auth`, `patience`, `trace`, `final`, ENOUGH, or what `until` says."""
        now = self._clock.monotonic()
        if read:
            self._last_output = now
        if self._parser.overflowed:
            return "trace"
        if read and self._until is not None and (why := self._until(self._parser)) is not None:
            return why
        if self._parser.doomed:
            return ENOUGH
        if self._parser.final_seen:
            self._final_since = self._final_since or now
            return "final" if now - self._final_since > LINGER else None
        counts = self._counts and (read > 0 or self._over_since is not None)
        return (self._provider(now) if self._agent.calls_model else None) or (self._over(now) if counts else None)

    def _provider(self, now: float) -> str | None:
        fault = self._parser.fault
        if fault is None:
            self._fault_since = None
        elif fault.kind == "auth":
            return "auth"
        else:
            self._fault_since = self._fault_since or now
            if now - self._fault_since > self._limits.provider_patience:
                return "patience"
        silent = not self._parser.replied and now - self._last_output > self._limits.provider_patience
        return "patience" if silent else None

    def _over(self, now: float) -> str | None:
        name = exceeded(usage_of(self._parser, self._context), self._limits)
        if name not in self._agent.holds:
            return name
        # its own end comes with what it knows at the end only, such as the price
        self._over_since = self._over_since or now
        return name if now - self._over_since > (OWN_END_MONEY if name == "max_usd" else OWN_END) else None


def exceeded(usage: Usage, limits: RunLimits) -> str | None:
    """The name of the first limit of turns, tokens or money that the usage is over."""
    given = (usage.input_tokens or 0) + (usage.cache_write_tokens or 0)
    if limits.count_cached_input:
        given += usage.cache_read_tokens or 0
    output = usage.output_tokens or 0
    for name, value in (
        ("max_turns", usage.turns),
        ("max_input_tokens", given),
        ("max_output_tokens", output),
        ("max_total_tokens", given + output),
        ("max_usd", usage.cost_usd),
    ):
        limit = getattr(limits, name)
        if limit is not None and value is not None and value > limit:
            return name
    return None


def tail(path: Path, limit: int = _TAIL) -> str:
    """The last bytes of a log as text."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - limit))
            return ("…" if size > limit else "") + file.read(limit).decode("utf-8", "replace")
    except OSError:
        return ""


def _take_away(path: Path, root: Path) -> None:
    """What an earlier exchange has left where a file is to be laid: no link of the agent's is followed out of its own folders."""
    if not Path(os.path.realpath(path.parent)).is_relative_to(os.path.realpath(root)) or remove_tree(path):
        raise CodeprobeError("SANDBOX_FAILED", f"session: an earlier exchange has left something else in the place of {path}")


def _stopped(ended: ProcessExit, why: str | None, parser: SessionParser) -> tuple[str | None, str | None]:
    """The run's reason that ended a session, if any, and what it was stopped for otherwise.

    One that had come to its end when its time or money was over is not cut off: it only had to leave.
    """
    by_budget = why is not None and why.startswith("stopped:")
    reason = reason_of(why or "") if by_budget and ended.cause != "exit" else ended.stopped
    if reason in ("budget", "time") and parser.final_seen:
        return None, "final"
    return reason, None if by_budget else why


class Session:
    """One run of an agent in a sandbox. `deadline(name, seconds left)` pairs bound it; the smallest is the keeper's to hold."""

    def __init__(
        self,
        agent: Agent,
        request: SessionRequest,
        deadlines: dict[str, tuple[float, float]],
        log: logging.Logger,
        spending: Spending | None = None,
        *,
        drift: DriftCheck | None = None,
        until: Until | None = None,
        logs: Path | None = None,
        name: str = "agent",
    ) -> None:
        """`logs`, `name`: where its output goes, if not among the logs of its sandbox, and what the two files are called."""
        self._agent, self._request, self._log, self._spending, self._drift = agent, request, log, spending, drift
        self._until = drift.look if drift is not None else until
        self._deadlines = deadlines  # name -> (seconds left, value of the limit)
        self._process: Process | None = None
        folder = request.sandbox.logs if logs is None else logs
        self.stdout, self.stderr = folder / f"{name}.stdout", folder / f"{name}.stderr"

    @property
    def started(self) -> bool:
        """Whether there has been a process: from then on it may have spent money."""
        return self._process is not None

    def run(self, command: SessionCommand, parser: SessionParser, began: Callable[[], None]) -> SessionOutcome:
        """Start, watch, end. Whatever is raised in between, nothing of the session is alive afterwards."""
        clock = self._request.context.clock
        name, (left, value) = min(self._deadlines.items(), key=lambda item: item[1][0])
        started, at = clock.monotonic(), stamp(clock.now())
        began()
        process = self._process = self._start(command, left)
        try:
            ended, why = self._watch(process, parser)
        except BaseException:
            process.destroy()
            raise
        if ended.trouble is not None:
            raise CodeprobeError("SANDBOX_FAILED", f"session: {ended.trouble}", detail={"cause": ended.cause})
        why = {"timeout": name, "output": "output_mb", **_SAME}.get(ended.cause, why)
        stopped, why = _stopped(ended, why, parser)
        stderr_tail = self._request.redact(tail(self.stderr))
        end = parser.end(ended, stopped_for=f"stopped:{stopped}" if stopped else why, stderr_tail=stderr_tail)
        if self._drift is not None:
            end = self._drift.end(end, parser)
        limit = why if why not in (None, "final", "auth", "patience", "trace", ENOUGH) else end.limit
        self._log.info("session ended: status %s, cause %s, stopped for %s, code %s", ended.status, ended.cause, why, end.code)
        if ended.periods:
            held = self._request.trial.sandbox.limits.said("cpus")
            self._log.info("%s: used up in %d of %d periods", held, ended.throttled, ended.periods)
        usage = usage_of(parser, self._request.context)
        unpriced = model_without_price(parser, usage, self._request.context)
        return SessionOutcome(
            end=end,
            exit=ended,
            limit_hit=self._limit(limit, value if limit == name else None),
            usage=usage,
            info=parser.info(),
            final_message=parser.final_message(),
            replied=parser.replied,
            stderr_tail=stderr_tail,
            warnings=tuple(dict.fromkeys((*parser.warnings, *self._own_warnings(unpriced)))),
            unpriced=unpriced,
            at_most=cost_at_most(parser, usage, self._request.context),
            started_at=at,
            duration=clock.monotonic() - started,
            stopped=stopped,
        )

    def _own_warnings(self, unpriced: str | None) -> list[str]:
        drifted = self._drift.warnings() if self._drift is not None else []
        held = self._spending is not None and self._spending.watches
        if unpriced and not held and "max_usd" not in self._agent.holds and self._request.trial.limits.max_usd is not None:
            drifted = [f"no price is known for model {one_line(unpriced, 100)!r}: run_limits.max_usd could not be held", *drifted]
        return [*([no_price(unpriced)] if unpriced else []), *drifted]

    def _limit(self, name: str | None, value: float | None) -> LimitHit | None:
        if name is None:
            return None
        if value is None:
            trial = self._request.trial
            value = getattr(trial.limits, name, None) or getattr(trial.sandbox.limits, name, None)
        return LimitHit(name=name, value=float(value or 0))

    def _start(self, command: SessionCommand, timeout: float) -> Process:
        request = self._request
        for path, content in command.files.items():
            if request.exchange is not None and request.exchange.number > 1:
                _take_away(path, request.sandbox.root)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch(mode=0o600)
            path.write_bytes(content)
        environment = session_environment(request.trial, request.context, request.sandbox, command.env)
        output = int(request.trial.sandbox.limits.output_mb * 1024 * 1024)
        limits = ProcessLimits(timeout=max(0.001, timeout), grace=GRACE, output_bytes=output, rlimits={"CORE": (0, 0)})
        self._log.info("session starts: %s", shorten(request.redact(" ".join(command.argv))))
        try:
            reads = [*command.reads, *setup_of(request.trial, request.context).places(request.sandbox)]
            start = Command(argv=command.argv, env=environment, stdin=command.stdin, reads=reads, mentions=command.mentions)
            return request.sandbox.start(start, role="session", stdout=self.stdout, stderr=self.stderr, limits=limits)
        except OSError as error:
            code = "SANDBOX_FAILED" if error.errno in _NO_ROOM else "AGENT_CRASHED"
            where, remedy = self._agent.looked_for(request) if code == "AGENT_CRASHED" else ("", "")
            said = f"{command.argv[0]} could not be started{where}: {error.strerror or error}"
            raise CodeprobeError(code, said, remediation=remedy or None) from error

    def _watch(self, process: Process, parser: SessionParser) -> tuple[ProcessExit, str | None]:
        reader = LineTail(self.stdout, parser)
        watch = Watch(self._agent, parser, self._request.trial.limits, self._request.context, self._until)
        why: str | None = None
        spending = self._spending if self._spending is not None and self._spending.watches else None
        tick, idle = _TICK, _MONEY_TICK if spending else _IDLE_TICK
        try:
            while True:
                read = reader.read()
                tick = _TICK if read or (spending and spending.waits_for_end) else min(idle, tick * 1.25)
                if why is None and (why := (spending.look(parser, read=read > 0) if spending else None) or watch.look(read)):
                    self._log.info("session is stopped: %s", why)
                    process.stop(GRACE)
                if read < _CHUNK and (ended := process.wait(tick)) is not None:
                    return ended, why
        finally:
            reader.finish()
            if self._drift is not None:
                self._drift.look(parser)  # it may have been over before anybody looked
