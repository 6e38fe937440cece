"""The repositories that workspaces of a run are laid out from: each name stands for one commit as long as the run lasts.

What a branch stands for when the first process of the run asks is noted in the run dir, where the others find it. Commits of servers are
kept in the user's cache, each in a store of its own: they never change, and the next run, or another process, needs no server for them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pytest_codeprobe.errors import CodeprobeError, Stopped
from pytest_codeprobe.model.config import TemplateSource
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.network import Endpoint, Network, Unheld
from pytest_codeprobe.sandboxes.fetching import FETCH_SECONDS, Remote
from pytest_codeprobe.sandboxes.objects import Objects, Unreadable
from pytest_codeprobe.sandboxes.sweep import new_folder, sweep
from pytest_codeprobe.sandboxes.trees import failed
from pytest_codeprobe.sandboxes.turns import turn
from pytest_codeprobe.tasks.repositories import RepositoryProblem, commit_of, is_whole_hash, shown_url
from pytest_codeprobe.text import write_whole

NOTES = "commits"  #: folder of the run dir
_TRIES = 2  #: a server that did not answer is asked once more by a later trial, and then no more
_HELD = 4 * FETCH_SECONDS  #: that a process may take which fetches the same


class Repositories:
    """Those of one run in this process. From any thread."""

    def __init__(
        self,
        environ: Mapping[str, str],
        cache: Path,
        notes: Path | None = None,
        network: Network | None = None,
        stopped: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`notes`: the folder that all processes of the run share, if there is one; `cache`: where stores are kept.

        `stopped`: why no server is to be waited for any more, as a record's reason: Stopped.
        """
        self._environ, self._cache, self._notes = environ, cache, notes
        self._network, self._stopped = network or Unheld(), stopped
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._commits: dict[str, str] = {}
        self._errors: dict[str, list[CodeprobeError]] = {}

    def commit(self, source: TemplateSource) -> str:
        """The commit that the source stands for in this run. SANDBOX_FAILED; OFFLINE_NET_ATTEMPT where a server may not be asked."""
        key = _key(source)
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._commits:
                if len(errors := self._errors.setdefault(key, [])) >= _TRIES:
                    raise errors[-1]
                try:
                    self._commits[key] = self._noted(key, source)
                except CodeprobeError as error:
                    errors.append(error)
                    raise
            return self._commits[key]

    def known(self, source: TemplateSource) -> str | None:
        """The same for a record: None where it can't be told, without asking anybody again."""
        if self._errors.get(_key(source)) and _key(source) not in self._commits:
            return None
        try:
            return self.commit(source)
        except (CodeprobeError, OSError, Stopped):
            return None

    def _noted(self, key: str, source: TemplateSource) -> str:
        """The first process of the run to write it down decides."""
        note = None if self._notes is None else self._notes / f"{key}.json"
        if note is not None and (found := _read(note)) is not None:
            return found
        commit = self._found(source)
        if note is None or not note.parent.parent.is_dir():
            return commit
        content = {"source": _shown(source), "commit": source.commit, "resolved": commit}
        try:
            note.parent.mkdir(exist_ok=True)
            write_whole(note, json.dumps(content) + "\n", replace=False)
        except FileExistsError:
            return _read(note) or commit
        except OSError as error:
            raise failed("what a repository's commit is can't be noted in", error, note) from error
        return commit

    def _found(self, source: TemplateSource) -> str:
        if source.url is not None:
            if source.commit is not None and is_whole_hash(source.commit):
                return source.commit.lower()
            self._allow(source.url)
            try:
                self._cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            except OSError as error:
                raise _not_kept(error, self._cache) from error
            return self._remote(source.url).resolve(source.commit, self._cache)
        try:
            return commit_of(source.path or "", source.commit or "HEAD", self._environ)
        except RepositoryProblem as problem:
            raise CodeprobeError(
                "SANDBOX_FAILED", f"template_sources: {problem.field!r} {problem}", remediation="Correct template_sources in the task file."
            ) from problem

    # ---- servers
    def _remote(self, url: str) -> Remote:
        return Remote(url, self._environ, redirects=isinstance(self._network, Unheld), stopped=self._stopped)

    def asks(self, source: TemplateSource) -> Endpoint | None:
        """The server that laying it out would ask; None where it needs none."""
        if source.url is None:
            return None
        if source.commit is not None and is_whole_hash(source.commit) and self._store(source.url, source.commit.lower()).is_dir():
            return None
        return self._remote(source.url).endpoint()

    def _allow(self, url: str) -> None:
        if isinstance(self._network, Unheld) or (place := self._remote(url).endpoint()) is None:
            return
        if not self._network.allows(place.host, place.port):
            raise not_allowed("OFFLINE_NET_ATTEMPT", [(shown_url(url), place)])

    def _store(self, url: str, commit: str) -> Path:
        return self._cache / hashlib.sha256(url.encode("utf-8", "surrogatepass")).hexdigest()[:24] / commit

    def make_ready(self, source: TemplateSource) -> None:
        """Ask the server for all that laying it out needs. SANDBOX_FAILED, OFFLINE_NET_ATTEMPT."""
        self._repository(source, self.commit(source))

    @contextlib.contextmanager
    def objects(self, source: TemplateSource, commit: str) -> Iterator[Objects]:
        """The open repository that has the commit's objects. SANDBOX_FAILED; Unreadable comes from within as an error that names it."""
        try:
            with Objects(self._repository(source, commit), self._environ, FETCH_SECONDS) as objects:
                yield objects
        except Unreadable as error:
            if source.url is not None:  # nobody gets it from the cache again
                shutil.rmtree(self._store(source.url, commit), ignore_errors=True)
                remedy = "Run again, and it is fetched anew. If that does not help, name another commit: this one can't be laid out."
            else:
                remedy = f"See what `git -C {source.path} fsck` says; of a partial clone, name its url instead of the path."
            raise CodeprobeError(
                "SANDBOX_FAILED", f"commit {commit[:12]} of the repository {_shown(source)!r} {error}", remediation=remedy
            ) from error

    def _repository(self, source: TemplateSource, commit: str) -> str:
        if source.url is None:
            return str(source.path)
        store = self._store(source.url, commit)
        if not store.is_dir():
            self._allow(source.url)
            try:
                self._fetch(source.url, commit, store)
            except OSError as error:
                raise _not_kept(error, store) from error
        return str(store)

    def _fetch(self, url: str, commit: str, store: Path) -> None:
        """Once, whichever process is first: the others wait for it."""
        store.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with turn(store.with_name(f"{commit}.lock"), self._stopped, _HELD):
            if store.is_dir():
                return
            sweep(store.parent)  # of processes that were killed
            place = new_folder(store.parent)
            try:
                self._remote(url).fetch(commit, place / "store")
                with contextlib.suppress(FileExistsError):
                    (place / "store").rename(store)
            finally:
                shutil.rmtree(place, ignore_errors=True)


def _not_kept(error: OSError, place: Path) -> CodeprobeError:
    remedy = "It is the user's cache: make it writable and see that there is room, or set XDG_CACHE_HOME to another folder."
    return failed("template_sources: what is fetched from a repository can't be kept in", error, error.filename or place, remedy=remedy)


def not_allowed(code: str, places: list[tuple[str, Endpoint]]) -> CodeprobeError:
    """Under --codeprobe-offline: sources that would have to be fetched from where nothing may go."""
    hosts = " ".join(dict.fromkeys(place.host for _, place in places))
    told = ", ".join(f"{shown!r} ({place.host}{f':{place.port}' if place.port else ''})" for shown, place in places)
    return CodeprobeError(
        code,
        f"offline: a repository would have to be fetched: {told}",
        remediation=f"Allow it: `codeprobe_offline_allow = {hosts}` in pytest's ini file. Or fetch it first, by a run that is not offline, "
        "with the whole hash in `commit`: it is kept.",
        detail={"component": "harness", "host": places[0][1].host, "hosts": list(dict.fromkeys(place.host for _, place in places))},
    )


def _key(source: TemplateSource) -> str:
    said = json.dumps([source.url, source.path, source.commit])
    return hashlib.sha256(said.encode("utf-8", "surrogatepass")).hexdigest()[:24]


def _shown(source: TemplateSource) -> str:
    return shown_url(source.url) if source.url is not None else str(source.path)


def _read(note: Path) -> str | None:
    try:
        return str(json.loads(note.read_text(encoding="utf-8"))["resolved"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def notes_of(run_dir: Path) -> list[dict[str, Any]]:
    """What the processes of a run have noted, by the source. OSError."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in (run_dir / NOTES).glob("*.json")]
    return sorted(found, key=lambda note: (note["source"], note["commit"] or ""))


def cache_of(environ: Mapping[str, str]) -> Path:
    """Where commits of servers are kept."""
    home = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")  # noqa: PTH111, PTH118
    return Path(home) / "pytest-codeprobe" / "repositories"


_OF_RUN: list[tuple[tuple[str, Path], Repositories]] = []
_OF_RUN_LOCK = threading.Lock()


def repositories_of(context: Context) -> Repositories:
    """Those of the context's run: one for all drivers and records of this process."""
    key = context.run_id, context.run_dir
    with _OF_RUN_LOCK:
        if not _OF_RUN or _OF_RUN[0][0] != key:
            made = Repositories(
                context.environ,
                cache_of(context.environ),
                context.run_dir / NOTES,
                context.network,
                functools.partial(context.stops.forbids_start, ""),
            )
            _OF_RUN[:] = [(key, made)]
        return _OF_RUN[0][1]
