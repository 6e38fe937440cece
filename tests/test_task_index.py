"""Collection with an index of earlier runs says, plans and runs the same as without, whatever has changed in between."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.front_door import Project, Run, comparable, scripted
from tests.test_startup import imported

WITHOUT = ("-p", "no:cacheprovider")
TAIL = "success_criteria: [{type: file_exists, path: a}]\n"
CRITERION = """
from typing import Literal
from pydantic import model_validator
from pytest_codeprobe.model.criterion import Criterion, Score

class Mine(Criterion):
    type: Literal["mine"]
    size: int = 1

    @model_validator(mode="after")
    def _fits(self):
        if self.size > LIMIT:
            raise ValueError("is too large")
        return self

    def evaluate(self, grading):
        return Score(1.0)

def pytest_codeprobe_criteria():
    return [Mine]
"""
AGENT = """
from typing import Annotated
from pydantic import BaseModel, Field
from pytest_codeprobe.model.agent import Agent

class Table(BaseModel):
    size: Annotated[int, Field(lt=10)]

class Pal(Agent):
    name, aliases, table = "pal", ("mate",), Table
    def command(self, request): ...
    def parser(self, request): ...

def pytest_codeprobe_agents():
    return [Pal()]
"""


def nasty(project: Project) -> None:
    """A suite with a bit of everything that can stand in task files."""
    write = project.write
    write("pytest.ini", "[pytest]\ncodeprobe_unknown_fields = warn\n")
    write("conftest.py", CRITERION.replace("LIMIT", "5") + AGENT + "\nimport pytest\n@pytest.fixture\ndef service(): pass\n")
    write("tasks/several.yaml", f"task_id: one\ninitial_prompt: x\ntags: [smoke, 'lang:python']\n{TAIL}---\n"
          f"- task_id: two\n  initial_prompt: y\n  skip: not yet\n  fixtures: [service]\n  {TAIL}- 12\n"
          f"- task_id: three/x\n  initial_prompt: y\n  xfail: hard\n  colour: red\n  {TAIL}")  # fmt: skip
    write("tasks/prompted.yaml", f"task_id: prompted\ninitial_prompt_file: prompt.md\n{TAIL}")
    write("tasks/prompt.md", "first")
    write("tasks/variables.yaml", f"task_id: variables\ninitial_prompt: x\nagent: {{env: {{A: '${{CP_A:-none}}', B: $CP_B}}}}\n{TAIL}")
    write("tasks/paths/task.yaml", "task_id: paths\ninitial_prompt: x\nsandbox: {template_sources: [{type: template_dir, path: files}]}\n"
          "success_criteria: [{type: pytest, paths: [hidden/test_x.py]}]\n")  # fmt: skip
    write("tasks/paths/files/test_not_mine.py", "assert False\n")
    write("tasks/paths/hidden/test_x.py", "def test_x(): pass\n")
    write("tasks/theirs.yaml", "task_id: theirs\ninitial_prompt: x\nsuccess_criteria: [{type: mine, size: 3}]\n")
    write("tasks/pals.yaml", f"task_id: pals\ninitial_prompt: x\nagent: {{type: oracle, mate: {{size: 5}}}}\n{TAIL}")
    write("tasks/other.yaml", "services: {}\n")
    write("tests/test_plain.py", "def test_plain(): pass\n")


def edit(name: str, old: str, new: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        file = project.path / name
        text = file.read_text()
        assert old in text
        file.write_text(text.replace(old, new))

    return change


def put(name: str, text: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        project.write(name, text)

    return change


def variable(name: str, value: str | None) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        project.environment.pop(name)
        project.environment.update({} if value is None else {name: value})

    return change


def in_turn(*changes: Callable[[Project], None]) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        for one in changes:
            one(project)

    return change


def remove(name: str) -> Callable[[Project], None]:
    def change(project: Project) -> None:
        path = project.path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


#: what happens between two runs -> what can be seen of it. What concerns one file alone comes several at a time, each in another file.
CHANGES: dict[str, tuple[Callable[[Project], None], tuple[str, ...]]] = {
    "nothing": (in_turn(), ("three/x",)),
    "files that break": (
        in_turn(
            remove("tasks/prompt.md"),
            remove("tasks/paths/files"),
            variable("CP_B", None),
            edit("tasks/several.yaml", "initial_prompt: x", "initial_promt: x"),
        ),
        (
            "names a file that is not there: 'prompt.md'",
            "names a folder that is not there: 'files'",
            "needs the variable CP_B, which is not set",
            "a task needs 'initial_prompt' or",
        ),
    ),
    "files that break otherwise": (
        in_turn(
            put("tasks/prompt.md", ""),
            remove("tasks/paths/files"),
            put("tasks/paths/files", ""),
            variable("CP_B", "other"),
            remove("tasks/several.yaml"),
        ),
        ("tasks/prompted.yaml:2:22: 'initial_prompt_file' names an empty file", "must name a folder, not a file"),
    ),
    "a prompt and a variable": (in_turn(put("tasks/prompt.md", "second!"), variable("CP_B", "other")), ()),
    "a task is gone": (remove("tasks/several.yaml"), ()),
    "a task within the same size and second": (edit("tasks/prompted.yaml", "task_id: prompted", "task_id: prompter"), ("prompter",)),
    "a new duplicate": (put("tasks/a.yaml", f"task_id: ONE\ninitial_prompt: x\n{TAIL}"), ("are too alike",)),
    "defaults": (put("experiments/default.yaml", "defaults: {run_limits: {task_timeout: 7}}\n"), ()),
    "wrong defaults": (put("experiments/default.yaml", "defaults: {run_limits: {task_timeot: 7}}\n"), ("unknown field 'task_timeot'",)),
    "defaults with a variable": (
        put("experiments/default.yaml",
            "defaults: {sandbox: {template_sources: [{type: template_dir, path: '../tasks/${CP_C:-paths}'}]}}\n"), (),
    ),
    "own rules of a criterion and an agent": (
        in_turn(edit("conftest.py", "> 5", "> 2"), edit("conftest.py", "lt=10", "lt=4")),
        ("is too large", "'agent.mate.size' must be less than 4"),
    ),
    "a criterion is gone": (put("conftest.py", "import pytest\n@pytest.fixture\ndef service(): pass\n"), ("unknown criterion 'mine'",)),
    "an agent's other name": (edit("conftest.py", '"mate"', '"fellow"'), ("unknown field 'mate' in 'agent'",)),
    "unknown fields": (put("pytest.ini", "[pytest]\ncodeprobe_unknown_fields = error\n"), ("unknown field 'colour'",)),
    "a pattern": (put("pytest.ini", "[pytest]\ncodeprobe_unknown_fields = warn\ncodeprobe_ignore = tasks/several.yaml\n"), ()),
}  # fmt: skip


def seen(run: Run) -> tuple[int, list[tuple[str, str]], list[str]]:
    """Exit code, the outcomes in their order, and what is said of files."""
    said = [line.strip() for line in run.output.splitlines() if line.startswith(("E ", "ERROR", "codeprobe", "no task files", "not_run"))]
    return run.code, list(run.junit().items()), said


def both(project: Project, *args: str, mode: str = "plain") -> Run:
    """A run that may use the index, once one without it has said the same."""
    run = project.run(*args, mode=mode)
    without = project.run(*args, *WITHOUT, mode=mode)
    if mode == "plain":
        assert seen(run) == seen(without)
    else:  # the order of reports is that of the ends
        assert [sorted(map(str, part)) if isinstance(part, list) else part for part in seen(run)] == [
            sorted(map(str, part)) if isinstance(part, list) else part for part in seen(without)
        ]
    return run


def stored(project: Project) -> bytes:
    """All that is kept."""
    return b"".join(file.read_bytes() for file in (project.path / ".pytest_cache/d/codeprobe").iterdir())


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_between_two_runs(project: Project, change: str) -> None:
    act, said = CHANGES[change]
    nasty(project)
    project.environment["CP_B"] = "secret-of-mine"
    assert project.run("--collect-only").code == 0
    assert b'"task_id":"three/x"' in stored(project)
    act(project)
    run = both(project)
    for text in said:
        assert text in run.output + str(run.junit())
    assert b"secret-of-mine" not in stored(project)
    assert b'"task_id":"variables"' not in stored(project)
    assert b'"task_id":"theirs"' not in stored(project)
    assert b'"task_id":"pals"' not in stored(project)


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_every_mode_collects_the_same(project: Project, mode: str) -> None:
    nasty(project)
    project.environment["CP_B"] = "b"
    first = project.run(mode=mode)
    assert stored(project)
    second = both(project, mode=mode)
    assert sorted(first.junit().items()) == sorted(second.junit().items())
    assert first.code == second.code == 0
    project.write("tasks/broken.yaml", "task_id: broken\n")
    assert project.run(mode=mode).code == 4


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_what_runs_is_the_same(project: Project, mode: str) -> None:
    """Plan and records of a run whose trials come from the index."""
    nasty(project)
    project.environment["CP_B"] = "b"
    done = scripted({"write": {"path": "out.txt", "content": "{}"}}, {"say": "done"})
    project.task("passes", agent=done, tags=["canary"], run_limits={"max_turns": 3}, metadata={"n": 3, "s": "3.10"})
    project.task("fails", agent=scripted({"say": "no"}), success_criteria=[
        {"type": "file_exists", "path": "a", "weight": 2}, {"type": "run_command", "command": "true"}])  # fmt: skip
    named = ("tasks/passes.yaml", "tasks/fails.yaml", "tasks/prompted.yaml", "tasks/paths/task.yaml")
    runs = [project.run(*named, f"--codeprobe-run-dir=run{n}", "--codeprobe-agent=scripted", *more, mode=mode)
            for n, more in enumerate(((), (), WITHOUT))]  # fmt: skip
    plans = [{t["node_id"]: t for t in run.plan} for run in runs]
    assert plans[0] == plans[1] == plans[2]
    assert [list(plan) for plan in plans] == [[f"{name}::{t['task_id']}" for name in named for t in [plan_of(plans[0], name)]]] * 3
    # what hidden tests print has times in it
    results = [{t: status if t == "paths" else comparable(run.result(t)) for t, status in run.statuses.items()} for run in runs]
    assert results[0] == results[1] == results[2]
    assert {run.code for run in runs} == {runs[0].code}
    assert runs[1].statuses["passes"] == "passed"
    assert runs[1].statuses["fails"] == "failed"


def plan_of(plan: Mapping[str, Any], file: str) -> Any:
    """The line of the one trial of a file."""
    (line,) = [trial for node_id, trial in plan.items() if node_id.startswith(f"{file}::")]
    return line


def loads_models(project: Project, *args: str) -> bool:
    """Whether a process that only lists tasks needs the models, by Python's own account."""
    modules = imported(project, "--collect-only", *args)
    assert "pytest_codeprobe.plugin.collect" in modules  # else this would show nothing
    return "pydantic" in modules


def test_what_is_known_is_not_loaded(project: Project) -> None:
    project.task("a")
    project.write("tasks/other.yaml", "description: no task_id\n")
    project.write("tasks/sub/b.yaml", f"task_id: b\ninitial_prompt_file: ../p.md\n{TAIL}")
    project.write("tasks/p.md", "do it")
    assert loads_models(project)
    assert not loads_models(project)
    assert not loads_models(project, "tasks/sub")
    assert loads_models(project, "--cache-clear")
    assert not loads_models(project)
    assert loads_models(project, *WITHOUT)
    assert loads_models(project, "--codeprobe-agent=scripted")  # other circumstances
    assert not loads_models(project)  # and the old ones are still known
    project.write("tasks/sub/b.yaml", f"task_id: c\ninitial_prompt_file: ../p.md\n{TAIL}")
    assert loads_models(project)
    project.write("tasks/p.md", "do that")
    assert loads_models(project)
    assert not loads_models(project)


def test_where_no_task_is_selected_nothing_is_loaded(project: Project) -> None:
    """Next to tasks that are known, Python tests run as if there were none."""
    project.task("a")
    project.write("tests/test_plain.py", "def test_plain(): pass\n")
    assert "pydantic" in imported(project)
    assert "pydantic" not in imported(project, "-k", "test_plain")
    assert "pydantic" in imported(project)
    run = both(project, "-k", "test_plain")
    assert (run.code, run.junit()) == (0, {"test_plain": "passed"})
    assert both(project, "-k", "neither").code == 5


def test_workers_leave_an_index_too(project: Project) -> None:
    project.task("a")
    assert project.run(mode="xdist").junit() == {"a": "skipped"}
    assert len(list((project.path / ".pytest_cache/d/codeprobe").iterdir())) == 1
    assert not loads_models(project)


def test_a_damaged_index_is_replaced_without_a_word(project: Project) -> None:
    project.task("a")
    first = project.run()
    (file,) = (project.path / ".pytest_cache/d/codeprobe").iterdir()
    whole = file.read_bytes()
    for damage in (whole[:-200], b"", b"\x80\x04cos\nsystem\n"):
        file.write_bytes(damage)
        assert seen(project.run("-W", "error")) == seen(first)
        assert file.read_bytes() == whole


def test_nothing_is_kept_where_there_is_no_task_or_no_place(project: Project) -> None:
    project.write("tests/test_a.py", "def test_a(): pass\n")
    project.write("compose.yaml", "services: {}\n")
    assert project.run().code == 0
    assert not (project.path / ".pytest_cache/d").exists()
    shutil.rmtree(project.path / ".pytest_cache")
    project.task("a")
    assert project.run(*WITHOUT).code == 0
    assert not (project.path / ".pytest_cache").exists()
    run = project.run("-o", "cache_dir=pytest.ini")
    assert (run.code, run.junit()["a"]) == (0, "skipped")


def test_a_hook_that_comes_later_brings_nothing(project: Project) -> None:
    """The first task of a run settles what hooks bring, also where it comes from the index."""
    project.task("a", file="tasks/a/a.yaml")
    project.write("tasks/b/conftest.py", CRITERION.replace("LIMIT", "5"))
    project.write("tasks/b/b.yaml", "task_id: b\ninitial_prompt: x\nsuccess_criteria: [{type: mine}]\n")
    first = both(project)
    assert "unknown criterion 'mine'" in first.output
    assert seen(both(project)) == seen(first)


def test_moved_projects_know_nothing(project: Project, tmp_path: Path) -> None:
    """A cache that went along with the files names other paths."""
    nasty(project)
    project.environment["CP_B"] = "b"
    assert project.run("--collect-only").code == 0
    moved = tmp_path / "moved"
    shutil.copytree(project.path, moved, symlinks=True)
    project.path = moved
    assert both(project, "--collect-only").code == 0
    assert str(moved).encode() in stored(project)


def test_what_overrides_say_is_looked_at_again(project: Project) -> None:
    """Values of variables in them are secrets, and a path in them belongs to the folder where pytest was called."""
    project.task("t", agent=scripted({"run": 'printf \'%s %s\' "$PLACE" "$(ls *.txt)" > out'}))
    for value in ("one-of-mine", "two-of-mine"):
        project.environment["MY_PLACE"] = value
        run = project.run("--codeprobe-agent=scripted", "--codeprobe-set=agent.env={PLACE: $MY_PLACE}", "tasks")
        assert (run.trial("t") / "artifacts/out").read_text().split()[0] == value
        assert not (project.path / ".pytest_cache/d/codeprobe").exists()
    for name in ("a", "b"):
        project.write(f"{name}/w/{name}.txt", name)
    source = "--codeprobe-set=sandbox={template_sources: [{type: template_dir, path: w}]}"
    for number, name in enumerate("abb"):
        args = (f"--codeprobe-run-dir={project.path}/run{number}", f"--rootdir={project.path}", str(project.path / "tasks"))
        run = project.start("--codeprobe-agent=scripted", source, *args, prefix=("env", "-C", str(project.path / name))).wait()
        assert (run.trial("t") / "artifacts" / f"{name}.txt").exists()
    assert stored(project)


def test_what_ini_allowed_is_not_allowed_for_ever(project: Project) -> None:
    project.task("t", odd=1)
    assert project.run("--collect-only", "-o", "codeprobe_unknown_fields=warn", "tasks").code == 0
    assert b'"task_id":"t"' in stored(project)
    assert project.run("--collect-only", "tasks").code != 0
