"""Whether the arguments of a call are those that a task asks for.

Words are told from flags by what the task says of them, never by a guess: only a flag that takes a value by its own account, or that
stands in `value_flags`, is followed by one. So `delete --yes proj-1` has `proj-1` among its words, whatever `--yes` is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import monotonic

from pytest_codeprobe.criteria.base import compile_pattern
from pytest_codeprobe.model.base import is_number
from pytest_codeprobe.model.invocations import Facets, FlagMatch


class SlowPattern(Exception):
    """The expressions were not through with the values in time."""


@dataclass(slots=True)
class Arguments:
    """A call's arguments, sorted."""

    words: list[str] = field(default_factory=list)
    flags: dict[str, list[str]] = field(default_factory=dict)  #: name without dashes -> values; "" for a switch


def fits(facets: Facets, argv: Sequence[str], until: float) -> bool:
    """Whether all that is asked holds. SlowPattern where that is not known at `until`, by the monotonic clock."""
    wanted = {_bare(name): match for name, match in (facets.flags or {}).items()}
    valued = {*map(_bare, facets.value_flags)}
    known = {*valued, *map(_bare, facets.ignore_flags)}
    for name, match in wanted.items():
        names = {name, *map(_bare, match.aliases)}
        known |= names
        valued |= names if match.takes_value else set()
    given = sort(argv, valued=frozenset(valued), known=frozenset(known))
    at = _after_verb(facets.verbs, given.words)
    if at is None:
        return False
    if facets.positional is not None and tuple(given.words[at : at + len(facets.positional)]) != facets.positional:
        return False
    for name in map(_bare, facets.ignore_flags):
        given.flags.pop(name, None)
    return all(_holds(match, _values(given, (name, *map(_bare, match.aliases))), until) for name, match in wanted.items())


def sort(argv: Sequence[str], *, valued: frozenset[str], known: frozenset[str]) -> Arguments:
    """Words and flags. `valued`: flags that take a value; `known`: names that are taken whole, where `-abc` is `-a -b -c` otherwise."""
    sorted_out, rest = Arguments(), list(reversed(argv))
    while rest:
        token = rest.pop()
        if token == "--":
            sorted_out.words += reversed(rest)
            break
        if not token.startswith("-") or token == "-":
            sorted_out.words.append(token)
            continue
        name, equals, value = token.lstrip("-").partition("=")
        short = not token.startswith("--")
        if not name or (not equals and name not in known and is_number(name)):
            sorted_out.words.append(token)
        elif short and name not in known and name[0] in valued and len(token) > 2:
            _add(sorted_out, name[0], token[2:])  # -ofile, -ofile=x
        elif equals:
            _add(sorted_out, name, value)
        elif name in valued and rest:
            _add(sorted_out, name, rest.pop())
        elif short and name not in known:
            for letter in name:
                _add(sorted_out, letter, "")
        else:
            _add(sorted_out, name, "")
    return sorted_out


def _add(to: Arguments, name: str, value: str) -> None:
    to.flags.setdefault(name, []).append(value)


def _bare(name: str) -> str:
    return name.lstrip("-")


def _after_verb(verbs: Sequence[Sequence[str]], words: Sequence[str]) -> int | None:
    """How many words the verb takes, the longest of the spellings that fit; None if none does."""
    lengths = [len(verb) for verb in verbs if list(words[: len(verb)]) == list(verb)]
    return max(lengths, default=None) if verbs else 0


def _values(given: Arguments, names: Iterable[str]) -> list[str] | None:
    """The values of a flag under all of its names; None if it was not given."""
    found_values = [value for name in dict.fromkeys(names) for value in given.flags.get(name, ())]
    return found_values or None


def _holds(match: FlagMatch, values: list[str] | None, until: float) -> bool:
    """Whether a flag is as asked. Of several values one is enough."""
    if match.absent or values is None:
        return match.absent and values is None
    if match.equals is not None:
        return match.equals in values
    if match.contains is not None:
        return any(match.contains in value for value in values)
    if match.any_of is not None:
        return any(value in match.any_of for value in values)
    if match.matches_regex is not None:
        return _any_found(match, values, until)
    return True  # present


def _any_found(match: FlagMatch, values: Sequence[str], until: float) -> bool:
    pattern = compile_pattern(match.matches_regex or "", match.flags)
    for value in values:
        if (left := until - monotonic()) <= 0:
            raise SlowPattern
        try:
            if pattern.search(value, timeout=left, concurrent=True) is not None:
                return True
        except TimeoutError as error:
            raise SlowPattern from error
    return False
