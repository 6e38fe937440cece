"""Known runners of tests and builds, and the files of a workspace that can tell them to succeed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath

_PYTHON = ("**/conftest.py", "pytest.ini", ".pytest.ini", "pytest.toml", "tox.ini", "**/sitecustomize.py", "**/usercustomize.py", "*.pth")
_NODE = ("package.json", "**/.npmrc")
_MAKE = ("Makefile", "makefile", "GNUmakefile")
#: program -> globs, in the syntax of `sandbox.protected`
CONFIGURATION: Mapping[str, Sequence[str]] = {
    "pytest": _PYTHON,
    "py.test": _PYTHON,
    "tox": ("tox.ini", "tox.toml"),
    "nox": ("noxfile.py",),
    "npm": _NODE,
    "bun": _NODE,
    "pnpm": (*_NODE, "pnpm-workspace.yaml", ".pnpmfile.cjs"),
    "yarn": ("package.json", ".yarnrc", ".yarnrc.yml"),
    "jest": ("package.json", "jest.config.*"),
    "vitest": ("vitest.config.*", "vite.config.*"),
    "mocha": ("package.json", ".mocharc.*"),
    "make": _MAKE,
    "gmake": _MAKE,
    "just": ("justfile", ".justfile"),
    "cargo": ("Cargo.toml", ".cargo/**", "rust-toolchain*", "build.rs"),
    "go": ("go.mod", "go.work"),
}
#: programs that start another one, which their arguments name
_CARRIERS = frozenset(
    ("env", "exec", "time", "timeout", "nice", "xargs", "npx", "bunx", "pnpx", "uv", "poetry", "pdm", "hatch", "run", "command")
)
_SHELLS = frozenset(("sh", "bash", "dash", "zsh"))
_PYTHONS = re.compile(r"python(3(\.\d+)?)?")
_SEPARATORS = re.compile(r"[;&|()\n]+")
_STARTERS = frozenset(("if", "then", "else", "elif", "while", "until", "do", "!", "{"))
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_NEUTRAL = re.compile(r"-.*|\d+(\.\d+)?[smhd]?")  #: an option, or the seconds of `timeout`


def runners_of(command: str) -> tuple[str, ...]:
    """Names of the known runners that a line for `sh -c` starts, as far as its text tells. One that it does not start is not named."""
    return tuple(dict.fromkeys(_runners(command)))


def _runners(command: str) -> Iterator[str]:
    lexer = shlex.shlex(command.replace("\n", " ; "), posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote without its end
        return
    begins, before = True, ""
    for word in words:
        name = PurePosixPath(word).name
        if _SEPARATORS.fullmatch(word) or (begins and word in _STARTERS):
            begins = True
        elif before in _SHELLS and " " in word:
            yield from _runners(word)
        elif begins and name in CONFIGURATION:
            yield name
            begins = False
        elif begins:
            carries = name in _CARRIERS or _ASSIGNMENT.match(word) or _NEUTRAL.fullmatch(word)
            begins = bool(carries) or bool(_PYTHONS.fullmatch(name))
        if not word.startswith("-"):
            before = name
