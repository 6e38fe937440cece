"""What a session can leave behind to turn a failure into an error, or to keep the harness busy for ever."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from pytest_codeprobe.agents.claude import Claude
from pytest_codeprobe.agents.command import CommandAgent
from pytest_codeprobe.criteria.command.criterion import RunCommand
from pytest_codeprobe.criteria.command.reports import MAX_LEVELS, MAX_TESTS, BadReport, read_junit, read_tap
from pytest_codeprobe.criteria.hidden.criterion import HiddenTests
from pytest_codeprobe.sandboxes.patterns import Patterns
from pytest_codeprobe.tasks.discovery import TaskPatterns
from tests.agent_sessions import ended, make_request, make_trial, read
from tests.fake_grading import FakeGrading
from tests.front_door import Project, scripted
from tests.test_agents_claude_stream import event, result_line, tool_round
from tests.unprivileged import unprivileged_argv


def unprivileged(program: str, *argv: str | Path) -> str:
    """What a Python program prints for which permissions hold."""
    command = unprivileged_argv([sys.executable, "-c", textwrap.dedent(program), *map(str, argv)])
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=Path(__file__).parent.parent)
    assert done.returncode == 0, done.stderr
    return done.stdout


# reports that a command wrote


def test_subtests_are_read_in_linear_time() -> None:
    """20,000 points that wait for a suite; each used to look at all those before it (4,000 took 4 s)."""
    began = time.process_time()
    report = read_tap("  ok a\n" * 20_000 + "ok suite\n")
    assert time.process_time() - began < 5
    assert report.count("passed") == 20_000
    assert report.tests[0].names == ("a", "suite > a")


def test_names_of_nested_subtests_grow_by_one_for_each_level() -> None:
    """Each level used to double them: 30 levels were a thousand million names."""
    levels = MAX_LEVELS - 1
    report = read_tap("\n".join(f"{' ' * (levels - n)}ok - t{n}" for n in range(levels + 1)))
    assert len(report.tests) == 1
    assert report.tests[0].names[:3] == ("t0", "t1 > t0", "t2 > t1 > t0")
    assert len(report.tests[0].names) == MAX_LEVELS


@pytest.mark.parametrize(
    "text",
    ["\n".join(f"{' ' * (40 - n)}ok {n}" for n in range(41)), "ok\n" * (MAX_TESTS + 1), f"1..{'9' * 5000}\nok 1"],
    ids=["deep", "long", "number"],
)
def test_a_tap_report_out_of_all_proportion_is_none(text: str) -> None:
    with pytest.raises(BadReport):
        read_tap(text)


def test_a_junit_report_of_a_million_tests_is_none() -> None:
    with pytest.raises(BadReport, match="more than"):
        read_junit(b"<testsuite>" + b"<testcase/>" * (MAX_TESTS + 1) + b"</testsuite>")
    assert len(read_junit(b"<testsuite>" + b"<error/>" * 5000 + b"</testsuite>").problems) == 100


def test_a_file_where_the_reports_folder_should_be_fails(tmp_path: Path) -> None:
    """It was an error of the criterion, which no pass rate counts."""
    grading = FakeGrading(folder=tmp_path)
    (grading.workspace / "reports").write_text("in the way")
    criterion = RunCommand.model_validate(
        {"type": "run_command", "command": "true", "report": {"path": "reports/j.xml", "format": "junit"}}
    )
    score = criterion.evaluate(grading)
    assert (score.value, score.explanation) == (0.0, "no report: reports/j.xml does not exist")


def test_an_old_report_that_can_not_be_removed_fails(tmp_path: Path) -> None:
    reports = FakeGrading(folder=tmp_path).workspace / "reports"
    reports.mkdir()
    (reports / "j.xml").write_text('<testsuite><testcase name="a"/></testsuite>')
    reports.chmod(0o500)
    try:
        out = unprivileged(
            """
            import sys
            from pathlib import Path
            from tests.fake_grading import FakeGrading
            from pytest_codeprobe.criteria.command.criterion import RunCommand
            report = {"path": "reports/j.xml", "format": "junit"}
            score = RunCommand.model_validate({"type": "run_command", "command": "true", "report": report}).evaluate(
                FakeGrading(folder=Path(sys.argv[1]))
            )
            print(score.value, score.explanation)
            """,
            tmp_path,
        )
    finally:
        reports.chmod(0o700)
    assert out == "0.0 an old reports/j.xml can't be removed: Permission denied\n"


# hidden tests

ENDS_AT_THE_CANARY = """
import os, sys

def watch(name, arguments):
    if name == "open" and "test_z" in str(arguments[0]):
        os._exit(0)

sys.addaudithook(watch)

def f():
    return 2
"""


def test_code_that_ends_the_run_at_a_canary_fails(tmp_path: Path) -> None:
    """The file that was being imported lies outside of the hidden tests' folder, which made it an error of the criterion."""
    grading = FakeGrading(folder=tmp_path)
    (grading.task / "hidden").mkdir()
    (grading.task / "hidden" / "test_a.py").write_text("from lib import f\n\ndef test_f():\n    assert f() == 1\n")
    (grading.workspace / "lib.py").write_text(ENDS_AT_THE_CANARY)
    (grading.template / "lib.py").write_text("")
    score = HiddenTests.model_validate({"type": "pytest", "paths": ["hidden"]}).evaluate(grading)
    assert score.value == 0
    assert "the run stopped without its final record (exit status 0)" in score.explanation


SETS_A_MARK = """
import sys, pytest

frame = sys._getframe()
while frame:
    frame.f_globals.setdefault("pytestmark", pytest.mark.xfail)
    frame = frame.f_back
"""
HOSTILE_NAMES = {
    "a test of its own": ("def test_evil(nothing):\n    pass\n", "0 of 2 hidden tests passed"),
    "a fixture that needs another": ("import pytest\n\n@pytest.fixture\ndef data(nothing):\n    pass\n", "0 of 1 hidden tests passed"),
    "a mark that excuses": ("import pytest\n\npytestmark = pytest.mark.xfail\n", "1 of 3 hidden tests passed"),
    "a mark set from below": (SETS_A_MARK, "1 of 3 hidden tests passed"),
}


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_what_the_code_under_test_brings_into_a_test_module_neither_excuses_nor_breaks(tmp_path: Path, name: str) -> None:
    """Through `import *`, or the frames of those who import it. A mark made wrong code pass, the others were errors."""
    code, headline = HOSTILE_NAMES[name]
    grading = FakeGrading(folder=tmp_path)
    hidden = grading.task / "hidden"
    hidden.mkdir()
    (hidden / "conftest.py").write_text("import pytest\n\n@pytest.fixture\ndef data():\n    return 1\n")
    (hidden / "test_a.py").write_text("from lib import *\n\ndef test_f(data):\n    assert f() == data\n")
    if "mark" in name:
        other = "import pytest\n\n@pytest.mark.xfail\ndef test_known():\n    assert 0\n\ndef test_b():\n    pass\n"
        (hidden / "test_b.py").write_text(other)
        (hidden / "test_c.py").write_text(
            "import pytest\nfrom lib import f\n\n@pytest.mark.parametrize('n', [1])\ndef test_c(n):\n    assert f() == n\n"
        )
    (grading.template / "lib.py").write_text("")
    (grading.workspace / "lib.py").write_text(f"{code}\ndef f():\n    return 2\n")
    score = HiddenTests.model_validate({"type": "pytest", "paths": ["hidden"]}).evaluate(grading)
    assert score.explanation.splitlines()[0] == headline, score.explanation
    assert score.value < 1


MARKED = {
    "decorator": "import pytest\n@pytest.mark.xfail\ndef test_a():\n    assert 0\n",
    "alias": "import pytest\nknown = pytest.mark.xfail(reason='x')\n@known\ndef test_a():\n    assert 0\n",
    "module": "import pytest\npytestmark = [pytest.mark.xfail]\ndef test_a():\n    assert 0\n",
    "class": "import pytest\nclass TestA:\n    pytestmark = pytest.mark.xfail\n    def test_a(self):\n        assert 0\n",
    "parameter": "import pytest\n@pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.xfail)])\ndef test_a(n):\n    assert 0\n",
    "unittest": "import unittest\nclass T(unittest.TestCase):\n    @unittest.expectedFailure\n    def test_a(self):\n        assert 0\n",
    "conftest": "def test_a():\n    assert 0\n",
}


@pytest.mark.parametrize("how", MARKED)
def test_marks_of_the_hidden_tests_themselves_still_count(tmp_path: Path, how: str) -> None:
    grading = FakeGrading(folder=tmp_path)
    (grading.task / "hidden").mkdir()
    if how == "conftest":
        hook = "def pytest_collection_modifyitems(items):\n    [i.add_marker('xfail') for i in items if i.name == 'test_a']\n"
        (grading.task / "hidden" / "conftest.py").write_text(hook)
    (grading.task / "hidden" / "test_a.py").write_text(MARKED[how])
    (grading.task / "hidden" / "test_b.py").write_text("def test_good():\n    pass\n")
    score = HiddenTests.model_validate({"type": "pytest", "paths": ["hidden"]}).evaluate(grading)
    assert (score.value, score.explanation) == (1.0, "1 of 1 hidden tests passed")


def test_hidden_tests_that_the_grading_copy_does_not_take_fail(tmp_path: Path) -> None:
    """`at` is gone and the folder above may not be written: the session's doing."""
    grading = FakeGrading(folder=tmp_path)
    (grading.task / "test_a.py").write_text("def test_a():\n    pass\n")
    grading.workspace.chmod(0o500)
    try:
        out = unprivileged(
            """
            import sys
            from pathlib import Path
            from tests.fake_grading import FakeGrading
            from pytest_codeprobe.criteria.hidden.criterion import HiddenTests
            criterion = HiddenTests.model_validate({"type": "pytest", "paths": ["test_a.py"], "at": "tests"})
            score = criterion.evaluate(FakeGrading(folder=Path(sys.argv[1])))
            print(score.value, score.explanation)
            """,
            tmp_path,
        )
    finally:
        grading.workspace.chmod(0o700)
    assert out == "0.0 tests can't be replaced by the hidden tests: Permission denied\n"


# workspaces

LOCKED = """
import os, sys
from pathlib import Path
from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.sandboxes.workspace import CopiedWorkspace, TemplateStore

top = Path(sys.argv[1])
files = [{"path": "t/conftest.py", "content": "template"}, {"path": "other.txt", "content": "other"}]
source = {"type": "starter_files", "files": files}
store = TemplateStore(top)
(top / "workspace").mkdir()
space = CopiedWorkspace(store.get(SandboxConfig.model_validate({"template_sources": [source]})), top / "workspace", top / "baseline")
space.lay_out()
space.snapshot()
folder = top / "workspace" / "t"
(folder / "conftest.py").write_text("changed")
(folder / "planted.py").write_text("planted")
(top / "workspace" / "closed").write_text("closed")
(top / "workspace" / "closed").chmod(0)
folder.chmod(0o500)
try:
    print(space.keep(top / "kept", ()), (top / "kept" / "other.txt").read_text(), (top / "kept" / "t" / "conftest.py").read_text())
    space.restore(["t/conftest.py", "t/planted.py"])
    print(os.listdir(folder), (folder / "conftest.py").read_text())
finally:
    folder.chmod(0o700)
"""


def test_a_session_that_takes_rights_away_is_graded_all_the_same(tmp_path: Path) -> None:
    """A closed file in a small workspace, and a protected one in a folder that can't be written: both were SANDBOX_FAILED."""
    assert unprivileged(LOCKED, tmp_path) == "partial other changed\n['conftest.py'] template\n"


def test_a_command_that_puts_something_else_in_place_of_its_logs(project: Project) -> None:
    """Its folder is within reach under tempdir: a FIFO there would be waited for, a folder made the trial an error."""
    trick = "cd ../logs && rm -f run-*.* && for n in 1 2 3; do mkfifo run-$n.out; mkdir run-$n.err; done; exit 1"
    project.task(
        "a",
        agent=scripted({"write": {"path": "out.txt", "content": "x"}}),
        success_criteria=[{"type": "run_command", "command": trick}, {"type": "file_exists", "path": "out.txt"}],
    )
    run = project.run("tasks", "--codeprobe-agent=scripted", seconds=40)
    run.assert_consistent()
    assert run.statuses == {"a": "failed"}
    assert "exit code 1, expected 0" in run.result("a")["criteria"][0]["explanation"]


# agents


@pytest.mark.parametrize("stopped_for", ["task_timeout", "max_turns", "output_mb"])
def test_what_the_agent_had_no_chance_against_is_an_error_also_at_a_limit(tmp_path: Path, stopped_for: str) -> None:
    request = make_request(tmp_path)
    (tmp_path / "workspace" / ".mcp.json").write_text('{"mcpServers": {"db": {"command": "x"}}}')
    parser = Claude().parser(request)
    read(parser, [event(type="system", subtype="init", mcp_servers=[{"name": "db", "status": "failed"}]), *tool_round("Bash", "1")])
    assert parser.end(ended(-15), stopped_for=stopped_for, stderr_tail="").code == "AGENT_CRASHED"

    (tmp_path / "workspace" / ".mcp.json").unlink()
    parser = Claude().parser(request)
    denial = event(type="system", subtype="permission_denied", tool_name="Write", tool_use_id="1")
    call, result = tool_round("Write", "1", failed=True)
    read(parser, [event(type="system", subtype="init", permissionMode="default"), call, denial, result])
    assert parser.end(ended(-15), stopped_for=stopped_for, stderr_tail="").code == "AGENT_BLOCKED"

    parser = Claude().parser(request)
    read(parser, [*tool_round("Write", "1"), result_line()])
    assert parser.end(ended(-15), stopped_for=stopped_for, stderr_tail="").code is None


def test_a_neutral_tool_keeps_its_pattern(tmp_path: Path) -> None:
    """`shell(git log:*)` reached the CLI as a tool that it does not have."""
    request = make_request(tmp_path, {"type": "claude", "allowed_tools": ["shell(git log:*)", "read"]})
    argv = list(Claude().command(request).argv)
    assert argv[argv.index("--allowedTools") + 1] == "Bash(git log:*),Read"
    assert argv[argv.index("--tools") + 1] == "Bash,Read"


def test_placeholders_in_args_are_looked_at(tmp_path: Path) -> None:
    trial = make_trial(tmp_path, {"type": "command", "command": ["agent"], "args": ["--model={model}", "{prompt}"]}, prompt="a\0b")
    words = [text for _, text in CommandAgent().problems(trial)]
    assert words == ["uses {model}, but no model is set", "uses {prompt}, but the prompt has a NUL in it; use {prompt_file}"]


# patterns


@pytest.mark.parametrize("pattern", [r"[a\]]x", "[]a]", "[b-a]", "a[", "[!a]b", r"\*", "****b"])
def test_one_pattern_means_the_same_for_tasks_and_for_workspaces(pattern: str) -> None:
    """As git has it; an escaped bracket and one that is never closed were read in two ways."""
    for name in ("]x", "]", "a", "b", "a[", "cb", "ab", "*"):
        assert Patterns([pattern]).match(name, folder=False) is TaskPatterns([], [pattern], "/r").ignores(f"/r/{name}"), name


# defaults


def test_a_misspelt_table_of_the_defaults_is_an_error(project: Project) -> None:
    """It was read past, and the limit that it set held nothing."""
    project.write("experiments/default.yaml", "defaults:\n  agent: {model: m1}\n  run_limts: {task_timeout: 1}\n")
    project.task("a", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    run = project.run("tasks", "--codeprobe-agent=scripted")
    assert run.code == 4
    assert "experiments/default.yaml:3:3: unknown field 'run_limts' (did you mean 'run_limits'?) in 'defaults'" in run.output


def test_a_reference_in_the_yaml_reaches_graders_alone(project: Project) -> None:
    check = {"type": "run_command", "command": 'cmp out.txt "$REFERENCE_DIR/code"'}
    agent = scripted({"run": 'printf "%s" "${REFERENCE_DIR-right}" > out.txt'})
    project.task("t", agent=agent, reference={"code": "right"}, success_criteria=[check])
    assert project.run("tasks", "--codeprobe-agent=scripted").assert_consistent().statuses == {"t": "passed"}
