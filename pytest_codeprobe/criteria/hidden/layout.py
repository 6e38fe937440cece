"""Where hidden tests are laid for a run, and what the run may import.

Beside the grading copy by default, in a folder whose name nobody can guess; over a folder of it where the task says `at`.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.util
import json
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_SKIPPED = frozenset({"__pycache__", ".pytest_cache", ".git"})
_PYTEST_PARTS = ("pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py", "exceptiongroup", "tomli")
_NAMES_CHANGED_BY = ("python_files", "python_classes", "python_functions")


class CannotLay(Exception):
    """The grading copy can't take the hidden tests, because of what the agent left in it. The text is the reason."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Hidden tests in place."""

    root: Path  #: names of hidden files and tests start from it
    strip: str  #: what pytest's node ids begin with before that
    targets: tuple[Path, ...]  #: files and folders to run
    sources: tuple[tuple[Path, str], ...]  #: Python files, each with its node id, empty for those that hold no tests
    ini: Path | None  #: the task's own pytest.ini
    prefixes: tuple[tuple[str, str], ...]  #: what a path beside the task is called in node ids: (`hidden`, `tests`)
    digests: dict[Path, bytes] = field(default_factory=dict)  #: of every hidden file

    def changed(self) -> list[str]:
        """Hidden files that are no longer what was laid."""
        return sorted(str(f.relative_to(self.root)) for f, digest in self.digests.items() if _digest(f) != digest)

    def renames_tests(self) -> bool:
        """Whether the ini decides by itself which names are tests."""
        text = self.ini.read_text(encoding="utf-8", errors="replace") if self.ini else ""
        return any(key in text for key in _NAMES_CHANGED_BY)

    def mention(self, *words: bytes) -> bool:
        """Whether any hidden Python file holds one of the words. Asked before the run."""
        return any(word in file.read_bytes() for file in self.digests if file.suffix == ".py" for word in words)


def lay_beside(scratch: Path, task: Path, paths: Sequence[Path]) -> Layout:
    """Copy hidden tests into a new folder below `scratch`; a single file brings the conftest.py files above it, up to the task's."""
    root = scratch / f"t{secrets.token_hex(6)}"
    root.mkdir()
    base = Path(os.path.commonpath([task, *paths]))
    targets = []
    for path in paths:
        target = root / path.relative_to(base)
        if path.is_dir():
            copy_tree(path, target)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)
        for folder in path.parents:
            if not folder.is_relative_to(base):
                break
            if (conftest := folder / "conftest.py").is_file():
                (root / folder.relative_to(base)).mkdir(parents=True, exist_ok=True)
                shutil.copyfile(conftest, root / folder.relative_to(base) / "conftest.py")
        targets.append(target)
    return _finish(root, targets, list(_files(root)), strip=f"{root.name}/", prefixes=())


def lay_over(workspace: Path, template: Path, at: str, task: Path, paths: Sequence[Path]) -> Layout:
    """Make a folder of the grading copy the template's plus the hidden tests; what the agent had in it vanishes.

    Then nothing that pytest or Python would read on the way down, or instead of that folder, is the agent's. CannotLay.
    """
    mount = workspace / at
    try:
        for folder in _way_down(workspace, mount):
            _own_conftest(folder, template / folder.relative_to(workspace))
        _remove(mount)
        _remove_shadows(mount, template / at)
        if (workspace / "src").is_dir() and not (workspace / "src").is_symlink():
            top = at.partition("/")[0]  # found there if the folder itself is no regular package
            if not (template / "src" / top).exists():
                _remove(workspace / "src" / top)
                _remove_shadows(workspace / "src" / top, template / "src" / top)
        mount.mkdir(parents=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise  # nobody's doing
        raise CannotLay(f"{at} can't be replaced by the hidden tests: {error.strerror}") from error
    if (template / at).is_dir():
        copy_tree(template / at, mount)
    hidden: list[Path] = []
    targets: list[Path] = []
    for path in paths:
        if path.is_dir():
            laid = [mount / file.relative_to(path) for file in _files(path)]
            copy_tree(path, mount)
            targets += [file for file in laid if is_test_file(file)]
        else:
            laid = [mount / path.name]
            shutil.copyfile(path, laid[0])
            targets += laid
            if (conftest := path.parent / "conftest.py").is_file():
                shutil.copyfile(conftest, mount / "conftest.py")
        hidden += laid
    prefixes = tuple((os.path.relpath(p, task), at if p.is_dir() else f"{at}/{p.name}") for p in paths)
    watched = {*hidden, *(file for file in _files(mount) if file.suffix == ".py")}
    return _finish(workspace, targets, sorted(watched), strip="", prefixes=prefixes)


def _finish(root: Path, targets: list[Path], files: list[Path], *, strip: str, prefixes: tuple[tuple[str, str], ...]) -> Layout:
    tests = {f for t in targets for f in ([t] if not t.is_dir() else filter(is_test_file, _files(t)))}
    python = [f for f in files if f.suffix == ".py"]
    sources = tuple((f, f.relative_to(root).as_posix() if f in tests else "") for f in python)
    ini = next((f for f in _inis(targets) if f in set(files)), None)
    digests = {f: _digest(f) for f in files}
    return Layout(root, strip, tuple(dict.fromkeys(targets)), sources, ini, prefixes, digests)


def _inis(targets: Sequence[Path]) -> Iterator[Path]:
    for target in targets:
        yield target / "pytest.ini"
        yield target.parent / "pytest.ini"


def is_test_file(file: Path) -> bool:
    """Whether pytest takes it for one where no ini says otherwise."""
    return file.suffix == ".py" and (file.name.startswith("test_") or file.stem.endswith("_test"))


def import_root(file: Path) -> Path:
    """The folder that the file's package, if it lies in one, is imported from."""
    return next(folder for folder in file.parents if not (folder / "__init__.py").exists())


def copy_tree(source: Path, target: Path) -> None:
    """Contents of files and the x bit, merged into what is there. Links become what they point to; caches are left out."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir()):
        if entry.name in _SKIPPED or entry.suffix == ".pyc":
            continue
        if entry.is_dir():
            if source.resolve().is_relative_to(entry.resolve()):
                continue  # a link to a folder above
            copy_tree(entry, target / entry.name)
        elif entry.is_file():
            (target / entry.name).unlink(missing_ok=True)
            shutil.copyfile(entry, target / entry.name)
            (target / entry.name).chmod(0o755 if entry.stat().st_mode & stat.S_IXUSR else 0o644)


def _files(folder: Path) -> Iterator[Path]:
    for path, folders, names in os.walk(folder):
        folders[:] = sorted(set(folders) - _SKIPPED)
        yield from (Path(path, name) for name in sorted(names) if not name.endswith(".pyc"))


def _digest(file: Path) -> bytes:
    """Of the content; of nothing for what is not a regular file any more."""
    try:
        if not stat.S_ISREG(file.lstat().st_mode):
            return b""
        with os.fdopen(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as opened:
            return hashlib.file_digest(opened, "sha256").digest()
    except OSError:
        return b""


def _way_down(workspace: Path, mount: Path) -> Iterator[Path]:
    """Folders from the workspace to the one above `mount`, real ones: a link or a file in their place is removed."""
    yield workspace
    for folder in reversed([p for p in mount.parents if p != workspace and p.is_relative_to(workspace)]):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(exist_ok=True)
        yield folder


def _own_conftest(folder: Path, original: Path) -> None:
    """The template's conftest.py, or none, and nothing that Python would take instead."""
    _remove(folder / "conftest")
    _remove(folder / "conftest.py")
    _remove_shadows(folder / "conftest", original / "conftest")
    if (original / "conftest.py").is_file():
        shutil.copyfile(original / "conftest.py", folder / "conftest.py")


def _remove_shadows(module: Path, original: Path) -> None:
    """Delete files that Python may take for `module` (a path without suffix) and that the template does not have."""
    for folder in (module.parent, module.parent / "__pycache__"):
        if folder.is_symlink() or not folder.is_dir():
            if folder.is_symlink() and folder.name == "__pycache__":
                folder.unlink()
            continue
        for file in folder.iterdir():
            named_so = file.name.partition(".")[0] == module.name and file.suffix in (".py", ".pyc", ".so")
            if named_so and (folder.name == "__pycache__" or not (original.parent / file.name).exists()):
                _remove(file)


def _remove(path: Path) -> None:
    """Delete a file, link or folder, also one without permissions. OSError if it is still there."""
    if not os.path.lexists(path):
        return
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    path.chmod(0o700)
    for folder, folders, _ in os.walk(path):
        for name in folders:
            inner = Path(folder, name)
            if not inner.is_symlink():
                inner.chmod(0o700)
    shutil.rmtree(path)


def python_files(paths: Sequence[Path]) -> list[Path]:
    """Those among the paths, and below the folders among them."""
    return [f for p in paths for f in (_files(p) if p.is_dir() else [p]) if f.suffix == ".py"]


@functools.cache
def pytest_parts() -> str:
    """JSON: the modules that make up the pytest that runs us, each with its file."""
    specs = {name: importlib.util.find_spec(name) for name in _PYTEST_PARTS}
    return json.dumps({name: spec.origin for name, spec in specs.items() if spec is not None and spec.origin is not None})


def pytest_places() -> list[Path]:
    """The files and folders of these."""
    found = [Path(origin) for origin in json.loads(pytest_parts()).values()]
    return [path.parent if path.name == "__init__.py" else path for path in found]
