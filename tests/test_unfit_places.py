"""Places that can't be written to, and files that can't be loaded: told in a line or two, with what helps, and without a traceback."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from pytest_codeprobe.sandboxes.installing import _last_words
from tests.front_door import MODES, Project, scripted
from tests.repositories import commit

AGENT = "--codeprobe-agent=scripted"
WRITE = {"write": {"path": "out.txt", "content": "x"}}


@pytest.mark.parametrize("mode", MODES)
def test_the_default_run_directory(project: Project, mode: str) -> None:
    project.task("t", agent=scripted({"run": f"touch {project.marks}/paid"}))
    project.write(".codeprobe", "no folder\n")
    run = project.run("tasks", AGENT, mode=mode)
    assert run.code == 4, run.output
    assert "INTERNALERROR" not in run.output
    assert run.stderr.count("ERROR: USAGE_ERROR: run directory ") == 1
    assert run.stderr.rstrip().endswith("Make its place writable, or choose another one with --codeprobe-run-dir.")
    assert not list(project.marks.iterdir())


def test_the_default_run_directory_for_scripts(project: Project) -> None:
    project.task("t", agent=scripted(WRITE))
    project.write(".codeprobe", "no folder\n")
    run = project.codeprobe("run", "--agent", "scripted", "--json")
    (error,) = json.loads(run.stdout)["errors"]
    assert (run.code, error["code"]) == (4, "USAGE_ERROR")
    assert error["message"].endswith(": Not a directory")
    assert error["remediation"] == "Make its place writable, or choose another one with --run-dir."
    assert "INTERNALERROR" not in run.output


def test_a_temporary_folder_that_is_not_there(project: Project) -> None:
    """Python takes another one and says nothing; whoever chose it, for its space or its walls, has to hear of it."""
    project.task("t", agent=scripted(WRITE))
    told = "TMPDIR=/nonesuch can't be used: the private folders of trials lie in "
    run = project.run("tasks", AGENT, env={"TMPDIR": "/nonesuch"}).assert_consistent()
    assert run.statuses == {"t": "passed"}
    (warning,) = [w for w in run.envelope["warnings"] if w.startswith("TMPDIR")]
    assert Path(warning.removeprefix(told)).is_dir(), warning
    for fits in (
        project.environment["TMPDIR"],
        project.environment["TMPDIR"] + "/",
        os.path.relpath(project.environment["TMPDIR"], project.path),
    ):
        assert "TMPDIR" not in project.run("tasks", AGENT, env={"TMPDIR": fits}).output


def test_the_cache_of_repositories(project: Project) -> None:
    source = project.path.parent / "source"
    whole = commit(source, {"app.py": "1"})
    cache = project.write("cache", "no folder\n")
    for name, given in (("hash", whole), ("branch", "main")):
        sandbox = {"template_sources": [{"type": "repo", "url": f"file://{source}", "commit": given}]}
        project.task(name, agent=scripted(WRITE), sandbox=sandbox)
    run = project.run("tasks", AGENT, env={"XDG_CACHE_HOME": str(cache)}).assert_consistent()
    assert run.statuses == {"hash": "error", "branch": "error"}
    assert all("set XDG_CACHE_HOME" in error["remediation"] for error in run.envelope["errors"]), run.envelope["errors"]
    for name in run.statuses:
        result = run.result(name)
        assert result["code"] == "SANDBOX_FAILED"
        assert "template_sources: what is fetched from a repository can't be kept in " in result["reason"]


def test_what_npm_says_first_is_why() -> None:
    said = [
        "npm error code EACCES", "npm error syscall mkdir", "npm error path /home/me/.npm/_cacache", "npm error errno EACCES", "npm error",
        "npm error Your cache folder contains root-owned files", "npm error", "npm error To permanently fix this problem, please run:",
        'npm error   sudo chown -R 1001:1001 "/home/me/.npm"', "npm error A complete log of this run can be found in: /x",
    ]  # fmt: skip
    words = " ".join(_last_words("\n".join(said)))
    assert words.startswith("npm error syscall mkdir path /home/me/.npm/_cacache Your cache folder contains root-owned files")


def test_a_conftest_that_can_not_be_loaded(project: Project) -> None:
    project.write("conftest.py", "import a_module_that_is_not_there\n")
    run = project.codeprobe("doctor", "--json")
    (error,) = json.loads(run.stdout)["errors"]
    assert (run.code, error["code"]) == (4, "USAGE_ERROR")
    assert "a_module_that_is_not_there" in error["message"]
    assert error["remediation"] == "Correct that conftest.py, or install what it imports."


def test_a_driver_that_a_flag_chose_is_named_where_it_can_not_hold_a_task(project: Project) -> None:
    project.task("t", agent=scripted(WRITE), sandbox={"network": "off"})
    for flags, env, by in (
        ([], {"CODEPROBE_DRIVER": "tempdir"}, "ini codeprobe_driver, or CODEPROBE_DRIVER"),
        (["--codeprobe-driver=tempdir"], {}, "--codeprobe-driver"),
    ):
        run = project.run("tasks", AGENT, *flags, env=env)
        assert run.code == 4
        assert f"sandbox.network: off needs driver bubblewrap or docker (driver tempdir is what {by} names)" in run.output
    project.task("t", agent=scripted(WRITE), sandbox={"network": "off", "driver": "tempdir"})  # its own choice, too
    for driver in ("", "tempdir"):
        assert "off needs driver bubblewrap or docker\n" in project.run("tasks", AGENT, env={"CODEPROBE_DRIVER": driver}).output
