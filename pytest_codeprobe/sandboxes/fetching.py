"""Commits of repositories elsewhere: which one a name stands for, and a store that holds it alone.

A store is a bare repository with the objects of one commit: no history, no reference, no remote. Nothing is ever cloned into a workspace.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from urllib.parse import urlsplit

from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.network import Endpoint
from pytest_codeprobe.sandboxes.logins import without_login
from pytest_codeprobe.sandboxes.patch import find_git
from pytest_codeprobe.sandboxes.sweep import new_folder
from pytest_codeprobe.sandboxes.tools import ToolResult, run_tool
from pytest_codeprobe.sandboxes.trees import PATH, remove_tree
from pytest_codeprobe.tasks.repositories import OPTIONS, fetching_environment, is_whole_hash, secrets_of_url, shown_url
from pytest_codeprobe.text import REDACTED, one_line

ASK_SECONDS = 60.0  #: for a server to say what a name stands for
FETCH_SECONDS = 600.0  #: for one fetch
_PORTS = {"https": 443, "http": 80, "ssh": 22, "git": 9418}
_PLAIN = ("-c", "gc.auto=0", "-c", "maintenance.auto=false", "-c", "protocol.version=2", "-c", "fetch.recurseSubmodules=false")
#: what git starts to talk to a server may outlive it: it gives up by itself, in seconds, where nothing is said any more
_PATIENCE = ("-c", "http.lowSpeedLimit=1", "-c", "http.lowSpeedTime=60")
_UNKNOWN = "not our ref"  #: a server that would give any commit of its own has none of this hash
#: lines of git's complaints that say nothing of what is wrong
_NO_WORDS = (
    "hint:",
    "fatal: Could not read from remote",
    "Please make sure you have the correct access",
    "and the repository exists",
    "warning:",
)
_LEAST = 4  #: characters of a shortened hash


@functools.cache
def _bound_to_us() -> tuple[str, ...]:
    """In front of a command that waits for a server: it ends when this process is killed, where the system has a program for that."""
    program = shutil.which("setpriv", path=PATH) if sys.platform == "linux" else None
    return (program, "--pdeathsig", "KILL", "--") if program is not None else ()


class Remote:
    """A repository elsewhere. All errors are SANDBOX_FAILED, name it without credentials, and hold git's own last words.

    `redirects`: whether its server may send us on to another one. `stopped`: why nothing is to be waited for any more: Stopped.
    """

    def __init__(
        self, url: str, environ: Mapping[str, str], *, redirects: bool = True, stopped: Callable[[], str | None] = lambda: None
    ) -> None:
        self._url, login = without_login(url)
        self.shown = shown_url(url)
        self._env, self._stopped = fetching_environment(environ), stopped
        self._options = [*OPTIONS, *_PLAIN, *_PATIENCE, *(() if redirects else ("-c", "http.followRedirects=false"))]
        if login is not None:
            self._env = {**self._env, **login.environment(self._env)}
            self._options += login.options
        self._secrets = [part for part in secrets_of_url(url) if len(part) > 2]

    def endpoint(self) -> Endpoint | None:
        """Where git would go, after what the user's configuration makes of the URL; None for this machine's own files."""
        done = self._git("ls-remote", "--get-url", "--", self._url, seconds=ASK_SECONDS)
        url = os.fsdecode(done.output).strip() or self._url
        if "://" not in url:
            host = url.partition(":")[0].rpartition("@")[2]
            return Endpoint(host.strip("[]").lower(), _PORTS["ssh"]) if ":" in url and not url.startswith("/") else None
        parts = urlsplit(url)
        return Endpoint(parts.hostname, parts.port or _PORTS.get(parts.scheme)) if parts.hostname and parts.scheme != "file" else None

    def resolve(self, commit: str | None, scratch: Path) -> str:
        """The hash of the commit that a name (default: its HEAD) stands for now. A whole hash stands for itself, unasked.

        `scratch`: a folder for what is looked at on the way.
        """
        if commit is None:
            return self._named("HEAD", ["HEAD"])
        if is_whole_hash(commit):
            return commit.lower()
        found = self._listed(
            [commit] if commit.startswith("refs/") else [f"refs/tags/{commit}^{{}}", f"refs/tags/{commit}", f"refs/heads/{commit}"]
        )
        if found is not None:
            return found
        if len(commit) >= _LEAST and all(c in "0123456789abcdef" for c in commit.lower()):
            return self._shortened(commit, scratch)
        raise self._missing(commit)

    def _named(self, name: str, references: Sequence[str]) -> str:
        found = self._listed(references)
        if found is None:
            raise self._error(f"has no {name}", remediation="Name a commit, branch or tag in `commit`.")
        return found

    def _listed(self, references: Sequence[str]) -> str | None:
        """What the first of the references stands for, that there is."""
        known = self._references(*references)
        return next((known[name] for name in references if name in known), None)

    def _references(self, *arguments: str) -> dict[str, str]:
        done = self._git("ls-remote", "--", self._url, *arguments, seconds=ASK_SECONDS)
        if done.status:
            raise self._failed(done)
        lines = (line.split("\t", 1) for line in os.fsdecode(done.output).splitlines())
        return {line[1]: line[0] for line in lines if len(line) == 2}

    def _missing(self, commit: str) -> CodeprobeError:
        names = [name.partition("/")[2].partition("/")[2] for name in self._references() if name.startswith(("refs/heads/", "refs/tags/"))]
        return self._error(
            f"has no branch or tag {commit!r}{did_you_mean(commit, [name for name in names if not name.endswith('^{}')])}",
            remediation="Correct `commit` in template_sources: the hash of a commit, a branch or a tag.",
        )

    def _shortened(self, commit: str, scratch: Path) -> str:
        """Servers know whole hashes only: all commits, without their files where the server can do that, are looked through here."""
        place = new_folder(scratch)
        try:
            store = self._new(place / "commits", 40)
            every = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
            self._fetched(self._fetch(store, "--filter=tree:0", self._url, *every))
            done = self._git("--git-dir", str(store), "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", seconds=ASK_SECONDS)
            if done.status:
                raise self._error(
                    f"has no commit, or more than one, that begins with {commit!r}", remediation="Give the whole hash in `commit`."
                )
            return os.fsdecode(done.output).strip()
        finally:
            remove_tree(place)

    def fetch(self, commit: str, target: Path) -> None:
        """Make the store of a commit, by its whole hash, at `target`; its folder is there, it is not."""
        store = self._new(target, len(commit))
        done = self._fetch(store, "--depth=1", self._url, commit)
        if done.status == 0:
            return
        said = os.fsdecode(done.complaints)
        if _UNKNOWN in said:
            raise self._lacks(commit)
        self._references("HEAD")  # where it can't even be asked, its words are told
        remove_tree(store)
        self._fetch_all(commit, target)

    def _fetch_all(self, commit: str, target: Path) -> None:
        """Of a server that gives out no single commit: everything that it has, and of that the one."""
        every = self._new(target.with_name(f"{target.name}.all"), len(commit))
        try:
            self._fetched(self._fetch(every, self._url, "+refs/*:refs/all/*"))
            if self._git("--git-dir", str(every), "cat-file", "-e", f"{commit}^{{commit}}", seconds=ASK_SECONDS).status:
                raise self._lacks(commit)
            self._git("--git-dir", str(every), "config", "uploadpack.allowAnySHA1InWant", "true", seconds=ASK_SECONDS)
            self._fetched(self._fetch(self._new(target, len(commit)), "--depth=1", f"file://{every}", commit))
        finally:
            remove_tree(every)

    def _lacks(self, commit: str) -> CodeprobeError:
        return self._error(f"has no commit {commit}", remediation="Correct `commit` in template_sources; or push the commit there.")

    # ---- git
    def _new(self, place: Path, width: int) -> Path:
        kind = () if width == 40 else ("--object-format=sha256",)
        self._fetched(self._git("init", "--quiet", "--bare", "--template=", *kind, str(place), seconds=ASK_SECONDS))
        return place

    def _fetch(self, store: Path, *arguments: str) -> ToolResult:
        return self._git(
            *("--git-dir", str(store), "fetch", "--quiet", "--no-tags", "--no-write-fetch-head", *arguments), seconds=FETCH_SECONDS
        )

    def _fetched(self, done: ToolResult) -> None:
        if done.status:
            raise self._failed(done)

    def _git(self, *arguments: str, seconds: float) -> ToolResult:
        try:
            argv = [*_bound_to_us(), find_git(), *self._options, *arguments]
            return run_tool(argv, env=self._env, timeout=seconds, stdout=PIPE, stopped=self._stopped)
        except TimeoutError as error:
            raise self._error(f"does not answer: git took longer than {seconds:.0f} s") from error

    def _failed(self, done: ToolResult) -> CodeprobeError:
        lines = [
            line for line in done.complaints.decode("utf-8", "replace").splitlines() if line.strip() and not line.startswith(_NO_WORDS)
        ]
        said = self._clean(one_line(" ".join(lines[-3:]), 400)) or f"git ended with status {done.status}"
        return self._error(f"can't be fetched from: {said}", git=said)

    def _clean(self, text: str) -> str:
        text = text.replace(self._url, self.shown)
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        return text

    def _error(self, words: str, *, remediation: str | None = None, git: str | None = None) -> CodeprobeError:
        return CodeprobeError(
            "SANDBOX_FAILED",
            f"the repository {self.shown!r} {words}",
            remediation=remediation or f"See what `git ls-remote {self.shown}` says: nobody is asked for a password here.",
            detail={"url": self.shown, "git": git} if git else {"url": self.shown},
        )
