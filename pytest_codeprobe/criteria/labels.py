"""Whether an agent put something into the right class."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from pytest_codeprobe.criteria.base import NotThere, WorkspacePath, read_text
from pytest_codeprobe.model.base import Flag, Text
from pytest_codeprobe.model.criterion import Criterion, Grading, NotApplicable, Score

NONE, OTHER = "(none)", "(other)"  #: nothing was said; something that is no label
_LONGEST = 200  #: characters of a label that no list names
_AROUND = " \t*_`'\".:;!"  #: what may stand around a label on the last line of an answer


class ClassificationMatch(Criterion):
    """A file of the agent's, or its final message, is the label that was expected."""

    type: Literal["classification_match"]
    path: WorkspacePath | None = None
    answer: Flag = False  #: the final message in the place of a file
    expected_label: Text = Field(min_length=1)
    allowed_labels: tuple[Text, ...] | None = Field(default=None, min_length=1)
    case_sensitive: Flag = False

    classifies: ClassVar[bool] = True

    @model_validator(mode="after")
    def _fits(self) -> ClassificationMatch:
        if (self.path is None) != self.answer:
            raise ValueError("needs either 'path' or 'answer: true'")
        if self.allowed_labels is not None:
            known = [self._folded(label) for label in self.allowed_labels]
            if twice := next((label for number, label in enumerate(self.allowed_labels) if known[number] in known[:number]), None):
                raise ValueError(f"'allowed_labels' has {twice!r} twice{'' if self.case_sensitive else ' (case does not count)'}")
            is_row = "${" in self.expected_label  # known once the row is
            if not is_row and self.expected_label not in (NONE, OTHER) and self._folded(self.expected_label) not in known:
                raise ValueError(f"'expected_label' is {self.expected_label!r}, which is none of 'allowed_labels'")
        return self

    def labels(self) -> Sequence[str] | None:
        """Those allowed, unless a row says which those are."""
        allowed = self.allowed_labels
        return None if allowed is None or any("${" in label for label in allowed) else [label.strip() for label in allowed]

    @property
    def needs_session(self) -> bool:  # type: ignore[override]  # of the class in others; here it is the final message that does
        """Whether it looks at the answer."""
        return self.answer

    def evaluate(self, grading: Grading) -> Score:
        """1 or 0, and the label: `(none)` where nothing was said, `(other)` where it is no label. NotApplicable without an answer."""
        if self.answer:
            if grading.final_message is None:
                raise NotApplicable("there was no session, so there is no final message")
            observed = self._observed(grading.final_message, last_line=True)
        else:
            try:
                observed = self._observed(read_text(grading.workspace, self.path or ""), last_line=False)
            except NotThere:
                observed = NONE
        expected = self._canonical(self.expected_label) or self.expected_label
        evidence: dict[str, Any] = {"expected_label": expected, "observed_label": observed}
        right = observed == expected if self.case_sensitive else observed.casefold() == expected.casefold()
        return Score(float(right), f"{observed!r}{'' if right else f', expected {expected!r}'}", evidence)

    def _observed(self, said: str, *, last_line: bool) -> str:
        """The label that a text is; of an answer of several lines the last one counts."""
        said = said.strip()
        if not said:
            return NONE
        if (label := self._canonical(said)) is not None:
            return label
        if not last_line:
            return OTHER
        line = said.splitlines()[-1]
        return self._canonical(line.strip()) or self._canonical(line.strip(_AROUND)) or OTHER

    def _canonical(self, said: str) -> str | None:
        """The label as the task spells it; None for what is none."""
        said = said.strip()
        if self.allowed_labels is None:
            return said if said and len(said) <= _LONGEST and len(said.splitlines()) == 1 else None
        return next((label.strip() for label in self.allowed_labels if self._folded(label) == self._folded(said)), None)

    def _folded(self, label: str) -> str:
        return label.strip() if self.case_sensitive else label.strip().casefold()
