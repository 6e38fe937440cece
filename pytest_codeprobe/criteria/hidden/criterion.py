"""The criterion `pytest`: tests that the agent never saw, run on what it left."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from pytest_codeprobe.criteria.base import WorkspacePath, broken, read_tail
from pytest_codeprobe.criteria.hidden.channel import OUTPUTS, Run, run_child, warm_program
from pytest_codeprobe.criteria.hidden.judge import Case, judge
from pytest_codeprobe.criteria.hidden.layout import (
    CannotLay,
    Layout,
    import_root,
    lay_beside,
    lay_over,
    python_files,
)
from pytest_codeprobe.criteria.hidden.sources import PARSE, Imports, stdlib_conflicts, top_names
from pytest_codeprobe.model.base import Float, Int, Text
from pytest_codeprobe.model.criterion import Criterion, Grading, Score
from pytest_codeprobe.model.sandbox import RESOURCES, Command
from pytest_codeprobe.text import ending

_SECONDS = 300.0
_CHILDREN = 4  #: the first, and fresh ones after a crash or a test's time-out
_OUTPUT = 8000  #: characters that are kept of what the children print
_SELECTING = ("-k", "-m", "--deselect", "--ignore", "--ignore-glob", "--lf", "--last-failed")
_SECRET = frozenset({"TASK_DIR", "REFERENCE_DIR"})  # the code under test shall not be shown the way to tests and solution
_PROBE = """
import importlib.metadata, importlib.util, sys
def missing(name):
    try:
        if name.replace(".", "").isidentifier():
            return importlib.util.find_spec(name) is None
        importlib.metadata.version(name)
    except (ImportError, ValueError):
        return True
print(*filter(missing, sys.argv[1:]), sep="\\n")
"""
_CANARY = """import unittest
import pytest

def test_{0}_assert():
    assert {1} == {2}

def test_{0}_raises():
    with pytest.raises(ZeroDivisionError):
        int("{1}")

class Test{0}(unittest.TestCase):
    def test_equal(self):
        self.assertEqual({1}, {2})
"""


_IMPORTS = Imports()


class HiddenTests(Criterion):
    """Hidden pytest tests. `paths` lie beside the task; `timeout` and `test_timeout` in seconds.

    They are laid beside the grading copy, or over its folder `at`, and run by the harness's pytest under `python` (an
    interpreter outside of the workspace: a path, or a name on the PATH; default: the environment of `sandbox.setup.python` as it was
    made, else the one that runs the harness).
    """

    type: Literal["pytest"]
    paths: tuple[Text, ...] = Field(min_length=1)
    at: WorkspacePath | None = None
    args: tuple[Text, ...] = ()
    requires: tuple[Text, ...] = ()
    min_tests: Int = Field(default=1, ge=1)
    fail_to_pass: tuple[Text, ...] = ()
    pass_to_pass: tuple[Text, ...] = ()
    python: Text | None = Field(default=None, min_length=1)
    test_timeout: Float = Field(default=60.0, gt=0)
    timeout: Float | None = Field(default=_SECONDS, gt=0)

    default_timeout: ClassVar[float] = _SECONDS
    task_paths: ClassVar[Mapping[str, str]] = {"paths": "hidden"}

    @field_validator("at")
    @classmethod
    def _not_everything(cls, value: str | None) -> str | None:
        if value == ".":
            raise ValueError("would replace the whole workspace; name the folder that the tests belong in")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> HiddenTests:
        if (self.fail_to_pass or self.pass_to_pass) and "min_tests" in self.model_fields_set:
            raise ValueError("'min_tests' has no meaning where 'fail_to_pass' or 'pass_to_pass' list the tests that count")
        for name in self.requires:
            if not name or name.startswith("-") or name.split() != [name]:
                raise ValueError(f"{name!r} is no name of a module or package")
        return self

    def preflight(self, grading: Grading) -> None:
        """Before the session, on the workspace as the templates make it: what would fail every agent alike.

        CodeprobeError VERIFIER_FAILED: no such interpreter, a package of `requires` missing, an ambiguous module name.
        """
        python = self._interpreter(grading)
        files = python_files(self._paths(grading))
        names = _IMPORTS.of(files, python, lambda unknown: self._ask_parser(grading, python, unknown))
        if doubled := stdlib_conflicts(grading.workspace, names):
            raise broken(f"the hidden tests import {', '.join(doubled)}, which the workspace and the standard library both have")
        if not self.requires:
            return
        command = Command(argv=[python, "-I", "-c", _PROBE, *self.requires], env=self._environment(grading, python, grading.workspace, []))
        try:
            result = grading.run(command, timeout=60.0)
        except OSError as error:
            raise broken(f"{python} could not be started: {error}") from error
        if result.exit.status != 0:
            raise broken(f"{python} could not say whether it has {', '.join(self.requires)}", result.stderr)
        if missing := result.stdout.split():
            where = "the image's python3" if grading.trial.sandbox.driver == "docker" else python
            raise broken(f"the hidden tests need {', '.join(missing)}, which {where} does not have")

    def _ask_parser(self, grading: Grading, python: str, files: Sequence[Path]) -> str:
        """What they import, as PARSE prints it, by the interpreter that counts, in a process in which no warning is an error."""
        command = Command(
            argv=[python, "-I", "-W", "ignore", "-c", PARSE, *map(str, files)],
            env=self._environment(grading, python, grading.workspace, []),
            reads=[Path(grading.trial.task_file).parent, *self._paths(grading)],
        )
        try:
            result = grading.run(command, timeout=60.0)
        except OSError as error:
            raise broken(f"{python} could not be started: {error}") from error
        if result.exit.cause in RESOURCES:
            raise broken(f"the hidden tests can't be read within {grading.trial.sandbox.limits.said(result.exit.cause)}")
        if result.exit.status != 0:
            raise broken(f"a hidden test does not parse: {result.stdout.strip()}", result.stderr)
        return result.stdout

    def evaluate(self, grading: Grading) -> Score:
        """The share of the tests that passed; 0 if anything changed the run. CodeprobeError VERIFIER_FAILED, Stopped."""
        python, paths = self._interpreter(grading), self._paths(grading)
        if not grading.workspace.is_dir() or grading.workspace.is_symlink():
            return Score(0.0, "the workspace is gone")
        task = Path(grading.trial.task_file).parent
        try:
            if self.at is None:
                layout = lay_beside(grading.scratch, task, paths)
            else:
                layout = lay_over(grading.workspace, grading.template, self.at, task, paths)
        except CannotLay as error:
            return Score(0.0, str(error))
        except OSError as error:
            raise broken(f"the hidden tests could not be laid: {error}") from error
        if not layout.targets:
            raise broken(f"there are no test files (test_*.py, *_test.py) in {', '.join(self.paths)}")
        return self._run(grading, python, layout)

    def _run(self, grading: Grading, python: str, layout: Layout) -> Score:
        scratch, word = grading.scratch, f"x{secrets.token_hex(6)}"
        names_known = "min_tests" not in self.model_fields_set and not layout.renames_tests()
        config = self._config(grading, layout)
        env = self._environment(grading, python, scratch, config["roots"])
        run = Run(may_xfail=layout.mention(b"xfail", b"expectedFailure"), strip=layout.strip)
        wanted = self.timeout or _SECONDS
        seconds = grading.time_left(wanted)
        deadline = monotonic() + seconds
        folders: list[Path] = []
        warm = warm_program(python, env, grading.context.environ)
        for _ in range(_CHILDREN):
            for way in dict.fromkeys((warm, None)):
                # In a new folder: the code under test could have changed what an earlier child was given.
                folders.append(folder := scratch / f"r{secrets.token_hex(6)}")
                argv = self._argv(folder, scratch, layout, run, word)
                job = {**config, "argv": argv, "done": sorted(i for i in run.tests if word not in i)}
                _forget(run, word)
                limits = {"deadline": deadline, "test_timeout": self.test_timeout}
                run_child(grading, job, run, python=python, env=env, warm=way, folder=folder, **limits)
                if run.begun or monotonic() >= deadline:
                    break
                warm = None  # it was not the tests that ended it, nor the code under test: without the short cut, then
            again = self._goes_on(run, layout, word) and monotonic() < deadline
            if not again or layout.changed() or scratch.is_symlink() or not scratch.is_dir():
                break
        if not run.has("ready") and run.reason == "timeout" and seconds < wanted:  # what took the time is the agent's code
            return Score(0.0, f"only {max(0.0, seconds):.1f} s were left of the time for grading")
        listed = (*self.fail_to_pass, *self.pass_to_pass)
        case = Case(
            word=word,
            strip=layout.strip,
            prefixes=layout.prefixes,
            filtered=any(arg.startswith(_SELECTING) for arg in self.args),
            expect_names=names_known,
            min_tests=1 if listed else self.min_tests,
            listed=listed,
            changed=layout.changed(),
            output=ending("\n".join(filter(None, (grading.redact(read_tail(f / name)) for f in folders for name in OUTPUTS))), _OUTPUT),
            redact=grading.redact,
        )
        return judge(run, case)

    def _goes_on(self, run: Run, layout: Layout, word: str) -> bool:
        """Whether a fresh child shall run what the last one left, after blaming the test or file that ended it."""
        if run.forged or not run.has("ready"):
            return False
        why = run.reason or "it ended the run"
        if run.current is not None:
            run.tests[run.current] = f"died ({why})"
            return any(i not in run.tests for i in run.ids or () if word not in i)
        if run.importing is not None and (lost := Path(run.importing)).is_relative_to(layout.root):
            run.lost_files[lost.relative_to(layout.root).as_posix()] = why
            return True
        return False  # a canary's file, which lies elsewhere: the code under test knows it from the others

    def _interpreter(self, grading: Grading) -> str:
        name = self.python
        if name is None:
            return grading.python
        if "/" in name:
            found = os.path.join(Path(grading.trial.task_file).parent, Path(name).expanduser())  # noqa: PTH118
        else:
            found = shutil.which(name, path=grading.context.environ.get("PATH")) or ""
        if not found or not os.access(found, os.X_OK) or Path(found).is_dir():
            raise broken(f"there is no interpreter {name!r}")
        lexical = Path(os.path.normpath(found))
        places = (lexical, lexical.parent.resolve() / lexical.name, lexical.resolve())
        roots = (grading.workspace, grading.workspace.resolve())
        if any(place.is_relative_to(root) for place in places for root in roots):
            raise broken(f"the interpreter {name!r} lies in the workspace, where the agent decides what it does")
        return str(lexical)

    def _paths(self, grading: Grading) -> list[Path]:
        folder = Path(grading.trial.task_file).parent
        paths = [Path(os.path.normpath(folder / path)) for path in self.paths]
        if missing := [str(p) for p in paths if not p.exists()]:
            raise broken(f"there is no {missing[0]}")
        return paths

    def _config(self, grading: Grading, layout: Layout) -> dict[str, Any]:
        workspace = grading.workspace
        imports = dict.fromkeys(import_root(f) for f, node in layout.sources if node)
        ours = [p for p in imports if not p.is_relative_to(workspace) or (self.at and p.is_relative_to(workspace / self.at))]
        source = workspace / "src"
        roots = [workspace, *([source] if source.is_dir() else []), *(p for p in imports if p not in ours and p != workspace)]
        roots += [grading.installed] if self.python is None and grading.installed is not None else []
        return {
            "workspace": str(workspace),
            "sources": [(str(file), node) for file, node in layout.sources],
            "own": sorted(top_names(grading.template)),
            "beside": [str(p) for p in ours],
            "roots": [str(p) for p in roots],
        }

    def _argv(self, folder: Path, scratch: Path, layout: Layout, run: Run, word: str) -> list[str]:
        folder.mkdir()
        first, last = (_write_canary(folder, f"{place}{word}") for place in "az")
        (folder / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
        lost = {layout.root / file for file in run.lost_files}
        root = scratch if self.at is None else layout.root
        options = [
            *("-c", str(layout.ini or folder / "pytest.ini")),
            *("--rootdir", str(root), "--confcutdir", str(layout.root)),
            *("--import-mode=importlib", "--continue-on-collection-errors", "-s", "-q"),
            *("--tb=short", "--color=no", "--no-header", "--no-summary"),
            *(f"--ignore={file}" for file in sorted(lost)),
        ]
        targets = [str(t) for t in layout.targets if t not in lost]
        return [*options, *self.args, str(first), *targets, str(last)]

    @staticmethod
    def _environment(grading: Grading, python: str, scratch: Path, roots: list[str]) -> dict[str, str]:
        env = {k: v for k, v in grading.environment.items() if not k.startswith(("PYTHON", "PYTEST", "COV_")) and k not in _SECRET}
        if roots:
            for name, folder in (("HOME", "home"), ("TMPDIR", "tmp")):
                (scratch / folder).mkdir()
                env[name] = str(scratch / folder)
            env["PYTHONPATH"] = os.pathsep.join(roots)  # -I ignores it; it is for what the tests themselves start
        if python not in (grading.context.python, grading.python):  # whose like comes first there already
            env["PATH"] = os.pathsep.join([str(Path(python).parent), *filter(None, [env.get("PATH")])])
        return env


def _write_canary(folder: Path, name: str) -> Path:
    """Tests that must fail, under names and with numbers that nobody can know."""
    (folder / name).mkdir()
    file = folder / name / f"test_{name}.py"
    low = secrets.randbelow(100_000)
    file.write_text(_CANARY.format(name, low, low + 1 + secrets.randbelow(100_000)), encoding="utf-8")
    return file


def _forget(run: Run, word: str) -> None:
    """Every child runs the canaries anew; one that passed before stays known."""
    for node in [i for i, outcome in run.tests.items() if word in i and outcome != "passed"]:
        del run.tests[node]
