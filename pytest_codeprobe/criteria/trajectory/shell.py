"""The simple commands of a shell command line: `cd a && npm test | tee log` has three.

No shell, and no more than a reader's eye: what is quoted holds together, what is substituted (`$(…)`, backticks) or given to
another shell (`sh -c '…'`) is looked into, a heredoc's text is no command. Anything is taken, in time that grows with its length.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import dropwhile

_DEPTH = 4  #: of commands in commands
_MOST = 10_000  #: simple commands of one line
_LONGEST = 1 << 20  #: characters; of a longer line only these are taken apart
#: up to the next character that means something
_PLAIN = re.compile(r"[^\\'\"`$;&|()<>\n#]+")
_HEREDOC = re.compile(r"<<(-?)[ \t]*(?:'([^'\n]*)'|\"([^\"\n]*)\"|\\?([^\s;&|()<>'\"]+))")
_KEYWORDS = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{", "time"})
_ENDS = frozenset({"fi", "done", "}", "esac"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=(?:'[^']*'|\"[^\"]*\"|[^\s'\"])*\s+")
_WORD = re.compile(r"\S+\s*")
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})


def simple_commands(line: str) -> list[str]:
    """Each simple command as it is written, without what stands around it, in the order in which they are read."""
    found: list[str] = []
    for command in _split(line[:_LONGEST], _DEPTH):
        if len(found) >= _MOST:
            break
        found.append(command)
    return found


def words(command: str) -> list[str]:
    """The words of a simple command, quotes taken away; redirections are words of their own."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="<>")
    lexer.whitespace_split, lexer.commenters = True, ""
    try:
        return list(lexer)
    except ValueError:  # a quote that is not closed
        return command.split()


def without_assignments(command: str) -> str:
    """The command without the variables that are set for it (`A=1 make` → `make`)."""
    while (match := _ASSIGNMENT.match(command)) is not None:
        command = command[match.end() :]
    return command


def _split(line: str, depth: int) -> Iterator[str]:
    scan = _Scan(line)
    for text, nested in scan.commands():
        command = _bare(text)
        if command:
            yield command
            if depth > 0 and (script := _script_of(command)) is not None:
                yield from _split(script, depth - 1)
        if depth > 0:
            for inner in nested:
                yield from _split(inner, depth - 1)


def _bare(text: str) -> str:
    """Without the words of the shell's grammar before it."""
    text = text.strip()
    while (match := _WORD.match(text)) is not None and match[0].strip() in _KEYWORDS:
        text = text[match.end() :]
    return "" if text in _ENDS else text


def _script_of(command: str) -> str | None:
    """What `bash -lc '…'` is given to run."""
    head = without_assignments(command)
    if " -" not in head[:200] or not any(shell in head[:200] for shell in ("sh", "env")):
        return None
    parts: Sequence[str] = words(head)
    if parts and parts[0].rpartition("/")[2] == "env":
        parts = list(dropwhile(lambda part: "=" in part or part.startswith("-"), parts[1:]))
    if not parts or parts[0].rpartition("/")[2] not in _SHELLS:
        return None
    for number, part in enumerate(parts[1:-1], 1):
        if part.startswith("-") and not part.startswith("--") and part.endswith("c"):
            return parts[number + 1]
        if not part.startswith(("-", "+")):
            return None
    return None


class _Scan:
    """One pass over a line."""

    def __init__(self, line: str) -> None:
        self._line, self._at = line, 0
        self._start = 0
        self._nested: list[str] = []
        self._heredocs: list[tuple[str, bool]] = []

    def commands(self) -> Iterator[tuple[str, list[str]]]:
        """Each command with the substitutions in it."""
        line = self._line
        while self._at < len(line):
            if (plain := _PLAIN.match(line, self._at)) is not None:
                self._at = plain.end()
                continue
            char = line[self._at]
            if char in ";&|()\n" and not self._is_redirection(char):
                yield self._end()
                self._at += 1
                if char == "\n" and self._heredocs:
                    self._skip_heredocs()
                self._start = self._at
            elif char == "#" and (self._at == 0 or line[self._at - 1] in " \t\n;&|("):
                end = line.find("\n", self._at)
                ended = self._end()
                self._at = len(line) if end < 0 else end
                self._start = self._at
                yield ended
            else:
                self._step(char)
        yield self._end()

    def _end(self) -> tuple[str, list[str]]:
        nested, self._nested = self._nested, []
        return self._line[self._start : self._at], nested

    def _is_redirection(self, char: str) -> bool:
        """`2>&1`, `&>file`, `>|file`: no end of a command."""
        before, after = self._line[self._at - 1 : self._at], self._line[self._at + 1 : self._at + 2]
        return (char == "&" and (before in ("<", ">") or (after == ">" and before != "&"))) or (char == "|" and before == ">")

    def _step(self, char: str) -> None:
        if char == "\\":
            self._at += 2
        elif char == "'":
            self._at = self._after("'", self._at + 1)
        elif char == '"':
            self._double()
        elif char == "`":
            end = self._after("`", self._at + 1)
            self._nested.append(self._line[self._at + 1 : end - 1])
            self._at = end
        elif char == "$" and self._line.startswith("$(", self._at):
            self._substitution()
        elif char == "<" and (match := _HEREDOC.match(self._line, self._at)) is not None and not self._line.startswith("<<<", self._at):
            word = next((part for part in match.groups()[1:] if part is not None), "")
            self._heredocs.append((word, bool(match[1])))
            self._at = match.end()
        elif self._line.startswith("<<<", self._at):
            self._at += 3
        else:
            self._at += 1

    def _after(self, quote: str, start: int) -> int:
        end = self._line.find(quote, start)
        return len(self._line) if end < 0 else end + 1

    def _double(self) -> None:
        """To the end of a text in double quotes, with what is substituted in it."""
        line, self._at = self._line, self._at + 1
        while self._at < len(line):
            char = line[self._at]
            if char == '"':
                self._at += 1
                return
            if char in "\\`" or line.startswith("$(", self._at):
                self._step(char)
            else:
                more = re.compile(r'[^"\\`$]+').match(line, self._at)
                self._at = more.end() if more is not None else self._at + 1

    def _substitution(self) -> None:
        """Over `$( … )`, brackets in it counted and quotes held together."""
        line, start = self._line, self._at + 2
        level, at = 1, start
        while at < len(line) and level:
            char = line[at]
            if char == "\\":
                at += 2
                continue
            if char in "'\"":
                at = self._closed(char, at + 1)
                continue
            level += (char == "(") - (char == ")")
            at += 1
        at = min(at, len(line))
        self._nested.append(line[start : at - 1 if level == 0 else at])
        self._at = at

    def _closed(self, quote: str, at: int) -> int:
        line = self._line
        while at < len(line) and line[at] != quote:
            at += 2 if quote == '"' and line[at] == "\\" else 1
        return at + 1

    def _skip_heredocs(self) -> None:
        for word, tabs in self._heredocs:
            while self._at < len(self._line):
                end = self._line.find("\n", self._at)
                end = len(self._line) if end < 0 else end
                text = self._line[self._at : end]
                self._at = min(end + 1, len(self._line))
                if (text.lstrip("\t") if tabs else text) == word:
                    break
        self._heredocs = []


__all__ = ["simple_commands", "without_assignments", "words"]
