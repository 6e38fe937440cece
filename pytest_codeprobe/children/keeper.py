"""The keeper: a small process that owns one process tree, from the start of its command to the proof that nothing of it is left.

spawner.py imports this file and runs `Keeper` in a fork of itself, once per command. Linux, standard library, single-threaded.

The keeper is either PID 1 of a pid namespace of its own (`isolated`) or the child subreaper of its tree. In both cases a process
that loses its parent becomes the keeper's child, so "this process has no children" means "the tree is gone".
It speaks JSON lines with the owner over `channel`: one request in, then `{"stop": seconds}` as often as the owner likes;
`started` or `error`, `exit` (the command itself has ended) and `empty` (nothing is left) out.
"""

# ruff: noqa: PTH208
# (a keeper is a fork that lives for milliseconds: plain names, no Path objects)
from __future__ import annotations

import errno
import fcntl
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

if sys.platform != "linux":
    raise SystemExit(f"the keeper needs Linux, not {sys.platform}")

if TYPE_CHECKING:
    from pytest_codeprobe.children.outside import Outside
    from pytest_codeprobe.children.process_tree import children_of, drain, put_into, signal_pipe, signal_tree
else:
    from outside import Outside
    from process_tree import children_of, drain, put_into, signal_pipe, signal_tree

NEVER = float("inf")
LOOK, LEAVE = signal.SIGUSR1, signal.SIGUSR2  # from the spawner: look into the stop folder; the owner is gone
IGNORED_HERE = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM)
NOT_FOR_US = ("FSIZE", "CPU", "AS", "DATA")  # rlimits: the keeper writes the logs, and must live as long as it takes
OUR_DESCRIPTORS = 64  # with fewer we could not look into /proc, nor start anything
PIPE_BYTES = 1 << 18
GATHER = 0.020  # seconds a busy stream may fill its pipe before it is moved on
REQUEST_TIMEOUT = 60.0
PAUSE = 0.1  # seconds between two looks at what can't be killed
LAST_RESORT = 5.0  # seconds that a keeper without an owner goes on trying to kill what can't be killed


def rlimit(name: str) -> int:
    """The number of a resource limit. ValueError if this system has none of that name."""
    number = getattr(resource, f"RLIMIT_{name}", None)
    if number is None:
        raise ValueError(f"there is no resource limit {name}")
    return int(number)


class Output:
    """Moves what the command writes from pipes into log files that it has no descriptor of, up to a number of bytes."""

    def __init__(self, limit: float) -> None:
        self.logs: dict[int, int] = {}  # read end of a pipe -> log file
        self.limit, self.moved, self.error = limit, 0, ""
        self.over = False  # more than the limit was written
        self.copying: set[int] = set()  # logs that splice refuses (O_APPEND, some file systems)

    def pipe_into(self, log: int) -> int:
        """The write end of a new pipe to this log."""
        read, write = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(read, False)
        try:
            fcntl.fcntl(read, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        except PermissionError:
            pass  # the user's share of pipe memory is used up; the default size is slower, no less right
        self.logs[read] = log
        return write

    def move(self) -> list[int]:
        """Move what is there. Returns the pipes that are at their end; they are closed."""
        ended: list[int] = []
        for pipe, log in list(self.logs.items()):
            for _ in range(16):  # then the deadline gets its turn
                try:
                    size = self.move_once(pipe, log)
                except BlockingIOError:
                    break
                except OSError as error:  # such as a full disk
                    self.error = error.strerror or str(error)
                    size = 0
                if size == 0:
                    os.close(pipe)
                    del self.logs[pipe]
                    ended.append(pipe)
                if size < 4096:
                    break  # most likely all there was; poll knows better
        return ended

    def finish(self) -> None:
        """Move the rest, once nobody writes any more."""
        before = -1
        while self.logs and self.moved > before:  # someone outside the tree may have been handed a pipe: no waiting for its end
            before = self.moved
            self.move()

    def trouble(self) -> str:
        """The cause of an end that the output gives; empty if it gives none."""
        return f"log: {self.error}" if self.error else "output" if self.over else ""

    def move_once(self, pipe: int, log: int) -> int:
        room = int(min(self.limit - self.moved, PIPE_BYTES))
        if room <= 0:
            size = len(os.read(pipe, PIPE_BYTES))
            self.over = self.over or size > 0
            return size
        if log not in self.copying:
            try:
                size = os.splice(pipe, log, room)
                self.moved += size
                return size
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                self.copying.add(log)
        data = os.read(pipe, room)
        rest = memoryview(data)
        while rest:
            written = os.write(log, rest)
            self.moved += written
            rest = rest[written:]
        return len(data)


class Keeper:
    """One tree. `watch` are pidfds of the processes that it must not outlive."""

    def __init__(self, channel: socket.socket, stdio: list[int], watch: list[int], isolated: bool) -> None:
        self.channel, self.stdio, self.isolated = channel, stdio, isolated
        self.watch = {channel.fileno(), *watch}
        self.wake = signal_pipe()  # the handlers are the spawner's
        self.poll = select.poll()
        self.received = b""
        self.output = Output(NEVER)
        self.request: dict[str, Any] = {}
        self.main = 0
        self.outside: Outside | None = None
        self.status: int | None = None
        self.cause = ""  # why we end the tree; the first cause stands
        self.left = self.kills = 0
        self.moved_at = 0.0
        self.deadline = self.last_moment = self.kill_at = self.give_up_at = NEVER

    # --- the command

    def run(self, **identity: int) -> NoReturn:
        """Serve one request and exit. `identity` is sent along with the news that the command has started."""
        self.request = self.receive_request()
        try:
            self.look()
            if not self.cause:  # the run may have been stopped meanwhile: then nothing starts
                self.start(self.request)
            self.send(event="started", **identity)
        except (OSError, ValueError) as error:  # ValueError: a NUL in an argument, a lone surrogate
            self.end("error", 0.0)
            filename = getattr(error, "filename", None)
            self.send(event="error", errno=getattr(error, "errno", None) or errno.EINVAL, text=str(error), filename=filename)
        for fd in (self.wake, *self.watch, *self.output.logs):
            self.poll.register(fd, select.POLLIN)
        told = False
        while not self.reap():
            if time.monotonic() >= self.give_up_at:
                os._exit(1)  # not a word of "empty"; a namespace ends with us, else the spawner goes on trying
            if self.status is not None and not told:
                told = True
                self.send(event="exit", status=self.status)
            self.check_time()
            self.sleep()
        self.output.finish()
        if self.cause == "exit":  # what was still in the pipe may have been too much: then the log is no whole one
            self.cause = self.output.trouble() or "exit"
        self.report()
        os._exit(0)

    def receive_request(self) -> dict[str, Any]:
        poll, end = select.poll(), time.monotonic() + REQUEST_TIMEOUT
        for fd in self.watch:  # a forked copy of a dead owner can keep the channel open
            poll.register(fd, select.POLLIN)
        while not self.received.endswith(b"\n"):
            ready = {fd for fd, _ in poll.poll(max(0.0, end - time.monotonic()) * 1000)}
            data = self.channel.recv(1 << 18) if ready == {self.channel.fileno()} else b""
            if not data:
                os._exit(0)
            self.received += data
        line, self.received = self.received, b""
        return dict(json.loads(line))

    def start(self, request: dict[str, Any]) -> None:
        targets = list(self.stdio)
        self.output.limit = NEVER if request["output_bytes"] is None else request["output_bytes"]
        self.outside = Outside(request["outside"]) if request["outside"] is not None else None
        for index in request["held"]:
            targets[index] = self.output.pipe_into(self.stdio[index])
        if request["merged"]:
            targets[2] = targets[1]
        limits = [(rlimit(name), name, soft, hard) for name, (soft, hard) in request["rlimits"].items()]
        late = [limit for limit in limits if limit[1] in NOT_FOR_US or (limit[1] == "NOFILE" and 0 <= limit[2] < OUR_DESCRIPTORS)]
        before = {kind: resource.getrlimit(kind) for kind, name, _, _ in late if name != "NOFILE"}
        os.chdir(request["cwd"])
        try:
            for kind, _, soft, hard in limits:
                if kind in before:
                    resource.setrlimit(kind, (soft, before[kind][1]))
                elif (kind, _, soft, hard) not in late:
                    resource.setrlimit(kind, (soft, hard))
            self.main = self.launch(request, targets)
        finally:
            # What must not bind the keeper was set soft only, since a hard limit can't be taken back. The command gets the
            # hard one from outside, below.
            for kind, pair in before.items():
                resource.setrlimit(kind, pair)
            os.chdir("/")  # or the workspace could not be unmounted
        self.deadline = time.monotonic() + (NEVER if request["timeout"] is None else request["timeout"])
        for fd in {*targets, *self.stdio} - set(self.output.logs.values()):
            os.close(fd)
        for kind, _, soft, hard in late:
            try:
                resource.prlimit(self.main, kind, (soft, hard))
            except ProcessLookupError:
                break  # it has ended already

    def launch(self, request: dict[str, Any], targets: list[int]) -> int:
        """The process that is the command, in a session of its own, with these descriptors as 0, 1, 2 and in our folder."""
        # A vfork: no second copy of this process. All other descriptors here are close-on-exec.
        groups, ours = [group for group, _ in request["groups"]], [own for _, own in request["groups"]]
        try:
            put_into(0, groups)  # us for that moment: the command must be in them before it can start anything
            return os.posix_spawn(
                request["program"],
                request["argv"],
                request["env"],
                file_actions=[(os.POSIX_SPAWN_DUP2, fd, index) for index, fd in enumerate(targets)],
                setsid=True,
                setsigmask=(),
                setsigdef=IGNORED_HERE,
            )
        finally:
            put_into(0, ours)

    # --- the end

    def end(self, cause: str, grace: float | None = None) -> None:
        """TERM to the tree now, KILL after the grace (seconds; None: the request's). 0 is KILL at once."""
        seconds = self.request["grace"] if grace is None else grace
        if not self.cause:
            self.cause = cause
            if seconds > 0:  # TERM to a wrapper (bwrap) would take its command along; CONT, or the stopped never see theirs
                if self.outside is not None:
                    self.outside.stop()
                else:
                    signal_tree(children_of(os.getpid()), (signal.SIGTERM, signal.SIGCONT), self.request["wrapper"])
        self.kill_at = min(self.kill_at, time.monotonic() + max(0.0, seconds))

    def look(self) -> None:
        """Act on the flags in the run's stop folder: empty files called REASON or REASON@AGENT."""
        if not self.request.get("stop_dir"):
            return
        try:
            names = sorted(os.listdir(self.request["stop_dir"]))
        except OSError:
            return  # not made yet
        for name in names:
            reason, _, agent = name.partition("@")
            if reason in self.request["stopped_by"] and agent in ("", self.request["agent"]):
                self.end(f"stopped:{reason}")
        if "now" in names:
            seconds = self.request["now_after"]
            if seconds > 0:
                self.last_moment = min(self.last_moment, time.monotonic() + seconds)
            else:
                self.end("stopped:now", 0.0)

    def check_time(self) -> None:
        now = time.monotonic()
        if now >= self.deadline:
            self.deadline = NEVER
            self.end("timeout")
        if now >= self.last_moment:
            self.last_moment = NEVER
            self.end("stopped:now", 0.0)
        if now >= self.kill_at:
            self.kill()

    def kill(self) -> None:
        """KILL to all; again until reap() finds nobody, since a tree that forks can outrun one pass."""
        self.kills += 1
        if self.outside is not None and not self.outside.ended(client_is_gone=self.status is not None):
            self.kill_at = time.monotonic() + PAUSE
            return
        if self.isolated:
            try:
                os.kill(-1, signal.SIGKILL)  # all of the namespace but ourselves, atomic against fork
            except ProcessLookupError:
                pass
            pause = PAUSE
        else:
            ours = self.outside.ending.pid if self.outside is not None else 0
            signal_tree((pid for pid in children_of(os.getpid()) if pid != ours), (signal.SIGKILL,))
            pause = 0.003 if self.kills < 200 else PAUSE
        self.kill_at = time.monotonic() + pause

    def reap(self) -> bool:
        """True once no descendant is left."""
        for _ in range(500):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return self.outside is None or self.outside.gone()
            if pid == 0:
                return False
            if self.outside is not None and self.outside.took(pid, status):
                continue
            self.left += self.status is not None
            if pid == self.main:
                self.status = os.waitstatus_to_exitcode(status)
                if not self.cause:  # in a stop the others have the grace as well
                    self.cause, self.kill_at = "exit", 0.0
        return False

    # --- what happens meanwhile

    def sleep(self) -> None:
        """Wait for the next thing to do and do it."""
        until = min(self.kill_at, self.deadline, self.last_moment, self.give_up_at)
        timeout = None if until == NEVER else min(max(0.0, until - time.monotonic()) * 1000 + 0.5, 3.6e6)
        ready = {fd for fd, _ in self.poll.poll(timeout)}
        if self.wake in ready:
            arrived = drain(self.wake)
            if LOOK in arrived:
                self.look()
            if LEAVE in arrived:
                self.abandon()
        if ready & self.output.logs.keys():
            now = time.monotonic()
            if now - self.moved_at < GATHER and self.kill_at == NEVER:
                time.sleep(GATHER)  # a stream of small writes: the pipe holds it
            self.moved_at = now
            for pipe in self.output.move():
                self.poll.unregister(pipe)
            if trouble := self.output.trouble():
                self.end(trouble)
        if ready & self.watch and (ready & self.watch != {self.channel.fileno()} or not self.obey()):
            self.abandon()

    def obey(self) -> bool:
        """Read the owner's commands; False if it has closed its end."""
        try:
            data = self.channel.recv(1 << 16)
        except ConnectionError:
            return False
        *lines, self.received = (self.received + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if "stop" in command:
                self.end("stopped", float(command["stop"]))
            else:
                self.look()
        return bool(data)

    def abandon(self) -> None:
        """The owner is gone: end the tree without grace."""
        for fd in self.watch:
            self.poll.unregister(fd)
        self.watch.clear()
        self.end("owner", 0.0)
        self.give_up_at = min(self.give_up_at, time.monotonic() + LAST_RESORT)

    def send(self, **message: Any) -> None:
        try:
            self.channel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return  # the owner is gone, poll says so too

    def report(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.send(
            event="empty",
            status=self.status,
            cause=self.cause or "exit",
            user=usage.ru_utime,
            system=usage.ru_stime,
            max_rss_kb=usage.ru_maxrss,
            left=self.left if self.outside is None else 0,  # clients of an engine are nobody's
            proved=self.outside is None or self.outside.ending.done,
            output_bytes=self.output.moved,
        )
