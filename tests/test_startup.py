"""What being installed costs a run without tasks: nothing of ours is imported beyond a few light modules, and nothing heavy at all."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.front_door import MODES, Project, clean_environment, scripted

pytestmark = pytest.mark.joint

#: modules of ours that a plain run may load
LIGHT = re.compile(
    r"pytest_codeprobe(\.options(\.table|\.values)?|\.plugin(\.(fixtures|state|spread|stdout|hookspecs|discover|loading))?|\.tasks(\.discovery)?)?$"
)
HEAVY = (
    "pydantic",
    "pydantic_core",
    "yaml",
    "sqlite3",
    "_sqlite3",
    "jinja2",
    "jsonschema",
    "jmespath",
    "rapidfuzz",
    "regex",
    "psutil",
    "click",
)


def imported(project: Project, *args: str) -> set[str]:
    """Names of the modules that pytest's process loaded, by Python's own account."""
    process = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "pytest", "-q", "-p", "no:hypothesispytest", *args],
        cwd=project.path,
        env=clean_environment(CP_TEST_MARK=project.mark_text, **project.environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert process.returncode == 0, process.stdout
    return {line.rpartition("|")[2].strip() for line in process.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("yaml", [False, True], ids=["no-yaml", "other-yaml"])
def test_a_plain_run_loads_next_to_nothing(project: Project, mode: str, yaml: bool) -> None:
    """Also where there are YAML files that are no tasks: looking at names is enough."""
    project.write("tests/test_a.py", "import pytest\n@pytest.mark.parametrize('n', range(20))\ndef test_a(n): pass\n")
    if yaml:
        project.write("compose.yaml", "services: {}\n")
        project.write("tests/data/x.yml", "a: 1\n")
    modules = imported(project, *MODES[mode])
    ours = {m for m in modules if m.partition(".")[0] == "pytest_codeprobe"}
    assert "pytest_codeprobe.plugin.state" in ours  # else this would show nothing
    assert {m for m in ours if not LIGHT.match(m)} == set()
    assert modules & set(HEAVY) == set()
    if not yaml:
        assert {m for m in ours if ".tasks" in m or "discover" in m} == set()


def test_it_would_be_seen(project: Project) -> None:
    project.task("t", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    modules = imported(project, "tasks", "--codeprobe-agent=scripted")
    assert {"pydantic", "yaml", "pytest_codeprobe.trial.run"} <= modules


@pytest.mark.parametrize("mode", MODES)
def test_no_module_is_rewritten(project: Project, mode: str) -> None:
    """pytest rewrites what a plugin's distribution brings, anew in each process that can't write bytecode: for ours, half of the start."""
    project.task("t", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    project.write(
        "conftest.py",
        f"""
        import os, pathlib, sys
        from _pytest.assertion.rewrite import AssertionRewritingHook

        def pytest_unconfigure():
            ours = [(name, module) for name, module in sys.modules.items() if name.partition('.')[0] == 'pytest_codeprobe']
            kind = lambda module: 'rewritten' if isinstance(module.__loader__, AssertionRewritingHook) else 'plain'
            lines = [f'{{name}} {{kind(module)}}' for name, module in ours]
            pathlib.Path({str(project.marks)!r}, f'loaded-{{os.getpid()}}').write_text('\\n'.join(lines))
        """.replace("\n        ", "\n"),
    )
    project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    reports = [dict(line.split() for line in path.read_text().splitlines()) for path in project.marks.glob("loaded-*")]
    assert len(reports) == (3 if mode == "xdist" else 1)
    for loaded in reports:
        assert "pytest_codeprobe.plugin.state" in loaded
        # Those that are there before anything can be done about it.
        first = {"pytest_codeprobe", "pytest_codeprobe.plugin", "pytest_codeprobe.plugin.loading"}
        assert {name for name, kind in loaded.items() if kind == "rewritten"} <= first
    assert any("pytest_codeprobe.trial.run" in loaded for loaded in reports)
