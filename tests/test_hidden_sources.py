"""What hidden tests' sources say before a run; and that no thread of a trial builds a syntax tree."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_codeprobe.criteria.hidden import sources
from pytest_codeprobe.errors import with_frames
from tests.front_door import Project, scripted

pytestmark = pytest.mark.joint


def ask(files: Sequence[Path]) -> str:
    done = subprocess.run([sys.executable, "-I", "-W", "ignore", "-c", sources.PARSE, *files], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stdout)
    return done.stdout


def test_imports_are_asked_for_once(tmp_path: Path) -> None:
    first, second = tmp_path / "test_a.py", tmp_path / "test_b.py"
    first.write_text("import os.path, json as j\nfrom xml.dom import minidom\nfrom . import own\ndef f():\n    from email import policy\n")
    second.write_text("import csv\na = '\\d'\n")
    known, asked = sources.Imports(), list[list[Path]]()

    def counted(files: Sequence[Path]) -> str:
        asked.append(list(files))
        return ask(files)

    assert known.of([first], "python", counted) == {"os", "json", "xml", "email"}
    assert known.of([first, second], "python", counted) == {"os", "json", "xml", "email", "csv"}
    assert known.of([second, first], "python", counted) == {"os", "json", "xml", "email", "csv"}
    assert known.of([], "python", counted) == set()
    assert known.of([first], "other", counted) == {"os", "json", "xml", "email"}
    assert asked == [[first], [second], [first]]
    second.write_text("def deep():\n    return " + "(" * 400 + ")" * 400 + "\n")
    with pytest.raises(ValueError, match=r"test_b\.py: "):
        known.of([second], "python", counted)


def test_imports_are_known_whatever_others_ask_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept is bounded, and shared by the threads of all trials."""
    monkeypatch.setattr(sources, "_MAX_KNOWN", 1)
    first, second, third = files = [tmp_path / f"test_{name}.py" for name in "abc"]
    for file, module in zip(files, ("csv", "json", "xml"), strict=True):
        file.write_text(f"import {module}\n")
    known = sources.Imports()
    assert known.of([first], "python", ask) == {"csv"}

    def busy(files: Sequence[Path]) -> str:
        known.of([third], "python", ask)
        return ask(files)

    assert known.of([first, second], "python", busy) == {"csv", "json"}
    assert known.of([first, third], "python", ask) == {"csv", "xml"}


WATCH = """
import ast, threading, traceback, _pytest.assertion.rewrite as rewrite
import pytest
real = ast.parse
def parse(*args, **kwargs):
    if threading.current_thread() is not threading.main_thread():
        with open("parsed", "a") as file:
            traceback.print_stack(file=file)
    return real(*args, **kwargs)
ast.parse = parse
class Broken(Exception): pass
class Raises(Criterion):
    type: Literal["raises"]
    def evaluate(self, grading):
        try:
            {}["a"] + 1
        except KeyError as error:
            raise Broken("own") from error
def pytest_codeprobe_criteria(): return [Raises]
def pytest_codeprobe_make_sandbox(trial):
    if trial.task_id == "no-sandbox": raise Broken("sandbox")
"""


def test_no_thread_of_a_trial_builds_a_syntax_tree(project: Project) -> None:
    """Not for hidden tests, nor for a traceback in a log, nor for a module of ours that it is the first to need."""
    project.write("conftest.py", "from typing import Literal\nfrom pytest_codeprobe.model.criterion import Criterion\n" + WATCH)
    project.write("tasks/hidden/test_x.py", "import pathlib\ndef test_x(): assert pathlib.Path('out.txt').exists()\n")
    write = {"write": {"path": "out.txt", "content": "{}"}}
    for number in range(3):
        project.task(f"hidden-{number}", agent=scripted(write), success_criteria=[{"type": "pytest", "paths": ["hidden"]}])
    project.task("raises", agent=scripted(write), success_criteria=[{"type": "raises"}])
    project.task("no-sandbox", agent=scripted(write))
    project.task("fails", agent=scripted({"fail": "AGENT_CRASHED"}))
    project.task("checks", agent=scripted(write), success_criteria=[
        {"type": "json_check", "path": "out.txt", "json_schema": {"type": "object"}, "assertions": [{"expression": "a", "expected": 1}]},
        {"type": "file_matches_regex", "path": "out.txt", "pattern": "x"}, {"type": "run_command", "command": "true"},
    ])  # fmt: skip
    project.write("tasks/schema.json", '{"type": "object"}')
    project.task(
        "schema", agent=scripted(write), success_criteria=[{"type": "json_check", "path": "out.txt", "json_schema": "schema.json"}]
    )
    run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-jobs=4", "-p", "no:cacheprovider")
    assert run.wrote, run.output
    assert (run.statuses["hidden-0"], run.statuses["schema"]) == ("passed", "passed"), run.output
    assert (run.statuses["raises"], run.statuses["no-sandbox"], run.statuses["checks"]) == ("error", "error", "failed")
    log = (run.trial("raises") / "attempt-1" / "trial.log").read_text()
    assert "KeyError: 'a'\n" in log
    assert 'raise Broken("own") from error\n' in log
    assert not (project.path / "parsed").exists(), (project.path / "parsed").read_text()


def test_a_traceback_is_whole_and_ends() -> None:
    def circle() -> None:
        first, second = ValueError("one"), KeyError("two")
        first.__cause__, second.__cause__ = second, first
        raise first

    with pytest.raises(ValueError, match="one") as caught:
        circle()
    text = with_frames(caught.value)
    assert text.index("KeyError: 'two'") < text.index("in circle\n    raise first\nValueError: one")
