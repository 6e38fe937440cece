"""Runs hidden tests in the one process that also imports the agent's code.

`python -I -B hidden_runner.py PARTS`, in the grading copy, or a fork of warm.py that has this file loaded. PARTS is JSON: the
modules that make up pytest, each with its file. Descriptor 0 is one end of a socketpair: one line of JSON (what to run, and a
key) comes in, authenticated records go out. pytest and its plugins are loaded before any folder of the workspace can be imported
from; the process leaves by `os._exit` right after its last record. Nothing that it prints and no exit status of it is believed:
`criteria/hidden/` at the other end of the channel keeps the clock and judges.

Also runs on interpreters older than the package's own minimum, as far as pytest does.
"""

from __future__ import annotations

import ast
import fcntl
import gc
import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import sys
import warnings
from _blake2 import blake2s  # the C type: patching hashlib later changes nothing here
from collections.abc import Callable, Iterator
from importlib.machinery import PathFinder
from typing import Any


class Parts:
    """Finds pytest, always the harness's, for an interpreter that has none or another; other packages are the interpreter's own."""

    def __init__(self, files: dict[str, str]) -> None:
        self.files = files

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """As a finder: of these names only."""
        if path is not None or name not in self.files:
            return None
        file = self.files[name]
        inside = [os.path.dirname(file)] if os.path.basename(file) == "__init__.py" else None  # noqa: PTH119, PTH120
        return importlib.util.spec_from_file_location(name, file, submodule_search_locations=inside)


PARTS = Parts(json.loads(sys.argv[1]))
sys.meta_path.insert(0, PARTS)
import pytest  # noqa: E402

# what pytest would import after the workspace is open
_LATE = ("_pytest._argcomplete", "_pytest.assertion.util", "faulthandler", "packaging.version", "pdb", "pygments")
# plugins that would get in the way
BLOCKED = [f"-pno:{name}" for name in ("cacheprovider", "codeprobe", "xdist", "xdist.looponfail", "cov", "randomly", "rerunfailures")]
_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120
_OPTIONS = ("-c", os.devnull, "--rootdir", _HERE, "--confcutdir", _HERE, "--import-mode=importlib", "--continue-on-collection-errors")
_QUIET = ("-s", "-q", "--tb=short", "--color=no", "--no-header", "--no-summary")
_REHEARSAL = (*_OPTIONS, *_QUIET, os.path.join(_HERE, "rehearsal.py"))  # noqa: PTH118
_DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TEXT = 4000  # characters of a failure that are reported
_FAILURE_EXPECTED = ("xfail", "expectedFailure")


def connect() -> tuple[dict[str, Any], Callable[..., None]]:
    """The job, and a function that sends one record.

    Each record is bound to its number by a MAC; the key lives on only inside a keyed hash state.
    """
    channel = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 64)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    received = b""
    while not received.endswith(b"\n"):
        chunk = os.read(channel, 1 << 16)
        if not chunk:
            os._exit(0)  # nobody is there any more
        received += chunk
    job = json.loads(received)
    state = blake2s(key=bytes.fromhex(job.pop("key")))
    me, inode, number = os.getpid(), os.fstat(channel).st_ino, 0
    getpid, fstat, write, dumps = os.getpid, os.fstat, os.write, json.dumps

    def send(kind: str, **data: object) -> None:
        nonlocal number
        if getpid() != me or fstat(channel).st_ino != inode:
            return  # a forked copy of us, or the number names another file by now
        body = dumps({"n": number, "kind": kind, **data}).encode()
        mac = state.copy()
        mac.update(body)
        line = mac.hexdigest().encode() + b" " + body + b"\n"
        number += 1
        while line:
            line = line[write(channel, line) :]

    return job, send


def excuses(nodes: list[ast.expr]) -> bool:
    """Whether decorators or a `pytestmark` may expect a failure: they say so, or they name what is defined somewhere else."""
    names = {inner.id for node in nodes for inner in ast.walk(node) if isinstance(inner, ast.Name)}
    return bool(names - {"pytest", "unittest"}) or any(word in ast.dump(node) for node in nodes for word in _FAILURE_EXPECTED)


def marks_in(body: list[ast.stmt]) -> list[ast.expr]:
    """What a module or class assigns to `pytestmark`."""
    assigned = [node for node in body if isinstance(node, ast.Assign)]
    return [node.value for node in assigned if any(isinstance(t, ast.Name) and t.id == "pytestmark" for t in node.targets)]


def expected(source: bytes, file: str) -> Iterator[tuple[str, bool]]:
    """Tests that collecting a file must yield, read from its source: a lower bound. SyntaxError, ValueError.

    With each, whether the source may mark it as one that fails: a mark that is not there was set by the code under test.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse(source, file)
        compile(tree, file, "exec", dont_inherit=True)  # finds what the grammar alone does not, such as a lone `return`
    if b"__test__" in source:
        return  # the file itself decides what is a test
    marks = marks_in(tree.body)
    deleted = {t.id for n in tree.body if isinstance(n, ast.Delete) for t in n.targets if isinstance(t, ast.Name)}
    for node in tree.body:
        if isinstance(node, _DEFINITIONS) and node.name.startswith("test") and node.name not in deleted:
            if not any("fixture" in ast.dump(decorator) for decorator in node.decorator_list):
                yield node.name, excuses(marks + node.decorator_list)
        elif isinstance(node, ast.ClassDef) and node.name not in deleted:
            methods = [n for n in node.body if isinstance(n, _DEFINITIONS)]
            plain = not ({"__init__", "__new__"} & {n.name for n in methods} or node.decorator_list)
            if any("TestCase" in ast.dump(base) for base in node.bases) or (node.name.startswith("Test") and plain):
                above = marks + marks_in(node.body) + node.decorator_list
                tests = [n for n in methods if n.name.startswith("test")]
                yield from ((node.name + "::" + n.name, excuses(above + n.decorator_list)) for n in tests)


def read_sources(job: dict[str, Any], send: Callable[..., None]) -> None:
    """Report what the hidden files promise, before anything of the agent's can have been loaded."""
    names, excused, everything = [], [], False
    for file, node in job["sources"]:
        try:
            with open(file, "rb") as opened:  # noqa: PTH123
                source = opened.read()
            found = list(expected(source, file))
        except (SyntaxError, ValueError) as error:
            send("unparsable", file=file, message=str(error))
            os._exit(0)
        if node:
            names += [node + "::" + name for name, _ in found]
            excused += [node + "::" + name for name, may_fail in found if may_fail]
        elif os.path.basename(file) == "conftest.py":  # noqa: PTH119
            everything = everything or any(word.encode() in source for word in _FAILURE_EXPECTED)  # its hooks can mark any test
    send("names", names=names, excused=names if everything else excused)


class Workspace:
    """Where the agent's code is imported from, once pytest itself is complete."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.folder, self.beside, self.roots = job["workspace"], job["beside"], job["roots"]
        self.own = frozenset(job["own"]) - sys.stdlib_module_names
        self.finders: list[Any] = []

    def find_spec(self, name: str, path: object = None, target: object = None) -> Any:
        """As a finder: names that the template brings win over installed packages, names that the agent added do not."""
        return PathFinder.find_spec(name, self.beside + self.roots) if path is None and name in self.own else None

    def open(self) -> list[str]:
        """Make it importable, unless names that it brings have been taken by pytest and its plugins: these are returned."""
        sys.meta_path.remove(PARTS)
        sys.path[:] = self.beside + sys.path + self.roots
        sys.meta_path.insert(0, self)
        self.finders = list(sys.meta_path)
        return sorted(self.own.intersection(sys.modules))

    def make_room(self, path: str) -> None:
        """Before a test module: pytest takes what stands in sys.modules under its name, and the first finder's word."""
        parts = os.path.splitext(path)[0].strip("/").split("/")  # noqa: PTH122
        for start in range(len(parts)):
            sys.modules.pop(".".join(parts[start:]), None)
        sys.meta_path[:] = self.finders + [f for f in sys.meta_path if f not in self.finders]

    def has_raised(self, error: BaseException) -> bool:
        """Whether any frame of the traceback, or any fixture that was looked for on the way, is code of the workspace."""
        for fixture in getattr(error, "fixturestack", ()):
            code = getattr(getattr(fixture, "func", None), "__code__", None)
            if getattr(code, "co_filename", "").startswith(self.folder + "/"):
                return True
        frame = error.__traceback__
        while frame is not None and not frame.tb_frame.f_code.co_filename.startswith(self.folder + "/"):
            frame = frame.tb_next
        return frame is not None


def cut(text: str, limit: int) -> str:
    """The beginning, with a mark where there is more: by it who knows the secrets finds one that was cut through."""
    return text if len(text) <= limit else f"{text[:limit]}…"


def blame(error: BaseException) -> dict[str, object]:
    """The real exception behind pytest's own."""
    while type(error).__name__ in ("CollectError", "ConftestImportFailure") and error.__cause__:
        error = error.__cause__
    return {"error": type(error).__name__, "message": cut(str(error), 2000)}


def is_marked(item: pytest.Item) -> bool:
    """Whether the tests themselves expect the item to fail; `pytest.xfail()` in a call is no mark."""
    function = getattr(item, "obj", None)
    return bool(item.get_closest_marker("xfail") or getattr(function, "__unittest_expecting_failure__", False))


class Reporter:
    """The plugin that turns what pytest does into records."""

    def __init__(self, job: dict[str, Any], send: Callable[..., None]) -> None:
        self.workspace, self.done, self.send, self.leave = Workspace(job), frozenset(job["done"]), send, os._exit

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_load_initial_conftests(self) -> Any:
        """Entry points have been read by now: a dist-info folder in the workspace registers no plugin."""
        if taken := self.workspace.open():
            self.send("conflict", names=taken)
            os._exit(0)
        self.send("ready")
        try:
            return (yield)
        except BaseException as error:
            self.send("conftest", **blame(error))
            raise

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Any:
        """A module that is being imported when the process ends is told from the others."""
        if not isinstance(collector, pytest.Module):
            return (yield)
        self.send("collecting", id=collector.nodeid, file=str(collector.path))
        self.workspace.make_room(str(collector.path))
        try:
            report = yield
        except SystemExit as error:  # sys.exit at import: the failure of this file, not the end of the run
            self.send("uncollected", id=collector.nodeid, **blame(error))
            report = pytest.CollectReport(collector.nodeid, "failed", "SystemExit: " + str(error), [])
        self.send("has collected", id=collector.nodeid)
        return report

    def pytest_exception_interact(self, node: Any, call: Any, report: Any) -> None:
        """Import errors, and fixtures that do not exist."""
        error = call.excinfo.value
        if isinstance(report, pytest.CollectReport):
            self.send("uncollected", id=node.nodeid, **blame(error))
        elif report.when == "setup" and type(error) is pytest.FixtureLookupError and not self.workspace.has_raised(error):
            self.send("fixture", id=node.nodeid, message=str(error.argname))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A skip at import."""
        if report.skipped:
            self.send("uncollected", id=report.nodeid, error="Skipped", message=cut(str(report.longrepr), 2000))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What an earlier process has done is not done again."""
        items[:] = [item for item in items if item.nodeid not in self.done]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The tests that will run."""
        self.send("collected", ids={item.nodeid: is_marked(item) for item in session.items})

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self.send("start", id=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """The call, and whatever else did not pass."""
        if report.when == "call" or report.outcome != "passed":
            text = "" if report.passed else report.longreprtext
            text = text if len(text) <= _TEXT else f"…{text[-_TEXT:]}"
            crash = getattr(getattr(report.longrepr, "reprcrash", None), "message", "")
            expected_to_fail = hasattr(report, "wasxfail")
            self.send("phase", outcome=report.outcome, when=report.when, xfail=expected_to_fail, text=text, message=cut(str(crash), 500))

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended."""
        self.send("finish", id=nodeid)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Any:
        """All tests and all clean-up of theirs are done: what pytest does from here on, it does for people."""
        result = yield
        if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            sys.stdout.flush()
            self.end(exitstatus)
        return result

    def end(self, status: int) -> None:
        """The last record and the end of the process."""
        self.send("end", status=int(status))
        self.leave(0)

    def pytest_internalerror(self, excinfo: Any) -> None:
        """pytest itself failed, most likely through what was done to it."""
        self.send("internal", **blame(excinfo.value))


def load() -> None:
    """All of pytest, before anything of the workspace can be imported: what that has under the same names comes too late."""
    plugins = getattr(sys.modules["_pytest.config"], "default_plugins", ())  # not public: without it a run loads them by itself
    for name in (*_LATE, *(f"_pytest.{plugin}" for plugin in plugins)):
        importlib.import_module(name)


INSTALLED: dict[str, int] = {}  #: folders that packages are installed in -> when they last changed, as of prepare()


def look_at_installed() -> dict[str, int]:
    """Where packages are installed and `.pth` files are read, with the time of the last change in nanoseconds."""
    found = {}
    for folder in sys.path:
        if not folder.endswith(("site-packages", "dist-packages")):
            continue  # a project that is installed as it lies, whose top changes all the time
        try:
            found[folder] = pathlib.Path(folder).stat().st_mtime_ns
        except OSError:
            continue  # a zip, or not there
    return found


def prepare() -> None:
    """What every run does before it knows what it runs; for warm.py, which calls this once. RuntimeError if it fails.

    pytest runs one file of ours, since code that has run before runs faster, with no plugins but its own, since what others keep
    of a run is not known. Then it takes its first step for the run to come.
    """
    INSTALLED.update(look_at_installed())
    load()
    list(importlib.metadata.distributions())
    before = set(sys.modules)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    status = pytest.main([*BLOCKED, "-pno:unraisableexception", *_REHEARSAL])
    if status != pytest.ExitCode.TESTS_FAILED:
        raise RuntimeError(f"the rehearsal ended with {status!r}")
    ours = {*PARTS.files, *sys.stdlib_module_names}
    for name in [name for name in set(sys.modules) - before if name.partition(".")[0] not in ours]:
        del sys.modules[name]
    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        sys.__dict__.pop(name, None)
    if hasattr(sys.modules["_pytest.config"], "get_config"):
        take_first_step(sys.modules["_pytest.config"])
    gc.collect()


def take_first_step(internals: Any) -> None:
    """Make a configuration that has pytest's own plugins and nothing else; the one run that there will be begins with it.

    `get_config` is not public. A pytest without it, and a task that chooses plugins, takes the step later.
    """
    begin = internals.get_config
    made = begin(BLOCKED)

    def get_config(args: Any = None, plugins: Any = None, **more: Any) -> Any:
        internals.get_config = begin
        if [arg for arg in args or () if arg.startswith("-p")] != BLOCKED:
            return begin(args, plugins, **more)  # the task chooses plugins
        made.invocation_params = made.InvocationParams(args=args, plugins=plugins, dir=pathlib.Path.cwd())
        return made

    internals.get_config = get_config


def main() -> None:
    """Run pytest once; the rest is records. A fork that is older than what is installed ends: a new process will read its `.pth` files."""
    if INSTALLED and look_at_installed() != INSTALLED:
        os._exit(1)
    job, send = connect()
    load()
    read_sources(job, send)
    reporter = Reporter(job, send)
    reporter.end(pytest.main([*BLOCKED, *job["argv"]], plugins=[reporter]))


if __name__ == "__main__":
    main()
