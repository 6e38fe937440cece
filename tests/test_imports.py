"""What import-linter can't say: which packages from outside each part may import, and that nobody imports children/."""

from __future__ import annotations

import ast
import functools
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "pytest_codeprobe"
#: Part -> what it may import besides the standard library and the package; the longest matching part decides. Elsewhere any declared
#: dependency but RUNNERS will do, and in plugin/ and cli/ those too.
ALLOWED = {
    "__init__.py": set[str](),
    "options": set[str](),
    "errors.py": set[str](),
    "text.py": set[str](),
    "children": set[str](),
    "children/hidden_runner.py": {"pytest"},
    "model": {"pydantic", "pydantic_core"},
}
RUNNERS = {"pytest", "_pytest", "pluggy", "xdist", "execnet", "click"}
DECLARED_EXTRA = {"_pytest": "pytest", "pydantic_core": "pydantic", "execnet": "pytest-xdist", "referencing": "jsonschema"}


def sources() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Dotted names of all imports, wherever they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports are banned"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


class _WithoutTyping(ast.NodeTransformer):
    def visit_If(self, node: ast.If) -> ast.AST | list[ast.stmt]:
        """Of `if TYPE_CHECKING:` only the else branch ever runs."""
        self.generic_visit(node)
        return node.orelse if isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING" else node


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def what_runs(path: Path) -> ast.AST:
    """A file without what it imports for type checkers alone."""
    tree: ast.AST = _WithoutTyping().visit(parse(path))
    return tree


def outside(path: Path) -> set[str]:
    tops = {name.partition(".")[0] for name in imports(parse(path))}
    return tops - set(sys.stdlib_module_names) - {"pytest_codeprobe"}


def allowed(path: Path) -> set[str] | None:
    """The table's word on a file; None where it says nothing."""
    name = path.relative_to(PACKAGE).as_posix()
    parts = [part for part in ALLOWED if name == part or name.startswith(f"{part}/")]
    return ALLOWED[max(parts, key=len)] if parts else None


@pytest.mark.parametrize("path", sources(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_from_outside(path: Path) -> None:
    only = allowed(path)
    if path.parent.name == "children":
        # Run by path, they find their siblings on the search path.
        assert outside(path) - {sibling.stem for sibling in path.parent.glob("*.py")} <= (only or set())
        return
    if only is not None:
        assert outside(path) <= only
    elif path.relative_to(PACKAGE).parts[0] not in ("plugin", "cli"):
        assert not outside(path) & RUNNERS
    assert outside(path) <= declared(), "a package that pyproject.toml doesn't name"


@functools.cache
def declared() -> frozenset[str]:
    """Import names of the dependencies in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["report"]]
    names = {re.split(r"[<>=!~ \[]", requirement)[0].lower() for requirement in wanted}
    found = {module for module, distributions in packages_distributions().items() if names & {each.lower() for each in distributions}}
    return frozenset(found | {module for module, distribution in DECLARED_EXTRA.items() if distribution in names})


def test_nobody_imports_children() -> None:
    for path in sources():
        if path.parent.name != "children":
            assert not [name for name in imports(parse(path)) if name.startswith("pytest_codeprobe.children")], path


def test_children_do_not_import_the_package() -> None:
    children = sorted((PACKAGE / "children").glob("*.py"))
    assert children
    for path in children:
        assert not [name for name in imports(what_runs(path)) if name.startswith("pytest_codeprobe")], path
