"""Criteria that look at a file: whether it is there, and what its text holds."""

from __future__ import annotations

import stat
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from pytest_codeprobe.criteria.base import (
    NotThere,
    WorkspacePath,
    as_flags,
    combined,
    compile_pattern,
    found,
    locate,
    read_text,
    text_shares,
)
from pytest_codeprobe.model.base import Flag, Model, Text
from pytest_codeprobe.model.criterion import Criterion, Grading, Score

Flags = Annotated[tuple[str, ...], BeforeValidator(as_flags)]


class FileExists(Criterion):
    """A file or folder of the workspace is there, or is not (`exists: false`)."""

    type: Literal["file_exists"]
    path: WorkspacePath
    exists: Flag = True

    def evaluate(self, grading: Grading) -> Score:
        """1 or 0. A symlink counts as what it points to, one that leaves the workspace as not there."""
        try:
            mode = locate(grading.workspace, self.path).lstat().st_mode
        except NotThere as error:
            there, why = False, str(error)
        except OSError as error:
            there, why = False, f"{self.path} can't be looked at: {error.strerror}"
        else:
            there, why = True, f"{self.path} is {'a folder' if stat.S_ISDIR(mode) else 'there'}"
        return Score(float(there == self.exists), why if self.exists else f"{why} (expected: not there)")


class FileContains(Criterion):
    """Texts that a file must hold and texts that it must not hold; case counts."""

    type: Literal["file_contains"]
    path: WorkspacePath
    includes: tuple[Text, ...] = ()
    excludes: tuple[Text, ...] = ()

    default_threshold: ClassVar[float] = 0.9

    @model_validator(mode="after")
    def _says_something(self) -> FileContains:
        if not (self.includes or self.excludes):
            raise ValueError("needs 'includes' or 'excludes'")
        return self

    def evaluate(self, grading: Grading) -> Score:
        """The mean of the share that is included and the share that is absent, over the lists that are given."""
        try:
            text = read_text(grading.workspace, self.path)
        except NotThere as error:
            return Score(0.0, str(error))
        return combined(text_shares(text, self.includes, self.excludes), f"all as expected in {self.path}")


class Pattern(Model):
    """One regular expression (Python's syntax) of a file_check."""

    pattern: Text
    must_match: Flag = True
    flags: Flags = ()

    @model_validator(mode="after")
    def _compiles(self) -> Pattern:
        compile_pattern(self.pattern, self.flags)
        return self

    def problem(self, text: str) -> str:
        """Why it does not hold for a text; empty if it does."""
        hit = found(compile_pattern(self.pattern, self.flags), text)
        if hit is None:
            return f"pattern {self.pattern!r} took too long"
        return "" if hit == self.must_match else f"pattern {self.pattern!r} {'matches' if hit else 'does not match'}"


class FileMatchesRegex(Criterion, Pattern):
    """A regular expression (Python's syntax) is found in a file, or is not (`must_match: false`)."""

    type: Literal["file_matches_regex"]
    path: WorkspacePath

    def evaluate(self, grading: Grading) -> Score:
        """1 or 0; a missing file is 0 either way, and so is a text on which the pattern takes too long."""
        try:
            text = read_text(grading.workspace, self.path)
        except NotThere as error:
            return Score(0.0, str(error))
        problem = self.problem(text)
        return Score(0.0, f"{problem} in {self.path}") if problem else Score(1.0, f"as expected in {self.path}")


class FileCheck(Criterion):
    """Texts and regular expressions in one file."""

    type: Literal["file_check"]
    path: WorkspacePath
    includes: tuple[Text, ...] = ()
    excludes: tuple[Text, ...] = ()
    patterns: tuple[Pattern, ...] = Field(default=())

    default_threshold: ClassVar[float] = 0.9

    @model_validator(mode="after")
    def _says_something(self) -> FileCheck:
        if not (self.includes or self.excludes or self.patterns):
            raise ValueError("needs 'includes', 'excludes' or 'patterns'")
        return self

    def evaluate(self, grading: Grading) -> Score:
        """The mean over the kinds used of the share that holds; 0 without the file."""
        try:
            text = read_text(grading.workspace, self.path)
        except NotThere as error:
            return Score(0.0, str(error))
        shares = text_shares(text, self.includes, self.excludes)
        if self.patterns:
            problems = [p for p in (pattern.problem(text) for pattern in self.patterns) if p]
            shares.append((1 - len(problems) / len(self.patterns), "; ".join(problems)))
        return combined(shares, f"all as expected in {self.path}")
