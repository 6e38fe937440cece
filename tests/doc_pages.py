"""Reads the project's Markdown: example blocks with what is to be done with them, tables, headings, links.

A comment on the line above a block says what the test does with it; readers don't see it:

    <!-- file: tasks/x.yaml -->   write it to that file of the page's folder
    <!-- run -->                  run it by `sh -e`; `<!-- run: exit 1 -->` where another status than 0 is right
    <!-- output -->               what the last run printed; a line `...` stands for any lines
    <!-- not run: reason -->      an example that can't be run here
    <!-- new folder -->           alone: what follows begins with an empty folder
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))

_COMMENT = re.compile(r"<!-- (?P<verb>file|run|output|not run|new folder)(?:: (?P<argument>.+?))? -->")
_FENCE = re.compile(r"^```(\w*)$")
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block, or a comment without one."""

    line: int
    language: str
    verb: str | None
    argument: str
    text: str


def blocks(page: Path) -> Iterator[Block]:
    """All blocks of a page in their order."""
    lines = page.read_text(encoding="utf-8").splitlines()
    pending: tuple[int, str, str] | None = None
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if found := _COMMENT.fullmatch(line.strip()):
            if found["verb"] == "new folder":
                yield Block(number, "", "new folder", "", "")
            else:
                pending = (number, found["verb"], found["argument"] or "")
            continue
        if fence := _FENCE.match(line):
            end = lines.index("```", number)
            text = "\n".join(lines[number:end]) + "\n"
            verb, argument = (pending[1], pending[2]) if pending else (None, "")
            yield Block(number, fence[1], verb, argument, text)
            number = end + 1
        elif line.strip() and pending is not None:
            raise ValueError(f"{page.name}:{pending[0]}: the comment belongs to no block")
        if line.strip():
            pending = None


def prose(page: Path) -> str:
    """A page without its blocks and comments."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next one of its level or above."""
    text = prose(page)
    found = re.search(rf"^(#+) {re.escape(heading)}$", text, re.MULTILINE)
    assert found, f"{page.name} has no heading {heading!r}"
    rest = text[found.end() :]
    end = re.search(rf"^#{{1,{len(found[1])}}} ", rest, re.MULTILINE)
    return rest[: end.start()] if end else rest


def rows(text: str) -> list[list[str]]:
    """The cells of all tables in a text, without heads and rules."""
    found: list[list[str]] = []
    lines = text.splitlines()
    for number, line in enumerate(lines):
        is_head = number + 1 < len(lines) and re.fullmatch(r"\|[-| :]+\|", lines[number + 1].strip()) is not None
        if line.startswith("|") and not is_head and not re.fullmatch(r"\|[-| :]+\|", line.strip()):
            cells = re.split(r"(?<!\\)\|", line.strip().strip("|"))
            found.append([cell.strip() for cell in cells])
    return found


def names(cell: str) -> list[str]:
    """What stands in backticks."""
    return _CODE.findall(cell)


def first_column(text: str) -> list[str]:
    """Names in the first cells of the tables of a text."""
    return [name for row in rows(text) for name in names(row[0])]


def links(page: Path) -> list[str]:
    """Targets of all links."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """What `#…` may name in a page, as GitHub makes it from headings."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.replace("`", "").lower()).replace(" ", "-") for h in headings}
