"""The strict model of a task's `dataset`."""

from __future__ import annotations

from typing import Any

from pydantic import Field, model_validator

from pytest_codeprobe.model.base import Int, Model, Text


class Dataset(Model):
    """Rows that a task is repeated over, exactly one of `rows` and `paths`."""

    rows: tuple[dict[str, Any], ...] | None = Field(default=None, min_length=1)
    paths: tuple[Text, ...] | None = Field(default=None, min_length=1)
    id_field: Text = Field(default="id", min_length=1)
    sample_per_stratum: Int | None = Field(default=None, gt=0)
    stratify_field: Text | None = Field(default=None, min_length=1)
    sample_seed: Int | None = 0

    @model_validator(mode="after")
    def _one(self) -> Dataset:
        if (self.rows is None) == (self.paths is None):
            raise ValueError("give exactly one of 'rows', 'paths'")
        return self
