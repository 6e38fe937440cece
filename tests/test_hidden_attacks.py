"""The criterion `pytest` keeps its verdict whatever the code under test does to the run."""

# ruff: noqa: E501
# (small programs are easier to tell apart on one line each)
from __future__ import annotations

import py_compile
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.fake_grading import FakeGrading
from tests.hidden_cases import CALC, TESTS, WRONG, Case, both_ways, grade, hidden, prepare, table


def wrong(more: str = "", before: str = "") -> dict[str, str]:
    """A wrong solution that does something else at import."""
    return {"calc.py": f"{before}\n{WRONG}\n{more}\n"}


def attack(
    files: Mapping[str, str], says: str = "", act: Callable[[Path], object] | None = None, *, joint: bool = False, **more: Any
) -> Case:
    return Case(agent={"calc.py": WRONG, **files}, score=0, says=says, act=act, joint=joint, **more)


DIST = {
    "evil-1.dist-info/METADATA": "Metadata-Version: 2.1\nName: evil\nVersion: 1\n",
    "evil-1.dist-info/entry_points.txt": "[pytest11]\nevil = evil\n",
}
FORGE = "import pytest\n@pytest.hookimpl(wrapper=True)\ndef pytest_runtest_makereport():\n    r = yield\n    r.outcome = 'passed'\n    return r\n"
PLUGIN = (
    "import pytest\nclass P:\n    @pytest.hookimpl(wrapper=True)\n    def pytest_runtest_makereport(self):\n"
    "        r = yield\n        r.outcome = 'passed'\n        return r\n"
    "def is_manager(o): return type(o).__name__ == 'PytestPluginManager'\n"
    "def register(managers):\n    for m in managers: m.register(P())\n"
)

#: finds the hidden test that imports the agent's module
CALLER = "import sys\nframe = sys._getframe()\nwhile frame and 'test_calc' not in frame.f_code.co_filename: frame = frame.f_back\nfile = frame.f_code.co_filename\n"
TWO = hidden(TESTS, **{"hidden/test_other.py": "from calc import add\ndef test_a(): assert add(1, 2) == 3\n"})
ONE = hidden("from calc import add\n\ndef test_small():\n    assert add(1, 2) == 3\n")


def plant_bytecode(workspace: Path) -> None:
    """A cache that Python takes without a look at the source."""
    source, kept = workspace / "tests" / "helpers.py", (workspace / "tests" / "helpers.py").read_bytes()
    source.write_text("N = -1\n")
    py_compile.compile(str(source), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    source.write_bytes(kept)


ATTACKS = {
    # Foundation, "Must show" 9
    "conftest.py": attack({"conftest.py": FORGE}, joint=True),
    "pytest.ini": attack({"pytest.ini": "[pytest]\naddopts = --collect-only\npython_functions = nothing\n"}, joint=True),
    "sitecustomize.py": attack({"sitecustomize.py": "import os; os._exit(0)"}, joint=True),
    "pytest package": attack({"pytest/__init__.py": "def main(*a, **k): return 0\n", "_pytest/__init__.py": ""}, joint=True),
    "overwritten hidden test": attack(
        wrong(CALLER + "open(file.replace('calc', 'other'), 'w').write('def test_a(): pass\\n')"),
        "hidden files were changed",
        hidden=TWO,
        joint=True,
    ),
    "os._exit(0) at import": attack(
        wrong("import os; os._exit(0)"), "importing hidden/test_calc.py ended the run (exit status 0)", joint=True
    ),
    "dist-info with an entry point": attack({**DIST, "evil.py": FORGE}, joint=True),
    "a background process that goes on writing": attack(
        wrong(
            "import os, sys, time\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
            "        while True: open('log', 'a').write('x'); time.sleep(.01)\n    os._exit(0)"
        ),
        joint=True,
    ),
    # configuration
    "usercustomize and pth": attack({"usercustomize.py": "import os; os._exit(0)", "x.pth": "import os; os._exit(0)"}),
    "tox.ini, setup.cfg, pyproject": attack(
        {
            "tox.ini": "[pytest]\naddopts=--co\n",
            "setup.cfg": "[tool:pytest]\naddopts=--co\n",
            "pyproject.toml": "[tool.pytest.ini_options]\naddopts='--co'\n",
        }
    ),
    "names of the standard library": attack({"random.py": "raise SystemExit", "unittest/__init__.py": "raise SystemExit"}),
    "an installed name that the agent adds": attack(
        {"regex/__init__.py": "add = 3"},
        hidden=hidden("import regex\nfrom calc import add\ndef test_a(): assert regex.search('a', 'a') and add(1, 2) == 3\n"),
    ),
    # leaving early
    "sys.exit(0) at import": attack(wrong("import sys; sys.exit(0)"), "SystemExit: 0", joint=True),
    "pytest.exit at import": attack(wrong("import pytest; pytest.exit('done', returncode=0)")),
    "pytest.exit with a usage error's status": attack(wrong("import pytest; pytest.exit('done', returncode=4)")),
    "skip at import": attack(wrong("import pytest; pytest.skip('no', allow_module_level=True)"), "Skipped"),
    "SkipTest at import": attack(wrong("import unittest; raise unittest.SkipTest('no')"), "Skipped"),
    "KeyboardInterrupt at import": attack(wrong("raise KeyboardInterrupt"), "ended the run"),
    "os._exit(0) in a call": attack({"calc.py": "import os\ndef add(a, b): os._exit(0)\n"}, "test_small: died (exit status 0)", hidden=ONE),
    "skip in a call": attack({"calc.py": "import pytest\ndef add(a, b): pytest.skip('no')\n"}, "skipped", hidden=ONE),
    "xfail in a call": attack({"calc.py": "import pytest\ndef add(a, b): pytest.xfail('no')\n"}, "skipped", hidden=ONE),
    "pytest.exit in a call": attack({"calc.py": "import pytest\ndef add(a, b): pytest.exit('no', returncode=0)\n"}, "died", hidden=ONE),
    "exit in a thread": attack(
        {
            "calc.py": "import os, threading, time\ndef add(a, b):\n    threading.Thread(target=os._exit, args=(0,)).start()\n    time.sleep(9)\n"
        }
    ),
    "segfault": attack({"calc.py": "import ctypes\ndef add(a, b): ctypes.string_at(0)\n"}, "died (SIGSEGV)", hidden=ONE),
    "SIGKILL to the group": attack({"calc.py": "import os\ndef add(a, b): os.kill(os.getpid(), 9)\n"}, "died (SIGKILL)", hidden=ONE),
    "a loop": attack({"calc.py": "def add(a, b):\n    while True: pass\n"}, "died (timeout)", fields={"test_timeout": 0.7}, hidden=ONE),
    "a loop at import": attack(wrong("while True: pass"), "(timeout)", fields={"test_timeout": 0.7}),
    # changing the run
    "patched TestReport": attack(
        wrong("import _pytest.reports as r\nr.TestReport.outcome = property(lambda s: 'passed', lambda s, v: None)")
    ),
    "patched Function.runtest": attack(
        wrong("import pytest\npytest.Function.runtest = lambda self: None"), "tests that must fail passed", joint=True
    ),
    "patched TestCase": attack(
        wrong("import unittest\nunittest.TestCase.assertEqual = lambda *a, **k: None"),
        "tests that must fail passed",
        hidden=hidden(
            "import unittest\nfrom calc import add\nclass A(unittest.TestCase):\n    def test_a(self): self.assertEqual(add(1, 2), 3)\n"
        ),
    ),
    "patched pytest.raises": attack(
        wrong("import pytest, contextlib\npytest.raises = lambda *a, **k: contextlib.suppress(BaseException)"),
        "tests that must fail passed",
        hidden=hidden("import pytest\nfrom calc import add\ndef test_a():\n    with pytest.raises(TypeError): add(1, 2)\n"),
    ),
    "plugin registered through gc": attack(wrong(PLUGIN + "import gc\nregister([o for o in gc.get_objects() if is_manager(o)])")),
    "plugin registered through frames": attack(
        wrong(
            PLUGIN + "import sys\nf = sys._getframe()\nwhile f:\n    register(filter(is_manager, f.f_locals.values()))\n    f = f.f_back"
        ),
        "tests that must fail passed",
    ),
    "AssertionError replaced": attack(wrong("import builtins\nbuiltins.AssertionError = type('A', (BaseException,), {})")),
    "sys.modules poisoned": attack(
        wrong(
            CALLER + "import sys, types\n"
            "for n in [frame.f_globals['__name__'].replace('calc', 'other'), 'test_other', 'hidden.test_other']:\n"
            "    m = sys.modules[n] = types.ModuleType(n)\n    m.test_a = lambda: None\n"
            "    m.__file__ = file.replace('calc', 'other')"
        ),
        hidden=TWO,
    ),
    "a finder put first": attack(
        wrong(
            CALLER + "import sys, importlib.util as u, importlib.abc as b\nclass F(b.Loader):\n"
            "    def find_spec(self, n, p=None, t=None):\n"
            "        return u.spec_from_file_location(n, file.replace('calc', 'other'), loader=self) if 'test_other' in n else None\n"
            "    def create_module(self, s): return None\n    def exec_module(self, m): m.test_a = lambda: None\n"
            "sys.meta_path.insert(0, F())"
        ),
        hidden=TWO,
    ),
    "marks set in the caller's frame": attack(wrong(CALLER + "import pytest\nframe.f_globals['pytestmark'] = pytest.mark.xfail")),
    "collection forbidden in the caller's frame": attack(
        wrong(CALLER + "frame.f_globals['__test__'] = False"), "not collected", fields={"min_tests": 1}
    ),
    # the channel
    "noise into every descriptor": attack(
        wrong('import os\nfor fd in range(3, 300):\n    try: os.write(fd, b\'{"kind": "end"}\\n\')\n    except OSError: pass'),
        "wrote to the result channel",
    ),
    "descriptors closed": attack(wrong("import os; os.closerange(3, 300)")),
    "dup2 over all": attack(wrong("import os\nfor fd in range(3, 300):\n    os.dup2(1, fd)"), "ended the run"),
    "forged text": attack(wrong("print('2 passed in 0.01s'); import os; os._exit(0)")),
    "the forked copy goes on": attack(wrong("import os\nif os.fork(): os._exit(0)")),
    "too much output": attack(
        {"calc.py": "import os\ndef add(a, b):\n    while True: os.write(1, b'x' * (1 << 20))\n"}, "MiB of output", hidden=ONE
    ),
    # a layout over the workspace
    "at: package beside a restored helper": attack(
        {"tests/helpers/__init__.py": "N = -1\n", "tests/helpers.py": "N = -1\n"},
        template={"calc.py": "", "tests/helpers.py": "N = 3\n"},
        hidden=hidden("from calc import add\nfrom helpers import N\ndef test_a(): assert add(1, 2) == N\n"),
        fields={"at": "tests"},
    ),
    "at: conftest.py and a package over it": attack(
        {"conftest.py": FORGE, "conftest/__init__.py": FORGE, "tests/conftest.py": FORGE},
        fields={"at": "tests"},
        joint=True,
    ),
    "at: a link in the way": attack(
        {"elsewhere/x": ""}, act=lambda w: (w / "tests").symlink_to("elsewhere"), fields={"at": "tests"}, hidden=hidden(TESTS)
    ),
    "at: a module named like the folder": attack(
        {
            "tests.py": "import os\n__path__ = [os.path.join(os.path.dirname(__file__), 'forged')]\n",
            "forged/helpers.py": "N = -1\n",
            "src/tests/__init__.py": "",
            "src/tests/helpers.py": "N = -1\n",
        },
        template={"calc.py": "", "tests/helpers.py": "N = 3\n"},
        hidden=hidden("from calc import add\nfrom tests.helpers import N\ndef test_a(): assert add(1, 2) == N\n"),
        fields={"at": "tests"},
    ),
    "at: modules beside a nested test package": attack(
        {"pkg/json.py": "raise SystemExit", "pkg/random.py": "raise SystemExit"},
        template={"calc.py": "", "pkg/tests/__init__.py": ""},
        hidden=hidden(TESTS.replace("from calc", "import json, random\nfrom calc")),
        fields={"at": "pkg/tests"},
        says="test_small: failed",
    ),
    "at: a forged module cached": attack(
        {},
        template={"calc.py": "", "tests/helpers.py": "N = 3\n"},
        act=plant_bytecode,
        hidden=hidden("from calc import add\nfrom helpers import N\ndef test_a(): assert add(1, 2) == N\n"),
        fields={"at": "tests"},
    ),
    "at: a module that hides the template's, added beside": attack(
        {"src/calc/__init__.py": CALC, "lib/calc.py": CALC},
        fields={"at": "tests"},
    ),
    "the runner's folder is emptied": attack(
        wrong("import os, shutil\nshutil.rmtree(os.path.dirname(os.environ['TMPDIR']))\nos._exit(0)"),
    ),
    "what the first child was given is emptied": attack(
        wrong(
            "import os, glob, shutil\nfor f in glob.glob(os.path.dirname(os.environ['TMPDIR']) + '/r*/*'):\n"
            "    shutil.rmtree(f) if os.path.isdir(f) else open(f, 'w').close()\nos._exit(0)"
        ),
        "ended the run",
    ),
    "a FIFO in place of the output": attack(
        wrong(
            "import os, glob\nfor f in glob.glob(os.path.dirname(os.environ['TMPDIR']) + '/**/std*', recursive=True):\n"
            "    os.unlink(f); os.mkfifo(f)"
        ),
    ),
    "the workspace is gone": attack({}, "the workspace is gone", act=shutil.rmtree),
}


@both_ways
@table(ATTACKS)
def test_attacks(tmp_path: Path, case: Case, warm: bool) -> None:
    score = grade(tmp_path, case, warm=warm)
    assert score.value == case.score == 0, score
    assert case.says in score.explanation


def test_a_fake_python_first_on_path_is_not_used(tmp_path: Path) -> None:
    case = Case(agent={"calc.py": WRONG, "bin/python": "#!/bin/sh\nexit 0\n", "bin/python3": "#!/bin/sh\nexit 0\n"})
    criterion, grading = prepare(tmp_path, case)
    for name in ("python", "python3"):
        (grading.workspace / "bin" / name).chmod(0o755)
    environment = {**grading.environment, "PATH": f"{grading.workspace / 'bin'}:{grading.environment['PATH']}"}
    grading.__class__ = type("Poisoned", (FakeGrading,), {"environment": property(lambda _: environment)})
    assert criterion.evaluate(grading).value == 0
