"""The lock files say what pyproject.toml and package.json say, and name no place to download from."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.make.lock import at_its_bound
from tests.make.project import (
    CONSTRAINTS,
    LOWEST,
    ROOT,
    MakeError,
    build_requirements,
    canonical,
    extra,
    group,
    pins,
    runtime_requirements,
)


def name_of(requirement: str) -> str:
    return canonical(requirement.partition(">")[0])


def test_every_requirement_is_pinned() -> None:
    wanted = [*runtime_requirements(), *extra("report"), *extra("test"), *group("lint"), *group("reference"), *build_requirements()]
    assert {name_of(requirement) for requirement in wanted} <= pins(CONSTRAINTS).keys()


def test_lowest_holds_the_lower_bounds() -> None:
    held = pins(LOWEST)
    for requirement in runtime_requirements():
        name, _, bound = at_its_bound(requirement).partition("==")
        # "8.4" and "8.4.0" are one version.
        assert held[canonical(name)].removesuffix(".0") == bound.removesuffix(".0"), requirement


@pytest.mark.parametrize("requirement", ["pytest", "pytest>8", "pytest>=8,<9", "pytest>=8; python_version > '3'"])
def test_a_requirement_without_a_plain_bound_is_refused(requirement: str) -> None:
    with pytest.raises(MakeError, match="its bound is what the lowest set tests"):
        at_its_bound(requirement)


@pytest.mark.parametrize("path", [CONSTRAINTS, LOWEST], ids=lambda path: path.name)
def test_a_lock_is_names_and_versions(path: Path) -> None:
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert lines
    assert all(re.fullmatch(r"[a-z0-9-]+==[a-z0-9.+]+", line) for line in lines)


def test_the_npm_lock_names_no_registry() -> None:
    lock = json.loads((ROOT / "package-lock.json").read_text(encoding="utf-8"))
    manifest = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    assert lock["packages"][""]["dependencies"] == manifest["dependencies"]
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]
