"""The owner's side of the keeper: start a command, wait for its tree to end, end it. From any number of threads.

Every command runs under a keeper process that `children/spawner.py` forks; what the two do and why is said there.
One `Spawner` lives as long as the pytest process. It costs nothing before the first start. Those that have a program loaded
(`children/warm.py`) belong to it, and start commands in its stead where they can.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import DEVNULL, Popen, TimeoutExpired
from time import monotonic
from typing import Any

from pytest_codeprobe.errors import Stopped
from pytest_codeprobe.model.sandbox import ProcessExit, ProcessLimits, Role, WarmProgram
from pytest_codeprobe.sandboxes.flags import FlagWatch, StopFolders, wait_readable
from pytest_codeprobe.sandboxes.requests import as_os_error, make_request
from pytest_codeprobe.sandboxes.sweep import start_time

SPAWNER = Path(__file__).resolve().parent.parent / "children" / "spawner.py"

_START_TIMEOUT = 60.0  # seconds for the spawner or a keeper to answer; far beyond what a loaded machine needs
_WARM_TIMEOUT = 30.0  # seconds for one that loads a program; then there is another way
_WARM_PROGRAMS = 4  # that are kept loaded, each some 40 MB
_INQUIRY_TIMEOUT = 5.0  # seconds for the spawner to end what a killed keeper left
_ENGINE_TIMEOUT = 65.0  # the same where it has to ask a container engine, three times if need be
_CLOSE_TIMEOUT = 12.0  # seconds; the spawner leaves by itself within 10
_LOADER_VARIABLES = ("LD_LIBRARY_PATH",)  # without it some builds of Python don't start; says nothing of the user


class Spawner:
    """Starts commands under keepers through one child process, which is made at the first start and replaced if it dies.

    `watch`: pids besides our own whose end ends every tree at once (under xdist the controller's). `stop_dir`: the run's folder
    of stop flags for starts that name none; it need not exist yet. `namespaces=False` forgoes pid namespaces. `program`: what
    its commands are forks of; one that could not be loaded is not tried again.
    """

    def __init__(
        self, watch: Sequence[int] = (), stop_dir: str = "", namespaces: bool = True, *, program: WarmProgram | None = None
    ) -> None:
        self._watch = {pid: start_time(pid) for pid in watch}
        self._stop_dir, self._namespaces, self._program = stop_dir, namespaces, program
        self._runs = program or _spawner_program()  # now: tests may change the environment while sessions run beside them
        self._timeout = _START_TIMEOUT if program is None else _WARM_TIMEOUT
        self._refusal = ""  # why the program can't be loaded
        self._warm: dict[WarmProgram, Spawner] = {}
        self._folders = StopFolders()
        self._lock = threading.Lock()
        self._process: Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._owner = 0  # the pid that made the process: a fork of us must not use it
        self._mode = ""

    @property
    def mode(self) -> str:
        """How trees are held together: `pidns`, `userns` or `subreaper`. Starts the spawner; OSError if that can't be done."""
        with self._lock:
            self._connect()
            return self._mode

    @property
    def pid(self) -> int | None:
        """The spawner's process id, None while there is none."""
        return self._process.pid if self._process else None

    def start(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: str,
        stdin: int,
        stdout: int,
        stderr: int,
        limits: ProcessLimits,
        role: Role = "session",
        agent: str = "",
        stop_dir: str = "",
        warm: WarmProgram | None = None,
    ) -> KeptProcess:
        """Start a command in a session and process tree of its own; `argv[0]` is searched for in the PATH of `env`.

        It gets the three descriptors and no other. Output to regular files goes through the keeper, to one of them in order if
        `stdout == stderr`; anything else is handed over as it is. A flag in `stop_dir` (REASON or REASON@AGENT) ends it
        according to its role; if one is there already the command is not started and the result says so.
        `warm`: what it is forked from, where that can be done. OSError if it can't be started: not found, not executable, no such
        folder, no more processes, not on Linux. Stopped where that is so since a watched process is gone, and with it the run.
        """
        folder, outputs = stop_dir or self._stop_dir, (stdout, stderr)
        request = make_request(argv, env=env, cwd=cwd, outputs=outputs, limits=limits, role=role, agent=agent, stop_dir=folder)
        os.fstat(stdin)  # OSError here rather than a puzzle there
        try:
            return self._start_somewhere(request, (stdin, stdout, stderr), warm)
        except OSError as error:
            if any(start_time(pid) != began for pid, began in self._watch.items()):
                raise Stopped("interrupted") from error
            raise

    def _start_somewhere(self, request: Mapping[str, Any], stdio: Sequence[int], warm: WarmProgram | None) -> KeptProcess:
        loaded = None if warm is None else self._loaded(warm)
        if loaded is not None:
            try:
                return loaded._start(request, stdio)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    raise  # it may have been begun, and have read from stdin
        return self._start(request, stdio)

    def _start(self, request: Mapping[str, Any], stdio: Sequence[int]) -> KeptProcess:
        for _ in range(3):  # a spawner that was just killed can take one order and refuse the next before it is seen to be dead
            process = self._try_start(request, stdio)
            if process is not None:
                return process
        raise ChildProcessError(errno.ECHILD, "no keeper could be started")

    def _loaded(self, program: WarmProgram) -> Spawner | None:
        """The one whose commands are forks of the program; None where there are too many of these already."""
        with self._lock:
            if program not in self._warm:
                if len(self._warm) >= _WARM_PROGRAMS:
                    return None
                self._warm[program] = Spawner(tuple(self._watch), namespaces=self._namespaces, program=program)
            return self._warm[program]

    def close(self) -> None:
        """End every tree that is still there and the spawner; waits up to 12 s. A later start makes a new one."""
        for loaded in list(self._warm.values()):
            loaded.close()
        with self._lock:
            self._disconnect()

    def _try_start(self, request: Mapping[str, Any], stdio: Sequence[int]) -> KeptProcess | None:
        """None if the spawner or the keeper was lost on the way."""
        ours, theirs = socket.socketpair()
        ours.settimeout(self._timeout)
        process = KeptProcess(self, ours, request["stop_dir"], outside=request["outside"] is not None)
        spawner: Popen[bytes] | None = None
        try:
            with theirs, self._lock:
                link = self._connect()
                spawner = self._process
                order = json.dumps({"do": "start", "stop_dir": request["stop_dir"], "outside": request["outside"]}).encode()
                try:
                    socket.send_fds(link, [order], [theirs.fileno(), *stdio])
                except ConnectionError:
                    self._disconnect()
                    raise
            ours.sendall(json.dumps(request).encode() + b"\n")
            message = process._receive(monotonic() + self._timeout)
            if message is None:
                raise TimeoutError(errno.ETIMEDOUT, f"the keeper did not start {request['program']!r} within {self._timeout:.0f} s")
            if message["event"] == "error":
                raise as_os_error(message)
            if message["event"] != "started":
                raise ConnectionResetError(errno.ECONNRESET, "the keeper was lost")
            process._started(message["keeper"], message["spawner"])
        except ConnectionError:
            process._release()
            return None
        except BaseException as error:
            process._release()
            if isinstance(error, TimeoutError) and self._program is not None and spawner is not None:
                spawner.kill()  # keepers do without it; the next start makes a new one
            raise
        return process

    def _connect(self) -> socket.socket:
        """The socket to a living spawner. Called with the lock held."""
        if sys.platform != "linux":
            raise OSError(errno.ENOTSUP, f"sessions can be run on Linux only so far, not on {sys.platform}")
        if self._socket is not None and self._process is not None:
            if self._owner == os.getpid() and self._process.poll() is None:
                os.kill(self._process.pid, signal.SIGCONT)  # a command may have stopped it
                return self._socket
            self._disconnect()
        if self._refusal:
            raise ChildProcessError(errno.ECHILD, self._refusal)
        link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        link.settimeout(self._timeout)
        program = self._runs
        config = {"fd": theirs.fileno(), "watch": [os.getpid(), *self._watch], "namespaces": self._namespaces}
        with theirs, os.fdopen(os.memfd_create("complaints", os.MFD_CLOEXEC), "w+b") as complaints:
            try:
                process = Popen(
                    [*program.argv, json.dumps(config)],
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,  # no signal from the terminal reaches it
                    env=dict(program.env),
                    cwd="/",
                    stdin=DEVNULL,
                    stdout=DEVNULL,
                    stderr=complaints,
                )
            except OSError:
                link.close()
                raise
            theirs.close()
            try:
                answer = link.recv(4096)
            except OSError:
                answer = b""
            if not answer:
                link.close()
                process.kill()
                status = process.wait()
                complaints.seek(0)
                why = complaints.read().decode("utf-8", "replace").strip()[-2000:]
                refusal = f"the spawner did not start (status {status}): {why}"
                self._refusal = refusal if self._program is not None else ""
                raise ChildProcessError(errno.ECHILD, refusal)
        self._process, self._socket, self._owner, self._mode = process, link, os.getpid(), json.loads(answer)["mode"]
        return link

    def _disconnect(self) -> None:
        """Let the spawner go and reap it. Called with the lock held."""
        process, link = self._process, self._socket
        self._process = self._socket = None
        if link is not None:
            link.close()
        if process is None or self._owner != os.getpid():
            return
        process.send_signal(signal.SIGCONT)  # a session may have stopped it
        try:
            process.wait(_CLOSE_TIMEOUT)
        except TimeoutExpired:
            process.kill()
            process.wait()

    def _is_gone(self, keeper: int, pidfd: int, spawner: int, *, outside: bool = False) -> bool:
        """End a keeper that is lost or does not answer. True once its whole tree is gone, False if that can't be shown."""
        patience = _ENGINE_TIMEOUT if outside else _INQUIRY_TIMEOUT
        end = monotonic() + patience
        if sys.platform == "linux" and pidfd >= 0:
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            except ProcessLookupError:
                pass  # that is why it is lost
        with self._lock:
            reply, mode = self._inquire(keeper, spawner), self._mode
        if reply is not None:
            with reply:
                reply.settimeout(patience)
                try:
                    if reply.recv(16) == b"gone":
                        return True
                except TimeoutError:
                    return False
        # Without its spawner only a namespace is a proof: the kernel lets its first process end after all the others.
        return mode != "subreaper" and not outside and wait_readable(pidfd, end)

    def _inquire(self, keeper: int, spawner: int) -> socket.socket | None:
        """Where the spawner will say that the keeper's tree is gone; None if the one that made it is gone. Lock held."""
        process, link = self._process, self._socket
        if process is None or link is None or process.pid != spawner or process.poll() is not None:
            return None  # another one knows nothing of that tree's orphans
        process.send_signal(signal.SIGCONT)  # a session may have stopped it
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                socket.send_fds(link, [json.dumps({"do": "inquire", "keeper": keeper}).encode()], [theirs.fileno()])
        except ConnectionError:
            ours.close()
            return None
        return ours


class KeptProcess:
    """A command and everything it starts. Ending it is never forgotten: dropping the last reference ends the tree too."""

    def __init__(self, spawner: Spawner, channel: socket.socket, stop_dir: str, *, outside: bool = False) -> None:
        self._spawner, self._channel, self._outside = spawner, channel, outside
        self._flags = FlagWatch(spawner._folders, stop_dir)
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._buffer = b""
        self._exit: ProcessExit | None = None
        self._status: int | None = None
        self._pidfd = -1
        self.keeper_pid = self.spawner_pid = 0

    @property
    def status(self) -> int | None:
        """Exit status of the command itself, -N for signal N; None while it runs. Known before the tree is empty."""
        self.wait(0)
        return self._status

    def wait(self, timeout: float | None = None) -> ProcessExit | None:
        """How it ended, once nothing of the tree is left; None when `timeout` seconds are over first."""
        end = None if timeout is None else monotonic() + timeout
        if not self._reading.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return None
        try:
            while self._exit is None:
                # the spawner tells the keeper of new flags; should it be killed or stopped, we do
                if self._flags.news():
                    self._tell({"look": True})
                message = self._receive(self._flags.before(end))
                if message is None:
                    if end is not None and monotonic() >= end:
                        return None
                    continue
                event = message.pop("event")
                if event == "exit":
                    self._status = message["status"]
                elif event == "empty":
                    self._finish(ProcessExit(**message))
                elif event == "lost":
                    gone = self._is_gone()
                    self._finish(ProcessExit(status=self._status, cause="lost", proved=gone))
            return self._exit
        finally:
            self._reading.release()

    def stop(self, grace: float) -> None:
        """TERM to the whole tree, KILL after `grace` seconds, at once if it is 0. Does not wait. The first cause of an end stands."""
        self._tell({"stop": grace})

    def _tell(self, message: Mapping[str, object]) -> None:
        with self._writing:
            try:
                self._channel.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                return  # it has ended

    def kill(self) -> None:
        """stop(0)."""
        self.stop(0.0)

    def destroy(self, timeout: float = 2.0) -> ProcessExit:
        """KILL the tree and wait for the proof. A keeper that does not answer within `timeout` seconds is killed itself."""
        self.kill()
        result = self.wait(max(timeout, _ENGINE_TIMEOUT) if self._outside else timeout)
        if result is None:
            gone = self._is_gone()
            result = self.wait(timeout)
            if result is None:
                result = ProcessExit(status=self._status, cause="lost", proved=gone)
        return result

    def __del__(self) -> None:
        self._release()

    def _is_gone(self) -> bool:
        return self._spawner._is_gone(self.keeper_pid, self._pidfd, self.spawner_pid, outside=self._outside)

    def _started(self, keeper: int, spawner: int) -> None:
        self.keeper_pid, self.spawner_pid = keeper, spawner
        if sys.platform == "linux":
            try:
                self._pidfd = os.pidfd_open(keeper)
            except ProcessLookupError:
                return  # a short command: it has reported and gone

    def _finish(self, result: ProcessExit) -> None:
        self._exit, self._status = result, result.status
        self._release()

    def _release(self) -> None:
        with self._writing:  # or a stop() could write to a descriptor that has become another one
            self._channel.close()
            pidfd, self._pidfd = self._pidfd, -1
            if pidfd >= 0:
                os.close(pidfd)

    def _receive(self, end: float | None) -> dict[str, Any] | None:
        """The keeper's next message, {"event": "lost"} if it is gone; None when the time is over."""
        while b"\n" not in self._buffer:
            if not wait_readable(self._channel.fileno(), end):
                return None
            try:
                data = self._channel.recv(1 << 16)
            except ConnectionError:
                data = b""
            if not data:
                return {"event": "lost"}
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return dict(json.loads(line))


def _spawner_program() -> WarmProgram:
    env = {name: os.environ[name] for name in _LOADER_VARIABLES if name in os.environ}  # no key to be read in /proc
    env["LD_BIND_NOW"] = "1"  # once here, instead of in every keeper
    return WarmProgram((sys.executable, "-I", "-S", "-X", "utf8", str(SPAWNER)), tuple(env.items()))
