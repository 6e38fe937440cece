"""What an experiment file may say: its strict models. Field meanings: docs, "Experiments"."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from pytest_codeprobe.errors import did_you_mean
from pytest_codeprobe.model.base import Flag, Float, Int, Model, Text
from pytest_codeprobe.tasks.dialect import Dialect
from pytest_codeprobe.tasks.prompts import Mutations

#: of an experiment or a variant
NAME = r"[a-z0-9]+(-[a-z0-9]+)*"
#: figures that a gate can bound
METRICS = ("pass_rate", "score_mean", "error_rate", "cost_usd", "cost_usd_per_trial", "total_tokens", "duration_seconds_mean")
Gateway = Literal["auto", "off", "required"]


class Settings(Model):
    """What `defaults` and a variant have in common; the tables are held to their own models where they are read."""

    repeats: Int | None = Field(default=None, ge=1, le=999)
    driver: Text | None = None
    gateway: Gateway | None = None
    agent: dict[str, Any] | None = None
    sandbox: dict[str, Any] | None = None
    run_limits: dict[str, Any] | None = None
    template_sources: tuple[dict[str, Any], ...] | None = None
    simulation: dict[str, Any] | None = None
    prompt_mutations: Mutations | None = None

    @model_validator(mode="after")
    def _once(self) -> Settings:
        for short in ("driver", "template_sources"):
            if getattr(self, short) is not None and (self.sandbox or {}).get(short) is not None:
                raise ValueError(f"{short!r} and 'sandbox.{short}' are one setting; use one of the two")
        return self


class Defaults(Settings):
    """`defaults` of an experiment: below all tasks."""

    pre_run: tuple[dict[str, Any], ...] | None = None
    post_run: tuple[dict[str, Any], ...] | None = None


class Variant(Settings):
    """One of the configurations that an experiment compares: above all tasks."""

    variant_id: Text = Field(pattern=rf"^{NAME}$", max_length=60)
    description: Text = ""
    initial_prompt: Text | None = Field(default=None, min_length=1)
    initial_prompt_file: Text | None = None
    preambles: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _one_prompt(self) -> Variant:
        given = [name for name in ("prompt_mutations", "initial_prompt", "initial_prompt_file") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"give one of {', '.join(map(repr, given))}")
        return self


class Price(Model):
    """US dollars per million tokens."""

    input: Float = Field(ge=0)
    output: Float = Field(ge=0)
    cache_read: Float | None = Field(default=None, ge=0)
    cache_write: Float | None = Field(default=None, ge=0)


class Judge(Model):
    """Which model grades where a criterion asks one."""

    model: Text | None = None
    backend: Text | None = None


class Gate(Model):
    """A bound on a figure of the whole run, or of a variant, or of a variant against another."""

    metric: Text
    min: Float | None = None
    max: Float | None = None
    variant: Text | None = None
    baseline: Text | None = None

    @field_validator("metric")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in METRICS:
            raise ValueError(f"must be one of {', '.join(METRICS)}, not {value!r}{did_you_mean(value, METRICS)}")
        return value

    @model_validator(mode="after")
    def _bounds(self) -> Gate:
        if self.min is None and self.max is None:
            raise ValueError("needs 'min' or 'max'")
        if self.baseline is not None and self.variant is None:
            raise ValueError("'baseline' needs 'variant': which one is held against it")
        if self.baseline is not None and self.baseline == self.variant:
            raise ValueError("'baseline' is the variant itself")
        return self


class ExperimentFile(Model):
    """All that an experiment file may say."""

    experiment_id: Text | None = Field(default=None, min_length=1, max_length=100)
    description: Text = ""
    dialect: Dialect = "native"  #: of its own entries; that of a task is the task's. Where it is not said, ini codeprobe_dialect holds
    inherit: Flag = True  #: experiments/default.yaml is the layer below
    defaults: Defaults | None = None
    variants: tuple[Variant, ...] = ()
    prices: dict[str, Price] = {}
    judge: Judge | None = None
    gates: tuple[Gate, ...] = ()

    @field_validator("variants", mode="before")
    @classmethod
    def _some(cls, value: object) -> object:
        if value == []:
            raise ValueError("holds no variant; leave it out where there is only one")
        return value
