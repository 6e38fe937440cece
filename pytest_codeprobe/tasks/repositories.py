"""Git repositories as tasks name them: which of their commits is meant, what a URL may look like, and how git is asked.

Nothing here changes a repository, and nothing of its configuration is run: git only looks names and objects up.
"""

from __future__ import annotations

import os
import re
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired  # these, not subprocess.run(): tests that run beside trials replace it
from typing import Any
from urllib.parse import urlsplit

from pytest_codeprobe.text import REDACTED, one_line

_SECONDS = 60.0
_SCHEMES = frozenset(("https", "http", "ssh", "git", "file"))
_SCP = re.compile(r"(?:[\w.~-]+@)?(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):(?!/?/)\S+")  #: git@host:path
_HASH = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_NO_NAME = re.compile(r"-|.*(?:\.\.|[\s\x00-\x1f\x7f])")  #: an option, a range, or nothing that git takes for a name
#: what the environment may say about git's way to a server; the rest would lead it to another repository
_WAY_OUT = ("GIT_SSH", "GIT_SSL_", "GIT_HTTP_", "GIT_PROXY_", "GIT_CONFIG_", "GIT_ASKPASS")


class RepositoryProblem(ValueError):
    """Why a source of type repo can't be used: the field, and the end of a sentence about it."""

    def __init__(self, field: str, words: str) -> None:
        super().__init__(words)
        self.field = field


def is_whole_hash(commit: str) -> bool:
    """Whether it names one commit for ever: a whole hash, SHA-1 or SHA-256."""
    return _HASH.fullmatch(commit.lower()) is not None


def quiet_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For git on a repository of this machine: no configuration but its own, no server, no replaced objects, no locks."""
    found = {name: value for name, value in environ.items() if not name.startswith(("GIT_", "SSH_ASKPASS"))}
    return found | {
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_NO_REPLACE_OBJECTS": "1",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_ALLOW_PROTOCOL": "",  # objects that a partial clone lacks are not fetched behind the back
        "GIT_TERMINAL_PROMPT": "0",
        "LC_ALL": "C",
    }


def fetching_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """For git on its way to a server: with the user's own configuration, and without any question to a user."""
    found = {name: value for name, value in environ.items() if not name.startswith(("GIT_", "SSH_ASKPASS"))}
    found |= {name: value for name, value in environ.items() if name.startswith(_WAY_OUT)}
    if not {"GIT_SSH", "GIT_SSH_COMMAND"} & found.keys():
        found["GIT_SSH_COMMAND"] = "ssh -o BatchMode=yes -o ConnectTimeout=30 -o ServerAliveInterval=15 -o ServerAliveCountMax=4"
    return found | {
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ALLOW_PROTOCOL": ":".join(sorted(_SCHEMES)),  # `ext::` would run any command of a task's
        "GCM_INTERACTIVE": "never",
        "LC_ALL": "C",
    }


#: before the command of each call: a repository of another user, as in a container, is read as well, and starts nothing
OPTIONS = ("-c", "safe.directory=*", "-c", "core.fsmonitor=false", "-c", f"core.hooksPath={os.devnull}", "-c", "core.askPass=")


def shown_url(url: str) -> str:
    """A URL without what may be secret in it: a password, who logs in over HTTP (a token often stands there), a query."""
    head, separator, rest = url.partition("://")
    if not separator:
        return url
    place, slash, path = rest.partition("/")
    who, at, host = place.rpartition("@")
    if at:
        name, colon, _ = who.partition(":")
        who = REDACTED if head.lower() in ("http", "https") else f"{name}:{REDACTED}" if colon else name
    path, query, _ = path.partition("?")
    return f"{head}://{who}{at}{host}{slash}{path}{f'?{REDACTED}' if query else ''}"


def secrets_of_url(url: str) -> list[str]:
    """What shown_url() leaves out, also as git shows it."""
    head, separator, rest = url.partition("://")
    if not separator:
        return []
    place, _, path = rest.partition("/")
    who, at, _ = place.rpartition("@")
    name, colon, password = who.partition(":")
    found = [password] if colon else []
    if at and head.lower() in ("http", "https"):
        found += [who, name]
    return [part for part in (*found, path.partition("?")[2]) if part]


def check_url(url: str, task_file: Path) -> None:
    """RepositoryProblem where it is none that is fetched from."""
    kinds = "a URL (https, http, ssh, git, file) or USER@HOST:PATH"
    if url.startswith("-") or any(c.isspace() or not c.isprintable() for c in url):
        raise RepositoryProblem("url", f"must be {kinds}, not {shown_url(url)!r}")
    if "://" not in url:
        if _SCP.fullmatch(url) is None or "::" in url:
            raise RepositoryProblem("url", f"must be {kinds}, not {url!r}; a repository on this machine is named by 'path'")
        return
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise RepositoryProblem("url", f"is no URL: {shown_url(url)!r}") from error
    if parts.scheme.lower() not in _SCHEMES or not (parts.hostname or parts.scheme.lower() == "file"):
        raise RepositoryProblem("url", f"must be {kinds}, not {shown_url(url)!r}")
    if parts.scheme.lower() == "file" and task_file.is_relative_to(os.path.realpath(parts.path)):
        raise RepositoryProblem("url", f"names the repository that holds the task: name it by 'path', so that what grades stays out: {url!r}")


def check_name(commit: str) -> None:
    """RepositoryProblem where it can be the name of no commit."""
    if not commit or _NO_NAME.match(commit):
        raise RepositoryProblem("commit", f"must be a hash, a branch or a tag, not {commit!r}")


class Commits:
    """Looks commits up in repositories of this machine, each once. From any thread."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ, self._lock = environ, threading.Lock()
        self._known: dict[tuple[str, str], str | RepositoryProblem] = {}

    def find(self, path: str, commit: str | None) -> str:
        """The hash of the commit that a name (default HEAD) stands for now. RepositoryProblem."""
        key = path, commit or "HEAD"
        with self._lock:
            if key not in self._known:
                try:
                    self._known[key] = commit_of(*key, self._environ)
                except RepositoryProblem as problem:
                    self._known[key] = problem
            found = self._known[key]
        if isinstance(found, RepositoryProblem):
            raise found
        return found

    def check(self, source: Mapping[str, Any], task_file: Path) -> None:
        """RepositoryProblem where a source of type repo can't be laid out, as far as that can be told without a server."""
        path, url, commit = (_text(source.get(name)) for name in ("path", "url", "commit"))
        if commit is not None:
            check_name(commit)
        if url is not None:
            check_url(url, task_file)
        elif path is not None:
            self.find(path, commit)


def _text(value: Any) -> str | None:
    """As the file says it, also what YAML takes for a number: a hash may have no letters."""
    return None if value is None else str(getattr(value, "source", value))


def commit_of(path: str, commit: str, environ: Mapping[str, str]) -> str:
    """The hash of the commit that a name stands for in the repository at `path`, bare or not. RepositoryProblem."""
    check_name(commit)
    git = shutil.which("git", path=environ.get("PATH", os.defpath))
    if git is None:
        raise RepositoryProblem("path", "can't be read: there is no program `git` on PATH")
    argv = [git, *OPTIONS, "-C", path, "rev-parse", "--show-prefix", f"{commit}^{{commit}}"]
    status, output, complaint = _asked(argv, quiet_environment(environ))
    prefix, _, found = output.partition("\n")
    if prefix:  # which is told whether or not the name is known
        top = path.rstrip("/").removesuffix("/" + prefix.rstrip("/"))
        raise RepositoryProblem("path", f"must name a git repository, not a folder in one; the repository is {top!r}")
    if status == 0 and is_whole_hash(found.strip()):
        return found.strip()
    if "not a git repository" in complaint:
        raise RepositoryProblem("path", f"names no git repository: {path!r}")
    if status == 0 or "ambiguous argument" in complaint or "unknown revision" in complaint:
        where = "is not in the repository" if commit != "HEAD" else "can't be HEAD, which has no commit yet in the repository"
        raise RepositoryProblem("commit", f"{where} {path!r}: {commit!r}; `git -C {path} fetch` may bring it")
    raise RepositoryProblem("commit", f"can't be read in {path!r}: {complaint}")


def _asked(argv: list[str], env: Mapping[str, str]) -> tuple[int, str, str]:
    """Exit status, output, and git's last words."""
    try:
        with Popen(argv, cwd="/", env=env, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True) as process:
            try:
                output, complaint = process.communicate(timeout=_SECONDS)
            except BaseException:
                process.kill()
                raise
    except (OSError, TimeoutExpired) as error:
        raise RepositoryProblem("path", f"can't be read: {error}") from error
    return process.returncode, output.decode("utf-8", "replace"), one_line(complaint.decode("utf-8", "replace").strip(), 300)
