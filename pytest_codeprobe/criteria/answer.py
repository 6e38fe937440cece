"""Criteria on what the agent said at the end."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from pytest_codeprobe.criteria.base import combined, compile_pattern, found, text_shares
from pytest_codeprobe.model.base import Text
from pytest_codeprobe.model.criterion import Criterion, Grading, NotApplicable, Score


class AnswerContains(Criterion):
    """Texts and a regular expression in the agent's final message; case counts."""

    type: Literal["answer_contains"]
    includes: tuple[Text, ...] = ()
    excludes: tuple[Text, ...] = ()
    regex: Text | None = None

    needs_session: ClassVar[bool] = True

    @model_validator(mode="after")
    def _says_something(self) -> AnswerContains:
        if not (self.includes or self.excludes or self.regex):
            raise ValueError("needs 'includes', 'excludes' or 'regex'")
        if self.regex is not None:
            compile_pattern(self.regex)
        return self

    def evaluate(self, grading: Grading) -> Score:
        """The mean over the kinds used of the share that holds. NotApplicable without a session."""
        message = grading.final_message
        if message is None:
            raise NotApplicable("there was no session, so there is no final message")
        shares = text_shares(message, self.includes, self.excludes)
        if self.regex is not None:
            hit = found(compile_pattern(self.regex), message)
            why = f"pattern {self.regex!r} {'took too long' if hit is None else 'does not match'}"
            shares.append((1.0, "") if hit else (0.0, why))
        return combined(shares, "the final message is as expected")
