"""The strict model of one task, as its file says it. Field meanings: docs, "Writing tasks"."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field, StringConstraints

from pytest_codeprobe.model.base import Flag, Float, Int, Model, Text
from pytest_codeprobe.model.config import AgentConfig, PreRunCommand, Reference, RunLimits, SandboxConfig, Simulation, Solution, TaskCommand
from pytest_codeprobe.tasks.dataset.spec import Dataset
from pytest_codeprobe.tasks.dialect import Dialect
from pytest_codeprobe.tasks.problems import shown

MAX_ID = 100  #: characters
_ID = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)*")
_TAG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*(?::[A-Za-z0-9][A-Za-z0-9._+/-]*)?")

_NO_REASON = frozenset(("", "y", "n", "yes", "no", "on", "off", "true", "false"))  #: text by YAML 1.2, but hardly meant as a reason


def _task_id(value: str) -> str:
    if len(value) > MAX_ID:
        raise ValueError(f"must have at most {MAX_ID} characters, not {len(value)}")
    if not _ID.fullmatch(value) or ".." in value or "." in value.split("/"):
        raise ValueError(f"must be made of letters, digits and . _ - / (no '..', no empty part), not {value!r}")
    return value


def _tag(value: str) -> str:
    if not _TAG.fullmatch(value):
        kebab = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")
        hint = f", such as {kebab!r}," if kebab else ""
        raise ValueError(f"must be in kebab-case{hint} or key:value, not {value!r}")
    return value


def _reason(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, str) and value.strip().lower() not in _NO_REASON):
        return value
    raise ValueError(f"must be true, false or the reason as text, not {shown(value)}")


class Task(Model):
    """One YAML document. Its tables `agent`, `sandbox` and `run_limits` are one layer among others."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    task_id: Annotated[Text, AfterValidator(_task_id)]
    description: Text = ""
    initial_prompt: Annotated[Text, StringConstraints(min_length=1)] | None = None
    initial_prompt_file: Text | None = None
    tags: tuple[Annotated[Text, AfterValidator(_tag)], ...] = ()
    skip: Annotated[bool | str, BeforeValidator(_reason)] = False
    xfail: Annotated[Text, StringConstraints(min_length=1)] | None = None
    agent: AgentConfig | None = None
    sandbox: SandboxConfig | None = None
    run_limits: RunLimits | None = None
    success_criteria: tuple[dict[str, Any], ...] = Field(min_length=1)  #: each is checked against its own model
    pass_score: Float | None = Field(default=None, ge=0, le=1)
    reference: Reference | None = None
    solution: Solution | None = None
    pre_run: tuple[PreRunCommand, ...] = ()
    post_run: tuple[TaskCommand, ...] = ()
    dataset: Dataset | None = None
    expected_commands: Int | None = Field(default=None, gt=0)
    repeats: Int = Field(default=1, ge=1, le=999)
    min_passes: Int | None = Field(default=None, ge=1)
    fixtures: tuple[Text, ...] = ()
    simulation: Simulation | None = None
    expect: Literal["pass", "fail"] = "pass"
    gateway: Literal["auto", "off", "required"] = "auto"
    metadata: dict[str, Any] = {}
    dialect: Dialect = "native"  #: where it is not said, ini codeprobe_dialect holds

    @property
    def skip_reason(self) -> str | None:
        """Why it is skipped; None = it is not."""
        if self.skip is False:
            return None
        return "skip: true" if self.skip is True else str(self.skip)
