"""A repository that is used as its own workspace: the agent gets what a fresh clone has, without what grades the task."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.sandboxes.workspace import TemplateStore
from pytest_codeprobe.tasks.discovery import TaskPatterns
from tests.front_door import Project, scripted

GIT = {"GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
WORD = "only-graders-know-this"
LOOK = f"""
find . -path ./.git -prune -o -type f ! -name listing.txt -print | sort > listing.txt
git log --format=%s > log.txt
(grep -rl {WORD[:-1]}[s] . ; git log --all -p | grep {WORD[:-1]}[s]) > found.txt
printf 'x = 2\\n' > app.py
"""


def git(folder: Path, *args: str) -> None:
    subprocess.run(["git", "-C", str(folder), *args], check=True, env={**os.environ, **GIT}, capture_output=True)


def repository(project: Project) -> None:
    """With a task, what grades it, an ignored key, an ignored folder, and history that holds all of it."""
    files = {
        "app.py": "x = 1\n",
        "tests/test_app.py": "import app\ndef test_x(): assert app.x\n",
        ".gitignore": ".env\nbuild/\n!build/kept\n*.log\n",
        ".env": f"KEY={WORD}\n",
        "build/out.o": "object",
        "tracked.log": "kept, since it is tracked",
        "tasks/fix/hidden/test_hidden.py": f"import app\ndef test_x(): assert app.x == 2, '{WORD}'\n",
        "tasks/fix/hidden/__pycache__/test_hidden.cpython-311.pyc": WORD,
        "tasks/fix/answer/app.py": f"x = 2  # {WORD}\n",
        "tasks/fix/check.sh": f"# {WORD}\ngrep -q 2 app.py\n",
        "tasks/fix/notes.md": "for everybody",
    }
    for name, content in files.items():
        project.write(name, content)
    criteria = [{"type": "pytest", "paths": ["hidden"]}, {"type": "run_command", "command": 'sh "$TASK_DIR"/check.sh'}]
    project.task(
        "fix",
        file="tasks/fix/fix.yaml",
        agent=scripted({"run": LOOK}),
        sandbox={"template_sources": [{"type": "template_dir", "path": "../.."}]},
        solution={"directory": "answer"},
        success_criteria=criteria,
        description=WORD,
    )
    git(project.path, "init", "-q")
    git(project.path, "add", "-A")
    git(project.path, "add", "-f", "tracked.log", "tasks/fix/hidden")
    git(project.path, "commit", "-qm", "all of it")


def test_a_repository_as_its_own_workspace(project: Project) -> None:
    repository(project)
    runs = [project.run("tasks/fix/fix.yaml", *args).assert_consistent() for args in ((), ("--codeprobe-run-dir=out/of/way",), ())]
    assert [run.statuses for run in runs] == [{"fix": "passed"}] * 3, runs[0].output
    seen = [{name: (run.trial("fix") / "artifacts" / name).read_text() for name in ("listing.txt", "log.txt", "found.txt")} for run in runs]
    assert seen[0]["listing.txt"].split() == [
        "./.gitignore", "./app.py", "./pytest.ini", "./tasks/fix/notes.md", "./tests/test_app.py", "./tracked.log",
    ]  # fmt: skip
    assert seen[0]["found.txt"] == ""
    assert len(seen[0]["log.txt"].split("\n")) == 2
    assert "all of it" not in seen[0]["log.txt"]
    assert seen == [seen[0]] * 3  # no run finds an earlier one
    assert "test_hidden" in (project.path / "tasks/fix/hidden/test_hidden.py").name
    oracle = project.run("tasks/fix/fix.yaml", "--codeprobe-agent=oracle").assert_consistent()
    assert oracle.statuses == {"fix": "passed"}


def listed(store: TemplateStore, source: Mapping[str, object], hidden: Iterable[Path] = ()) -> list[str]:
    config = SandboxConfig.model_validate({"template_sources": [{"type": "template_dir", **source}], "git": "none"})
    top = store.get(config, [str(path) for path in hidden]).tree
    return sorted(str(path.relative_to(top)) for path in top.rglob("*") if not path.is_dir())


def test_what_is_left_out_of_a_template(tmp_path: Path) -> None:
    top = tmp_path / "top"
    for name in ("a", ".env", ".gitignore", "pack/a.py", "pack/__pycache__/a.cpython-311.pyc", "pack/__pycache__/b.cpython-311.pyc",
                 ".codeprobe/runs/1/plan.json", "sub/.pytest_cache/x", "out/1/plan.json", "out/1/events.ndjson", "out/1/trials/x",
                 "out/2/plan.json", ".git/HEAD", "sub/.git/HEAD", "sub/deep/hidden/t.py"):  # fmt: skip
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_text(".env\n")
    store = TemplateStore(top / "tmp")  # in its own way
    plain = {"path": str(top)}
    always = [".env", ".git/HEAD", ".gitignore", "a", "out/2/plan.json", "pack/__pycache__/a.cpython-311.pyc",
              "pack/__pycache__/b.cpython-311.pyc", "pack/a.py", "sub/.git/HEAD", "sub/deep/hidden/t.py"]  # fmt: skip
    assert listed(store, plain) == always  # a template that was made for the agent is taken as it is
    assert listed(store, {**plain, "exclude": ["*.pyc", "/sub", "!b.*.pyc"]}) == [
        name for name in always if not name.startswith("sub") and "a.cpython" not in name
    ]
    for folder in (".git", "sub/.git"):
        (top / folder / "HEAD").unlink()
        (top / folder).rmdir()
    git(top, "init", "-q")
    hidden = [top / "pack/a.py", top / "sub/deep/hidden", tmp_path / "elsewhere"]
    left = [".gitignore", "a", "out/2/plan.json", "pack/__pycache__/b.cpython-311.pyc"]
    assert listed(store, plain, hidden) == left
    (tmp_path / "link").symlink_to(top)
    assert listed(store, {"path": str(tmp_path / "link")}, [tmp_path / "link/pack/a.py", top / "sub/deep/hidden"]) == left
    config = SandboxConfig.model_validate({"template_sources": [{"type": "template_dir", **plain}]})
    assert store.get(config, [str(tmp_path / "elsewhere")]) is store.get(config)  # what lies elsewhere makes no other template
    assert store.get(config, [str(top / "a")]) is not store.get(config)


def test_a_template_inside_what_the_agent_must_not_see(project: Project) -> None:
    project.write("tasks/hidden/test_x.py", "def test_x(): pass\n")
    project.task("t", agent=scripted(), sandbox={"template_sources": [{"type": "template_dir", "path": "hidden"}]},
                 success_criteria=[{"type": "pytest", "paths": ["hidden"]}])  # fmt: skip
    run = project.run("tasks", "--codeprobe-agent=scripted")
    assert run.code == 4
    assert "'sandbox.template_sources[0].path' names what the agent must not see: the task's hidden tests" in run.output


@pytest.mark.parametrize("agent", ["oracle", "nop", "scripted"])
def test_a_task_of_agent_command_runs_with_another(project: Project, agent: str) -> None:
    """Also where `command` is set by who names the type; without a type it is left out with a note."""
    own = {"type": "command", "command": ["touch", "out.txt"], "args": ["x"], "model": "m", "env": {"A": "b"}}
    project.task("t", agent=own, solution={"script": "touch out.txt"})
    run = project.run("tasks", f"--codeprobe-agent={agent}").assert_consistent()
    assert run.statuses == {"t": "passed" if agent == "oracle" else "failed"}
    assert run.result("t")["agent"]["model"] is None
    assert [w for w in run.envelope["warnings"] if "command" in w] == []


TAMPER = """
import glob, os, sys
for top in glob.glob("../../codeprobe-*/template-*"):
    for name in sys.argv[1:]:
        info = os.stat(f"{top}/{name}")
        with open(f"{top}/{name}", "r+b") as file: file.write(b"x")
        os.utime(f"{top}/{name}", ns=(info.st_atime_ns, info.st_mtime_ns))
open("app.py", "w").write("mine")
"""


def test_a_template_that_a_session_changes_reaches_no_other_trial(project: Project) -> None:
    """Nor is anything put back from it; same size and time don't hide it, and neither does .git."""
    script = project.write("tamper.py", TAMPER)
    project.write("tasks/w/app.py", "the original")
    files: dict[str, Any] = {"sandbox": {"template_sources": [{"type": "template_dir", "path": "w"}], "protected": ["app.py"]},
                             "success_criteria": [{"type": "file_contains", "path": "app.py", "includes": ["the original"]}]}  # fmt: skip
    for name, changed in (("a", "app.py"), ("c", ".git/config")):
        project.task(name, agent=scripted({"run": f"python3 {script} {changed}"}), **files)
    for name in ("b", "d"):
        project.task(name, agent=scripted({"run": "git status --short | grep . || head -c1 .git/config > out.txt"}), **files)
    run = project.run("tasks", "--codeprobe-agent=scripted").assert_consistent()
    assert run.statuses == {"a": "error", "b": "passed", "c": "error", "d": "passed"}, run.output
    for name, path in (("a", "app.py"), ("c", ".git")):
        result = run.result(name)
        assert result["code"] == "SANDBOX_FAILED"
        assert result["reason"] == f"a session changed the template that workspaces are made from: {path}"
    for name in ("b", "d"):
        assert (run.trial(name) / "artifacts" / "out.txt").read_text() == "["


@pytest.mark.parametrize("pattern", ["/", "./", "//"])
def test_a_pattern_that_names_nothing_ignores_nothing(project: Project, pattern: str) -> None:
    patterns = TaskPatterns(["tasks/**/*.yaml"], [pattern], project.path)
    assert patterns.matches(project.path / "tasks/a.yaml")
    assert not patterns.ignores(project.path / "tasks")
