"""Programs that stand in for real ones (`sandbox.record_cli`), and what a task may ask of the arguments of a call."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from pytest_codeprobe.model.base import Flag, Int, Model, Text

CALLS_FILE = "cli_mocks/calls.jsonl"  #: in the grading copy: what was called, a JSON object on each line
_PREDICATES = ("equals", "contains", "matches_regex", "any_of", "absent", "present")
_REGEX_FLAGS = ("IGNORECASE", "MULTILINE", "DOTALL", "VERBOSE", "ASCII")
_TOOL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
#: the agent's own CLI, the harness's shims and every script would be lost without these
_NEVER = re.compile(
    r"(?:ba|da|z|k|mk|a|fi|c|tc)?sh|busybox|toybox|env|git"
    r"|(?:python|pypy|node|nodejs|deno|bun|ruby|perl|php|lua|tclsh|Rscript|java|pwsh)(?:-?\d[\d.]*)?"
)


def _as_predicate(value: Any) -> Any:
    """`version: 14` is short for `version: {equals: "14"}`."""
    return value if isinstance(value, dict | FlagMatch) else {"equals": value}


class FlagMatch(Model):
    """What must hold of one flag, whichever of its names it has: exactly one of the first six."""

    equals: Text | None = None
    contains: Text | None = None
    matches_regex: Text | None = None
    any_of: tuple[Text, ...] | None = Field(default=None, min_length=1)
    absent: Flag = False
    present: Flag = False
    aliases: tuple[Text, ...] = ()
    flags: tuple[Text, ...] = ()  #: of the expression: IGNORECASE, …

    @model_validator(mode="after")
    def _one(self) -> FlagMatch:
        given = [name for name in _PREDICATES if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of {', '.join(_PREDICATES)}")
        if unknown := [name for name in self.flags if name not in _REGEX_FLAGS]:
            raise ValueError(f"unknown flag {unknown[0]!r}; known are {', '.join(_REGEX_FLAGS)}")
        if self.flags and self.matches_regex is None:
            raise ValueError("'flags' belong to 'matches_regex'")
        if self.matches_regex is not None:
            try:
                re.compile(self.matches_regex)
            except re.error as error:
                raise ValueError(f"{self.matches_regex!r} is not a regular expression: {error}") from error
        return self

    @property
    def takes_value(self) -> bool:
        """Whether it says something of the flag's value."""
        return not (self.absent or self.present)


class Facets(Model):
    """What is asked of the arguments of a call; whatever is not named may be anything."""

    verb: Text | None = None  #: the words before all others, such as `pr create`
    verb_any_of: tuple[Text, ...] | None = Field(default=None, min_length=1)
    positional: tuple[Text, ...] | None = None  #: what comes next; more may follow
    flags: dict[str, Annotated[FlagMatch, BeforeValidator(_as_predicate)]] | None = None
    value_flags: tuple[Text, ...] = ()  #: flags that are followed by a value; else the next word is no value of theirs
    ignore_flags: tuple[Text, ...] = ()

    @model_validator(mode="after")
    def _verbs(self) -> Facets:
        if self.verb is not None and self.verb_any_of is not None:
            raise ValueError("give 'verb' or 'verb_any_of', not both")
        if any(not spelling.split() for spelling in self.verb_any_of or ()) or (self.verb is not None and not self.verb.split()):
            raise ValueError("a verb must not be blank")
        names = [*(self.flags or {}), *self.value_flags, *self.ignore_flags, *(a for f in (self.flags or {}).values() for a in f.aliases)]
        if any(not name.lstrip("-") or "=" in name for name in names):
            raise ValueError("a flag needs a name, without '='")
        return self

    @property
    def verbs(self) -> list[list[str]]:
        """Each accepted verb as its words; empty: any."""
        return [text.split() for text in (self.verb_any_of or (() if self.verb is None else (self.verb,)))]

    @property
    def says_something(self) -> bool:
        """Whether a call could fail to fit."""
        return bool(self.verbs or self.positional or self.flags)


class CliResponse(Model):
    """What a recorded program answers to some calls. The first one that fits counts."""

    when: Facets
    exit_code: Int = Field(default=0, ge=0, le=255)
    stdout: Text = ""
    stderr: Text = ""

    @model_validator(mode="after")
    def _asks(self) -> CliResponse:
        if not self.when.says_something:
            needed = "'when' needs 'verb', 'verb_any_of', 'positional' or 'flags'"
            raise ValueError(f"{needed}; what fits no response gets the entry's own answer")
        return self


def _can_stand_in(tool: str) -> str:
    if not _TOOL.fullmatch(tool):
        raise ValueError(f"must be the name of a program, without a path, not {tool!r}")
    if _NEVER.fullmatch(tool):
        raise ValueError(f"can't be {tool!r}: no shell, interpreter or git is replaced, since the agent itself may need it")
    return tool


class RecordedCli(Model):
    """A program that only records how it was called, and gives a fixed answer."""

    tool: Annotated[Text, AfterValidator(_can_stand_in)]
    exit_code: Int = Field(default=1, ge=0, le=255)
    stdout: Text = ""
    stderr: Text = ""
    responses: tuple[CliResponse, ...] = ()
