"""Patterns of files as `.gitignore` writes them: for what is not kept of a workspace, and for `include` of a template."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pytest_codeprobe.tasks.discovery import segment_regex


class Patterns:
    """A list of patterns; the last one that matches a path decides.

    `*` and `?` stop at a slash, `**` does not; a slash at the start or in the middle ties a pattern to the top folder; a slash at
    the end matches folders only; `!` takes back what an earlier pattern matched. Paths are relative, with `/`.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self._rules = [rule for pattern in patterns if (rule := _rule(pattern)) is not None]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def match(self, path: str, *, folder: bool) -> bool:
        """Whether the path itself is matched. What lies below a matched folder belongs to it; the caller does not look there."""
        for negated, folders_only, expression in reversed(self._rules):
            if (folder or not folders_only) and expression.fullmatch(path):
                return not negated
        return False


def _rule(pattern: str) -> tuple[bool, bool, re.Pattern[str]] | None:
    text = re.sub(r"(?<!\\) +$", "", pattern.removesuffix("\n"))
    if not text or text.startswith("#"):
        return None
    negated = text.startswith("!")
    text = text.removeprefix("!")
    folders_only = text.endswith("/")
    text = text.rstrip("/")
    if not text:
        return None
    anchored = "/" in text
    body = _expression(text.removeprefix("/"))
    return negated, folders_only, re.compile(body if anchored else f"(?:.*/)?{body}", re.DOTALL)


def _expression(text: str) -> str:
    out, parts = "", text.split("/")
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**" and not last:
            out += "(?:.*/)?"
        elif part == "**" and number:
            out += ".+"
        else:
            out += segment_regex(part) + ("" if last else "/")
    return out
