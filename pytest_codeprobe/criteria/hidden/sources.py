"""What the sources of hidden tests say before anything runs: whether they parse, and what they import.

The parser warns about some sources, and warning filters belong to the whole process: beside an ordinary test that counts warnings,
or where they are errors, nothing may be parsed here that it could warn about. Such files, and those that don't parse, are left to a
process of their own; it costs 20 ms.
"""

from __future__ import annotations

import ast
import functools
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from pytest_codeprobe.criteria.hidden.layout import python_files

#: a superset of what parsers up to 3.14 warn about: escapes that are none, a number that runs into a keyword, a jump out of `finally`
_MAY_WARN = re.compile(rb"""\\[^\n\r\\'"abfnrtvx0-3]|[0-9][\w.]*(?:and|else|for|if|in|is|not|or)\b|\bfinally\b""")
_ENCODED = re.compile(rb"\A(?:[^\n\r]*(?:\r\n?|\n))?[^\n\r]*coding[:=]")  # there, a byte need not be what it looks like
_FAILURES = (SyntaxError, ValueError, RecursionError, MemoryError)  # the last two: nested too deep

#: the same in a process: the imported names, a line each; 1 and the reason if a file does not parse
PARSE = """
import ast, pathlib, sys
found = set()
for file in map(pathlib.Path, sys.argv[1:]):
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        sys.exit(print(f"{file.name}: {error}") or 1)
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
        found.update(name.split(".")[0] for name in names)
print(*sorted(found), sep="\\n")
"""


def imported(files: Sequence[Path]) -> tuple[set[str], list[Path]]:
    """Modules that they import, by their first names; and the files that a process must look at. OSError."""
    names: set[str] = set()
    unknown = []
    for file in files:
        found = _imported(file.read_bytes())
        if found is None:
            unknown.append(file)
        else:
            names |= found
    return names, unknown


@functools.lru_cache(maxsize=64)  # repeats and variants have the same files
def _imported(source: bytes) -> frozenset[str] | None:
    if may_warn(source):
        return None
    try:
        tree = ast.parse(source)
    except _FAILURES:
        return None
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return frozenset(names)


def may_warn(source: bytes) -> bool:
    """Whether the parser could warn about it; True too often, never False when it does."""
    return _MAY_WARN.search(source) is not None or _ENCODED.search(source) is not None


def stdlib_conflicts(template: Path, names: set[str]) -> list[str]:
    """Names of the standard library among `names`, which hidden tests import, that the template brings too: nobody knows which is meant."""
    taken = sys.stdlib_module_names & names
    return sorted(taken & top_names(template)) if taken else []


def top_names(template: Path) -> set[str]:
    """Modules and packages that the template brings, at its top and in `src`."""
    names = set()
    for folder in (template, template / "src"):
        for entry in folder.iterdir() if folder.is_dir() else ():
            if entry.suffix == ".py" and entry.is_file():
                names.add(entry.stem)
            elif entry.name.isidentifier() and entry.is_dir() and python_files([entry]):
                names.add(entry.name)
    return names
