"""The criterion `pytest` on honest work: layouts, kinds of tests, and what is an error of the verifier."""

# ruff: noqa: E501
# (small programs are easier to tell apart on one line each)
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_codeprobe.criteria.hidden import HiddenTests
from pytest_codeprobe.criteria.hidden.ids import Ambiguous, resolve
from pytest_codeprobe.errors import CodeprobeError, Stopped
from tests.fake_grading import descriptors_kept
from tests.hidden_cases import CALC, TESTS, WRONG, Case, both_ways, grade, hidden, prepare, table
from tests.unprivileged import unprivileged_argv

SHAPES = {
    "flat": Case(joint=True),
    "wrong": Case(agent={"calc.py": WRONG}, score=0, says="0 of 2 hidden tests passed\nhidden/test_calc.py::test_small: failed: assert"),
    "half": Case(agent={"calc.py": "def add(a, b):\n    return 3\n"}, score=0.5, says="test_big: failed"),
    "package": Case(
        template={"calc/__init__.py": ""},
        agent={"calc/__init__.py": "from calc.core import add", "calc/core.py": CALC},
    ),
    "src": Case(template={"src/calc/__init__.py": ""}, agent={"src/calc/__init__.py": CALC}, joint=True),
    "written from nothing": Case(template={}),
    "single file brings conftests from the task's folder down": Case(
        hidden={
            "conftest.py": "import pytest\n@pytest.fixture\ndef one(): return 1\n",
            "hidden/conftest.py": "import pytest\n@pytest.fixture\ndef two(one): return one + 1\n",
            "hidden/deep/test_a.py": "from calc import add\ndef test_a(one, two): assert add(one, two) == 3\n",
            "hidden/deep/test_b.py": "def test_b(): assert False\n",
        },
        paths=("hidden/deep/test_a.py",),
    ),
    "folder with helper and data, which win over the workspace's": Case(
        agent={"calc.py": CALC, "helper.py": "EXPECTED = None\n"},
        hidden=hidden(
            "from pathlib import Path\nfrom calc import add\nfrom helper import EXPECTED\n"
            "def test_a(): assert add(1, 2) == EXPECTED == int(Path(__file__).with_name('n.txt').read_text())\n",
            **{"hidden/helper.py": "EXPECTED = 3\n", "hidden/n.txt": "3"},
        ),
    ),
    "package with a relative import": Case(
        hidden={
            "hidden/__init__.py": "",
            "hidden/h.py": "N = 3\n",
            "hidden/test_a.py": "from .h import N\nfrom calc import add\ndef test_a(): assert add(1, 2) == N\n",
        }
    ),
    "import conftest, of which the workspace has another": Case(
        agent={"calc.py": CALC, "conftest.py": "N = 4\n"},
        hidden=hidden(
            "from calc import add\nimport conftest\ndef test_a(): assert add(1, 2) == conftest.N\n", **{"hidden/conftest.py": "N = 3\n"}
        ),
    ),
    "ids of every kind": Case(
        hidden=hidden(
            "import pytest\nfrom calc import add\n"
            "@pytest.mark.parametrize('t', ['a b', 'x::y', '[', '\\n', '\\0', 'ü', 'x' * 300, '', '/'])\n"
            "def test_a(t): assert add(t, '') == t\n"
        )
    ),
    "unittest": Case(
        hidden=hidden(
            "import unittest\nfrom calc import add\nclass Sums(unittest.TestCase):\n"
            "    def test_a(self):\n        for n in range(3):\n            with self.subTest(n=n): self.assertEqual(add(n, 1), n + 1)\n"
            "    @unittest.expectedFailure\n    def test_known(self): self.assertEqual(add(1, 1), 3)\n"
        )
    ),
    "a failing subtest fails its test": Case(
        hidden=hidden(
            "import unittest\nfrom calc import add\nclass Sums(unittest.TestCase):\n"
            "    def test_a(self):\n        for n in range(3):\n            with self.subTest(n=n): self.assertEqual(add(n, 1), 2)\n"
        ),
        score=0,
    ),
    "xfail is left out": Case(
        hidden=hidden(TESTS + "import pytest\n@pytest.mark.xfail\ndef test_known(): assert add(1, 1) == 3\n"), joint=True
    ),
    "a strict xfail that passes has failed": Case(
        hidden=hidden(TESTS + "import pytest\n@pytest.mark.xfail(strict=True)\ndef test_known(): assert add(1, 1) == 2\n"), score=2 / 3
    ),
    "a skipped test is not passed": Case(
        hidden=hidden(TESTS + "import pytest\n@pytest.mark.skip(reason='no net')\ndef test_net(): pass\n"), score=2 / 3, says="skipped"
    ),
    "a teardown that fails fails its test": Case(
        hidden=hidden(
            "import pytest\nfrom calc import add\n@pytest.fixture\ndef f():\n    yield\n    assert add(1, 1) == 3\ndef test_a(f): pass\n"
        ),
        score=0,
        says="teardown",
    ),
    "capsys, tmp_path, monkeypatch": Case(
        hidden=hidden(
            "from calc import add\ndef test_a(capsys, tmp_path, monkeypatch):\n    print(add(1, 2))\n"
            "    assert capsys.readouterr().out == '3\\n'\n    monkeypatch.chdir(tmp_path)\n"
        )
    ),
    "children by -m, by path, and by the interpreter": Case(
        template={"src/tool/__main__.py": "", "run.py": ""},
        agent={"src/tool/__main__.py": "print('hi')", "run.py": "import tool.__main__"},
        hidden=hidden(
            "import subprocess, sys\n"
            "def run(*a, **k): return subprocess.run([sys.executable, *a], stdout=-1, **k).stdout\n"
            "def test_m(tmp_path): assert run('-m', 'tool', cwd=tmp_path) == b'hi\\n'\n"
            "def test_script(): assert run('run.py') == b'hi\\n'\n"
        ),
    ),
    "process pools": Case(
        hidden=hidden(
            "import multiprocessing as mp\nfrom calc import add\nfrom operator import neg\n"
            "def test_a():\n    with mp.get_context('fork').Pool(2) as pool: assert pool.map(neg, [1, 2]) == [-1, -2]\n"
        )
    ),
    "a thread left running": Case(
        hidden=hidden(
            "import threading, time\nfrom calc import add\ndef test_a(): threading.Thread(target=time.sleep, args=(99,)).start()\n"
        )
    ),
    "same basename twice": Case(
        hidden={f"hidden/{d}/test_x.py": f"from calc import add\ndef test_{d}(): assert add(1, 2) == 3\n" for d in "ab"},
    ),
    "own pytest.ini with its own names": Case(
        hidden={
            "hidden/pytest.ini": "[pytest]\npython_files = check_*.py\npython_functions = check_*\n",
            "hidden/check_a.py": "from calc import add\ndef test_no(): assert False\ndef check_a(): assert add(1, 2) == 3\n",
        }
    ),
    "warnings are errors, plugins of the interpreter are loaded": Case(
        hidden=hidden(
            "import pytest\nfrom calc import add\n@pytest.mark.timeout(30)\n"
            "def test_a(request): assert add(1, 2) == 3 and request.config.pluginmanager.has_plugin('timeout')\n",
            **{"hidden/pytest.ini": "[pytest]\nfilterwarnings = error\naddopts = --strict-markers\n"},
        )
    ),
    "selected by -k": Case(fields={"args": ["-k", "small"]}, agent={"calc.py": "def add(a, b):\n    return 3\n"}),
    "template names win over installed ones": Case(
        template={"iniconfig_like.py": "", "regex/__init__.py": "add = None"},
        agent={"regex/__init__.py": CALC},
        hidden=hidden("from regex import add\ndef test_a(): assert add(1, 2) == 3\n"),
    ),
    "at": Case(
        template={
            "calc.py": "",
            "tests/__init__.py": "",
            "tests/helpers.py": "N = 3\n",
            "conftest.py": "import pytest\n@pytest.fixture\ndef two(): return 2\n",
        },
        agent={"calc.py": CALC},
        hidden=hidden(
            "from pathlib import Path\nfrom calc import add\nfrom tests.helpers import N\nfrom .helpers import N as M\n"
            "def test_a(two): assert add(1, two) == N == M and (Path(__file__).parent.parent / 'calc.py').exists()\n"
        ),
        fields={"at": "tests"},
        joint=True,
    ),
    "at a folder that is not there yet": Case(paths=("hidden/test_calc.py",), fields={"at": "deep/er/tests"}),
    "at: the template's own tests do not count": Case(
        template={"calc.py": "", "tests/test_old.py": "def test_old(): assert False\n"}, agent={"calc.py": CALC}, fields={"at": "tests"}
    ),
    "min_tests instead of names": Case(fields={"min_tests": 3}, score=2 / 3, says="2 tests, at least 3 expected"),
    "fail_to_pass": Case(
        agent={"calc.py": "def add(a, b):\n    return 3\n"},
        fields={"fail_to_pass": ["hidden/test_calc.py::test_small"], "pass_to_pass": ["test_small"]},
    ),
    "what only looks like a test": Case(
        hidden=hidden(
            "import pytest, dataclasses, unittest\nfrom calc import add\n"
            "@pytest.fixture\ndef test_data(): return 3\n"
            "class TestWithInit:\n    def __init__(self): pass\n    def test_no(self): assert False\n"
            "@dataclasses.dataclass\nclass TestRecord:\n    n: int\n    def test_no(self): assert False\n"
            "class Base(unittest.TestCase):\n    def test_a(self): self.assertEqual(add(1, self.n), self.expected)\n"
            "class Real(Base): n, expected = 1, 2\n"
            "del Base\n"
            "class TestPlain:\n    def test_a(self, test_data): assert add(1, 2) == test_data\n    class TestInner:\n        def test_b(self): pass\n"
        )
    ),
    "pass_to_pass with one that is not there": Case(
        fields={"pass_to_pass": ["test_calc.py::test_small", "test_gone"]}, score=0.5, says="test_gone: not collected"
    ),
}


@both_ways
@table(SHAPES)
def test_shapes(tmp_path: Path, case: Case, warm: bool) -> None:
    score = grade(tmp_path, case, warm=warm)
    assert score.value == pytest.approx(case.score), score
    assert case.says in score.explanation


ERRORS = {
    "does not parse": (Case(hidden=hidden("def test_a(:\n")), "does not parse"),
    "fixture is not found": (Case(hidden=hidden("def test_a(nosuch): pass\n")), "no fixture 'nosuch'"),
    "nothing collected": (Case(hidden=hidden("def helper(): pass\n")), "no hidden test counts"),
    "no test files at": (Case(hidden={"hidden/a.txt": ""}, fields={"at": "tests"}), "there are no test files"),
    "all marked xfail": (Case(hidden=hidden("import pytest\n@pytest.mark.xfail\ndef test_a(): assert False\n")), "all are marked xfail"),
    "unknown argument": (Case(fields={"args": ["--no-such-option"]}), "pytest refused its arguments"),
    "a name that pytest itself uses": (Case(template={"pluggy/__init__.py": ""}, agent={}), "pluggy"),
    "no interpreter": (Case(fields={"python": "no-such-python"}), "there is no interpreter"),
    "an interpreter that is none": (Case(fields={"python": "/bin/true"}), "did not start"),
    "hidden tests missing": (Case(paths=("nope",)), "there is no"),
}


@pytest.mark.parametrize(("case", "says"), ERRORS.values(), ids=ERRORS)
def test_what_no_agent_can_cause_is_an_error(tmp_path: Path, case: Case, says: str) -> None:
    with pytest.raises(CodeprobeError) as caught:
        grade(tmp_path, case)
    assert caught.value.code == "VERIFIER_FAILED"
    assert says in caught.value.message


def test_after_a_crash_the_other_tests_run_in_a_fresh_process(tmp_path: Path) -> None:
    code = "import os\ndef add(a, b):\n    if a == 1: os.abort()\n    return a + b\n"
    score = grade(tmp_path, Case(agent={"calc.py": code}))
    assert score.value == 0.5
    assert score.evidence["tests"] == {"hidden/test_calc.py::test_small": "died (SIGABRT)", "hidden/test_calc.py::test_big": "passed"}


def test_a_file_that_ends_the_run_when_imported_does_not_take_the_others_along(tmp_path: Path) -> None:
    more = {"hidden/test_a.py": "import bad\ndef test_a(): pass\n", "hidden/test_z.py": "from calc import add\ndef test_z(): pass\n"}
    score = grade(tmp_path, Case(agent={"calc.py": CALC, "bad.py": "import os; os._exit(1)"}, hidden=hidden(TESTS, **more)))
    assert score.value == 0.75
    assert "importing hidden/test_a.py ended the run (exit status 1)" in score.explanation


def test_results_before_the_total_limit_are_kept(tmp_path: Path) -> None:
    code = "import time\ndef add(a, b):\n    time.sleep(60 if a > 9 else 0)\n    return a + b\n"
    case = Case(agent={"calc.py": code}, fields={"timeout": 3})
    score = grade(tmp_path, case)
    assert 0 < score.value < 1
    assert score.evidence["tests"]["hidden/test_calc.py::test_small"] == "passed"


@pytest.mark.parametrize("link", [False, True])
def test_an_interpreter_in_the_workspace_is_refused(tmp_path: Path, link: bool) -> None:
    criterion, grading = prepare(tmp_path, Case(fields={"python": "../workspace/bin/python" if not link else "../alias/bin/python"}))
    (grading.workspace / "bin").mkdir()
    (grading.workspace / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "alias").symlink_to("workspace")
    for look in (criterion.preflight, criterion.evaluate):
        with pytest.raises(CodeprobeError, match="lies in the workspace"):
            look(grading)


def test_the_code_under_test_is_not_shown_where_tests_and_solution_are(tmp_path: Path) -> None:
    source = "import os\nfrom calc import add\ndef test_a(): assert not {'TASK_DIR', 'REFERENCE_DIR'} & set(os.environ) and 'WORKSPACE' in os.environ\n"
    assert grade(tmp_path, Case(hidden=hidden(source))).value == 1


@pytest.mark.parametrize("before", [True, False])
def test_a_stop_of_the_run_is_no_verdict(tmp_path: Path, before: bool) -> None:
    criterion, grading = prepare(
        tmp_path, Case(agent={"calc.py": f"open({str(tmp_path / 'stop' / 'interrupt')!r}, 'w')\nwhile True: pass"})
    )
    (tmp_path / "stop").mkdir()
    if before:
        (tmp_path / "stop" / "interrupt").touch()
    grading.stop_dir = str(tmp_path / "stop")
    with pytest.raises(Stopped, match="interrupt"):
        criterion.evaluate(grading)


def test_without_time_for_grading_nothing_is_an_error(tmp_path: Path) -> None:
    criterion, grading = prepare(tmp_path, Case())
    grading.seconds = 0.001
    score = criterion.evaluate(grading)
    assert score.value == 0
    assert "left of the time for grading" in score.explanation


def test_neither_descriptors_nor_processes_are_left(tmp_path: Path) -> None:
    grade(tmp_path / "first", Case())  # the spawner's own descriptors
    with descriptors_kept():
        grade(tmp_path / "second", Case())
        grade(tmp_path / "third", Case(agent={"calc.py": "import os; os._exit(0)"}))


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("venv")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    return folder / "bin" / "python"


@pytest.mark.joint
def test_an_interpreter_without_pytest_gets_the_harness_s(tmp_path: Path, bare_python: Path) -> None:
    source = "import sys\nfrom calc import add\ndef test_a(): assert add(1, 2) == 3 and 'venv' in sys.prefix\n"
    assert grade(tmp_path, Case(hidden=hidden(source), fields={"python": str(bare_python)})).value == 1


def test_what_the_hidden_tests_need_is_probed_before_the_session(tmp_path: Path, bare_python: Path) -> None:
    names = {"python": str(bare_python), "requires": ["json", "regex", "pytest-timeout"]}
    criterion, grading = prepare(tmp_path, Case(agent={"regex.py": ""}, fields=names))
    with pytest.raises(CodeprobeError, match="need regex, pytest-timeout"):
        criterion.preflight(grading)
    prepare(tmp_path / "b", Case(fields={"requires": ["regex", "pytest-timeout"]}))[0].preflight(grading)


def test_a_module_that_the_standard_library_has_too_is_refused_before_the_session(tmp_path: Path) -> None:
    case = Case(template={"calendar.py": ""}, agent={}, hidden=hidden("import calendar\ndef test_a(): pass\n"))
    criterion, grading = prepare(tmp_path, case)
    with pytest.raises(CodeprobeError, match="calendar"):
        criterion.preflight(grading)


def test_what_does_not_parse_is_found_before_the_session(tmp_path: Path) -> None:
    criterion, grading = prepare(tmp_path, Case(hidden=hidden("def test_a(:\n")))
    with pytest.raises(CodeprobeError, match=r"test_calc\.py"):
        criterion.preflight(grading)


def test_a_missing_module_comes_with_a_hint(tmp_path: Path) -> None:
    score = grade(tmp_path, Case(hidden=hidden("import no_such_module\ndef test_a(): pass\n")))
    assert score.value == 0
    assert "`requires`" in score.explanation


def test_at_a_folder_without_permissions(tmp_path: Path) -> None:
    program = f"""
from pathlib import Path
from tests.hidden_cases import CALC, Case, grade
def lock(workspace):
    (workspace / "tests").chmod(0)
    try:
        list((workspace / "tests").iterdir())
    except PermissionError:
        print("locked")
case = Case(agent={{"calc.py": CALC, "tests/deep/x.py": ""}}, act=lock, fields={{"at": "tests"}})
print(grade(Path({str(tmp_path)!r}), case).value)
"""
    # this folder last: what is installed is what is tested
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([*filter(None, sys.path), str(Path(__file__).parents[1])])}
    argv = unprivileged_argv([sys.executable, "-P", "-c", program])
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stdout.split(), done.stderr) == (["locked", "1.0"], "")


@pytest.mark.parametrize(
    "fields",
    [
        {"paths": []},
        {"at": "."},
        {"at": "../x"},
        {"at": "/x"},
        {"min_tests": 0},
        {"test_timeout": 0},
        {"requires": ["a b"]},
        {"requires": ["--x"]},
        {"min_tests": 2, "fail_to_pass": ["a"]},
        {"pythn": "x"},
    ],
)
def test_what_makes_no_sense_is_refused_at_load(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HiddenTests.model_validate({"type": "pytest", "paths": ["hidden"], **fields})


COLLECTED = ["hidden/test_a.py::test_x", "hidden/test_a.py::test_p[1]", "hidden/test_a.py::test_p[a/b::c]", "hidden/test_a.py::TestK::test_m", "hidden/test_b.py::test_x", "deep/test_b.py::test_y", "hidden/test_a.py::test_u[\\xfc]"]  # fmt: skip


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("hidden/test_a.py::test_x", [0]),
        ("./hidden/test_a.py::test_x", [0]),
        ("test_a.py::test_x", [0]),
        ("a.py::test_x", []),
        ("test_a.py::test_p", [1, 2]),
        ("test_a.py::test_p[1]", [1]),
        ("test_p[a/b::c]", [2]),
        ("test_p[2]", []),
        ("test_m", [3]),
        ("TestK::test_m", [3]),
        ("test_a.py::TestK", [3]),
        ("test_a.py::test_m", []),
        ("deep/test_b.py", [5]),
        ("tests/test_b.py::test_y", [5]),
        ("test_a.py::test_u[ü]", [6]),
        ("test_z", []),
        ("test", []),
    ],
)
def test_listed_ids(listed: str, found: list[int]) -> None:
    assert resolve(listed, COLLECTED, [("tests", "deep")]) == [COLLECTED[n] for n in found]


@pytest.mark.parametrize("listed", ["test_x", "test_b.py"])
def test_an_id_that_fits_several_places_is_ambiguous(listed: str) -> None:
    with pytest.raises(Ambiguous, match=r"hidden/test_b\.py"):
        resolve(listed, COLLECTED)


NAMES = st.text("abAB_ü[]:/. ", min_size=1, max_size=8)


@given(st.lists(NAMES.map("hidden/test_a.py::test_{}".format), min_size=1, max_size=6, unique=True), st.data())
def test_every_id_finds_itself(collected: list[str], data: st.DataObject) -> None:
    listed = data.draw(st.sampled_from(collected))
    assert listed in resolve(listed, collected)
    assert listed in resolve(listed.removeprefix("hidden/"), collected)
