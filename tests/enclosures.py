"""What an agent may try against its sandbox, one shell script each, and which drivers hold it.

A script prints what it got; nothing means that it was held. docs/security.md has the table, which a test compares with HELD.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.front_door import Project

SECRET = "enclosure-s3cret-value"
_CONNECT = "import socket; print(socket.create_connection(('127.0.0.1', {port}), 2).recv(3))"
_ABSTRACT = "import socket; s = socket.socket(socket.AF_UNIX); s.connect(chr(0) + '{abstract}'); print(s.recv(3))"
_ELSEWHERE = (
    "import socket\nfor place in (('192.0.2.1', 53), ('8.8.8.8', 53)):\n"
    "    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2)\n"
    "    try: print(s.sendto(b'x', place))\n    except OSError: pass"
)
_ADD_KEY = {"x86_64": 248, "aarch64": 217}.get(os.uname().machine, 0)
_KEYRING = f"import ctypes; key = ctypes.CDLL(None).syscall({_ADD_KEY}, b'user', b'codeprobe-test', b'x', 1, -4); key < 0 or print(key)"
_OWN = " (/dev/|/proc/|pipe:|/memfd:|anon_inode:|.*/got.txt$)"  # what the shell itself has open
TRIES = {
    "read the task file": "cat {tasks}/read-the-task-file.yaml",
    "read hidden tests": "cat {tasks}/hidden/test_secret.py",
    "read the solution": "cat {tasks}/solution/answer.txt",
    "read the repository": "cat {root}/secret.txt",
    "write into the repository": "echo planted > {root}/planted.txt && cat {root}/planted.txt",
    "read the run dir": "cat {root}/.codeprobe/runs/*/plan.json",
    "read the user's HOME": "cat {home}/.ssh/id_ed25519",
    "write into the user's HOME": "echo x >> {home}/.profile && cat {home}/.profile",
    "find other trials": 'ls -d {tmp}/codeprobe-*/ | grep -v "$(basename $(dirname $HOME))"',
    "find its own logs": "find / -xdev -name agent.stdout",
    "write into its own logs": "for f in ../logs/*; do echo forged >> $f && echo $f; done",
    "see processes of others": "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -o -- '--junitxm[l]'",
    "read the environment of others": "cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep -o ENCLOSUR[E]_KEY=.*",
    "reach what its keeper has open": f"ls -l /proc/[0-9]*/fd | grep -e '->' | grep -vE '{_OWN}'",
    "write where programs are": "touch /usr/bin/planted && ls /usr/bin/planted",
    "write into /etc": "echo x >> /etc/hosts.planted && cat /etc/hosts.planted",
    "read the passwords": "cat /etc/shadow",
    "write into no folder of its own": "for f in / /etc/ssh /etc/ssl/private; do touch $f/planted && ls $f/planted; done",
    "leave something in the user's keyring": f'{{python}} -c "{_KEYRING}"',
    "mount anew": "mount -o remount,rw /usr && echo mounted; umount /usr && echo unmounted",
    "reach a server of this machine, network off": '{python} -c "' + _CONNECT + '"',
    "reach a socket without a file of this machine, network off": f'{{python}} -c "{_ABSTRACT}"',
    "reach another machine, network off": f'{{python}} -c "{_ELSEWHERE}"',
    "see networks of this machine, network off": "tail -n +3 /proc/net/dev | grep -v ' lo:'; tail -n +2 /proc/net/route",
}
#: what each driver holds; of tempdir where pid namespaces work
HELD = {
    "tempdir": frozenset({"see processes of others", "read the environment of others"}),
    "bubblewrap": frozenset(TRIES),
    "docker": frozenset(TRIES),
}
#: tries that would do harm where they are not held, or that such a driver refuses at collection
NOT_TRIED = {"tempdir": frozenset(list(TRIES)[list(TRIES).index("reach what its keeper has open") :])}


def name_of(words: str) -> str:
    """As a task id."""
    return "".join(c if c.isalnum() else "-" for c in words.lower()).strip("-")


@dataclasses.dataclass
class Server:
    """Says "yes" to whoever connects."""

    port: int
    abstract: str  #: name of a unix socket that is no file
    asked: int = 0


@contextmanager
def server() -> Iterator[Server]:
    """On loopback, and by a name of its own."""
    name = f"codeprobe-enclosure-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX) as nameless:
        nameless.bind("\0" + name)
        nameless.listen()
        found = Server(listening.getsockname()[1], name)

        def serve(on: socket.socket) -> None:
            while True:
                try:
                    client, _ = on.accept()
                except OSError:
                    return
                with client:
                    found.asked += 1
                    client.sendall(b"yes")

        for on in (listening, nameless):
            threading.Thread(target=serve, args=(on,), daemon=True).start()
        try:
            yield found
        finally:
            for on in (listening, nameless):
                on.shutdown(socket.SHUT_RDWR)


def lay(project: Project, home: Path, asked: Server, tries: list[str], *, python: str = sys.executable) -> None:
    """A task for each try: it passes where nothing was got. `python`: the interpreter that there is inside."""
    project.write("secret.txt", f"{SECRET}\n")
    project.write("tasks/hidden/test_secret.py", "def test_it(): assert 'a secret test'\n")
    project.write("tasks/solution/answer.txt", "a secret answer\n")
    for path, text in ((".ssh/id_ed25519", "a secret key\n"), (".profile", "a profile\n")):
        (home / path).parent.mkdir(parents=True, exist_ok=True)
        (home / path).write_text(text)
    tmp = project.environment["TMPDIR"]
    for words in tries:
        script = TRIES[words].format(
            tasks=project.path / "tasks",
            root=project.path,
            home=home,
            tmp=tmp,
            port=asked.port,
            abstract=asked.abstract,
            python=python,
        )
        project.task(
            name_of(words),
            agent={"type": "command", "command": ["sh", "-c", f"({script}) > got.txt 2>/dev/null; echo done > done.txt"]},
            sandbox={"network": "off"} if words.endswith("network off") else {},
            success_criteria=[
                {"type": "file_contains", "path": "done.txt", "includes": ["done"]},
                {"type": "run_command", "command": "cat got.txt; [ ! -s got.txt ]"},
            ],
        )
