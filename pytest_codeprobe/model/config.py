"""What a task or an experiment may configure: agent, sandbox, limits, commands. Field meanings: spec/tasks.md.

These are the strict models of the YAML; which of their fields this version can honour is decided where a task is loaded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator

from pytest_codeprobe.model.base import Flag, Float, Int, Model, Text
from pytest_codeprobe.model.invocations import RecordedCli

Positive = Field(default=None, gt=0)


class RunLimits(Model):
    """Bounds of one trial. Times in seconds, money in USD; None = no such limit."""

    model_config = ConfigDict(allow_inf_nan=False)

    setup_timeout: Float = Field(default=600, gt=0)
    task_timeout: Float = Field(default=600, gt=0)
    turn_timeout: Float | None = Positive
    grading_timeout: Float | None = Positive  #: None: 300 s, or the sum of the criteria's own time-outs if that is more
    provider_patience: Float = Field(default=30, gt=0)
    max_turns: Int | None = Positive
    expected_turns: Int | None = Positive
    max_input_tokens: Int | None = Positive
    max_output_tokens: Int | None = Positive
    max_total_tokens: Int | None = Positive
    max_usd: Float | None = Positive
    count_cached_input: Flag = False
    on_limit: Literal["grade", "fail"] = "grade"


class SandboxLimits(Model):
    """Resources of a session. Sizes in MiB; None = not held."""

    model_config = ConfigDict(allow_inf_nan=False)

    memory_mb: Int | None = Positive
    cpus: Float | None = Positive
    pids: Int | None = Positive
    disk_mb: Int | None = Positive
    output_mb: Float = Field(default=256, gt=0)

    def said(self, name: str) -> str:
        """One of them, as a sentence names it."""
        return f"sandbox.limits.{name} = {getattr(self, name):g}"


_NO_LIMITS = SandboxLimits()


class StarterFile(Model):
    """One file whose content stands in the YAML. `mode` in octal, as text (`"755"`)."""

    path: Text
    content: Text
    mode: Text | None = Field(default=None, pattern=r"^0?[0-7]{3,4}$")


class TemplateSource(Model):
    """What a workspace is laid out from; later sources overlay earlier ones."""

    type: Literal["template_dir", "starter_files", "repo"]
    path: Text | None = None
    mount_point: Text | None = None
    include: tuple[Text, ...] | None = None
    exclude: tuple[Text, ...] | None = None
    files: tuple[StarterFile, ...] | None = None
    url: Text | None = None
    commit: Text | None = None

    @model_validator(mode="after")
    def _fields_of_its_type(self) -> TemplateSource:
        allowed = {
            "template_dir": {"path", "mount_point", "include", "exclude"},
            "starter_files": {"files"},
            "repo": {"url", "path", "commit", "mount_point"},
        }[self.type]
        given = {name for name in self.model_fields_set - {"type"} if getattr(self, name) is not None}
        if extra := sorted(given - allowed):
            raise ValueError(f"{extra[0]!r} does not belong to a source of type {self.type}")
        if self.type == "template_dir" and self.path is None:
            raise ValueError("a template_dir needs 'path'")
        if self.type == "starter_files" and not self.files:
            raise ValueError("starter_files need 'files'")
        if self.type == "repo" and (self.url is None) == (self.path is None):
            raise ValueError("a repo needs either 'url' or 'path'")
        return self


def _package(value: str) -> str:
    if value.startswith("-"):
        raise ValueError("must name a package; options of pip and npm are for the user's own settings")
    if not value.strip() or not value.isprintable():
        raise ValueError("must name a package")
    return value


def package_path(package: str) -> Path | None:
    """Where a package lies that is named by a path (absolute, as tasks are resolved), without its extras; None for another one."""
    return Path(re.sub(r"\[[^/]*\]$", "", package)) if package.startswith("/") else None


def package_paths(sandbox: SandboxConfig) -> Iterator[Path]:
    """Where those packages of an environment lie that are named by a path."""
    kinds = (sandbox.setup.python, sandbox.setup.node) if sandbox.setup is not None else ()
    for kind in kinds:
        yield from filter(None, map(package_path, kind.packages if kind is not None else ()))


#: as pip or npm take it
Package = Annotated[Text, AfterValidator(_package)]


class PythonSetup(Model):
    """A Python environment for the workspace."""

    packages: tuple[Package, ...] = ()
    version: Text | None = None

    @field_validator("version")
    @classmethod
    def _of_python_3(cls, value: str | None) -> str | None:
        if value is not None and re.fullmatch(r"3(\.\d+){0,2}", value) is None:
            raise ValueError("must be a version of Python 3, such as 3.12")
        return value


class NodeSetup(Model):
    """Node packages for the workspace."""

    packages: tuple[Package, ...] = ()


class SandboxSetup(Model):
    """Environments that are built once per set of packages."""

    python: PythonSetup | None = None
    node: NodeSetup | None = None


class DockerBuild(Model):
    """How an image is built from a Dockerfile."""

    args: dict[str, Text] = {}


class DockerMount(Model):
    """What of this machine is seen in a container, also `SOURCE:TARGET[:rw]`. Paths are absolute; the source may begin with ~."""

    source: Text
    target: Text
    read_only: bool = True

    @model_validator(mode="before")
    @classmethod
    def _short(cls, value: Any) -> Any:
        if not isinstance(value, str):
            return value
        source, target, mode = (*value.split(":"), "ro")[:3] if value.count(":") in (1, 2) else ("", "", "")
        if mode not in ("ro", "rw"):
            raise ValueError(f"{value!r} is not SOURCE:TARGET, SOURCE:TARGET:ro or SOURCE:TARGET:rw")
        return {"source": source, "target": target, "read_only": mode == "ro"}

    @model_validator(mode="after")
    def _absolute(self) -> DockerMount:
        if not self.source.startswith(("/", "~")) or not self.target.startswith("/"):
            raise ValueError(f"'{self.source}:{self.target}' must be of absolute paths")
        return self


class DockerConfig(Model):
    """Image and options of the docker driver."""

    image: Text | None = None
    dockerfile: Text | None = None
    build: DockerBuild | None = None
    mounts: tuple[DockerMount, ...] | None = None
    user: Text | None = None
    working_dir: Text | None = None
    network: Any = None

    @property
    def build_args(self) -> dict[str, str]:
        """Arguments of the Dockerfile."""
        return dict(self.build.args) if self.build is not None else {}

    @model_validator(mode="after")
    def _one_image(self) -> DockerConfig:
        if self.image is not None and self.dockerfile is not None:
            raise ValueError("'image' and 'dockerfile' exclude each other")
        if self.image is not None and (self.image.startswith("-") or not self.image or " " in self.image or not self.image.isprintable()):
            raise ValueError(f"'image' is {self.image!r}, which names none")
        if self.image is not None and self.build_args:
            raise ValueError("'build' belongs to a 'dockerfile', not to an 'image'")
        if self.working_dir is not None and not self.working_dir.startswith("/"):
            raise ValueError(f"'working_dir' is {self.working_dir!r}; it must be an absolute path")
        return self


class SandboxConfig(Model):
    """Where a session runs and what it finds there."""

    driver: Text = "auto"
    network: Text | tuple[Text, ...] = "on"
    limits: SandboxLimits = Field(default_factory=lambda: _NO_LIMITS)  # one for all: pydantic would copy a default
    env: dict[str, Text] = {}
    env_passthrough: tuple[Text, ...] = ()
    git: Literal["baseline", "none"] = "baseline"
    template_sources: tuple[TemplateSource, ...] = ()
    setup: SandboxSetup | None = None
    mock_path_dirs: tuple[Text, ...] = ()
    record_cli: tuple[RecordedCli, ...] = ()
    ignore_patterns: tuple[Text, ...] = ()
    protected: tuple[Text, ...] = ()
    docker: DockerConfig | None = None

    @model_validator(mode="after")
    def _each_once(self) -> SandboxConfig:
        tools = [entry.tool for entry in self.record_cli]
        if twice := next((tool for number, tool in enumerate(tools) if tool in tools[:number]), None):
            raise ValueError(f"'record_cli' has {twice!r} twice; give one entry more 'responses'")
        return self


class AgentConfig(Model):
    """Which agent does the task and how it is set up.

    An agent's own table (`claude: {…}`, `scripted: {steps: …}`) is kept as an extra field under the agent's name; the
    loader checks the name against the registry and the table against the adapter's model.
    """

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Text | None = None
    model: Text | None = None
    permission_mode: Literal["auto", "default", "acceptEdits", "plan", "bypassPermissions"] = "auto"
    allowed_tools: tuple[Text, ...] | None = None
    disallowed_tools: tuple[Text, ...] | None = None
    system_prompt: Text | None = None
    system_prompt_file: Text | None = None
    append_system_prompt: Text | None = None
    mcp_servers: dict[str, dict[str, Any]] | None = None
    skills: tuple[Text, ...] | None = None
    plugins: tuple[dict[str, Any], ...] | None = None
    max_thinking_tokens: Int | None = Positive
    effort: Text | None = None
    env: dict[str, Text] = {}
    args: tuple[Text, ...] = ()
    command: tuple[Text, ...] | None = None  #: argv template of agent `command`
    project_settings: Flag = True

    def table(self, agent: str) -> dict[str, Any]:
        """The agent's own table, empty if it has none."""
        value = (self.model_extra or {}).get(agent)
        return dict(value) if isinstance(value, dict) else {}


class Simulation(Model):
    """A simulated user who answers the agent."""

    persona: Text | None = None
    goal: Annotated[Text, StringConstraints(pattern=r"\S")]
    constraints: tuple[Text, ...] | Text | None = None
    max_turns: Int = Field(default=8, gt=0)  #: exchanges: a message of the user's and what the agent makes of it
    stop_token: Annotated[Text, StringConstraints(pattern=r"\S")] = "<<<END>>>"
    stop_on_criteria_pass: Flag = False
    check_criteria: Literal["end_of_dialog", "every_turn", "both"] = "end_of_dialog"
    max_total_tokens: Int | None = Positive  #: of both sides together; no exchange begins once as many are used
    enabled: Flag = True
    agent: AgentConfig | None = None  #: who plays the user

    @model_validator(mode="after")
    def _checks(self) -> Simulation:
        if self.stop_on_criteria_pass and self.check_criteria == "end_of_dialog":
            raise ValueError("'stop_on_criteria_pass' needs 'check_criteria: every_turn' or 'both'")
        return self


class TaskCommand(Model):
    """A command of pre_run or post_run, run by `/bin/sh -c` in the workspace. `timeout` in seconds."""

    model_config = ConfigDict(allow_inf_nan=False)

    command: Text
    timeout: Float = Field(default=30, gt=0)


class PreRunCommand(TaskCommand):
    """A command before the agent starts; its failure is an error of the trial unless fail_on_error is false."""

    fail_on_error: Flag = True


class Reference(Model):
    """A reference solution that only graders see; exactly one of the three."""

    code: Text | None = None
    file: Text | None = None
    directory: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> Reference:
        if sum(v is not None for v in (self.code, self.file, self.directory)) != 1:
            raise ValueError("give exactly one of 'code', 'file', 'directory'")
        return self


class Solution(Model):
    """What agent `oracle` applies; exactly one of the three."""

    script: Text | None = None
    directory: Text | None = None
    patch: Text | None = None

    @model_validator(mode="after")
    def _one(self) -> Solution:
        if sum(v is not None for v in (self.script, self.directory, self.patch)) != 1:
            raise ValueError("give exactly one of 'script', 'directory', 'patch'")
        return self
