"""Git repositories that tests lay workspaces out from, and servers for them on loopback."""

from __future__ import annotations

import base64
import contextlib
import http.server
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FIX = "only-the-fix-knows-this"
_WHO = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
_PLAIN = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ALLOW_PROTOCOL": "file:git:http", "LC_ALL": "C"}


def git(folder: Path, *args: str, stdin: bytes = b"") -> str:
    """Run git there; what it prints."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")} | _WHO | _PLAIN
    done = subprocess.run(["git", "-C", str(folder), *args], env=env, input=stdin, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr.decode("utf-8", "replace")
    return done.stdout.decode("utf-8", "replace").strip()


def commit(folder: Path, files: Mapping[str, str], message: str = "next") -> str:
    """Commit files (made first, also the repository); the hash."""
    if not (folder / ".git").exists():
        folder.mkdir(parents=True, exist_ok=True)
        git(folder, "init", "-q", "-b", "main")
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    git(folder, "add", "-A", "-f")
    git(folder, "commit", "-qm", message, "--allow-empty")
    return git(folder, "rev-parse", "HEAD")


def with_a_fix(folder: Path) -> str:
    """A repository that has the fix of its first commit wherever a repository can have something; the hash of that commit."""
    other = folder.with_name(f"{folder.name}-other")
    commit(other, {"fixed.py": FIX})
    base = commit(folder, {"app.py": "x = 1\n", "lib/a.py": "a = 1\n"}, "base")
    commit(folder, {"app.py": f"x = 2  # {FIX} 1\n"}, f"{FIX} 2")
    git(folder, "checkout", "-q", "-b", "hidden")
    commit(folder, {"b.py": f"{FIX} 3"})
    git(folder, "tag", "-a", "v2", "-m", f"{FIX} 4")
    git(folder, "checkout", "-q", "main")
    commit(folder, {"gone.py": f"{FIX} 5"})
    git(folder, "reset", "-q", "--hard", "HEAD~1")
    (folder / "app.py").write_text(f"{FIX} 6")
    git(folder, "stash")
    git(folder, "hash-object", "-w", "--stdin", stdin=f"{FIX} 7".encode())
    git(folder, "notes", "add", "-m", f"{FIX} 8", base)
    git(folder, "remote", "add", "origin", str(other))
    (folder / ".git/objects/info/alternates").write_text(f"{other}/.git/objects\n")
    git(folder, "pack-refs", "--all")
    (folder / ".git/description").write_text(FIX)
    return base


#: all that git can be asked for in a workspace, and the files of its store as they are
LOOK = """
exec > found.txt 2>&1
find . -name alternates -o -name shallow -o -name FETCH_HEAD -o -name ORIG_HEAD -o -path '*/logs/*' | sed s/^/LEFT:/
git log --all -p --format=%H%B; git reflog --all; git stash list; git stash show -p; git notes list
git show-ref; git for-each-ref; git tag -n; git branch -a; git remote -v; git config -l --local; git submodule status
git cat-file --batch-all-objects --batch --unordered; git count-objects -v; git fsck --lost-found --unreachable --no-reflogs
git rev-list --all --objects --reflog; git fetch --all; git worktree list
find . -path '*.git/*' -type f | sort
find . -path '*.git/*' -type f -exec cat {} +
git rev-list --all | wc -l | sed s/^/commits:/
git status --short | sed s/^/status:/
"""


def bare(source: Path, target: Path) -> Path:
    """A bare clone with all references, also the stash and what was hidden."""
    git(source.parent, "init", "-q", "--bare", "-b", "main", str(target))
    git(source, "push", "-q", str(target), "+refs/*:refs/*")
    return target


@contextlib.contextmanager
def daemon(folder: Path) -> Iterator[str]:
    """`git daemon` on loopback; the URL of what lies below the folder."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    argv = ["git", "daemon", "--export-all", f"--base-path={folder}", "--listen=127.0.0.1", f"--port={port}", "--reuseaddr", str(folder)]
    with subprocess.Popen(argv, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until = time.monotonic() + 20
            while time.monotonic() < until:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
            yield f"git://127.0.0.1:{port}"
        finally:
            os.killpg(process.pid, 15)  # git starts the daemon as its child


@contextlib.contextmanager
def mute() -> Iterator[tuple[str, threading.Event]]:
    """A server on loopback that takes connections and never answers. Its address; whether somebody came."""
    came, kept = threading.Event(), list[socket.socket]()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    came.set()

        thread = threading.Thread(target=take, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", came
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in kept:
                connection.close()


@contextlib.contextmanager
def web(folder: Path, login: str = "") -> Iterator[tuple[str, list[str]]]:
    """A server of plain files on loopback, which git calls dumb: it gives out no single commit. Its address and what it was asked for.

    `login`: `name:password` that it wants.
    """
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def do_GET(self) -> None:
            if login and self.headers.get("Authorization") != f"Basic {base64.b64encode(login.encode()).decode()}":
                self.send_response(401)
                self.send_header("WWW-Authenticate", 'Basic realm="x"')
                self.send_header("Content-Length", "0")
                self.end_headers()
            else:
                super().do_GET()

        def log_message(self, format: str, *args: Any) -> None:  # as the base class calls it
            asked.append(format % args)

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}", asked
        finally:
            server.shutdown()
            thread.join()
