"""Which programs a shell command starts, as far as its text alone tells that."""

from __future__ import annotations

import re
import shlex

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
#: after these a new command begins, whatever became of the one before
_ENDS = frozenset({";", "&&", "|", "&"})
#: words of the shell itself: what stands after a keyword is no plain command
_BUILTINS = frozenset(
    {"alias", "bg", "break", "cd", "command", "continue", "echo", "eval", "exec", "exit", "export", "false", "fg", "getopts", "hash"}
    | {"jobs", "kill", "let", "local", "printf", "pwd", "read", "readonly", "return", "set", "shift", "source", "test", "times", "trap"}
    | {"true", "type", "ulimit", "umask", "unalias", "unset", "wait", "[", ":", "."}
)
_KEYWORDS = frozenset(("if", "for", "while", "until", "case", "function", "select", "time", "then", "do", "!", "{", "}"))
_BEYOND = re.compile(r"[$`()<\n]|\|\|")  # what is computed, nested, defined here, fed in, or tried


def programs_of(command: str) -> tuple[str, ...]:
    """Names, without a folder, of the programs that a line for `sh -c` is sure to start. Of what is not plain, none."""
    if _BEYOND.search(command):
        return ()
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:  # a quote without its end
        return ()
    found: dict[str, None] = {}
    begins = True
    for word in words:
        if word in _ENDS:
            begins = True
        elif not begins or _ASSIGNMENT.match(word):
            continue
        elif word in _KEYWORDS:
            return ()
        else:
            begins = False
            if word not in _BUILTINS and _NAME.fullmatch(word):
                found[word] = None
    return tuple(found)
