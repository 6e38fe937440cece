"""--codeprobe-jobs: order, slots, fixtures of ordinary tests, what stops a run, and the choice between threads and workers."""

from __future__ import annotations

import ast
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from tests.front_door import Project, Run, scripted

AGENT = "--codeprobe-agent=scripted"
WRITE = {"write": {"path": "out.txt", "content": "x"}}
#: a fixture of each scope in tests/, which notes when it is set up and torn down
SCOPED = """
import pytest
@pytest.fixture(scope={scope!r}{more})
def kept():
    note("up")
    yield
    note("down")
def note(word):
    with open({log!r}, "a") as file:
        file.write(word + "\\n")
"""


def noting(project: Project, task_id: str, *, seconds: float = 0.0) -> dict[str, Any]:
    """An agent that writes `begin <id>` and `end <id>` to marks/log."""
    log = project.marks / "log"
    return scripted({"run": f"echo begin {task_id} >> {log}; sleep {seconds}; echo end {task_id} >> {log}; echo x > out.txt"})


def log(project: Project) -> list[str]:
    return (project.marks / "log").read_text().splitlines()


def in_order_of_start(run: Run) -> list[str]:
    return sorted(run.statuses, key=lambda task: str(run.result(task)["started_at"]))


def most_at_once(lines: list[str]) -> int:
    depth = most = 0
    for line in lines:
        depth += line.startswith("begin") - line.startswith("end")
        most = max(most, depth)
    return most


# ---- order


def test_as_many_at_once_as_there_are_jobs(project: Project) -> None:
    for n in range(9):
        project.task(f"t{n}", agent=noting(project, f"t{n}", seconds=0.3))
    run = project.run("tasks", AGENT, "--codeprobe-jobs=3").assert_consistent()
    assert set(run.statuses.values()) == {"passed"}
    assert most_at_once(log(project)) == 3
    for place, task in enumerate(in_order_of_start(run)):  # as far as three threads can be in order
        assert abs(place - int(task[1:])) < 3


def test_ordinary_tests_before_the_first_task_run_first(project: Project) -> None:
    body = (
        f"import time\ndef test_a(n=0):\n    time.sleep(0.3)\n    with open({str(project.marks / 'log')!r}, 'a') as f: f.write('test\\n')\n"
    )
    project.write("tests/test_a.py", body)
    project.write("ztests/test_z.py", body)
    project.task("t", agent=noting(project, "t"))
    run = project.run("tests", "tasks", "ztests", AGENT, "--codeprobe-jobs=4").assert_consistent()
    assert log(project)[0] == "test"
    assert sorted(log(project)) == ["begin t", "end t", "test", "test"]
    assert run.code == 0


def test_a_failing_unit_test_stops_before_it_costs_anything(project: Project) -> None:
    project.write("tests/test_a.py", "def test_a(): assert 0\n")
    for n in range(4):
        project.task(f"t{n}", agent=noting(project, f"t{n}"))
    run = project.run("tests", "tasks", "-x", AGENT, "--codeprobe-jobs=8").assert_consistent()
    assert run.code == 1
    assert not (project.marks / "log").exists()
    assert not [e for e in run.events if e["event"] == "trial_started"]
    assert {(e["status"], e["reason"]) for e in run.finished.values()} == {("not_run", "maxfail")}


def test_nothing_starts_after_the_last_failure_that_is_allowed(project: Project) -> None:
    """Not even between the end of the trial and pytest's report of it, however long that takes."""
    project.task("a", agent=scripted({"say": "no"}))
    for n in range(12):
        project.task(f"b{n}", agent=noting(project, f"b{n}"))
    project.write("conftest.py", "import time\ndef pytest_runtest_logstart(nodeid):\n    if nodeid.endswith('::a'): time.sleep(3)\n")
    run = project.run("tasks", "-x", AGENT, "--codeprobe-jobs=2").assert_consistent()
    assert run.statuses["a"] == "failed"
    later = [e for e in run.events if e["event"] == "trial_started" and e["time"] > run.result("a")["ended_at"]]
    assert len(later) <= 1  # the other thread may have taken it in that very moment


def test_what_had_started_is_reported(project: Project) -> None:
    """pytest is told of trials that were over, or were ended, when it had to stop: they have been paid for."""
    wait = f"while ! test -e {project.marks}/go; do sleep 0.05; done"
    project.task("a-fail", agent=scripted({"run": f"{wait}; sleep 0.2"}))
    project.task("b-held", agent=scripted({"run": f"touch {project.marks}/go; sleep 600"}))
    project.task("c-held", agent=scripted({"run": "sleep 600"}), xfail="known")
    project.task("d-later", agent=scripted(WRITE))
    run = project.run("tasks", "-x", AGENT, "--codeprobe-jobs=3").assert_consistent()
    assert run.code == 1
    assert run.statuses == {"a-fail": "failed", "b-held": "not_run", "c-held": "not_run", "d-later": "not_run"}
    assert run.junit() == {"a-fail": "failure", "b-held": "skipped", "c-held": "skipped"}
    assert run.result("b-held")["reason"] == "maxfail"
    run.assert_nothing_left()


# ---- trials of their own set-up


def test_one_at_a_time_and_in_one_of_the_slots(project: Project) -> None:
    held = "import pytest\n@pytest.fixture(autouse=True)\ndef service(): pass\n"
    project.write("tasks/held/conftest.py", held)
    for n in range(3):
        project.task(f"held{n}", agent=noting(project, f"held{n}", seconds=0.3), file=f"tasks/held/{n}.yaml")
        project.task(f"free{n}", agent=noting(project, f"free{n}", seconds=0.3), file=f"tasks/free/{n}.yaml")
    run = project.run("tasks", AGENT, "--codeprobe-jobs=2").assert_consistent()
    assert set(run.statuses.values()) == {"passed"}
    assert most_at_once(log(project)) == 2
    assert most_at_once([line for line in log(project) if "held" in line]) == 1


@pytest.mark.parametrize("scope", ["module", "package", "session"])
def test_neighbours_keep_their_fixture(project: Project, scope: str) -> None:
    """Trials end while ordinary tests run; the tests' fixtures are set up once all the same, as without jobs."""
    project.write("tests/__init__.py", "")
    project.write("tests/conftest.py", SCOPED.format(scope=scope, more="", log=str(project.marks / "fixture")))
    project.write(
        "tests/test_a.py", "import time\ndef test_a(kept): time.sleep(0.4)\ndef test_b(): pass\ndef test_c(kept): time.sleep(0.4)\n"
    )
    for n in range(4):
        project.task(f"t{n}", agent=noting(project, f"t{n}", seconds=0.1))
    run = project.run("tasks", "tests", AGENT, "--codeprobe-jobs=2").assert_consistent()
    assert run.code == 0
    assert (project.marks / "fixture").read_text().split() == ["up", "down"]


def test_neighbours_keep_their_class_and_module(project: Project) -> None:
    """setup_module and setup_class too."""
    note = f"def note(word):\n    with open({str(project.marks / 'fixture')!r}, 'a') as file: file.write(word + '\\n')\n"
    body = (
        "import time\n" + note + "def setup_module(): note('module')\n"
        "class TestIt:\n"
        "    def setup_class(cls): note('class')\n"
        "    def test_a(self): time.sleep(0.3)\n"
        "    def test_b(self): time.sleep(0.3)\n"
    )
    project.write("tests/test_a.py", body)
    for n in range(4):
        project.task(f"t{n}", agent=noting(project, f"t{n}", seconds=0.1))
    run = project.run("tasks", "tests", AGENT, "--codeprobe-jobs=2").assert_consistent()
    assert run.code == 0
    assert (project.marks / "fixture").read_text().split() == ["module", "class"]


def test_results_do_not_wait_for_all_ordinary_tests(project: Project) -> None:
    """Between two that share nothing, trials that are over are reported."""
    order = str(project.marks / "order")
    hook = (
        "def pytest_runtest_logreport(report):\n    if report.when == 'call':\n"
        f"        with open({order!r}, 'a') as f: f.write(report.nodeid + '\\n')\n"
    )
    project.write("conftest.py", hook)
    project.write(
        "ztests/test_a.py", "import time\nimport pytest\n@pytest.mark.parametrize('n', range(4))\ndef test_a(n): time.sleep(0.4)\n"
    )
    project.task("t", agent=noting(project, "t", seconds=0.1))
    project.run("tasks", "ztests", AGENT, "--codeprobe-jobs=2").assert_consistent()
    lines = (project.marks / "order").read_text().splitlines()
    assert lines[-1] != "tasks/t.yaml::t"


# ---- reports


def test_durations_are_those_of_the_trials(project: Project) -> None:
    project.task("slow", agent=noting(project, "slow", seconds=1))
    project.task("fast", agent=noting(project, "fast"))
    run = project.run("tasks", AGENT, "--codeprobe-jobs=2", "--durations=1", "-vv").assert_consistent()
    times = {c.get("name"): float(c.get("time", "0")) for c in ET.parse(run.junit_file).iter("testcase")}
    assert times["slow"] >= run.result("slow")["duration_seconds"] >= 1
    assert "setup    tasks/slow.yaml::slow" in run.output


def test_a_rerun_holds_a_slot(project: Project) -> None:
    project.task(
        "again", agent=scripted({"run": f"echo begin again >> {project.marks}/log; sleep 0.3; echo end again >> {project.marks}/log"})
    )
    for n in range(5):
        project.task(f"t{n}", agent=noting(project, f"t{n}", seconds=0.3))
    run = project.run("tasks", AGENT, "--codeprobe-jobs=2", "--reruns=2").assert_consistent()
    assert run.statuses["again"] == "failed"
    assert len(run.result("again")["attempts"]) == 3
    assert most_at_once(log(project)) == 2


# ---- sandboxes of the project's own


WRAPPING = """
import pytest
class Labelled:
    def __init__(self, sandbox): self._sandbox = sandbox
    def __getattr__(self, name): return getattr(self._sandbox, name)
    def prepare(self):
        self._sandbox.prepare()
        (self._sandbox.home / "label").write_text("mine")
@pytest.hookimpl(wrapper=True)
def pytest_codeprobe_make_sandbox(config, trial, context):
    assert trial.task_id
    return Labelled((yield))
"""


MAKING_NONE = "def pytest_codeprobe_make_sandbox(trial):\n    {}\n"
STAYING = "    def delete(self): raise RuntimeError('still in use')\n    def prepare(self):"


def test_sandboxes_of_the_projects_own(project: Project, mode: str) -> None:
    """Each for the tasks below its conftest.py, in every mode; none is held back by another, and one that can't be deleted is a warning."""
    command = {"run": "test -e $HOME/label && echo x > out.txt; true"}
    for folder, conftest in {
        "mine": WRAPPING,
        "other": "",
        "raises": MAKING_NONE.format("raise RuntimeError('no room')"),
        "odd": MAKING_NONE.format("return 'a sandbox'"),
        "stays": WRAPPING.replace("    def prepare(self):", STAYING),
    }.items():
        project.write(f"tasks/{folder}/conftest.py", conftest)
        project.task(folder, agent=scripted(command), file=f"tasks/{folder}/t.yaml")
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert run.statuses == {"mine": "passed", "other": "failed", "raises": "error", "odd": "error", "stays": "passed"}
    for task, text in {"raises": "no room", "odd": "answered str, which is no sandbox"}.items():
        assert run.finished[task]["code"] == "SANDBOX_FAILED"
        assert text in run.finished[task]["reason"]
    (said,) = run.envelope["warnings"]
    assert "could not be deleted: RuntimeError: still in use" in said


# ---- threads or workers


def spread(run: Run) -> str:
    """What the trials' worker was: `main` or one of xdist's."""
    return "xdist" if {e["worker"] for e in run.finished.values()} & {"gw0", "gw1"} else "main"


@pytest.mark.parametrize(
    ("typed", "addopts", "env", "wanted", "header"),
    [
        (["--codeprobe-jobs=2"], "-n 2", {}, "main", "2 jobs (-n of addopts is set aside)"),
        (["--codeprobe-jobs", "2"], "--dist=load --tx=2*popen", {}, "main", "2 jobs (-n of addopts is set aside)"),
        (["-n2"], "--codeprobe-jobs=2", {}, "xdist", "2 workers"),
        (["--numprocesses=2"], "", {"CODEPROBE_JOBS": "2"}, "xdist", "2 workers"),
        ([], "-n2", {"CODEPROBE_JOBS": "2"}, "xdist", "2 workers"),
        ([], "", {"CODEPROBE_JOBS": "2"}, "main", "2 jobs"),
        (["-n0", "--codeprobe-jobs=2"], "", {}, "main", "2 jobs"),
        ([], "--codeprobe-jobs=2", {}, "main", "2 jobs"),
    ],
)
def test_who_wins(project: Project, typed: list[str], addopts: str, env: dict[str, str], wanted: str, header: str) -> None:
    project.write("pytest.ini", f"[pytest]\naddopts = {addopts}\n")
    project.task("a", agent=scripted(WRITE))
    project.task("b", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, *typed, env=env).assert_consistent()
    assert run.code == 0
    assert spread(run) == wanted
    assert header in run.output.replace("\n", " ")


@pytest.mark.parametrize("console", [False, True])
def test_both_are_refused(project: Project, console: bool) -> None:
    project.task("a", agent=scripted(WRITE))
    if console:
        run = project.codeprobe("run", "--json", "--agent=scripted", "-j", "2", "--", "-n", "2")
    else:
        run = project.run("tasks", AGENT, "--codeprobe-jobs=2", "-n", "2", "--codeprobe-json")
    envelope = run.assert_pure(events=False)
    (error,) = envelope["errors"]
    assert (run.code, error["code"]) == (4, "USAGE_ERROR")
    assert "exclude each other" in error["message"]
    assert "-n N where" in error["remediation"]
    assert not run.wrote


@pytest.mark.parametrize("value", ["1.5", "1001", ""])
def test_a_number_of_jobs(project: Project, value: str) -> None:
    project.task("a", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, f"--codeprobe-jobs={value}", "--codeprobe-json")
    (error,) = run.assert_pure(events=False)["errors"]
    assert (run.code, error["code"]) == (4, "USAGE_ERROR")
    assert "--codeprobe-jobs" in error["message"]


def test_one_job_is_pytests_own_loop(project: Project) -> None:
    project.task("a", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, "--codeprobe-jobs=1").assert_consistent()
    assert "jobs" not in run.output
    assert run.code == 0


def test_the_console_script(project: Project) -> None:
    for n in range(4):
        project.task(f"t{n}", agent=noting(project, f"t{n}", seconds=0.3))
    run = project.codeprobe("run", "--agent=scripted", "-j", "2", "--json")
    run.assert_pure(events=False)
    assert run.code == 0
    assert most_at_once(log(project)) == 2


# ---- what must not wait, and what must


def test_a_trial_of_its_own_set_up_does_not_start_after_the_last_failure(project: Project) -> None:
    """It waits for a slot, and the one that it gets is that of the trial whose failure ends the run."""
    project.write("tasks/b/conftest.py", "import pytest\n@pytest.fixture(autouse=True)\ndef service(): pass\n")
    project.task("a", agent=scripted({"run": f"while ! test -e {project.marks}/go; do sleep 0.05; done; sleep 0.5"}), file="tasks/a.yaml")
    project.task("b", agent=noting(project, "b"), file="tasks/b/b.yaml")
    project.task("c", agent=scripted({"run": f"touch {project.marks}/go; sleep 600"}), file="tasks/c.yaml")
    run = project.run("tasks/a.yaml", "tasks/c.yaml", "tasks/b", "-x", AGENT, "--codeprobe-jobs=2").assert_consistent()
    assert run.statuses == {"a": "failed", "b": "not_run", "c": "not_run"}
    assert not (project.marks / "log").exists()


def test_a_skipped_task_waits_for_no_slot(project: Project) -> None:
    """Both slots are taken until pytest has said that it is skipped."""
    hook = "from pathlib import Path\ndef pytest_runtest_logreport(report):\n    if report.skipped: Path({!r}).touch()\n"
    project.write("conftest.py", hook.format(str(project.marks / "skipped")))
    look = f"while ! test -e {project.marks}/skipped && test $n -lt 200; do sleep 0.1; n=$((n+1)); done"
    wait = f"n=0; {look}; test $n -lt 200 && echo x > out.txt"
    for name in ("a", "b"):
        project.task(name, agent=scripted({"run": wait}))
    project.task("c", agent=scripted(WRITE), skip="not today")
    project.task("d", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, "--codeprobe-jobs=2").assert_consistent()
    assert run.statuses == {"a": "passed", "b": "passed", "c": "skipped", "d": "passed"}


def test_not_too_many_wait_to_be_told(project: Project) -> None:
    """Their workspaces lie on disk until then: while an ordinary test takes long, only so many trials go on."""
    for n in range(30):
        project.task(f"t{n:02}", agent=scripted(WRITE))
    body = (
        "import time\nfrom pathlib import Path\n"
        "def test_slow():\n"
        "    results = lambda: len(list(Path('run').glob('trials/*/*/*/result.json')))\n"
        "    until = time.monotonic() + 60\n"
        "    while results() < 8 and time.monotonic() < until: time.sleep(0.1)\n"
        "    time.sleep(2)\n"
        "    Path('seen').write_text(str(results()))\n"
    )
    project.write("between/test_slow.py", body)
    names = [f"tasks/t{n:02}.yaml" for n in range(30)]
    run = project.run(names[0], "between", *names[1:], AGENT, "--codeprobe-jobs=2", "--codeprobe-run-dir=run").assert_consistent()
    assert run.code == 0
    assert 8 <= int((project.path / "seen").read_text()) < 20


def test_an_xfail_mark_of_the_users_counts_at_the_end_too(project: Project) -> None:
    mark = (
        "import pytest\ndef pytest_collection_modifyitems(items):\n"
        "    for i in items:\n        if 'b-' in i.name: i.add_marker(pytest.mark.xfail(reason='gap'))\n"
    )
    project.write("conftest.py", mark)
    project.task("a-fail", agent=scripted({"run": f"while ! test -e {project.marks}/go; do sleep 0.05; done; sleep 0.3"}))
    project.task("b-fail", agent=scripted({"say": "no"}))
    project.task("c-held", agent=scripted({"run": f"touch {project.marks}/go; sleep 600"}))
    late = "\nimport time\ndef pytest_runtest_logstart(nodeid):\n    if 'a-fail' in nodeid: time.sleep(1)\n"
    project.write("conftest.py", mark + late)
    run = project.run("tasks", "-x", AGENT, "--codeprobe-jobs=3").assert_consistent()
    assert run.junit() == {"a-fail": "failure", "b-fail": "skipped", "c-held": "skipped"}
    assert run.envelope["data"]["tasks_xfailed"] == 1


def test_trials_of_one_package_do_not_hold_up_the_rest(project: Project) -> None:
    """An `__init__.py` alone binds nothing together; one with a setup_module does."""
    note = f"def note(word):\n    with open({str(project.marks / 'fixture')!r}, 'a') as file: file.write(word + '\\n')\n"
    project.write("tests/__init__.py", note + "def setup_module(): note('package')\n")
    for name in ("a", "b"):
        project.write(f"tests/test_{name}.py", "import time\ndef test_it(): time.sleep(0.4)\n")
    for n in range(4):
        project.task(f"t{n}", agent=noting(project, f"t{n}", seconds=0.1))
    run = project.run("tasks", "tests", AGENT, "--codeprobe-jobs=2").assert_consistent()
    assert run.code == 0
    once = (project.marks / "fixture").read_text().split()
    plain = project.run("tasks", "tests", AGENT, "--codeprobe-run-dir=plain").assert_consistent()
    assert plain.code == 0
    assert (project.marks / "fixture").read_text().split() == once * 2


NEXT = """
import pathlib, pytest
def pytest_runtest_teardown(item, nextitem):
    if nextitem is not None:
        nextitem.path, nextitem.location, nextitem.keywords, nextitem.get_closest_marker("x"), nextitem.reportinfo()
    with pathlib.Path({marks!r}, "next").open("a") as file:
        print(nextitem and isinstance(nextitem, pytest.Item) and nextitem.getparent(pytest.Session) is item.session, file=file)
"""


ESCAPES = """
import threading, time, warnings
import pytest

def test_warns():
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        with pytest.warns(UserWarning, match="mine"):
            warnings.warn("mine", UserWarning)
"""


def test_warnings_of_an_ordinary_test_are_its_own(project: Project) -> None:
    """Graders in threads beside it change no warning filters; and a hidden test about which the parser warns is none that is broken."""
    project.write("tests/test_warns.py", ESCAPES)
    project.write("tasks/hidden/test_it.py", "def test_it():\n    assert '\\d' != open('out.txt').read()\n")
    criteria = [{"type": "pytest", "paths": ["hidden"]}]
    for n in range(6):
        project.task(f"t{n}", agent=scripted(WRITE), success_criteria=criteria)
    run = project.run("tasks", "tests", AGENT, "--codeprobe-jobs=4", "-W", "error").assert_consistent()
    assert run.code == 0, run.output[-3000:]
    assert set(run.statuses.values()) == {"passed"}


def test_a_hook_can_ask_the_next_item_what_items_are_asked(project: Project) -> None:
    """Nobody knows yet which one it is, but it is an item."""
    project.write("conftest.py", NEXT.format(marks=str(project.marks)))
    project.write("tests/test_it.py", "def test_it(): pass\n")
    for n in range(3):
        project.task(f"t{n}", agent=scripted(WRITE))
    run = project.run("tasks", "tests", AGENT, "--codeprobe-jobs=4").assert_consistent()
    assert run.code == 0, run.output
    assert (project.marks / "next").read_text().split() == ["True", "True", "True", "None"]


def test_nobody_changes_warning_filters_in_pytests_process() -> None:
    """warnings.catch_warnings() is for one thread only."""
    package = Path(__file__).resolve().parents[1] / "pytest_codeprobe"
    files = [p for p in package.rglob("*.py") if "children" not in p.parts]
    assert len(files) > 100
    calls = {p.name for p in files for n in ast.walk(ast.parse(p.read_text())) if getattr(n, "attr", "") == "catch_warnings"}
    assert calls == set()
