"""Driver `docker`: a container of docker or podman for each process tree, from an image of the task's choice.

One of the session, one of each command of the task and of each grader, all removed at their end. Workspace, HOME and TMPDIR lie
outside and are mounted at their own paths; what else is written in a container goes with it. Nothing of this machine is there but what
the role may see: all capabilities are dropped, what is not mounted is read-only, and the engine's socket is never there.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shlex
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import DockerConfig
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.sandbox import Command, Process, ProcessLimits, Role
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.sandboxes import engines
from pytest_codeprobe.sandboxes.base import BaseSandbox, Enclosed, StoreOfRun, network_wanted, scratch_of
from pytest_codeprobe.sandboxes.binds import mounts, outermost
from pytest_codeprobe.sandboxes.containers import FIRST, Counters, Evidence, Report, WatchedContainer
from pytest_codeprobe.sandboxes.engines import REPORT, Engine, Engines
from pytest_codeprobe.sandboxes.handover import Handover
from pytest_codeprobe.sandboxes.held import HeldProcess
from pytest_codeprobe.sandboxes.images import Image, Images, known_id
from pytest_codeprobe.sandboxes.insiders import Insider, Insiders
from pytest_codeprobe.sandboxes.leftout import what_grades
from pytest_codeprobe.sandboxes.room import Room, charged
from pytest_codeprobe.sandboxes.room import unheld as room_unheld
from pytest_codeprobe.sandboxes.trees import copy_file, copy_tree, failed
from pytest_codeprobe.sandboxes.visible import CERTIFICATES, TOP, certificates, found, narrowed, program_places
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, TemplateStore, Workspace

_TMP = "size=1g,mode=1777"  #: of /tmp and the like inside, each; TMPDIR is on disk
_TOPS = tuple(f"{name}/" for name in TOP)  #: folders whose programs are an image's own
_CHILDREN = Path(__file__).resolve().parents[1] / "children"
_ENVIRONMENT = "/run/codeprobe/environment"  #: a file in each container
_NOT_SEEN = "docker's service does not see what is mounted for this process"
_GIVEN_AWAY = "with sandbox.docker.user each file of a template becomes another's, which takes room"
_GRACE = 5.0  #: seconds between TERM and KILL once a limit is hit
_OF_HOST = ("SHELL", "USER", "LOGNAME")  #: variables that say something of this machine only
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_OF_SHELLS = frozenset(
    {"PPID", "UID", "EUID", "BASHOPTS", "SHELLOPTS", "BASH_VERSINFO", "IFS", "PS4"}
)  #: that one can't set, or had better not
#: parts of the private folder that a role works in, beside the workspace
_PARTS_OF: Mapping[Role, tuple[str, ...]] = {
    "session": ("home", "tmp", "cli"),
    "setup": ("setup", "home", "tmp"),
    "post_run": ("setup",),
    "grader": ("grade",),
}


@dataclass(frozen=True, slots=True)
class Known:
    """What a driver has found out of the engine for all its sandboxes."""

    images: Images = field(default_factory=Images)
    insiders: Insiders = field(default_factory=Insiders)


class DockerSandbox(BaseSandbox):
    """An attempt's folder, mounted into containers as far as their role allows."""

    driver = "docker"
    python = "python3"  #: the interpreter inside, on the image's PATH

    def __init__(self, trial: Trial, context: Context, templates: TemplateStore, engine: Engine | str, known: Known) -> None:
        super().__init__(trial, context, templates)
        self._found, self._known = engine, known
        self._image: Image | None = None
        self._insider: Insider | None = None
        self._copying = threading.Lock()
        self._readables: dict[Path, Path] = {}
        self._started = itertools.count(1)
        self._handed: list[Handover] = []

    @property
    def unheld(self) -> Sequence[str]:
        """Of disk_mb: the engine holds the other limits, or makes no container."""
        limits = self.trial.sandbox.limits
        if limits.disk_mb is not None and (why := self._why_no_layers()):
            return [f"sandbox.limits.disk_mb can't be held here, it is left out: {why}"]
        return room_unheld(limits, scratch_of(self.context))

    @property
    def _config(self) -> DockerConfig:
        return self.trial.sandbox.docker or DockerConfig()

    @property
    def _engine(self) -> Engine:
        if isinstance(self._found, str):
            raise CodeprobeError("SANDBOX_UNAVAILABLE", f"sandbox driver 'docker' can't be used here: {self._found}")
        return self._found

    def make_workspace(self) -> tuple[Workspace, Path]:
        """A copy, where there can be no layers."""
        if not self._why_no_layers():
            return super().make_workspace()
        template = self._templates.get(self.trial.sandbox, what_grades(self.trial))
        return CopiedWorkspace(template, self.workspace, self.root / "baseline"), template.tree

    def make_room(self) -> Room | None:
        """None where there can be no layers."""
        return None if self._why_no_layers() else super().make_room()

    def _why_no_layers(self) -> str:
        """Why nothing can be mounted for a container; empty if it can."""
        if self._engine.kind != "podman":
            return _NOT_SEEN  # it may be in another mount namespace
        return _GIVEN_AWAY if self._gives else ""

    def make_group(self) -> None:
        """None: the engine holds the limits."""

    def rlimits(self) -> Mapping[str, tuple[int, int]]:
        """Of the engine's client."""
        return {}

    def door(self, role: Role) -> Path | None:
        """Where the run is offline: none of them has the engine's bridge then."""
        if not self.context.options.offline:
            return None
        folder = self.root / f"door-{next(self._numbers)}"
        folder.mkdir(0o700)
        return folder

    def prepare(self) -> None:
        """Have the image, then as every sandbox."""
        if self._image is None:
            self._image = self._known.images.get(
                self._engine,
                self._config,
                scratch=scratch_of(self.context),
                timeout=self.trial.limits.setup_timeout,
                offline=self.context.options.offline,
                stopped=functools.partial(self.context.stops.forbids_start, self.trial.agent.type or ""),
            )
        if self._config.user is not None:
            self._insider = self._known.insiders.get(self._engine, self._image, self._config.user)
        super().prepare()
        try:
            self._give(self.workspace, self.home, self.tmp)  # before the baseline, for which what is given away has changed
        except BaseException:
            self.delete()
            raise

    @property
    def _gives(self) -> bool:
        """Whether all that is shown is made somebody else's."""
        return self._config.user is not None and os.geteuid() == 0 and self._config.user.partition(":")[0] not in ("0", "root")

    def _give(self, *places: Path) -> None:
        if self._insider is not None and self._gives:
            self._insider.give(places)

    def _readable(self, place: Path) -> Path:
        """The same, or a copy of it for somebody who could not read it, as where files are made for their owner alone."""
        if not self._gives or self._insider is None or place.is_relative_to(self.root):
            return place
        with self._copying:
            if place not in self._readables:
                self._readables[place] = place if self._insider.can_read(place) else self._copied(place, self._insider)
            return self._readables[place]

    def _copied(self, place: Path, insider: Insider) -> Path:
        copy = self.root / f"copy-{next(self._numbers)}"
        try:
            if place.is_dir():
                copy.mkdir(0o700)
                copy_tree(str(place), str(copy), small=False)
            else:
                copy_file(str(place), str(copy))
        except OSError as error:
            raise failed("sandbox.docker.user: what that user could not read could not be copied:", error, place) from error
        insider.give([copy])
        return copy

    def start(self, command: Command, *, role: Role, stdout: Path, stderr: Path, limits: ProcessLimits) -> Process:
        """As every sandbox; an open socket as standard input goes in by another way than an engine's client."""
        if command.stdin_fd is not None:
            handed = Handover(self.root / f"stdin-{next(self._numbers)}", command.stdin_fd)
            self._handed.append(handed)
            taker = (self.context.python, "-I", "-S", str(_CHILDREN / "take_input.py"), str(handed.folder))
            first, *rest = command.argv
            argv = [*taker, self.python if first == self.context.python else first, *rest]
            command = replace(command, argv=argv, stdin_fd=None, reads=[*command.reads, handed.folder])
        return super().start(command, role=role, stdout=stdout, stderr=stderr, limits=limits)

    def enclosed(self, command: Command, role: Role, stderr: Path) -> Enclosed:
        """The command in a container of its own, the engine's client in its place."""
        engine, image, number = self._engine, self._ready(), next(self._started)
        name, limits = engines.new_name(), self.trial.sandbox.limits
        own = [path for path in (self.workspace, *(self.root / part for part in _PARTS_OF[role])) if path.is_dir()]
        program, host, shown = self._program(command, own)
        report = Report(self.logs / f"report-{number}")
        evidence = Evidence(report, self.logs / f"end-{number}")
        inside, extra = self._inside(command.cwd or self.workspace)
        env, odd = self._environment(command.env, image, inside)
        settings = self.logs / f"environment-{number}"
        _write(settings, "".join(f"export {k}={shlex.quote(v)}\n" for k, v in env.items()))
        reads = [_CHILDREN, *shown, *command.reads, *([command.door] if command.door is not None else []), *certificates(env)]
        binds = [
            *((self._readable(path), path, True) for path in outermost(reads)),
            *((path, path, False) for path in own),
            *extra,
            (settings, Path(_ENVIRONMENT), True),
            (report.path, Path(REPORT), False),
        ]
        self._give(*own, settings, report.path, *(path for path in reads if path.is_relative_to(self.root)))
        who = engine.user() if self._insider is None else self._insider.words(engine)
        argv = [
            engine.program, "run", "-i", "--name", name, "--pull", "never", "--log-driver", "none", "--entrypoint", "/bin/sh",
            "--label", f"codeprobe.run={self.context.run_id}", "--label", f"codeprobe.trial={self.trial.node_id}",
            *engine.own_words(), *who, *self._walls(), *mounts(binds), *self._limits(),
            *(word for k in odd for word in ("--env", k)), "--workdir", str(inside), image.id,
            "-c", FIRST, "codeprobe", _ENVIRONMENT, REPORT, *program, host,
            str(command.door or ""), str(_CHILDREN), *command.argv,
        ]  # fmt: skip

        @functools.cache
        def lacks_python() -> bool:
            try:
                return engine.throwaway(image.id, "command -v python3 >/dev/null || exit 9").status != 0
            except OSError:
                return True  # then the engine does not even say that

        def watched(process: Process) -> Process:
            counters = Counters(engine, name, limits, report)
            held = HeldProcess(process, counters, _GRACE) if counters.ends or limits.cpus is not None else process
            by_hand = f"{engine.program} run --rm {self._config.image or image.id[:12]} /bin/sh -c 'echo it works'"
            named = self._config.image or f"of {self._config.dockerfile}"
            return WatchedContainer(held, evidence, stderr, named, by_hand, lacks_python if program == [self.python] else None)

        end = engine.outside(name, report.path, evidence.file)
        return Enclosed(argv, "/", watched, env={**engine.env, **odd}, outside=end, doorless=lacks_python)

    def delete(self) -> Sequence[str]:
        """As every sandbox."""
        for handed in self._handed:
            handed.close()
        self._handed = []
        return super().delete()

    def _ready(self) -> Image:
        if self._image is None:
            raise CodeprobeError("SANDBOX_FAILED", "the sandbox is not prepared")
        return self._image

    def _program(self, command: Command, own: Sequence[Path]) -> tuple[list[str], str, list[Path]]:
        """What the image is to be searched for (empty: the program is taken as it stands), this machine's instead, what that needs.

        The image's own program is what counts. Where it has none of that name, this machine's is shown, if it lies outside the
        system's folders: those of an image are its own.
        """
        name = command.argv[0]
        if name == self.context.python:
            return [self.python], "", []
        relative = "/" in name and not name.startswith("/")
        if relative or (name.startswith("/") and any(Path(name).is_relative_to(place) for place in own)):
            return [""], "", []
        try:
            here = found(name, command.env, self.workspace)
        except FileNotFoundError:
            return [Path(name).name], "", []
        if any(here.is_relative_to(place) for place in own):  # a stand-in, which comes first on PATH
            return [""], "", []
        places = [place for place in narrowed(program_places(here, command.env)) if not str(place).startswith(_TOPS)]
        if here.is_file() and any(here.is_relative_to(place) for place in places):
            return [Path(name).name], str(here), places
        return [Path(name).name if not name.startswith("/") else ""], "", []

    def _environment(self, given: Mapping[str, str], image: Image, cwd: Path) -> tuple[dict[str, str], dict[str, str]]:
        """Variables for a shell to set, and those that no shell can: the command's own, without what is of this machine only.

        Of PATH the folders of this machine are replaced by the image's.
        """
        host = self.context.environ
        env = {k: v for k, v in given.items() if k not in _OF_HOST or v != host.get(k)}
        env = {k: v for k, v in env.items() if k not in CERTIFICATES or v != host.get(k) or Path(v).exists()}
        if "PWD" in env:
            env["PWD"] = str(cwd)
        if "PATH" in env:
            env["PATH"] = translated(env["PATH"], host.get("PATH", os.defpath), image.path)
        odd = {k: v for k, v in env.items() if not _NAME.fullmatch(k) or k in _OF_SHELLS}
        plain = {k: v for k, v in env.items() if k not in odd}
        return plain, {k: v for k, v in odd.items() if k not in self._engine.env and "=" not in k}

    def _inside(self, cwd: Path) -> tuple[Path, list[tuple[Path, Path, bool]]]:
        """Where a command works, and what else is mounted: `docker.mounts`, the workspace as `docker.working_dir`."""
        extra = [(Path(mount.source).expanduser(), Path(mount.target), mount.read_only) for mount in self._config.mounts or ()]
        if self._config.working_dir is None:
            return cwd, extra
        own = Path(self._config.working_dir)
        below = own / cwd.relative_to(self.workspace) if cwd.is_relative_to(self.workspace) else cwd
        return below, [*extra, (self.workspace, own, False)]

    def _walls(self) -> Iterator[str]:
        yield from ("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--security-opt", "label=disable", "--read-only")
        for place in ("/tmp", "/var/tmp", "/run"):
            yield from ("--tmpfs", f"{place}:{_TMP}")
        if self.trial.sandbox.network == "off" or self.context.options.offline:
            yield from ("--network", "none")

    def _limits(self) -> Iterator[str]:
        limits = charged(self.trial.sandbox.limits, self._room)
        if limits.memory_mb is not None:
            yield from ("--memory", f"{limits.memory_mb}m", "--memory-swap", f"{limits.memory_mb}m")
        if limits.cpus is not None:
            yield from ("--cpus", f"{max(0.01, min(limits.cpus, os.cpu_count() or 1)):g}")
        if limits.pids is not None:
            yield from ("--pids-limit", str(limits.pids + 1))  # the first process is ours


def translated(path: str, host: str, image: str) -> str:
    """A PATH with the image's folders in the place of this machine's; what comes before these, and what after, still does."""
    own, parts = set(host.split(os.pathsep)), path.split(os.pathsep)
    first = next((number for number, part in enumerate(parts) if part in own), len(parts))
    before, after = parts[:first], [part for part in parts[first:] if part not in own]
    return os.pathsep.join([*before, image, *after])


def _write(path: Path, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)


class DockerDriver:
    """Containers. Needs docker or podman, and an image."""

    name = "docker"
    isolates = True

    def __init__(self) -> None:
        self._templates = StoreOfRun()
        self._engines, self._known = Engines(), Known()
        self._lock = threading.Lock()
        self._swept = False
        self._ids: dict[str, str | None] = {}  #: of images, as they were when they were first asked for

    def unavailable(self, context: Context) -> str | None:
        """Found out by asking the engine, once in each process."""
        engine = self._engines.get(context)
        return engine if isinstance(engine, str) else None

    def program(self, context: Context) -> str | None:
        """The engine's client, where there is one."""
        engine = self._engines.get(context)
        return None if isinstance(engine, str) else engine.program

    def image_id(self, trial: Trial, context: Context) -> str | None:
        """The id of a trial's image where it is named and there; a session in another one is another session."""
        config = trial.sandbox.docker
        if config is None or config.image is None or isinstance(engine := self._engines.get(context), str):
            return None
        with self._lock:
            if self._ids.get(config.image) is None:  # or it may have been fetched since
                self._ids[config.image] = known_id(engine, config.image)
            return self._ids[config.image]

    def unsupported(self, trial: Trial) -> Sequence[tuple[str, str]]:
        """What it can't hold: networks that are neither on nor off, packages beside an image's; and it has no image of its own."""
        config, missing = trial.sandbox, []
        if config.docker is None or (config.docker.image is None and config.docker.dockerfile is None):
            missing.append(("sandbox.docker", "an image or a dockerfile: driver docker has none of its own"))
        setup = [name for name in ("python", "node") if getattr(config.setup, name, None) is not None]
        missing += [(f"sandbox.setup.{name}", "driver tempdir or bubblewrap: a container has its image's packages") for name in setup]
        if config.network not in ("on", "off"):
            missing.append(("sandbox.network", network_wanted(config.network)))
        return missing

    def create(self, trial: Trial, context: Context) -> DockerSandbox:
        """A new sandbox; nothing is on disk before its prepare(). With the first one goes what killed runs have left in the engine."""
        engine = self._engines.get(context)
        with self._lock:
            if not self._swept and isinstance(engine, Engine):
                self._swept = True
                for name, gone in engines.take_away(engine):
                    context.warn(f"swept: container {name}, left by a run that was killed{'' if gone else '; it could not be removed'}")
        return DockerSandbox(trial, context, self._templates.of(context), engine, self._known)
