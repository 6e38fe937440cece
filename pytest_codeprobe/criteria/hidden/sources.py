"""What the sources of hidden tests say before anything runs: whether they parse, and what they import.

A process of its own parses them. In this one trials run in threads, and CPython 3.11 can't build two syntax trees at once; the parser's
warnings, too, would hit filters that belong to the whole process.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from pytest_codeprobe.criteria.hidden.layout import python_files

#: prints the imported names of each file as JSON; 1 and the reason if one does not parse
PARSE = """
import ast, json, pathlib, sys
found = []
for file in map(pathlib.Path, sys.argv[1:]):
    try:
        tree = ast.parse(file.read_bytes(), file.name)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        sys.exit(print(f"{file.name}: {error}") or 1)
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    found.append(sorted(names))
print(json.dumps(found))
"""
_MAX_KNOWN = 4096


class Imports:
    """What files import, by their content and the interpreter; each asked for once."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, bytes], frozenset[str]] = {}

    def of(self, files: Sequence[Path], python: str, ask: Callable[[Sequence[Path]], str]) -> set[str]:
        """Modules that they import, by their first names. `ask` runs PARSE on files and answers what it printed. OSError."""
        keys = {file: (python, hashlib.sha256(file.read_bytes()).digest()) for file in files}
        known = self._known  # other threads put another one in its place
        names = {file: known[key] for file, key in keys.items() if key in known}
        if unknown := [file for file in files if file not in names]:
            told = json.loads(ask(unknown).splitlines()[-1])
            asked = {file: frozenset(found) for file, found in zip(unknown, told, strict=True)}
            self._known = {**(known if len(known) < _MAX_KNOWN else {}), **{keys[file]: found for file, found in asked.items()}}
            names |= asked
        return set().union(*names.values())


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
