"""What makes the collection of many tasks cheap changes nothing that others can see."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from tests.front_door import Project, clean_environment

#: looks at what each item requests, and works it out once more as pytest itself does
PROBE = """
import pytest
from _pytest.fixtures import FixtureManager

worked_out = []
original = FixtureManager.getfixtureinfo

def counted(self, node, func, cls):
    worked_out.append(node.name)
    return original(self, node, func, cls)

FixtureManager.getfixtureinfo = counted

def pytest_collection_finish(session):
    count = len(worked_out)
    infos = [item._fixtureinfo for item in session.items]
    for item, info in zip(session.items, infos):
        own = original(session._fixturemanager, item, item.obj, item.cls)
        assert (info.argnames, info.initialnames, info.names_closure) == (own.argnames, own.initialnames, own.names_closure)
        assert info.name2fixturedefs == own.name2fixturedefs
        assert item.fixturenames is info.names_closure
    assert len({id(info.names_closure) for info in infos}) == len({id(info.name2fixturedefs) for info in infos}) == len(infos)
    print("\\nWORKED OUT", count, "OF", len(infos))
    for item in session.items:
        print("CLOSURE", item.nodeid, sorted(item.fixturenames))

@pytest.fixture
def extra(): pass
"""
FIXTURES = "import pytest\n@pytest.fixture(autouse=True)\ndef {0}_only(): pass\n@pytest.fixture\ndef service(): pass\n"
HOOK = """
import pytest
def pytest_collectstart(collector):
    if collector.name == "b.yaml":
        collector.add_marker(pytest.mark.usefixtures("extra"))
"""


def suite(project: Project) -> None:
    """Two folders of three tasks, each with a conftest.py; one of the three names a fixture; one file holds two tasks."""
    project.write("conftest.py", PROBE)
    for folder in ("x", "y"):
        project.write(f"tasks/{folder}/conftest.py", FIXTURES.format(folder))
        for name in "abc":
            project.task(f"{folder}-{name}", file=f"tasks/{folder}/{name}.yaml", **({"fixtures": ["service"]} if name == "c" else {}))
    file = project.path / "tasks/x/a.yaml"
    file.write_text(f"{file.read_text()}---\n{file.read_text().replace('x-a', 'x-a2')}")


def closures(output: str) -> dict[str, str]:
    lines = [line.removeprefix("CLOSURE ").partition(" ") for line in output.splitlines() if line.startswith("CLOSURE ")]
    return {node_id: names for node_id, _, names in lines}


@pytest.mark.joint
def test_items_request_what_they_would_by_themselves(project: Project) -> None:
    suite(project)
    run = project.run("--collect-only", "-q", "-s")
    assert run.code == 0, run.output
    assert "WORKED OUT 4 OF 7" in run.output  # two folders, with and without the fixture
    found = closures(run.output)
    assert "x_only" in found["tasks/x/b.yaml::x-b"]
    assert "y_only" not in found["tasks/x/b.yaml::x-b"]
    assert [node_id for node_id, names in found.items() if "service" in names] == ["tasks/x/c.yaml::x-c", "tasks/y/c.yaml::y-c"]


@pytest.mark.joint
def test_a_hook_can_give_one_file_more(project: Project) -> None:
    suite(project)
    project.write("tasks/x/conftest.py", FIXTURES.format("x") + HOOK)
    run = project.run("--collect-only", "-q", "-s")
    assert run.code == 0, run.output
    assert "WORKED OUT 7 OF 7" in run.output
    found = closures(run.output)
    assert {node_id for node_id, names in found.items() if "extra" in names} == {"tasks/x/b.yaml::x-b"}


THRESHOLDS = """
import gc

def say(when):
    print("\\nGC", when, gc.get_threshold(), gc.isenabled(), gc.get_freeze_count() > 0)

def pytest_collection_modifyitems(): say("collected")
def pytest_runtest_teardown(): say("ran")
"""


@pytest.mark.parametrize("tasks", [True, False], ids=["tasks", "no tasks"])
def test_garbage_is_searched_for_as_before_once_tasks_are_collected(project: Project, tasks: bool) -> None:
    project.write("conftest.py", THRESHOLDS)
    project.write("tests/test_a.py", "def test_a(): pass\n")
    if tasks:
        project.task("a")
    run = project.run("-s", "tests", *(["tasks"] if tasks else []))
    said = {line for line in run.output.splitlines() if line.startswith("GC ")}
    usual = str(gc.get_threshold())
    if tasks:
        assert said == {"GC collected (100000, 50, 1000) True False", f"GC ran {usual} True True"}
    else:
        assert said == {f"GC collected {usual} True False", f"GC ran {usual} True False"}


GARBAGE = """
import gc
from pytest_codeprobe.plugin.garbage import Garbage

usual = gc.get_threshold()
first, second = Garbage(), Garbage()
first.go_on()  # nothing was held
assert gc.get_freeze_count() == 0
first.hold(); first.hold()
assert gc.get_threshold() != usual
first.go_on(); first.go_on()
assert gc.get_threshold() == usual and gc.get_freeze_count() > 0
second.hold()  # the next pytest in this process
assert gc.get_freeze_count() == 0
second.go_on()
gc.unfreeze()

gc.disable()  # somebody's own choice
third = Garbage()
third.hold(); third.go_on()
assert not gc.isenabled() and gc.get_threshold() == usual and gc.get_freeze_count() == 0
gc.enable()
"""
FROZEN = """
import gc
from pytest_codeprobe.plugin.garbage import Garbage

gc.freeze()  # somebody's own
frozen = gc.get_freeze_count()
for _ in range(2):
    garbage = Garbage()
    garbage.hold(); garbage.go_on()
    assert gc.get_freeze_count() == frozen
"""


@pytest.mark.parametrize("program", [GARBAGE, FROZEN], ids=["ours", "theirs"])
def test_what_is_held_and_frozen(program: str) -> None:
    subprocess.run([sys.executable, "-c", program], env=clean_environment(), check=True, timeout=60)
