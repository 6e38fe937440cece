"""The user's fixtures, marks and overrides on task items."""

from __future__ import annotations

import pytest

from tests.front_door import Project, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
AGENT = "--codeprobe-agent=scripted"

AUTOUSE = """
import pytest
from pathlib import Path
MARKS = Path({marks!r})

def note(name):
    with (MARKS / "order").open("a") as f:
        f.write(name + "\\n")

def make(scope):
    @pytest.fixture(scope=scope, autouse=True, name=f"auto_{{scope}}")
    def auto(request):
        note(f"up {{scope}}")
        yield
        note(f"down {{scope}}")
    return auto

for scope in ("session", "package", "module", "class", "function"):
    globals()[f"auto_{{scope}}"] = make(scope)
"""


def test_autouse_fixtures_of_every_scope(project: Project) -> None:
    project.write("conftest.py", AUTOUSE.format(marks=str(project.marks)))
    project.task("a", agent=scripted({"run": f"echo agent >> {project.marks}/order"}, WRITE))
    project.task("b", agent=scripted({"run": f"echo agent >> {project.marks}/order"}, WRITE))
    run = project.run("tasks", AGENT).assert_consistent()
    assert run.statuses == {"a": "passed", "b": "passed"}
    lines = (project.marks / "order").read_text().splitlines()
    each = ["up function", "agent", "down function"]
    assert lines[0] == "up session"
    assert lines[-1] == "down session"
    assert [x for x in lines if x in each] == each * 2
    for scope in ("module", "class", "package"):
        assert lines.index(f"up {scope}") < lines.index("agent")
    assert lines.count("up module") == 2


@pytest.mark.parametrize("mode", ["plain", "jobs"])
def test_a_fixture_that_a_task_requests_is_up_before_the_agent_starts(project: Project, mode: str) -> None:
    project.write(
        "tasks/conftest.py",
        f"""
import pytest

@pytest.fixture
def svc(tmp_path):
    (tmp_path / "x").touch()
    open({str(project.marks / "svc")!r}, "w").write("up")
    yield
    open({str(project.marks / "svc")!r}, "w").write("down")
""",
    )
    look = {"run": f"cp {project.marks}/svc out.txt"}
    project.task(
        "with", agent=scripted(look), fixtures=["svc"], success_criteria=[{"type": "file_contains", "path": "out.txt", "includes": ["up"]}]
    )
    project.task("without", agent=scripted({"run": f"test ! -e {project.marks}/svc2 && echo y > out.txt"}))
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert run.statuses == {"with": "passed", "without": "passed"}
    assert (project.marks / "svc").read_text() == "down"


OVERRIDE = """
import pytest

@pytest.fixture
def codeprobe_sandbox(codeprobe_sandbox):
    {how}
    return codeprobe_sandbox
"""


@pytest.mark.parametrize("mode", ["plain", "jobs"])
def test_overridden_sandboxes_at_several_levels(project: Project, mode: str) -> None:
    """Each level adds to what the level above prepared; a folder beside is not concerned."""
    write = 'codeprobe_sandbox.write_text("{0}.txt", "{0}")'
    project.write("conftest.py", OVERRIDE.format(how=write.format("top")))
    project.write(
        "tasks/deep/conftest.py", OVERRIDE.format(how="assert codeprobe_sandbox.read_text('top.txt') == 'top'; " + write.format("deep"))
    )
    listing = [{"type": "file_contains", "path": "out.txt", "includes": ["top.txt"]}]
    project.task("plain", agent=scripted({"run": "ls > out.txt"}), success_criteria=listing)
    deep = [{"type": "file_check", "path": "out.txt", "includes": ["top.txt", "deep.txt"]}]
    project.task("deep", file="tasks/deep/deep.yaml", agent=scripted({"run": "ls > out.txt"}), success_criteria=deep)
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert run.statuses == {"plain": "passed", "deep": "passed"}
    # what a fixture prepared is no work of the agent's
    for task in ("plain", "deep"):
        assert run.result(task)["changed_files"] == ["A out.txt"]


#: what an overridden sandbox does -> attempts
PREPARED = {
    "codeprobe_sandbox.on_prepare(lambda box: box.write_text('seed.txt', 'seed'))": 2,
    "codeprobe_sandbox.write_text('seed.txt', 'seed')": 1,
    "codeprobe_sandbox.run('echo seed > seed.txt')": 1,
    "(codeprobe_sandbox.path / 'seed.txt').write_text('seed')": 1,
}


def test_a_retry_only_where_the_preparation_can_be_repeated(project: Project) -> None:
    for number, how in enumerate(PREPARED):
        project.write(f"tasks/{number}/conftest.py", OVERRIDE.format(how=how))
        steps = {"run": f"cat seed.txt >> {project.marks}/seeds-{number}"}, {"fail": "LLM_UNAVAILABLE"}
        project.task(f"t{number}", file=f"tasks/{number}/t.yaml", agent=scripted(*steps))
    run = project.run("tasks", AGENT).assert_consistent()
    for number, attempts in enumerate(PREPARED.values()):
        task = f"t{number}"
        finished = run.finished[task]
        assert (finished["status"], finished["code"]) == ("error", "LLM_UNAVAILABLE")
        assert (project.marks / f"seeds-{number}").read_text().count("seed") == attempts
        assert len(run.result(task)["attempts"]) == attempts
        assert ("prepared by hand" in finished["reason"]) == (attempts == 1)
        assert ("on_prepare" in str(run.result(task)["remediation"])) == (attempts == 1)


@pytest.mark.parametrize("mode", ["plain", "jobs"])
def test_a_score_that_never_asks_is_an_error(project: Project, mode: str) -> None:
    project.write(
        "tasks/conftest.py",
        "import pytest\nfrom types import SimpleNamespace\n@pytest.fixture\ndef codeprobe_score(): return SimpleNamespace(passed=True)\n",
    )
    project.task("a", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert run.statuses == {"a": "error"}
    assert run.finished["a"]["code"] == "VERIFIER_FAILED"
    assert "codeprobe_score" in run.finished["a"]["reason"]
    assert run.junit() == {"a": "error"}
    assert run.code == 6


def test_a_score_of_the_users_own_sees_the_grade(project: Project) -> None:
    """An override that asks ours and is stricter: the call phase believes it, and the record says why."""
    project.write(
        "conftest.py",
        "import pytest\n@pytest.fixture\ndef codeprobe_score(codeprobe_score, codeprobe_session):\n"
        "    assert codeprobe_score.passed and codeprobe_score.score == 1.0\n"
        "    assert codeprobe_session.changed_files == ('out.txt',)\n    return codeprobe_score\n",
    )
    project.task("a", agent=scripted(WRITE))
    assert project.run("tasks", AGENT).assert_consistent().statuses == {"a": "passed"}


FAULTS = """
import pytest

@pytest.fixture(autouse=True)
def before(request):
    if request.node.name == "raises-before": raise RuntimeError("no database")
    if request.node.name == "fails-before": pytest.fail("not like this")
    if request.node.name == "skips": pytest.skip("wrong weather")
    if request.node.name == "xfails": pytest.xfail("not here")

@pytest.fixture
def after(codeprobe_score, request):
    if request.node.name == "raises-after": raise RuntimeError("too late")
    if request.node.name == "skips-after": pytest.skip("seen enough")

@pytest.fixture
def teardown():
    yield
    raise RuntimeError("while tidying")
"""


@pytest.mark.joint
def test_faults_of_the_users_fixtures(project: Project, mode: str) -> None:
    project.write("conftest.py", FAULTS)
    started = {"run": f"touch {project.marks}/$(basename $PWD)-$$"}
    for name in ("raises-before", "fails-before", "skips", "xfails"):
        project.task(name, agent=scripted(started, WRITE))
    project.task("raises-after", agent=scripted(WRITE), fixtures=["after"])
    project.task("skips-after", agent=scripted(WRITE), fixtures=["after"])
    project.task("teardown", agent=scripted(WRITE), fixtures=["teardown"])
    project.task("without", agent=scripted(started), fixtures=["nowhere"])
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert run.statuses == {
        "raises-before": "error",
        "fails-before": "error",
        "skips": "skipped",
        "xfails": "skipped",
        "raises-after": "error",
        "skips-after": "skipped",
        "teardown": "passed",
        "without": "error",
    }
    for name in ("raises-before", "fails-before", "raises-after", "without"):
        assert run.finished[name]["code"] == "FIXTURE_FAILED"
    assert "no database" in run.finished["raises-before"]["reason"]
    assert run.finished["skips"]["reason"] == "wrong weather"
    assert "fixture 'nowhere' is not defined" in run.stdout
    assert not list(project.marks.iterdir())  # none of them paid for a session
    assert not {e["task_id"] for e in run.events if e["event"] == "trial_started"} & {"raises-before", "fails-before", "skips", "without"}
    assert run.result("raises-after")["verdict"] is None  # an error after the verdict beats it
    junit = run.junit()
    assert junit["raises-before"] == junit["fails-before"] == junit["raises-after"] == "error"
    assert junit["skips"] == junit["xfails"] == junit["skips-after"] == "skipped"
    assert "RuntimeError: no database" in run.stdout
    assert "def before(request):" in run.stdout  # the user's own traceback stays
    run.assert_nothing_left()


MODIFY = """
import pytest

MARKS = {
    "skip": pytest.mark.skip(reason="by hand"),
    "skipif": pytest.mark.skipif(True, reason="condition"),
    "skipif-string": pytest.mark.skipif("sys.platform != 'vms'", reason="text"),
    "not-skipped": pytest.mark.skipif(False, reason="no"),
    "xfail": pytest.mark.xfail(reason="known", strict=True),
    "xpass-strict": pytest.mark.xfail(reason="known", strict=True),
    "xfail-raises-other": pytest.mark.xfail(raises=ZeroDivisionError),
    "xfail-norun": pytest.mark.xfail(run=False, reason="hangs"),
    "xfail-error": pytest.mark.xfail(reason="known"),
}

def pytest_collection_modifyitems(items):
    for item in items:
        item.add_marker(MARKS[item.name])
"""


@pytest.mark.joint
def test_marks_of_the_users_own(project: Project, mode: str) -> None:
    project.write("conftest.py", MODIFY)
    for name in ("skip", "skipif", "skipif-string", "not-skipped", "xpass-strict"):
        project.task(name, agent=scripted(WRITE))
    for name in ("xfail", "xfail-raises-other", "xfail-norun"):
        project.task(name, agent=scripted())
    project.task("xfail-error", agent=scripted(WRITE), pre_run=[{"command": "exit 3"}])
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert run.statuses == {
        "skip": "skipped",
        "skipif": "skipped",
        "skipif-string": "skipped",
        "not-skipped": "passed",
        "xfail": "failed",
        "xpass-strict": "failed",
        "xfail-raises-other": "failed",
        "xfail-norun": "skipped",
        "xfail-error": "error",
    }
    expected = {task for task, e in run.finished.items() if e["expected"]}
    assert expected == {"xfail"}
    assert run.finished["skip"]["reason"] == "by hand"
    assert run.result("xpass-strict")["verdict"] == "passed"
    assert "strict" in run.finished["xpass-strict"]["reason"]
    junit = run.junit()
    assert (junit["xfail"], junit["xpass-strict"], junit["xfail-raises-other"], junit["xfail-error"]) == (
        "skipped",
        "failure",
        "failure",
        "error",
    )
    assert not run.trial("skip").exists()


def test_pytests_own_fixtures_reach_tasks(project: Project) -> None:
    project.write(
        "conftest.py",
        """
import pytest

@pytest.fixture(autouse=True)
def all_of_them(request, tmp_path, monkeypatch, caplog, capsys, recwarn, record_property, pytestconfig):
    monkeypatch.setenv("SOMETHING", "1")
    record_property("mine", "yes")
    assert request.node.get_closest_marker("codeprobe") is not None
    assert request.node.path.suffix == ".yaml"
    assert request.module is not None and request.function is not None and request.cls is None
""",
    )
    project.task("a", agent=scripted(WRITE))
    run = project.run("tasks", AGENT).assert_consistent()
    assert run.statuses == {"a": "passed"}
    assert run.junit_properties("a")["mine"] == "yes"
    assert run.junit_properties("a")["codeprobe_score"] == "1.0"


def test_listing_the_fixtures_of_each_test(project: Project) -> None:
    project.task("a", agent=scripted(WRITE))
    run = project.run("tasks", AGENT, "--fixtures-per-test", junit=False)
    assert run.code == 0
    assert "INTERNALERROR" not in run.output
    assert "codeprobe_score" in run.stdout
    assert not run.wrote
    run = project.run("--fixtures", junit=False)
    for name in ("codeprobe_trial", "codeprobe_sandbox", "codeprobe_session", "codeprobe_score"):
        assert name in run.stdout
