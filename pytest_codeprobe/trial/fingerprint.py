"""What a trial's result depends on, as digests by part: whether a result still speaks of what a task asks now, and if not, why.

Two groups: `session` is all that shapes the agent's work, `grade` what is made of it. Limits, tags, descriptions and the like are in
neither. What depends on the machine alone (the CLI's version) is compared beside them.
"""

# ruff: noqa: PTH112, PTH114, PTH115, PTH116, PTH118, PTH208
# (names need not be text, links are looked at and not followed: plain calls)
from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pytest_codeprobe import __version__
from pytest_codeprobe.model.config import AgentConfig, SandboxConfig, TemplateSource, package_paths
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.result import Fingerprint
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes.leftout import LeftOut, below, what_grades
from pytest_codeprobe.sandboxes.sources import repositories_of
from pytest_codeprobe.tasks.layers import lookup

_CHUNK = 1 << 20
#: folders whose content is no part of what a task gives
_PASSED_BY = frozenset((b"__pycache__",))
_REPOSITORY = b".git"
#: of an agent's settings, what is told by what it names, or by itself
_ELSEWHERE = {"system_prompt_file", "skills", "plugins", "model"}
#: of criteria, what no verdict depends on
_NO_MATTER = frozenset({"description", "suite_thresholds"})


class Contents:
    """Digests of what paths hold. Each is looked at once for each process: the first trial that names it sees what all others had."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}
        self._lock = threading.Lock()

    def digest(self, path: str | None, hidden: Sequence[str] = ()) -> str | None:
        """Of a file or a whole folder, names, kinds and the right to execute included; `gone` where nothing is there.

        `hidden`: real paths of what no template brings into a workspace.
        """
        if path is None:
            return None
        key = "\0".join((path, *hidden))
        with self._lock:
            if key not in self._known:
                self._known[key] = _digest(path, LeftOut(os.path.realpath(path), hidden))
            return self._known[key]


_CONTENTS = Contents()


def fingerprint(trial: Trial, context: Context, contents: Contents = _CONTENTS) -> Fingerprint:
    """The digests of a trial, as things are now."""
    read = contents.digest
    agent, sandbox = trial.agent, trial.sandbox
    hidden = below(what_grades(trial), sandbox.template_sources)
    session: dict[str, Any] = {
        "prompt": trial.prompt,
        "row": trial.row,  # commands find it in their environment
        "agent": _as_spelled(trial, "agent", agent.model_dump(mode="json", exclude=_ELSEWHERE, exclude_defaults=True)),
        "model": agent.model,
        "agent's files": [read(path) for path in _agent_files(agent)],
        "sandbox": _sandbox(trial),
        "dockerfile": read(sandbox.docker.dockerfile) if sandbox.docker is not None else None,
        "image": _image(trial, context),
        "packages": [read(path) for path in _package_files(sandbox)],
        "template": [_laid(source, hidden, context, contents) for source in sandbox.template_sources],
        "pre_run": [command.model_dump(mode="json") for command in trial.pre_run],
        "dialect": trial.host_environment or None,
        "backend": context.options.backend or "direct",
        "pytest-codeprobe": __version__.partition(".")[0],
    }
    if (simulation := trial.simulation) is not None:
        said = simulation.model_dump(mode="json", exclude={"agent": {"system_prompt_file"}}, exclude_defaults=True)
        session["simulation"] = _as_spelled(trial, "simulation", said)
        session["simulation's files"] = [read(path) for path in _agent_files(simulation.agent)] if simulation.agent is not None else []
    if agent.type == "oracle":
        session["solution"] = _solution(trial, contents)
    grade: dict[str, Any] = {
        "criteria": [{name: value for name, value in criterion.items() if name not in _NO_MATTER} for criterion in trial.criteria],
        "graders' files": [read(ref.path) for ref in trial.manifest if ref.role in ("hidden", "schema")],
        "reference": trial.reference and [trial.reference.code, read(trial.reference.file), read(trial.reference.directory)],
        "pass_score": trial.pass_score,
        "expected_commands": trial.expected_commands,
        "protected": list(sandbox.protected),
        "expect": trial.expect,
        "dialect": trial.host_environment or None,
        "on_limit": trial.limits.on_limit if trial.limits.on_limit != "grade" else None,  # matters where a limit was hit
    }
    return Fingerprint(session=_shortened(session), grade=_shortened(grade))


def template_digests(trial: Trial, contents: Contents = _CONTENTS) -> dict[str, str | None]:
    """What the folders hold that the trial's workspace is made of, by their paths."""
    hidden = below(what_grades(trial), trial.sandbox.template_sources)
    folders = [source.path for source in trial.sandbox.template_sources if source.path is not None and source.type != "repo"]
    return {path: contents.digest(path, hidden) for path in folders}


def changed(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Names of the parts that differ."""
    return [name for name in dict.fromkeys((*new, *old)) if old.get(name) != new.get(name)]


def _agent_files(agent: AgentConfig) -> Iterable[str]:
    if agent.system_prompt_file is not None:
        yield agent.system_prompt_file
    yield from agent.skills or ()
    yield from (str(plugin["path"]) for plugin in agent.plugins or () if plugin.get("path"))


def _laid(source: TemplateSource, hidden: Sequence[str], context: Context, contents: Contents) -> Any:
    """What a source brings. Of a repository that is the commit, however it is named, and wherever the repository lies."""
    if source.type != "repo":
        return contents.digest(source.path, hidden)
    top = os.path.realpath(source.path) + os.sep if source.path is not None else None
    left_out = [path.removeprefix(top) for path in hidden if path.startswith(top)] if top is not None else []
    return [repositories_of(context).known(source) or "gone", *left_out]


def _sandbox(trial: Trial) -> dict[str, Any]:
    """Without what only bounds the session or only matters for grading; paths are told by what they hold."""
    values = trial.sandbox.model_dump(mode="json", exclude_defaults=True, exclude={"limits", "protected", "ignore_patterns"})
    for source in values.get("template_sources", ()):
        for name in ("path", "url", "commit"):
            source.pop(name, None)
    (values.get("docker") or {}).pop("dockerfile", None)
    for kind in (values.get("setup") or {}).values():
        if kind and "packages" in kind:
            kind["packages"] = [Path(package).name if package.startswith("/") else package for package in kind["packages"]]
    return _as_spelled(trial, "sandbox", values)


def _package_files(sandbox: SandboxConfig) -> Iterable[str]:
    """Packages that are files here. What is in a folder does not count: installing from it writes into it."""
    yield from (str(path) for path in package_paths(sandbox) if path.is_file())


def _image(trial: Trial, context: Context) -> str | None:
    """What the name of an image stands for now, where the driver can tell."""
    if trial.sandbox.docker is None or trial.sandbox.docker.image is None:
        return None
    told = getattr(context.registry.drivers.get(trial.sandbox.driver), "image_id", None)
    return told(trial, context) if told is not None else None


def _as_spelled(trial: Trial, table: str, values: dict[str, Any]) -> dict[str, Any]:
    """Values (changed in place) with `${VAR}` where variables stood: one that is renewed each day makes no other session."""
    for spelled in trial.spelled:
        *way, last = spelled.path
        holder: Any = {table: values}
        for key in way:
            holder = lookup(holder, (key,))  # None: it is no part of what is compared
        if isinstance(holder, dict | list):
            cast("dict[Any, Any]", holder)[last] = spelled.text
    return values


def _solution(trial: Trial, contents: Contents) -> Any:
    if trial.solution is not None:
        return [trial.solution.script, contents.digest(trial.solution.directory), contents.digest(trial.solution.patch)]
    return contents.digest(trial.reference.directory) if trial.reference is not None else None


def _shortened(parts: Mapping[str, Any]) -> dict[str, str]:
    return {
        name: hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=8).hexdigest()
        for name, value in parts.items()
        if value not in (None, [], {}, [None])
    }


# ---- what lies at a path


def _digest(path: str, left_out: LeftOut) -> str:
    digest = hashlib.blake2b(digest_size=16)
    try:
        for name, mode, content in _entries(path, left_out):
            digest.update(f"{len(name)}:{mode}:".encode() + name)
            digest.update(content)
    except OSError:
        return "gone"
    return digest.hexdigest()


def _entries(path: str, left_out: LeftOut) -> Iterable[tuple[bytes, str, bytes]]:
    """Name, kind and digest of the content of each file, in the order of the names. OSError where something can't be read."""
    top = os.fsencode(path)
    if not stat.S_ISDIR(os.stat(top).st_mode):
        yield b"", *_file(top)
        return
    for folder, folders, files in os.walk(top, onerror=_raise):
        inside = os.path.relpath(folder, top)
        here = b"" if inside == b"." else inside + b"/"

        def stays(name: bytes, *, is_folder: bool, here: bytes = here) -> bool:
            return not left_out.match(os.fsdecode(here + name), folder=is_folder)

        links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
        folders[:] = sorted(name for name in folders if name not in _PASSED_BY and stays(name, is_folder=True))
        for name in folders:
            place = os.path.join(folder, name)
            yield here + name, "folder", _history(place) if name == _REPOSITORY else b""
        folders[:] = [name for name in folders if name != _REPOSITORY]
        for name in sorted(name for name in (*files, *links) if stays(name, is_folder=False)):
            yield here + name, *_file(os.path.join(folder, name))


def _file(path: bytes) -> tuple[str, bytes]:
    found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        return "link", os.readlink(path)
    if not stat.S_ISREG(found.st_mode):
        return "other", b""
    digest = hashlib.blake2b(digest_size=16)
    with Path(os.fsdecode(path)).open("rb", buffering=0) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return "x" if found.st_mode & 0o111 else "f", digest.digest()


def _history(path: bytes) -> bytes:
    """What a session can find in a repository: where its branches are, its configuration, its hooks. Objects follow from these.

    The index and the logs change when somebody only looks, and references when they are packed: neither counts.
    """
    digest = hashlib.blake2b(digest_size=16)
    references: dict[bytes, bytes] = {}
    for line in _content(os.path.join(path, b"packed-refs")).splitlines():
        value, _, name = line.partition(b" ")
        if name and not line.startswith((b"#", b"^")):
            references[name] = value
    for folder, _, files in os.walk(os.path.join(path, b"refs")):
        for name in files:
            place = os.path.join(folder, name)
            references[os.path.relpath(place, path)] = _content(place).strip()
    hooks = os.path.join(path, b"hooks")
    active = [name for name in os.listdir(hooks) if not name.endswith(b".sample")] if os.path.isdir(hooks) else []
    parts = sorted(references.items())
    parts += [(name, _content(os.path.join(path, name))) for name in (b"HEAD", b"config", *sorted(b"hooks/" + n for n in active))]
    for name, content in parts:
        digest.update(b"%d:%d:" % (len(name), len(content)) + name + content)
    return digest.digest()


def _content(path: bytes) -> bytes:
    try:
        return Path(os.fsdecode(path)).read_bytes()
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
        return b""


def _raise(error: OSError) -> None:
    raise error
