"""Which trials run ahead of their items: each condition in a case where breaking it would pay for a session that pytest then skips,
or start an agent before what it needs is there.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.front_door import Project, Run, scripted

JOBS = ("--codeprobe-agent=scripted", "--codeprobe-jobs=4")
ADD_MARK = """
import pytest
def pytest_collection_modifyitems(items):
    for item in items:
        if "held" in item.name:
            item.add_marker({mark})
"""
SERVICE = """
import pytest
from pathlib import Path
@pytest.fixture({options})
def service():
    Path({mark!r}).touch()
    yield
    Path({mark!r}).unlink()
"""


def agent(project: Project, task_id: str) -> dict[str, object]:
    """Leaves marks/agent-<task id>, and does the work."""
    return scripted({"run": f"touch {project.marks}/agent-{task_id}; echo x > out.txt"})


def two(project: Project, **fields: object) -> None:
    """`free` runs ahead; `held` is what the test is about."""
    project.task("free", agent=agent(project, "free"), file="tasks/free/task.yaml")
    project.task("held", agent=agent(project, "held"), file="tasks/held/task.yaml", **fields)


def agents(project: Project) -> set[str]:
    return {p.name.removeprefix("agent-") for p in project.marks.glob("agent-*")}


def said(run: Run) -> str:
    """Why trials ran one at a time; from the envelope, and the summary says the same."""
    (warning,) = [w for w in run.envelope["warnings"] if "one at a time" in w]
    assert warning in run.output.replace("\n", " ")
    return str(warning)


# ---- pytest would skip


MARKS = """
import pytest
MARKS = {
    "skipif": pytest.mark.skipif(True, reason="not here"),
    "skipif-text": pytest.mark.skipif("item_is_held", reason="by name"),
    "xfail": pytest.mark.xfail(run=False, reason="breaks the machine"),
    "xfail-condition": pytest.mark.xfail(True, run=False, reason="breaks the machine"),
}
def pytest_markeval_namespace(): return {"item_is_held": True}
def pytest_collection_modifyitems(items):
    for item in items:
        if item.name in MARKS:
            item.add_marker(MARKS[item.name])
"""


def test_marks_that_pytest_evaluates(project: Project) -> None:
    held = ("skipif", "skipif-text", "xfail", "xfail-condition")
    for name in ("free", *held):
        project.task(name, agent=agent(project, name), file=f"tasks/{name}/task.yaml")
    project.write("conftest.py", MARKS)
    run = project.run("tasks", *JOBS).assert_consistent()
    assert agents(project) == {"free"}
    statuses = run.statuses
    assert statuses.pop("free") == "passed"
    assert set(statuses) == set(held)
    assert "passed" not in statuses.values()
    assert said(run).startswith("4 trials run one at a time")
    assert "a skipif mark (2); an xfail mark with a condition or run=False (2)" in said(run)


def test_a_condition_of_xfail(project: Project) -> None:
    """It runs, in its own set-up: the condition may look at what set-up brought."""
    two(project)
    project.write("conftest.py", ADD_MARK.format(mark="pytest.mark.xfail(condition=True, reason='some day')"))
    run = project.run("tasks", *JOBS).assert_consistent()
    assert agents(project) == {"free", "held"}
    assert "an xfail mark with a condition" in said(run)


def test_a_plain_skip_is_pytests_own(project: Project) -> None:
    """Nothing starts, and there is nothing to explain."""
    two(project, skip="not today")
    run = project.run("tasks", *JOBS).assert_consistent()
    assert agents(project) == {"free"}
    assert run.statuses == {"free": "passed", "held": "skipped"}
    assert run.envelope["warnings"] == []


HOOKS = {
    "setup": "import pytest\ndef pytest_runtest_setup(item): pytest.skip('by the hook')\n",
    "setup-wrapper": (
        "import pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        "def pytest_runtest_setup(item):\n    yield\n    pytest.skip('by the hook')\n"
    ),
    "setup-specname": (
        "import pytest\n@pytest.hookimpl(specname='pytest_runtest_setup')\ndef pytest_mine(item): pytest.skip('by the hook')\n"
    ),
    "protocol": "def pytest_runtest_protocol(item, nextitem): return True\n",
}


@pytest.mark.parametrize("held", [("setup", "setup-specname"), ("protocol",)], ids=["setup", "protocol"])
def test_hooks_above(project: Project, held: tuple[str, ...]) -> None:
    """Each of the conftest.py in the folder of its task; `free` lies elsewhere. pytest asks the one of the protocol for every item."""
    for name in ("free", *held):
        project.task(name, agent=agent(project, name), file=f"tasks/{name}/task.yaml")
        project.write(f"tasks/{name}/conftest.py", HOOKS.get(name, ""))
    run = project.run("tasks", *JOBS)
    assert agents(project) == {"free"}
    assert run.statuses == {"free": "passed", **dict.fromkeys(held, "not_run" if "protocol" in held else "skipped")}
    for name in held:
        assert f"tasks/{name}/conftest.py" in said(run)


def test_a_hook_that_starts_what_the_agent_needs(project: Project) -> None:
    mark = project.marks / "service"
    project.task("held", agent=scripted({"run": f"test -e {mark} && echo x > out.txt"}))
    project.write("conftest.py", f"from pathlib import Path\ndef pytest_fixture_setup(fixturedef): Path({str(mark)!r}).touch()\n")
    run = project.run("tasks", *JOBS).assert_consistent()
    assert run.statuses == {"held": "passed"}
    assert "pytest_fixture_setup in conftest.py" in said(run)


def test_a_hook_that_looks_afterwards(project: Project) -> None:
    """A wrapper whose work comes after the session, or pytest_pyfunc_call: it sees the trial as without jobs, one at a time."""
    two(project)
    project.write("tasks/held/conftest.py", HOOKS["setup-wrapper"])
    call = "def pytest_pyfunc_call(pyfuncitem): assert pyfuncitem.run is not None\n"
    project.task("called", agent=agent(project, "called"), file="tasks/called/task.yaml")
    project.write("tasks/called/conftest.py", call)
    run = project.run("tasks", *JOBS)
    assert "2 trials run one at a time" in said(run)
    assert "pytest_runtest_setup in tasks/held/conftest.py (1)" in said(run)
    assert "pytest_pyfunc_call in tasks/called/conftest.py (1)" in said(run)


@pytest.mark.parametrize("how", ["-p", "pytest_plugins", "registered"])
def test_a_hook_of_a_plugin_of_the_projects_own(project: Project, how: str) -> None:
    """It sees every item, wherever it lies."""
    two(project)
    project.write(
        "mine.py",
        "import pytest\nclass Mine:\n    def pytest_runtest_setup(self, item):\n        if 'held' in item.name: pytest.skip('by name')\n",
    )
    if how == "registered":
        project.write("conftest.py", "import mine\ndef pytest_configure(config): config.pluginmanager.register(mine.Mine(), 'mine')\n")
    else:
        project.write("mine.py", "import pytest\ndef pytest_runtest_setup(item):\n    if 'held' in item.name: pytest.skip('by name')\n")
    if how == "pytest_plugins":
        project.write("conftest.py", "pytest_plugins = ['mine']\n")
    run = project.run(
        "tasks", *(["-p", "mine"] if how == "-p" else []), *JOBS, env={"PYTHONPATH": with_path(project.path)}
    ).assert_consistent()
    assert agents(project) == {"free"}
    assert run.statuses == {"free": "passed", "held": "skipped"}
    assert "pytest_runtest_setup in mine" in said(run)


def with_path(folder: Path) -> str:
    """PYTHONPATH with a folder before what it holds already."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


# ---- the agent needs it


def test_service_fixtures(project: Project) -> None:
    project.task("free", agent=agent(project, "free"), file="tasks/free/task.yaml")
    options = {
        "function": "autouse=True", "module": "scope='module', autouse=True", "session": "scope='session', autouse=True", "asked": ""
    }  # fmt: skip
    for name, of_it in options.items():
        mark = str(project.marks / f"service-{name}")
        project.task(
            name,
            agent=scripted({"run": f"test -e {mark} && echo x > out.txt"}),
            file=f"tasks/{name}/task.yaml",
            **({} if of_it else {"fixtures": ["service"]}),
        )
        project.write(f"tasks/{name}/conftest.py", SERVICE.format(options=of_it, mark=mark))
    project.write("pytest.ini", "[pytest]\ncodeprobe_ahead_fixtures = tmp_path servise\n")
    run = project.run("tasks", *JOBS).assert_consistent()
    assert run.statuses == dict.fromkeys(("free", *options), "passed")
    for name in options:
        assert f"fixture service of tasks/{name}/conftest.py" in said(run)
    before, _, _ = run.stdout.partition("= codeprobe =")
    for hint in (
        "put in the ini file: codeprobe_ahead_fixtures = service",
        "no test here has a fixture 'servise' (did you mean 'service'?)",
    ):
        assert hint in " ".join(run.envelope["warnings"])
        assert hint in before, "while it can still be changed"


def test_a_fixture_that_is_not_there(project: Project) -> None:
    two(project, fixtures=["servce"])
    project.write("conftest.py", "import pytest\n@pytest.fixture\ndef service(): pass\n")
    run = project.run("tasks", *JOBS).assert_consistent()
    assert agents(project) == {"free"}
    assert run.statuses == {"free": "passed", "held": "error"}
    assert "fixture servce, which is not defined" in said(run)
    message = "fixture 'servce' is not defined (did you mean 'service'?)"
    assert (run.result("held")["code"], run.result("held")["reason"]) == ("FIXTURE_FAILED", message)
    assert message in run.stdout
    assert "collect.py" not in run.stdout, "no function of ours is shown"


def test_ours_overridden(project: Project) -> None:
    """The user's own comes before the agent: here it skips. Even where an ini key names it."""
    ours = ("codeprobe_sandbox", "codeprobe_session", "codeprobe_score")
    project.task("free", agent=agent(project, "free"), file="tasks/free/task.yaml")
    for name in ours:
        project.task(name, agent=agent(project, name), file=f"tasks/{name}/task.yaml")
        project.write(f"tasks/{name}/conftest.py", f"import pytest\n@pytest.fixture\ndef {name}(): pytest.skip('by the fixture')\n")
    project.write("pytest.ini", f"[pytest]\ncodeprobe_ahead_fixtures = {' '.join(ours)}\n")
    run = project.run("tasks", *JOBS).assert_consistent()
    assert agents(project) == {"free"}
    assert run.statuses == {"free": "passed", **dict.fromkeys(ours, "skipped")}
    for name in ours:
        assert f"fixture {name}, overridden in tasks/{name}/conftest.py" in said(run)


def test_named_in_the_ini(project: Project) -> None:
    """The user says that the agent can do without."""
    two(project)
    project.write("conftest.py", SERVICE.format(options="autouse=True", mark=str(project.marks / "service")))
    project.write("pytest.ini", "[pytest]\ncodeprobe_ahead_fixtures = service\n")
    run = project.run("tasks", *JOBS).assert_consistent()
    assert run.statuses == {"free": "passed", "held": "passed"}
    assert run.envelope["warnings"] == []


# ---- plugins that are installed


def install(project: Project) -> dict[str, str]:
    """A distribution with a pytest plugin, as pip would leave it, and what puts it on the path."""
    site = project.scratch / "site"
    (site / "acme_pytest").mkdir(parents=True)
    (site / "acme_pytest" / "__init__.py").write_text("")
    mark = str(project.marks / "service")
    (site / "acme_pytest" / "plugin.py").write_text("import pytest\n@pytest.fixture(autouse=True)\ndef acme(): yield\n")
    (site / "acme_pytest" / "testing.py").write_text(SERVICE.format(options="autouse=True", mark=mark))
    (site / "acme_pytest-1.0.dist-info").mkdir()
    (site / "acme_pytest-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-pytest\nVersion: 1.0\n")
    (site / "acme_pytest-1.0.dist-info" / "entry_points.txt").write_text("[pytest11]\nacme = acme_pytest.plugin\n")
    return {"PYTHONPATH": with_path(site)}


def test_a_fixture_of_an_installed_plugin_holds_nothing_back(project: Project) -> None:
    two(project)
    run = project.run("tasks", *JOBS, env=install(project)).assert_consistent()
    assert run.statuses == {"free": "passed", "held": "passed"}
    assert "acme" in run.output
    assert run.envelope["warnings"] == []


@pytest.mark.parametrize("marked", [True, False])
def test_an_installed_plugin_that_skips_by_a_mark(project: Project, marked: bool) -> None:
    """As pytest-dependency does. Items without a mark of anybody else's run ahead all the same."""
    two(project, tags=["slow"])
    env = install(project)
    (project.scratch / "site" / "acme_pytest" / "plugin.py").write_text(
        "import pytest\ndef pytest_configure(config): config.addinivalue_line('markers', 'needs(name): another test')\n"
        "def pytest_runtest_setup(item):\n    if item.get_closest_marker('needs'): pytest.skip('free did not run')\n"
    )
    if marked:
        project.write("conftest.py", ADD_MARK.format(mark="pytest.mark.needs('free')"))
    run = project.run("tasks", *JOBS, env=env).assert_consistent()
    assert run.statuses == {"free": "passed", "held": "skipped" if marked else "passed"}
    assert agents(project) == ({"free"} if marked else {"free", "held"})
    if marked:
        assert "mark needs, by which plugin acme_pytest.plugin may skip" in said(run)
    else:
        assert run.envelope["warnings"] == []


def test_what_goes_wrong_in_the_items_set_up_beats_the_verdict(project: Project) -> None:
    """The trial was over before; the record is written again, and keeps what it cost."""
    two(project)
    project.task(
        "held", agent=scripted({"usage": {"cost_usd": 0.25}}, {"write": {"path": "out.txt", "content": "x"}}), file="tasks/held/task.yaml"
    )
    env = install(project)
    plugin = project.scratch / "site" / "acme_pytest" / "plugin.py"
    plugin.write_text(
        "import pytest\n@pytest.fixture(autouse=True)\ndef acme(request, codeprobe_score):\n"
        "    if 'held' in request.node.name: raise RuntimeError('no licence')\n"
    )
    run = project.run("tasks", *JOBS, env=env).assert_consistent()
    assert run.envelope["warnings"] == []  # it did run ahead
    assert run.statuses == {"free": "passed", "held": "error"}
    assert run.junit() == {"free": "passed", "held": "error"}
    record = run.result("held")
    assert (record["code"], record["cost_usd"]) == ("FIXTURE_FAILED", 0.25)
    assert "no licence" in record["reason"]
    assert run.code == 6


def test_a_fixture_that_a_conftest_imports_does(project: Project) -> None:
    """It comes from an installed package, but only this project makes it a fixture of its tasks."""
    mark = project.marks / "service"
    project.task("held", agent=scripted({"run": f"test -e {mark} && echo x > out.txt"}))
    project.write("conftest.py", "from acme_pytest.testing import service\n")
    run = project.run("tasks", *JOBS, env=install(project)).assert_consistent()
    assert run.statuses == {"held": "passed"}
    assert "fixture service of conftest.py" in said(run)


# ---- flags


@pytest.mark.parametrize(
    ("flag", "started"),
    [
        ("--stepwise", {"a"}),
        ("--pdb", {"a"}),
        ("--trace", {"a", "b"}),
        ("--setup-show", {"a", "b"}),
        ("--setup-plan", set()),
        ("--setup-only", set()),
    ],
)
def test_flags_that_are_about_the_set_up(project: Project, flag: str, started: set[str]) -> None:
    """`a` fails: what ends the run there must not have paid for `b`. A debugger whose input is at its end goes on, or leaves."""
    project.task("a", agent=scripted({"run": f"touch {project.marks}/agent-a"}))
    project.task("b", agent=agent(project, "b"))
    run = project.run("tasks", *JOBS, flag)
    assert agents(project) == started
    if started:
        run.assert_consistent()
        assert flag in said(run)


def test_a_python_test_with_a_task(project: Project) -> None:
    two(project)
    body = (
        "import pytest\n@pytest.mark.codeprobe(task='tasks/held/task.yaml')\ndef test_it(codeprobe_score): assert codeprobe_score.passed\n"
    )
    project.write("tests/test_it.py", body)
    run = project.run("tasks/free", "tests", *JOBS).assert_consistent()
    assert agents(project) == {"free", "held"}
    assert "a Python test with a task" in said(run)
