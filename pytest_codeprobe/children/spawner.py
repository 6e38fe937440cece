"""The spawner: the one child of a pytest process that starts keepers, so that nothing forks in the process with the threads.

    owner (pytest, any thread) --JSON + 4 descriptors--> spawner --fork--> keeper --vfork, exec--> command
                 ^------------------ one socket per command, JSON lines -----------^

Run as `python -I -S -X utf8 spawner.py CONFIG`; warm.py imports it. CONFIG is JSON: `fd` (socket to the owner), `watch` (pids whose
end ends everything), `namespaces` (may they be used). Linux, standard library, single-threaded.

Besides forking it does three things. It looks into the stop folders of its keepers four times a second and tells them to look
when something is new. It is a child subreaper, so that what a killed keeper leaves behind ends up here and is killed. And it
says, on demand, when nothing of a keeper's tree can be left.
"""

# ruff: noqa: PTH100, PTH110, PTH115, PTH120, PTH123, PTH208
# (no pathlib here, see keeper.py)
from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import time
from typing import TYPE_CHECKING, Any, NoReturn

if sys.platform != "linux":
    raise SystemExit(f"the spawner needs Linux, not {sys.platform}")

if TYPE_CHECKING:
    from pytest_codeprobe.children.keeper import IGNORED_HERE, LEAVE, LOOK, Keeper
    from pytest_codeprobe.children.outside import Ending
    from pytest_codeprobe.children.process_tree import children_of, drain, signal_pipe, signal_tree
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))  # -I keeps the script's own folder out
    from keeper import IGNORED_HERE, LEAVE, LOOK, Keeper
    from outside import Ending
    from process_tree import children_of, drain, signal_pipe, signal_tree

NEWNS, NEWUSER, NEWPID = 0x20000, 0x10000000, 0x20000000
SYS_CLONE3 = 435  # the same on all architectures
MS_SLAVE_REC, MS_NOSUID_NODEV_NOEXEC = 0x84000, 0xE
PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 4, 15, 36
LOOK_EVERY = 0.25  # seconds
KEEPERS_END_WITHIN = 7.0  # seconds after the owner's end; then they are killed
LINGER = 9.5  # seconds after the owner's end; then we leave, come what may

libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the GIL across a call
# looked up once, not in every fork; the first three are the calls that os.fork() makes
before_fork, after_fork_here = ctypes.pythonapi.PyOS_BeforeFork, ctypes.pythonapi.PyOS_AfterFork_Parent
after_fork_child = ctypes.pythonapi.PyOS_AfterFork_Child
mount, prctl, syscall = libc.mount, libc.prctl, libc.syscall


def checked(result: int) -> int:
    """The result of a C call; OSError if it failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def fork(namespaces: int) -> int:
    """os.fork() whose child is the first process of new namespaces, if any are named."""
    if not namespaces:
        return os.fork()
    args = (ctypes.c_uint64 * 8)(namespaces, 0, 0, 0, signal.SIGCHLD, 0, 0, 0)
    before_fork()
    pid = int(syscall(SYS_CLONE3, args, ctypes.sizeof(args)))
    if pid == 0:
        after_fork_child()
    else:
        after_fork_here()
    return checked(pid)


def settle_in(namespaces: int, uid: int, gid: int) -> None:
    """First steps in new namespaces: stay who we are, and let /proc show the new pids."""
    if namespaces & NEWUSER:
        prctl(PR_SET_DUMPABLE, 1)  # else these files are root's; warm.py begins with 0
        for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
            with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
                file.write(text)
    if namespaces & NEWNS:
        checked(mount(b"none", b"/", None, MS_SLAVE_REC, None))  # later mounts of the host still arrive, ours stay here
        checked(mount(b"proc", b"/proc", b"proc", MS_NOSUID_NODEV_NOEXEC, None))


def find_namespaces(uid: int, gid: int) -> int:
    """The namespaces that work here. Tried, since seccomp, AppArmor and containers all forbid different steps."""
    for namespaces in (NEWPID | NEWNS, NEWUSER | NEWPID | NEWNS):
        try:
            pid = fork(namespaces)
        except OSError:
            continue
        if pid == 0:
            try:
                settle_in(namespaces, uid, gid)
                os._exit(0)
            finally:
                os._exit(1)
        if os.waitpid(pid, 0)[1] == 0:
            return namespaces
    return 0


def channel_of(fd: int) -> socket.socket:
    """The socket to the owner of one command. All is said of it here, or Python asks the kernel."""
    return socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fd)


class Spawner:
    """Serves its owner until that closes the socket or one of the watched processes ends."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.owner = socket.socket(fileno=config["fd"])
        self.owner.set_inheritable(False)
        self.pid, self.uid, self.gid = os.getpid(), os.geteuid(), os.getegid()
        if not os.path.exists(f"/proc/{self.pid}/task/{self.pid}/children"):
            raise SystemExit("the kernel shows no /proc/PID/task/TID/children (CONFIG_PROC_CHILDREN)")
        # A forked copy of the owner may hold our sockets: their end alone proves nothing.
        self.watch = [os.pidfd_open(pid) for pid in config["watch"]]
        if os.getppid() != config["watch"][0]:
            raise SystemExit("the owner ended before we began")  # and its pid may be someone else's by now
        self.namespaces = find_namespaces(self.uid, self.gid) if config["namespaces"] else 0
        prctl(PR_SET_NAME, b"codeprobe-spawn")
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        if not self.namespaces:  # within one the command can't see us
            prctl(PR_SET_DUMPABLE, 0)  # no ptrace by processes of the command's uid
        for number in IGNORED_HERE:
            signal.signal(number, signal.SIG_IGN)  # the owner decides what a ^C or a hang-up means
        self.wake = signal_pipe(signal.SIGCHLD, LOOK, LEAVE)  # the handlers are inherited: no signal hits a young keeper unready
        self.poll = select.poll()
        self.keepers: dict[int, str] = {}  # pid -> stop folder
        self.held: dict[int, Ending] = {}  # pid of a keeper -> what ends that which an engine holds for it
        self.endings: list[tuple[int, Ending]] = []  # of keepers that were killed
        self.unproved: set[int] = set()  # keepers for which an engine may hold something still
        self.flags: dict[str, set[str]] = {}  # stop folder -> names seen in it
        self.inquiries: list[tuple[int, socket.socket]] = []  # keeper, where to say that its tree is gone
        self.sweeping = False  # a keeper was killed, what it left may be ours now
        self.alone_since: float | None = None

    def run(self) -> None:
        mode = "subreaper" if not self.namespaces else "userns" if self.namespaces & NEWUSER else "pidns"
        self.owner.send(json.dumps({"mode": mode}).encode())
        for fd in (self.wake, self.owner.fileno(), *self.watch):
            self.poll.register(fd, select.POLLIN)
        gc.disable()
        gc.freeze()  # a collection in a fork would copy our pages
        next_look = 0.0
        while self.alone_since is None or self.keepers or self.sweeping or self.endings:
            ready = {fd for fd, _ in self.poll.poll(self.pause())}
            if self.wake in ready:
                drain(self.wake)
            if self.alone_since is None and not self.has_owner(ready):
                self.lose_owner()
            self.reap()
            if self.sweeping:
                self.sweep()
            self.end_outside()
            self.answer()
            if (now := time.monotonic()) >= next_look:
                next_look = now + LOOK_EVERY
                self.look()
            if self.alone_since is not None and now - self.alone_since > LINGER:
                return

    def pause(self) -> float | None:
        """Milliseconds until there may be something to do that no descriptor announces."""
        if self.sweeping:
            return 3
        if self.endings:
            return 50
        if self.alone_since is not None or any(self.keepers.values()):
            return LOOK_EVERY * 1000
        return None

    def has_owner(self, ready: set[int]) -> bool:
        """Serve what is ready; False if a watched process or the connection has ended."""
        return not ready.intersection(self.watch) and (self.owner.fileno() not in ready or self.serve())

    def serve(self) -> bool:
        """One message of the owner; False at its end."""
        try:
            data, fds, _, _ = socket.recv_fds(self.owner, 1 << 16, 4)
        except ConnectionError:
            return False
        for fd in fds:
            os.set_inheritable(fd, False)  # recv_fds drops MSG_CMSG_CLOEXEC
        try:
            message = json.loads(data) if data else {}
            if message.get("do") == "start" and len(fds) == 4:
                self.start(fds, message["stop_dir"], message.get("outside"))
            elif message.get("do") == "inquire" and len(fds) == 1:
                self.inquiries.append((message["keeper"], socket.socket(fileno=fds.pop())))
        finally:
            for fd in fds:
                os.close(fd)
        return bool(data)

    def start(self, fds: list[int], stop_dir: str, outside: dict[str, Any] | None) -> None:
        namespaces = self.namespaces if outside is None else 0  # an engine's client needs those of the host
        try:
            pid = fork(namespaces)
        except OSError as error:  # no more processes: the owner hears of it as from a keeper
            message = {"event": "error", "errno": error.errno, "text": str(error), "filename": None}
            os.write(fds[0], json.dumps(message).encode() + b"\n")
            return
        if pid == 0:
            self.namespaces = namespaces
            self.go_on(fds)
        self.keepers[pid] = stop_dir
        if outside is not None:
            self.held[pid] = Ending(outside["end_argv"], outside["env"])

    def go_on(self, fds: list[int]) -> NoReturn:
        """In the fork: whatever happens, it must not return to our loop."""
        try:
            self.become_keeper(fds)
        finally:
            os._exit(1)

    def become_keeper(self, fds: list[int]) -> NoReturn:
        outer_pid = int(os.readlink("/proc/self"))  # /proc still shows the pids that the owner sees
        prctl(PR_SET_NAME, b"codeprobe-keep")
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        settle_in(self.namespaces, self.uid, self.gid)
        prctl(PR_SET_DUMPABLE, 0)  # neither ptrace nor /proc/PID/fd for a command that isn't root
        self.owner.close()
        os.close(self.wake)
        for _, reply in self.inquiries:
            reply.close()
        self.make_keeper(fds).run(keeper=outer_pid, spawner=self.pid)

    def make_keeper(self, fds: list[int]) -> Keeper:
        """The keeper that this fork becomes."""
        return Keeper(channel_of(fds[0]), fds[1:], self.watch, bool(self.namespaces))

    def lose_owner(self) -> None:
        self.alone_since = time.monotonic()
        for fd in (self.owner.fileno(), *self.watch):
            self.poll.unregister(fd)

    def look(self) -> None:
        """Tell keepers what is new. Also repeats to them that the owner is gone, in case one was too young to hear it."""
        if self.alone_since is not None:
            number = signal.SIGKILL if time.monotonic() - self.alone_since > KEEPERS_END_WITHIN else LEAVE
            for pid in self.keepers:
                os.kill(pid, number)
            return
        in_use = set(self.keepers.values()) - {""}
        self.flags = {stop_dir: seen for stop_dir, seen in self.flags.items() if stop_dir in in_use}
        for stop_dir in in_use:
            try:
                names = set(os.listdir(stop_dir))
            except OSError:
                continue  # not made yet
            if names - self.flags.get(stop_dir, set()):
                for pid in [pid for pid, its_dir in self.keepers.items() if its_dir == stop_dir]:
                    os.kill(pid, LOOK)
            self.flags[stop_dir] = names

    def reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if os.WIFSTOPPED(status):
                if pid in self.keepers:  # its own command has stopped it: a keeper must hold its deadline
                    os.kill(pid, signal.SIGCONT)
            elif self.keepers.pop(pid, None) is not None:
                self.sweeping = self.sweeping or status != 0
                if (ending := self.held.pop(pid, None)) is not None and status != 0:
                    self.endings.append((pid, ending))
            else:
                for _, ending in self.endings:
                    ending.took(pid, status)

    def sweep(self) -> None:
        orphans = set(children_of(self.pid)) - self.keepers.keys() - {ending.pid for _, ending in self.endings}
        signal_tree(orphans, (signal.SIGKILL,))
        self.sweeping = bool(orphans)

    def end_outside(self) -> None:
        """What engines hold for keepers that were killed: once the clients are gone, or one could go on making a container."""
        for keeper, ending in list(self.endings):
            ending.check_time()
            if ending.done:
                self.endings.remove((keeper, ending))
            elif not self.sweeping and not ending.over:
                ending.begin()
            elif ending.over:
                self.endings.remove((keeper, ending))
                self.unproved.add(keeper)

    def answer(self) -> None:
        """Tell those who asked that their keeper's tree is gone, where it is."""
        if self.sweeping:
            return
        busy = self.keepers.keys() | self.unproved | {keeper for keeper, _ in self.endings}
        for inquiry in [inquiry for inquiry in self.inquiries if inquiry[0] not in busy]:
            self.inquiries.remove(inquiry)
            with inquiry[1] as reply:
                try:
                    reply.send(b"gone")
                except OSError:
                    continue  # who asked has given up


def main() -> None:
    """Serve the owner that CONFIG names."""
    Spawner(json.loads(sys.argv[1])).run()


if __name__ == "__main__":
    main()
