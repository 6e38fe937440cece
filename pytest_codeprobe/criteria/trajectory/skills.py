"""Whether a session used a skill."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from pytest_codeprobe.criteria.trajectory.calls import Call, Trajectory, trajectory
from pytest_codeprobe.criteria.trajectory.shell import without_assignments, words
from pytest_codeprobe.model.base import Flag, Text
from pytest_codeprobe.model.criterion import Criterion, Grading, Score

_FILE = "skill.md"
_NAME_KEYS = ("skill", "name", "skill_name", "command")
#: programs that print what is in the files they are given; `ls`, `find`, `echo`, `test` and `cp` don't, `grep` searches
_READERS = frozenset(("awk", "bat", "batcat", "cat", "fold", "gawk", "head", "less", "more", "nl", "pr", "sed", "tac", "tail", "view"))
_WRAPPERS = frozenset(("command", "env", "exec", "nohup", "sudo", "time", "xargs"))


class SkillTriggered(Criterion):
    """The agent used a skill, or did not: by its skill tool, or by reading the skill's SKILL.md."""

    type: Literal["skill_triggered"]
    skill_name: Text = Field(min_length=1)
    expected: Flag = True
    expected_skill: Text | None = None  #: expected = this is skill_name; for rows that name the skill that is right, or none

    needs_session: ClassVar[bool] = True
    classifies: ClassVar[bool] = True

    @model_validator(mode="after")
    def _one(self) -> SkillTriggered:
        if {"expected", "expected_skill"} <= self.model_fields_set:
            raise ValueError("give 'expected' or 'expected_skill', not both")
        return self

    def labels(self) -> Sequence[str]:
        """Used, or not."""
        return ("yes", "no")

    @property
    def is_expected(self) -> bool:
        """Whether the skill is the right one."""
        return self.expected if "expected_skill" not in self.model_fields_set else self.expected_skill == self.skill_name

    def evaluate(self, grading: Grading) -> Score:
        """1 or 0, with the labels `yes` and `no`. NotApplicable where nothing is known of the calls."""
        seen = trajectory(grading)
        uses = [how for call in seen.calls if call.status != "failed" and (how := used(call, self.skill_name, seen))]
        observed, expected = ("yes" if uses else "no"), ("yes" if self.is_expected else "no")
        evidence: dict[str, Any] = {"expected_label": expected, "observed_label": observed, "uses": uses[:20]}
        why = f"skill {self.skill_name!r} was used: {uses[0]}" if uses else f"skill {self.skill_name!r} was not used"
        if seen.cut and not uses:
            return Score(0.0, f"{why}, as far as the transcript goes, which was cut short", evidence)
        return Score(float(observed == expected), f"{why}{'' if observed == expected else f' (expected: {expected})'}", evidence)


def used(call: Call, skill: str, seen: Trajectory) -> str:
    """How a call used the skill; empty if it did not."""
    if seen.names.is_meant("skill", call.tool):
        named = next((value for key in _NAME_KEYS if isinstance(value := call.arguments.get(key), str)), "")
        return call.label() if _is_name(named, skill) else ""
    if seen.names.is_meant("read", call.tool):
        return call.label() if any(_is_file(path, skill) for path in _paths(call.arguments)) else ""
    if seen.names.is_meant("shell", call.tool):
        return call.label() if _reads(call.simple, skill) else ""
    return ""


def _is_name(named: str, skill: str) -> bool:
    """`review`, `/review` and `plugin:review` are the skill `review`; a task that says `plugin:review` means that one alone."""
    named = named.strip().removeprefix("/").partition(" ")[0]
    return named == skill or (":" not in skill and named.rpartition(":")[2] == skill)


def _is_file(path: str, skill: str, *, pattern: bool = False) -> bool:
    """Whether a path is SKILL.md in a folder of the skill's name; `pattern`: a shell would put file names in the place of `*`."""
    parts = posixpath.normpath(path.strip().replace("\\", "/")).split("/")
    folder = skill.rpartition(":")[2]
    if len(parts) < 2:
        return False
    if pattern:
        return fnmatchcase(_FILE, parts[-1].lower()) and fnmatchcase(folder, parts[-2])
    return parts[-1].lower() == _FILE and parts[-2] == folder


def _paths(value: Any, depth: int = 3) -> Iterator[str]:
    """Texts among a reading tool's arguments."""
    if isinstance(value, str):
        yield value
    elif depth and isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _paths(item, depth - 1)


def _reads(commands: Sequence[str], skill: str) -> bool:
    """Whether one of the commands prints the skill's file; `cd` in one counts for those after it."""
    folder = ""
    for command in commands:
        parts = words(without_assignments(command))
        while parts and parts[0].rpartition("/")[2] in _WRAPPERS:
            parts = parts[1:]
        if not parts:
            continue
        program, arguments = parts[0].rpartition("/")[2], parts[1:]
        if program == "cd":
            folder = posixpath.join(folder, arguments[-1]) if arguments else ""
            continue
        given = arguments if program in _READERS else _redirected(parts)
        if any(_is_file(posixpath.join(folder, path), skill, pattern=True) for path in _inputs(given)):
            return True
    return False


def _redirected(parts: Sequence[str]) -> list[str]:
    """The files that a command gets as its input: `while read line; do …; done < file`."""
    return [path for sign, path in itertools.pairwise(parts) if sign == "<"]


def _inputs(parts: Sequence[str]) -> Iterator[str]:
    """Words that are not written to."""
    before = ""
    for part in parts:
        if not before.startswith(">") and not before.endswith(">"):
            yield part
        before = part
