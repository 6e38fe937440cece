"""Which files are task files."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_codeprobe.options import INIS
from pytest_codeprobe.tasks.discovery import TaskPatterns, looks_like_task
from tests.task_files import MINIMAL, write

ROOT = Path("/r/project")
DEFAULT = next(ini.default for ini in INIS if ini.name == "codeprobe_files")


def patterns(*files: str, ignore: tuple[str, ...] = ()) -> TaskPatterns:
    return TaskPatterns(files or DEFAULT, ignore, ROOT)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("tasks/a.yaml", True),
        ("tasks/a.yml", True),
        ("tasks/x/y/.z/a.yaml", True),
        ("tasks/a.json", False),
        ("sub/tasks/a.yaml", False),
        ("tasks.yaml", False),
        ("x.task.yaml", True),
        ("deep/er/x.task.yml", True),
        ("x.task.yaml/y.yaml", False),
        ("/elsewhere/x.task.yaml", True),
        ("/elsewhere/tasks/x.yaml", False),
        ("/r/project2/tasks/x.yaml", False),
    ],
)
def test_default_patterns(path: str, expected: bool) -> None:
    assert patterns().matches(ROOT / path) is expected


@pytest.mark.parametrize(
    ("pattern", "path", "expected"),
    [
        ("/*.yaml", "a.yaml", True),
        ("/*.yaml", "x/a.yaml", False),
        ("./evals/*.yaml", "evals/a.yaml", True),
        ("evals/", "evals/x/a.yaml", True),
        ("evals/", "x/evals/a.yaml", True),
        ("/evals/", "x/evals/a.yaml", False),
        ("evals/**", "evals/x/a.yaml", True),
        ("**/e/**/a.yaml", "e/a.yaml", True),
        ("**/e/**/a.yaml", "x/e/y/z/a.yaml", True),
        ("a?.yaml", "ab.yaml", True),
        ("a?.yaml", "a.yaml", False),
        ("a[0-9].yaml", "a7.yaml", True),
        ("a[!0-9].yaml", "a7.yaml", False),
        ("a[]x].yaml", "a].yaml", True),
        ("a[z-a].yaml", "am.yaml", False),
        ("a[.yaml", "a[.yaml", False),
        (r"a\*.yaml", "a*.yaml", True),
        (r"a\*.yaml", "ab.yaml", False),
        ("A.yaml", "a.yaml", False),
        ("e(1)+.yaml", "e(1)+.yaml", True),
    ],
)
def test_patterns_are_git_style(pattern: str, path: str, expected: bool) -> None:
    assert patterns(pattern).matches(ROOT / path) is expected


def test_what_is_ignored_takes_all_below_it_along() -> None:
    some = patterns(ignore=("tasks/drafts", "*.wip.yaml", "old/"))
    assert some.matches(ROOT / "tasks/a.yaml")
    for path in ("tasks/drafts/a.yaml", "tasks/drafts/x/a.yaml", "tasks/a.wip.yaml", "tasks/old/a.yaml"):
        assert not some.matches(ROOT / path)
        assert some.ignores(ROOT / path)
    assert not some.may_hold(ROOT / "tasks/drafts")


def test_the_literal_prefix_of_patterns() -> None:
    some = patterns("build/agents/**/*.yaml", "x/y*/z/*.yaml", "*.task.yaml")
    on = {path for path in ("", "build", "build/agents", "build/agents/x", "x", "x/y", "x/y1", "other") if some.on_prefix(ROOT / path)}
    assert on == {"", "build", "build/agents", "x"}
    assert not some.on_prefix(ROOT.parent)


def test_folders_that_may_hold_a_task() -> None:
    some = patterns("tasks/*/task.yaml", "evals/**/x.yaml")
    may = {path for path in ("", "tasks", "tasks/a", "tasks/a/b", "evals", "evals/a/b", "other") if some.may_hold(ROOT / path)}
    assert may == {"tasks/a", "evals", "evals/a/b"}
    assert patterns("*.task.yaml").may_hold(ROOT / "any/where")
    assert not patterns("tasks/*.yaml").may_hold(Path("/elsewhere"))


@functools.cache
def reference(parts: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """What a pattern means, part by part."""
    if not parts:
        return not path
    if parts[0] == "**":
        if len(parts) == 1:
            return len(path) >= 1
        return reference(parts[1:], path) or (bool(path) and reference(parts, path[1:]))
    return bool(path) and one_part(parts[0], path[0]) and reference(parts[1:], path[1:])


def one_part(pattern: str, name: str) -> bool:
    if not pattern:
        return not name
    if pattern[0] == "*":
        return one_part(pattern[1:], name) or (bool(name) and one_part(pattern, name[1:]))
    return bool(name) and pattern[0] in ("?", name[0]) and one_part(pattern[1:], name[1:])


parts = st.lists(st.sampled_from(["**", "a", "b", "*", "a*", "?b", "*b*"]), min_size=2, max_size=5)
names = st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=5)


@given(parts, names)
def test_patterns_mean_what_the_reference_says(pattern: list[str], path: list[str]) -> None:
    file = [*path[:-1], path[-1] + ".yaml"]
    last = "**" if pattern[-1] == "**" else pattern[-1] + ".yaml"
    some = patterns("/".join([*pattern[:-1], last]))
    assert some.matches(ROOT.joinpath(*file)) == reference((*pattern[:-1], last), tuple(file))


@given(parts, names)
def test_a_folder_of_a_match_may_hold_it(pattern: list[str], path: list[str]) -> None:
    some = patterns("/".join(pattern) + ".yaml")
    file = ROOT.joinpath(*path[:-1], path[-1] + ".yaml")
    assert some.may_hold(file.parent) or not some.matches(file)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (MINIMAL, True),
        ("\ufeff" + MINIMAL, True),
        ("- task_id: a\n  success_criteria: []\n", True),
        ("-   task_id: a\n    success_criteria: []\n", True),
        ("- description: x\n  task_id: a\n  success_criteria: []\n", True),
        ('"task_id": a\n"success_criteria": []\n', True),
        ("task_id: a\n", False),
        ("success_criteria: []\n", False),
        ("result:\n  task_id: a\n  success_criteria: []\n", False),
        ("# task_id: a\nsuccess_criteria: []\n", False),
        ("my_task_id: a\nsuccess_criteria: []\n", False),
    ],
)
def test_the_look_of_a_task(tmp_path: Path, text: str, expected: bool) -> None:
    assert looks_like_task(write(tmp_path / "a.yaml", text)) is expected
    assert not looks_like_task(write(tmp_path / "a.txt", text))


def test_a_file_that_cant_be_read_is_for_the_loader_to_explain(tmp_path: Path) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    assert looks_like_task(tmp_path / "loop.yaml")


def test_discovery_loads_nothing_of_ours_and_no_library() -> None:
    program = (
        "import sys; before = set(sys.modules); import pytest_codeprobe.tasks.discovery; new = set(sys.modules) - before;"
        "bad = {m for m in new if m.split('.')[0] in ('yaml', 'pydantic', 'pytest', '_pytest')"
        " or m.startswith('pytest_codeprobe.') and m not in ('pytest_codeprobe.tasks', 'pytest_codeprobe.tasks.discovery')};"
        "print(sorted(bad))"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=root, env={}, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
