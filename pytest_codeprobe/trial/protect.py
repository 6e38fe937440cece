"""Protected files: put back before grading, and what could shadow them taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import PurePosixPath

from pytest_codeprobe.model.sandbox import Sandbox
from pytest_codeprobe.sandboxes.patterns import Patterns

_EXTENSIONS = (".so", ".pyd")


def put_back(sandbox: Sandbox, patterns: Sequence[str]) -> Sequence[str]:
    """Restore each path that a pattern names and that differs by now; the paths that were put back or removed.

    An added file that a pattern names is removed, and so is one that Python would load instead of a protected module:
    its cached bytecode, a package or an extension module of its name.
    """
    if not patterns:
        return ()
    protected = matcher(patterns)
    changes = sandbox.touched(lambda path: protected(path) or any(map(protected, shadowed(path))))
    paths = [c.path for c in changes if c.kind != "deleted" or protected(c.path)]
    sandbox.restore(paths)
    return paths


def shadowed(path: str) -> Iterator[str]:
    """The Python modules that would not be what they seem because of this file."""
    pure = PurePosixPath(path)
    for folder in pure.parents:
        if folder.name == "__pycache__":
            yield str(folder.parent / f"{pure.name.partition('.')[0]}.py")
        elif folder.name:
            yield str(folder.with_name(folder.name + ".py"))
    if pure.suffix in _EXTENSIONS:
        yield str(pure.with_name(f"{pure.name.partition('.')[0]}.py"))


def matcher(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Whether a relative POSIX path, or a folder above it, fits one of the git-style patterns."""
    compiled = Patterns(patterns)

    def fits(path: str) -> bool:
        above = [str(folder) for folder in PurePosixPath(path).parents if folder.name]
        return compiled.match(path, folder=False) or any(compiled.match(folder, folder=True) for folder in above)

    return fits
