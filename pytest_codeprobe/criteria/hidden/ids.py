"""Which collected tests an id in `fail_to_pass` or `pass_to_pass` means."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


class Ambiguous(Exception):
    """An id that fits tests in several places."""


def resolve(listed: str, collected: Iterable[str], prefixes: Sequence[tuple[str, str]] = ()) -> list[str]:
    """The collected node ids that a listed id stands for; none = it was not collected. Ambiguous.

    `./` and the folder that a hidden path was laid over are stripped. A path may be given from any folder on. Without a path
    the name must be unique; without `[…]` all parameters are meant. Text that pytest escapes may be written as it is.
    """
    path, name = _split(_relocate(listed.removeprefix("./"), prefixes))
    for wanted in dict.fromkeys((name, _escaped(name))):
        hits = [(*_parts(node), node) for node in collected]
        hits = [hit for hit in hits if _is_path(hit[0], path) and _is_name(hit[1], wanted, bare=not path)]
        exact = [hit for hit in hits if hit[0] == path]
        hits = exact or hits
        places = {(file, "" if path else _base(test)) for file, test, _ in hits}
        if len(places) > 1:
            raise Ambiguous(f"fits {', '.join(sorted('::'.join(p).removesuffix('::') for p in places)[:3])}")
        if hits:
            return [node for _, _, node in hits]
    return []


def _relocate(listed: str, prefixes: Sequence[tuple[str, str]]) -> str:
    for before, after in prefixes:
        if listed.startswith((f"{before}/", f"{before}::")) or listed == before:
            return after + listed[len(before) :]
    return listed


def _split(listed: str) -> tuple[str, str]:
    """(path, name); the path is empty where only a test's name is given, the name where a whole file is."""
    head, _, tail = listed.partition("::")
    if "[" not in head and ("." in head or "/" in head):
        return head, tail
    return "", listed


def _parts(node: str) -> tuple[str, str]:
    path, _, name = node.partition("::")
    return path, name


def _is_path(path: str, wanted: str) -> bool:
    return not wanted or path == wanted or path.endswith(f"/{wanted}")


def _is_name(name: str, wanted: str, *, bare: bool) -> bool:
    if not wanted:
        return True
    names = [name]
    if bare and "::" in _base(name):  # a method without its class
        names.append(name.partition("::")[2])
    return any(n == wanted or n.startswith(f"{wanted}::") or ("[" not in wanted and n.startswith(f"{wanted}[")) for n in names)


def _base(name: str) -> str:
    return name.partition("[")[0]


def _escaped(name: str) -> str:
    """Parameters as pytest writes them: characters beyond ASCII as escapes."""
    base, bracket, parameters = name.partition("[")
    return base + bracket + parameters.encode("unicode_escape").decode("ascii")
