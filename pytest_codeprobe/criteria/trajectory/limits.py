"""What a session used, held to bounds that stop nothing."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from pytest_codeprobe.model.base import Float, Int
from pytest_codeprobe.model.criterion import Criterion, Grading, NotApplicable, Score

_FIELDS = ("max_usd", "max_tokens", "max_turns", "max_seconds")


class Limits(Criterion):
    """The session cost no more money, tokens, turns or time than this. Unlike `run_limits`, these don't stop it."""

    type: Literal["limits"]
    max_usd: Float | None = Field(default=None, ge=0)  #: US dollars
    max_tokens: Int | None = Field(default=None, ge=0)  #: everything that the model read and wrote, cache included
    max_turns: Int | None = Field(default=None, ge=0)  #: replies that call at least one tool
    max_seconds: Float | None = Field(default=None, ge=0)

    needs_session: ClassVar[bool] = True

    @model_validator(mode="after")
    def _says_something(self) -> Limits:
        if all(getattr(self, name) is None for name in _FIELDS):
            raise ValueError(f"needs one of {', '.join(_FIELDS)}")
        return self

    def evaluate(self, grading: Grading) -> Score:
        """1 or 0. NotApplicable where nothing is over, but a number that counts is not known."""
        usage = grading.usage
        used = {
            "max_usd": usage.cost_usd if usage is not None else None,
            "max_tokens": usage.total_tokens if usage is not None else None,
            "max_turns": usage.turns if usage is not None else None,
            "max_seconds": grading.session_seconds,
        }
        bounds = {name: float(bound) for name in _FIELDS if (bound := getattr(self, name)) is not None}
        evidence = {name.removeprefix("max_"): used[name] for name in bounds}
        over = [
            f"{name.removeprefix('max_')}: {used[name]:g}, above {bound:g}" for name, bound in bounds.items() if (used[name] or 0) > bound
        ]
        if over:
            return Score(0.0, "; ".join(over), evidence)
        if unknown := [name.removeprefix("max_") for name in bounds if used[name] is None]:
            raise NotApplicable(f"what the session used is not known: {', '.join(unknown)}")
        return Score(1.0, ", ".join(f"{name}: {value:g}" for name, value in evidence.items()), evidence)
