"""What a criterion sees, made of plain folders; its processes run under real keepers."""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from pytest_codeprobe import agents
from pytest_codeprobe.model.config import AgentConfig, PreRunCommand, RunLimits, SandboxConfig
from pytest_codeprobe.model.context import Context, Registry
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.model.sandbox import Change, Command, CommandResult, ProcessLimits
from pytest_codeprobe.model.transcript import Transcript
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.sandboxes.keeper import KeptProcess, Spawner

PATH = "/usr/local/bin:/usr/bin:/bin"


@functools.cache
def spawner() -> Spawner:
    """One for the test process; it leaves with it."""
    return Spawner()


@dataclass(kw_only=True)
class FakeGrading:
    """Grading without a trial behind it. `folder` holds task/, workspace/, template/, scratch/, private/."""

    folder: Path
    final_message: str | None = None
    transcript: Transcript | None = None
    agent: str = "none"
    usage: Usage | None = None
    session_seconds: float | None = None
    cli_calls: bytes | None = None
    options: RunOptions = field(default_factory=RunOptions)
    changes: Sequence[Change] = ()
    seconds: float = 120.0  #: what is left of grading_timeout
    stop_dir: str = ""  #: the run's folder of stop flags
    pre_run: tuple[PreRunCommand, ...] = ()
    warm: bool = True  #: the driver can fork a command from a program that is loaded
    env: Mapping[str, str] = field(default_factory=dict)  #: what the task adds to the environment
    processes: Spawner = field(default_factory=spawner)
    starts: list[KeptProcess] = field(default_factory=list)

    def __post_init__(self) -> None:
        for path in (self.task, self.workspace, self.template, self.scratch, self.folder / "private"):
            path.mkdir(parents=True, exist_ok=True)

    @property
    def task(self) -> Path:
        return self.folder / "task"

    @property
    def workspace(self) -> Path:
        return self.folder / "workspace"

    @property
    def template(self) -> Path:
        return self.folder / "template"

    @property
    def scratch(self) -> Path:
        return self.folder / "scratch"

    @property
    def trial(self) -> Trial:
        return Trial(
            node_id="task.yaml::t",
            task_id="t",
            folder="trials/t",
            task_file=str(self.task / "task.yaml"),
            prompt=None,
            agent=AgentConfig(type=self.agent),
            sandbox=SandboxConfig(),
            limits=RunLimits(),
            criteria=(),
            pre_run=self.pre_run,
        )

    @property
    def context(self) -> Context:
        registry = Registry(agents={agent.name: agent for agent in agents.BUILTIN}, drivers={}, criteria={})
        stops = SimpleNamespace(is_raised=lambda _: False)
        values = {"registry": registry, "options": self.options, "stops": stops}
        return cast(Context, SimpleNamespace(python=sys.executable, environ={"PATH": os.environ["PATH"]}, **values))

    @property
    def environment(self) -> Mapping[str, str]:
        private = str(self.folder / "private")
        return {
            "PATH": PATH,
            "HOME": private,
            "TMPDIR": private,
            "LANG": "C.UTF-8",
            "TASK_DIR": str(self.task),
            "WORKSPACE": str(self.workspace),
            **self.env,
        }

    @property
    def python(self) -> str:
        return self.context.python

    @property
    def installed(self) -> Path | None:
        return None

    @property
    def command_environment(self) -> Mapping[str, str]:
        return self.environment

    def redact(self, text: str) -> str:
        return text

    def time_left(self, wanted: float | None = None) -> float:
        return self.seconds if wanted is None else min(wanted, self.seconds)

    def run(self, command: Command, *, timeout: float, output_bytes: int = 1 << 20) -> CommandResult:
        files = [self.folder / "private" / name for name in ("stdout", "stderr")]
        begun = time.monotonic()
        limits = ProcessLimits(timeout=timeout, output_bytes=output_bytes, grace=0.2)
        process = self.start(command, stdout=files[0], stderr=files[1], limits=limits)
        end = process.wait(timeout + 30)
        assert end is not None
        texts = [f.read_text(errors="replace") for f in files]
        return CommandResult(exit=end, stdout=texts[0], stderr=texts[1], duration=time.monotonic() - begun)

    def start(self, command: Command, *, stdout: Path, stderr: Path, limits: ProcessLimits) -> KeptProcess:
        with open(stdout, "wb") as out, open(stderr, "wb") as err, open(os.devnull, "rb") as null:  # noqa: PTH123
            process = self.processes.start(
                command.argv,
                env=command.env,
                cwd=str(command.cwd or self.workspace),
                stdin=null.fileno() if command.stdin_fd is None else command.stdin_fd,
                stdout=out.fileno(),
                stderr=err.fileno(),
                limits=limits,
                role="grader",
                stop_dir=self.stop_dir,
                warm=command.warm if self.warm else None,
            )
        self.starts.append(process)
        return process


def write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    """Lay files into a folder; text is dedented by nobody."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def descriptors_kept() -> Iterator[None]:
    """Fails if more file descriptors are open afterwards."""
    before: Any = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    yield
    assert len(os.listdir("/proc/self/fd")) <= before  # noqa: PTH208
