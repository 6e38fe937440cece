"""How a run ends: exit code and errors[] of spec codes.md, the same with and without xdist, and an envelope in every case."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.options import BUILT, INIS, NEEDS_VALUE, resolve
from tests.front_door import MODES, Project, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
PASS, FAIL = scripted(WRITE), scripted({"say": "no idea"})
AGENT = "--codeprobe-agent=scripted"
GO_ON = "--continue-on-collection-errors"


def passing(project: Project) -> None:
    project.task("p", agent=PASS)


def failing(project: Project) -> None:
    project.task("p", agent=PASS)
    project.task("q", agent=FAIL)


def erring(project: Project) -> None:
    project.task("p", agent=PASS)
    project.task("r", agent=PASS, pre_run=[{"command": "exit 3"}])


def failing_and_erring(project: Project) -> None:
    failing(project)
    erring(project)


def expected_fail(project: Project) -> None:
    project.task("p", agent=PASS)
    project.task("x", agent=FAIL, xfail="known gap")


def all_skipped(project: Project) -> None:
    project.task("p", agent=PASS, skip="not today")
    project.task("q", agent=PASS, skip=True)


def broken(project: Project) -> None:
    passing(project)
    project.write("tasks/broken.yaml", "task_id: broken\ninital_prompt: x\n")


def broken_and_failing(project: Project) -> None:
    failing(project)
    broken(project)


def ordinary(text: str) -> Callable[[Project], None]:
    def fill(project: Project) -> None:
        passing(project)
        project.write("tests/test_ordinary.py", text)

    return fill


def conftest(text: str) -> Callable[[Project], None]:
    def fill(project: Project) -> None:
        passing(project)
        project.write("conftest.py", "import pytest\n" + text)

    return fill


def nothing(project: Project) -> None:
    (project.path / "tasks").mkdir()


@dataclasses.dataclass(frozen=True)
class Case:
    """One way in which a run ends."""

    name: str
    fill: Callable[[Project], None]
    code: int
    errors: tuple[str, ...] = ()
    args: tuple[str, ...] = ("tasks", AGENT)
    counts: str = ""  #: tasks by status, without those that are 0
    says: str = ""  #: in the first error's message


BOTH = ("tasks", "tests", AGENT)
#: those in which pytest or xdist could differ between its versions
JOINT = frozenset(
    {"failed-beats-error", "no-agent", "module-error", "broken-goes-on", "no-node", "test-exits", "start-raises", "finish-raises"}
)
CASES = (
    # --- verdicts
    Case("passed", passing, 0, counts="1 passed"),
    Case("failed", failing, 1, counts="1 passed, 1 failed"),
    Case("error", erring, 6, ("SANDBOX_FAILED",), counts="1 passed, 1 error"),
    Case("failed-beats-error", failing_and_erring, 1, ("SANDBOX_FAILED",), counts="1 passed, 1 failed, 1 error"),
    Case("expected-fail", expected_fail, 0, counts="1 passed, 1 xfailed"),
    Case("all-skipped", all_skipped, 5, ("NO_TASKS",), counts="2 skipped", says="not today"),
    Case("no-agent", passing, 5, args=("tasks",), counts="1 skipped"),
    Case("no-agent-but-ordinary", ordinary("def test_a(): pass\n"), 0, args=("tasks", "tests"), counts="1 skipped"),
    Case("maxfail", failing_and_erring, 1, args=("tasks/q.yaml", "tasks/p.yaml", AGENT, "-x")),
    # --- ordinary tests
    Case("ordinary-fails", ordinary("def test_a(): assert 0\n"), 1, args=BOTH, counts="1 passed"),
    Case("ordinary-alone", ordinary("def test_a(): pass\n"), 0, args=("tests", AGENT)),
    Case("module-error", ordinary("import nosuch\n"), 2, args=BOTH),
    Case("module-error-goes-on", ordinary("import nosuch\n"), 1, args=(*BOTH, GO_ON), counts="1 passed"),
    # --- task files
    Case("broken", broken, 4, ("TASK_INVALID",), says="tasks/broken.yaml:1:1: "),
    Case("broken-goes-on", broken, 4, ("TASK_INVALID",), args=("tasks", AGENT, GO_ON), counts="1 passed"),
    Case("broken-goes-on-fails", broken_and_failing, 1, ("TASK_INVALID",), args=("tasks", AGENT, GO_ON), counts="1 passed, 1 failed"),
    Case("broken-collect-only", broken, 4, ("TASK_INVALID",), args=("tasks", AGENT, "--collect-only")),
    # --- nothing to do
    Case("no-tasks", nothing, 5, ("NO_TASKS",)),
    Case("no-tasks-no-agent", nothing, 5, args=("tasks",)),
    Case("deselected", passing, 5, ("NO_TASKS",), args=("tasks", AGENT, "-k", "zzz")),
    Case("collect-only", passing, 0, args=("tasks", AGENT, "--collect-only")),
    # --- refused
    Case("unknown-flag", passing, 4, ("USAGE_ERROR",), args=("tasks", AGENT, "--nosuch"), says="--nosuch"),
    Case("no-path", passing, 4, ("USAGE_ERROR",), args=("nowhere", AGENT), says="nowhere"),
    Case("no-path-no-agent", passing, 4, ("USAGE_ERROR",), args=("nowhere",), says="nowhere"),
    Case("no-path-beside-one", passing, 4, ("USAGE_ERROR",), args=("tasks", "tasks/none.yaml", AGENT), says="none.yaml"),
    Case("no-node", passing, 4, ("USAGE_ERROR",), args=("tasks/p.yaml::zzz", AGENT), says="zzz"),
    Case("unknown-agent", passing, 4, ("UNKNOWN_BACKEND",), args=("tasks", "--codeprobe-agent=scriptd"), says="scripted"),
    Case("conftest-broken", conftest("import nosuch\n"), 4, ("USAGE_ERROR",), says="nosuch"),
    Case("conftest-exits", conftest("pytest.exit('enough')\n"), 4, ("USAGE_ERROR",), says="enough"),
    Case("conftest-leaves", conftest("raise SystemExit(9)\n"), 9, ("USAGE_ERROR",), says="SystemExit(9)"),
    Case("module-leaves", ordinary("raise SystemExit(9)\n"), 3, ("INTERNAL_ERROR",), args=BOTH, says="SystemExit"),
    # --- ended from inside
    Case("configure-exits", conftest("def pytest_configure(): pytest.exit('enough')\n"), 2, ("INTERRUPTED",), says="enough"),
    Case("configure-exits-with", conftest("def pytest_configure(): pytest.exit('enough', 7)\n"), 7, ("INTERRUPTED",), says="enough"),
    Case("start-exits", conftest("def pytest_sessionstart(): pytest.exit('enough')\n"), 2, ("INTERRUPTED",), says="enough"),
    Case("test-exits", ordinary("import pytest\ndef test_a(): pytest.exit('enough')\n"), 2, ("INTERRUPTED",), args=("tests", AGENT)),
    Case("finish-exits", conftest("def pytest_sessionfinish(): pytest.exit('enough', 7)\n"), 2, ("INTERRUPTED",), counts="1 passed"),
    # --- internal errors
    Case("configure-raises", conftest("def pytest_configure(): 1 / 0\n"), 3, ("INTERNAL_ERROR",), says="ZeroDivisionError"),
    Case("start-raises", conftest("def pytest_sessionstart(): 1 / 0\n"), 3, ("INTERNAL_ERROR",), says="ZeroDivisionError"),
    Case("collection-raises", conftest("def pytest_collection_modifyitems(): 1 / 0\n"), 3, ("INTERNAL_ERROR",), says="ZeroDivisionError"),
    Case("report-raises", conftest("def pytest_runtest_logreport(): 1 / 0\n"), 3, ("INTERNAL_ERROR",), says="ZeroDivisionError"),
    Case("summary-raises", conftest("def pytest_terminal_summary(): 1 / 0\n"), 3, ("INTERNAL_ERROR",), counts="1 passed"),
    Case("finish-raises", conftest("def pytest_sessionfinish(): 1 / 0\n"), 3, ("INTERNAL_ERROR",), counts="1 passed"),
)


#: in which trials run, or pytest's loop is reached: jobs take its place there, and are not known before
LOOPS = frozenset(
    {"failed-beats-error", "all-skipped", "maxfail", "ordinary-fails", "module-error-goes-on"}
    | {"broken-goes-on", "test-exits", "finish-exits", "report-raises", "summary-raises", "finish-raises"}
)
#: plain is enough: tests/test_parity.py holds all modes to the same, or nothing of ours has begun
ALIKE = frozenset({"passed", "failed", "error", "expected-fail", "ordinary-alone", "no-agent-but-ordinary", "no-tasks-no-agent"})
ENDS = [
    pytest.param(case, mode, id=f"{case.name}-{mode}", marks=[pytest.mark.joint] * (case.name in JOINT and mode != "jobs"))
    for case in CASES
    for mode in MODES
    if mode == "plain" or (case.name not in ALIKE and (mode == "xdist" or case.name in LOOPS))
]


@pytest.mark.parametrize(("case", "mode"), ENDS)
def test_end_of_a_run(project: Project, mode: str, case: Case) -> None:
    case.fill(project)
    run = project.run(*case.args, "--codeprobe-json-lines", mode=mode, junit=False)
    envelope = run.assert_pure()
    data = envelope["data"]
    assert run.code == case.code, run.stderr
    assert tuple(e["code"] for e in envelope["errors"]) == case.errors
    if case.says:
        assert case.says in envelope["errors"][0]["message"] + envelope["errors"][0]["remediation"]
    if case.counts:
        shown = {n: data[f"tasks_{n}"] for n in ("passed", "failed", "error", "skipped", "not_run", "xfailed")}
        assert ", ".join(f"{count} {name}" for name, count in shown.items() if count) == case.counts
    assert run.wrote == (data["run_dir"] is not None)
    run.assert_nothing_left()


def test_a_plain_run_keeps_pytests_own_codes(project: Project) -> None:
    """Nothing here is about tasks: no code of ours, though the plugin is installed."""
    project.write("tests/test_a.py", "def test_a(): pass\n")
    assert project.run("tests", junit=False).code == 0
    assert project.run("nowhere", junit=False).code == 4
    assert project.run("tests", "-k", "zzz", junit=False).code == 5
    assert project.run("tests", "-k", "zzz", mode="xdist", junit=False).code == 5
    assert not (project.path / ".codeprobe").exists()


def test_errors_come_by_rank(project: Project) -> None:
    """The harness's refusals (4) before what trials ended with (6), each code once, in the order in which they happened."""
    failing(project)
    broken(project)
    project.task("a-crash", agent=scripted({"fail": "AGENT_CRASHED"}))
    project.task("b-setup", agent=PASS, pre_run=[{"command": "exit 3"}])
    project.task("c-setup", agent=PASS, pre_run=[{"command": "exit 3"}])
    run = project.run("tasks", AGENT, GO_ON, "--codeprobe-json", junit=False)
    envelope = run.assert_pure(events=False)
    assert [(e["code"], e["count"]) for e in envelope["errors"]] == [("TASK_INVALID", 1), ("AGENT_CRASHED", 1), ("SANDBOX_FAILED", 2)]
    assert envelope["errors"][2]["detail"]["trials"] == ["tasks/b-setup.yaml::b-setup", "tasks/c-setup.yaml::c-setup"]


def test_terminal_errors_come_first(project: Project) -> None:
    project.task("a-setup", agent=PASS, pre_run=[{"command": "exit 3"}])
    project.task("b-never", agent=PASS)
    project.write("tests/test_exits.py", "import pytest\ndef test_a(): pytest.exit('enough')\n")
    run = project.run("tasks/a-setup.yaml", "tests", "tasks/b-never.yaml", AGENT, "--codeprobe-json", junit=False)
    envelope = run.assert_pure(events=False)
    assert [(e["code"], e["terminal"]) for e in envelope["errors"]] == [("INTERRUPTED", True), ("SANDBOX_FAILED", False)]
    assert (run.code, envelope["data"]["tasks_error"], envelope["data"]["tasks_not_run"]) == (2, 1, 1)
    assert "2 trials: 1 error, 1 not run (interrupted)" in run.stderr
    remedy, detail = envelope["errors"][0]["remediation"], envelope["errors"][0]["detail"]
    shown = run.folder.resolve().relative_to(project.path.resolve())
    assert remedy.endswith(f"1 of 2 results are in {shown}, and --codeprobe-resume --codeprobe-run-dir={shown} runs the rest.")
    assert (detail["not_run"], detail["not_run_count"]) == (["tasks/b-never.yaml::b-never"], 1)


#: name of an option -> a value that it does not take, and the code that says so
WRONG = {
    "agent": ("scriptd", "UNKNOWN_BACKEND"),
    "model": ("smoke and not slow", "USAGE_ERROR"),
    "driver": ("dokcer", "USAGE_ERROR"),
    "run-dir": ("tasks", "USAGE_ERROR"),
    "preserve": ("all", "USAGE_ERROR"),
    "timeout": ("-1", "USAGE_ERROR"),
    "permission-mode": ("yolo", "INVALID_PERMISSION_MODE"),
    "jobs": ("0", "USAGE_ERROR"),
    "experiment": ("nowhere", "NO_EXPERIMENT"),
    "trace-overflow": ("drop", "USAGE_ERROR"),
    "trace-max-bytes": ("0", "USAGE_ERROR"),
    "trace-budget": ("64 parsecs", "USAGE_ERROR"),
    "backend": ("bedrok", "UNKNOWN_BACKEND"),
    "suite": ("nowhere.toml", "NO_SUITE_MATCH"),
    "offline-expected-run-duration": ("soon", "USAGE_ERROR"),
    "max-cost-usd": ("nothing", "USAGE_ERROR"),
    "max-duration": ("10 minutes", "USAGE_ERROR"),
    "canary": ("maybe", "USAGE_ERROR"),
    "capabilities": ("nowhere.json", "USAGE_ERROR"),
    "set": ("agent.modle=x", "OVERRIDE_INVALID"),
    "tags": ("a,,b", "USAGE_ERROR"),
    "exclude-tags": (",", "USAGE_ERROR"),
    "repeats": ("1000", "USAGE_ERROR"),
    "sample": ("0", "USAGE_ERROR"),
    "sample-per-stratum": ("few", "USAGE_ERROR"),
    "min-score": ("1.5", "USAGE_ERROR"),
    "min-pass-rate": ("101%", "USAGE_ERROR"),
    "rerun": ("some", "USAGE_ERROR"),
}
ANY_VALUE = set[str]()


def no_ini(name: str) -> Any:
    """What pytest says of keys that no file sets."""
    return next((ini.default for ini in INIS if ini.name == name), "")


def test_every_option_with_a_value_is_tried() -> None:
    assert {o.name for o in BUILT if o.kind != "flag"} == WRONG.keys() | ANY_VALUE


#: read by something else than the table of options
READ_LATER = ("agent", "driver", "run-dir", "experiment", "suite", "capabilities", "set")
#: in the environment they are nothing
FLAGS_ALONE = ("sample", "sample-per-stratum", "rerun")


@pytest.mark.parametrize("name", [name for name in WRONG if name not in READ_LATER])
def test_a_wrong_value_can_not_be_read(name: str) -> None:
    value, code = WRONG[name]
    option = next(o for o in BUILT if o.name == name)
    more = {"codeprobe_resume": True, "codeprobe_run_dir": "x"} if name == "rerun" else {}
    with pytest.raises(CodeprobeError) as caught:
        resolve({option.dest: value, **more}, {}, no_ini)
    assert (caught.value.code, value in caught.value.message) == (code, True)
    if name in FLAGS_ALONE:
        assert resolve({}, {option.variable: value}, no_ini) == resolve({}, {}, no_ini)
        return
    with pytest.raises(CodeprobeError, match=re.escape(option.variable)):
        resolve({}, {option.variable: value}, no_ini)


@pytest.mark.parametrize("name", [*READ_LATER, "timeout"])
def test_a_wrong_value_is_refused_before_anything_is_collected(project: Project, name: str) -> None:
    passing(project)
    project.write("tests/test_never.py", "raise SystemExit('was collected')\n")
    value, code = WRONG[name]
    more = () if name == "agent" else (AGENT,)
    run = project.run("tasks", "tests", f"--codeprobe-{name}={value}", *more, "--codeprobe-json-lines", junit=False)
    (error,) = run.assert_pure()["errors"]
    assert (error["code"], run.code) == (code, error_codes()[code].exit_code)
    assert value in error["message"]
    assert error["message"] in run.stderr


@pytest.mark.parametrize("where", ["environment", "ini"])
def test_a_wrong_setting_is_refused_and_named(project: Project, where: str) -> None:
    passing(project)
    environment = {"CODEPROBE_TIMEOUT": "soon"} if where == "environment" else {}
    if where == "ini":
        project.write("pytest.ini", "[pytest]\ncodeprobe_timeout = soon\n")
    run = project.run("tasks", AGENT, "--codeprobe-json", env=environment, junit=False)
    (error,) = run.assert_pure(events=False)["errors"]
    assert (error["code"], run.code) == ("USAGE_ERROR", 4)
    assert ("CODEPROBE_TIMEOUT" if where == "environment" else "codeprobe_timeout") in error["message"]


def test_a_flag_without_its_value(project: Project) -> None:
    """pytest's parser lets it pass, so that there is an envelope."""
    passing(project)
    for option in BUILT:
        if option.kind != "flag":
            with pytest.raises(CodeprobeError, match=f"{option.flag} needs a value"):
                resolve({option.dest: [NEEDS_VALUE] if option.kind == "list" else NEEDS_VALUE}, {}, no_ini)
    run = project.run("--codeprobe-json-lines", "tasks", "--codeprobe-model", junit=False)
    (error,) = run.assert_pure()["errors"]
    assert (error["code"], run.code) == ("USAGE_ERROR", 4)
    assert "--codeprobe-model needs a value" in error["message"]


def test_both_json_flags_together(project: Project) -> None:
    passing(project)
    run = project.run("tasks", AGENT, "--codeprobe-json", "--codeprobe-json-lines", junit=False)
    (error,) = run.assert_pure()["errors"]
    assert (error["code"], run.code) == ("USAGE_ERROR", 4)
    assert "--codeprobe-json and --codeprobe-json-lines" in error["message"]
