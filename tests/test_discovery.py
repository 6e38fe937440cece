"""Which files become tasks, and what is never collected as a test of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.front_door import Project, Run, scripted

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
TASK = "task_id: {0}\ninitial_prompt: x\nsuccess_criteria: [{{type: file_exists, path: out.txt}}]\n"
BOOM = "raise RuntimeError('this module must never be imported')\n"


def collected(project: Project, *args: str, mode: str = "plain", code: int = 0) -> list[str]:
    """Ids that pytest collects; everything else about the run must be fine."""
    if mode == "plain":
        run = project.run("--collect-only", "-q", *args, junit=False)
        found = [line for line in run.stdout.splitlines() if "::" in line and not line.startswith(("ERROR", "codeprobe:"))]
    else:
        run = project.run(*args, "-v", mode=mode)
        found = sorted({line.split(" ")[-1] if "::" in line else "" for line in run.stdout.splitlines() if line.startswith("[gw")} - {""})
    assert run.code == code or (mode != "plain" and run.code in (0, 5)), run.output
    return found


# ---------------------------------------------------------------- what is a task


def test_the_default_patterns(project: Project) -> None:
    for name in ("tasks/a.yaml", "tasks/deep/er/b.yml", "sub/c.task.yaml", "d.task.yml", "other/e.yaml", "tasksx/f.yaml", "tasks/g.json"):
        project.write(name, TASK.format(Path(name).name.split(".")[0]))
    assert collected(project) == ["d.task.yml::d", "sub/c.task.yaml::c", "tasks/a.yaml::a", "tasks/deep/er/b.yml::b"]


def test_patterns_of_the_ini(project: Project) -> None:
    project.write("pytest.ini", "[pytest]\ncodeprobe_files = evals/**/*.yaml bench-?.yml\ncodeprobe_ignore = drafts/ evals/old*.yaml\n")
    for name in (
        "evals/a.yaml",
        "evals/x/b.yaml",
        "evals/drafts/c.yaml",
        "evals/old-d.yaml",
        "x/bench-1.yml",
        "x/bench-22.yml",
        "tasks/e.yaml",
    ):
        project.write(name, TASK.format(Path(name).name.split(".")[0]))
    assert collected(project) == ["evals/a.yaml::a", "evals/x/b.yaml::b", "x/bench-1.yml::bench-1"]
    assert collected(project, "evals/drafts/c.yaml") == ["evals/drafts/c.yaml::c"]  # named outright


def test_a_folder_that_is_named_needs_no_configuration(project: Project) -> None:
    (project.path / "pytest.ini").unlink()
    project.task("a", file="evals/a.yaml", agent=scripted(WRITE))
    project.task("b", file="evals/deep/b.yaml", agent=scripted(WRITE))
    project.write("evals/settings.yaml", "task_id: looks like one\nbut: is not\n")
    project.write("evals/data.yaml", "- 1\n- 2\n")
    run = project.codeprobe("run", "evals/", "--no-json").assert_consistent()
    assert run.statuses == {"a": "passed", "b": "passed"}
    assert run.code == 0


def test_from_another_folder(project: Project, tmp_path: Path) -> None:
    """No configuration anywhere: the run dir lies below the folder that pytest takes for rootdir, and the tasks run."""
    elsewhere = tmp_path / "elsewhere" / "evals"
    elsewhere.mkdir(parents=True)
    (elsewhere / "solve.yaml").write_text(TASK.format("solve") + "solution: {script: 'echo x > out.txt'}\n")
    (project.path / "pytest.ini").unlink()
    run = project.codeprobe("run", str(elsewhere), "--agent", "oracle", "--json")
    (envelope,) = run.lines
    assert run.code == 0, run.output
    assert [(r["task_id"], r["status"]) for r in envelope["data"]["results"]] == [("solve", "passed")]
    run = project.codeprobe("run", "../elsewhere/evals/solve.yaml", "--agent=oracle", "--json")
    assert run.lines[0]["data"]["tasks_passed"] == 1


OTHERS = {
    "tasks/ansible/tasks/main.yml": "- name: install\n  apt: {name: nginx}\n  tags: [web]\n",
    "tasks/.github/workflows/ci.yml": "name: ci\non: [push]\njobs:\n  a:\n    runs-on: x\n    steps:\n      - run: echo\n",
    "tasks/compose.yaml": "services:\n  web:\n    image: nginx\nmetadata: {a: 1}\n",
    "tasks/data.yaml": "description: a data file\ntags: [a]\n",
    "tasks/empty.yaml": "",
    "tasks/list.yaml": "- a\n- b\n",
    "tasks/template.yaml": "{% for x in y %}\nkey: {{ x }}\n{% endfor %}\n",
    "tasks/custom.yaml": "a: !vault |\n  0123\nb: !Ref x\n",
    "tasks/tabs.yml": "a:\n\t- b\n",
}


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_the_yaml_of_others_is_no_task(project: Project, mode: str) -> None:
    for name, text in OTHERS.items():
        project.write(name, text)
    project.write("tasks/binary.yaml", "").write_bytes(b"\xff\xfe\x00\x01")
    project.write("tasks/wide.yaml", "").write_bytes("name: ci\n".encode("utf-16"))
    project.task("real", agent=scripted(WRITE))
    run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    assert run.statuses == {"real": "passed"}
    assert run.code == 0, run.output
    (line,) = [line for line in run.stdout.splitlines() if "no task files" in line]
    assert "and" in line
    assert len(line) < 200


def test_a_task_in_another_encoding_is_an_error(project: Project) -> None:
    project.write("tasks/wide.yaml", "").write_bytes(TASK.format("wide").encode("utf-16"))
    run = project.run("tasks", "--codeprobe-agent=nop")
    assert run.code == 4, run.output
    assert "tasks/wide.yaml:1:1: " in run.output
    assert "UTF-8" in run.output


def test_two_tasks_of_one_name(project: Project) -> None:
    project.write("tasks/a.yaml", TASK.format("same"))
    project.write("tasks/b.yaml", TASK.format("other") + "---\n" + TASK.format("SAME"))
    run = project.run("tasks", "--codeprobe-agent=nop")
    assert run.code == 4, run.output
    assert "tasks/a.yaml:1" in run.output
    assert "tasks/b.yaml:5" in run.output
    assert "1 error" in run.output


# ---------------------------------------------------------------- what a task refers to


def referring(project: Project, where: str = "tasks/fix", name: str = "task.yaml", task_id: str = "fix", beside: str = "beside") -> None:
    """A task with everything that it can refer to beside it; none of it may be imported."""
    project.task(
        task_id,
        file=f"{where}/{name}",
        agent=scripted(WRITE),
        sandbox={"template_sources": [{"type": "template_dir", "path": "workspace"}]},
        reference={"directory": "reference"},
        solution={"directory": "solution"},
        success_criteria=[{"type": "file_exists", "path": "out.txt"}, {"type": "pytest", "paths": ["hidden/test_sum.py"], "weight": 0}],
    )
    for inner in ("workspace/tests/test_x.py", "workspace/conftest.py", "reference/test_x.py", "solution/test_x.py", "hidden/test_sum.py"):
        project.write(f"{where}/{inner}", BOOM)
    project.write(f"{where}/workspace/tasks/inner.task.yaml", TASK.format("inner"))
    project.write(f"{where}/test_{beside}.py", f"def test_{beside}(): pass\n")


@pytest.mark.parametrize("args", [(), ("tasks",), ("tasks/fix",), (".", "tasks"), ("tasks/fix/test_beside.py", "tasks")])
def test_what_a_task_refers_to_is_not_collected(project: Project, args: tuple[str, ...]) -> None:
    referring(project)
    assert sorted(collected(project, *args)) == ["tasks/fix/task.yaml::fix", "tasks/fix/test_beside.py::test_beside"]


@pytest.mark.parametrize(("mode", "name"), [("plain", "aaa.yaml"), ("xdist", "zzz.yaml")])
def test_whatever_the_order(project: Project, mode: str, name: str) -> None:
    """The task file sorts before, or behind, all that it refers to."""
    referring(project, name=name)
    project.task("rows", initial_prompt="${row.id}", agent=scripted(WRITE), dataset={"paths": ["rows.csv"]})
    project.write("tasks/rows.csv", "id\n1\n")  # no test to anybody: not worth a word
    run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    assert set(run.junit()) == {"fix", "test_beside", "rows[row-1]"}, run.output
    (line,) = [line for line in run.stdout.splitlines() if "not collected" in line]
    assert line == (
        "4 paths not collected, since tasks refer to them: tasks/fix/hidden/test_sum.py, tasks/fix/reference, tasks/fix/solution and 1 more"
    )


def test_nested_task_folders(project: Project) -> None:
    referring(project, "tasks/area/one", task_id="one", beside="one")
    referring(project, "tasks/area/deep/two", task_id="two", beside="two")
    found = collected(project)
    assert sorted(found) == [
        "tasks/area/deep/two/task.yaml::two",
        "tasks/area/deep/two/test_two.py::test_two",
        "tasks/area/one/task.yaml::one",
        "tasks/area/one/test_one.py::test_one",
    ]


def test_what_is_named_is_collected_all_the_same(project: Project) -> None:
    referring(project)
    project.write("tasks/fix/hidden/test_sum.py", "def test_sum(): pass\n")
    assert collected(project, "tasks/fix/hidden/test_sum.py") == ["tasks/fix/hidden/test_sum.py::test_sum"]
    assert "tasks/fix/hidden/test_sum.py::test_sum" in collected(project, "tasks/fix/hidden", "tasks")


def test_a_template_that_is_the_repository_takes_nothing_away(project: Project) -> None:
    project.write("tests/test_own.py", "def test_own(): pass\n")
    project.write("test_top.py", "def test_top(): pass\n")
    project.task(
        "fix", file="tasks/fix/task.yaml", agent=scripted(WRITE), sandbox={"template_sources": [{"type": "template_dir", "path": "../.."}]}
    )
    project.write("tasks/fix/test_beside.py", "def test_beside(): pass\n")
    run = project.run("--codeprobe-agent=scripted").assert_consistent()
    assert run.junit() == dict.fromkeys(("fix", "test_own", "test_top", "test_beside"), "passed")


def test_what_a_broken_task_refers_to_is_not_imported_either(project: Project) -> None:
    referring(project)
    file = project.path / "tasks/fix/task.yaml"
    file.write_text(file.read_text() + "run_limts: {}\n")
    run = project.run("tasks", "--codeprobe-agent=scripted", "--continue-on-collection-errors")
    assert "must never be imported" not in run.output
    assert "run_limts" in run.output
    assert run.junit().get("test_beside") == "passed"


def test_conftest_in_a_folder_called_tests_is_the_one_exception(project: Project) -> None:
    """Documented: pytest itself imports `tests/conftest.py` directly below a folder given as argument, before any plugin is asked."""
    project.write("tasks/tests/conftest.py", f"open({str(project.marks / 'imported')!r}, 'w')\n")
    project.write("tasks/tests/test_x.py", BOOM)
    hidden = [{"type": "pytest", "paths": ["tests/test_x.py"]}]
    project.task("fix", file="tasks/task.yaml", success_criteria=hidden)
    assert collected(project, "tasks") == ["tasks/task.yaml::fix"]
    assert (project.marks / "imported").exists()


# ---------------------------------------------------------------- folders


def test_norecursedirs(project: Project) -> None:
    """`build` and `.hidden` are entered only on a pattern's literal beginning, or when named."""
    for name in ("build/tasks/a.task.yaml", ".hidden/b.task.yaml", "tasks/build/c.yaml", "tasks/node_modules/d.yaml"):
        project.write(name, TASK.format(Path(name).name.split(".")[0]))
    assert collected(project, code=5) == []
    assert collected(project, "build") == ["build/tasks/a.task.yaml::a"]
    assert collected(project, "tasks/build", ".hidden") == ["tasks/build/c.yaml::c", ".hidden/b.task.yaml::b"]
    project.write("pytest.ini", "[pytest]\ncodeprobe_files = .evals/**/*.yaml\n")
    project.write(".evals/e.yaml", TASK.format("e"))
    assert collected(project) == [".evals/e.yaml::e"]


def test_a_linked_folder_of_tasks(project: Project, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / "a.yaml").write_text(TASK.format("a"))
    (project.path / "tasks").symlink_to(shared)
    assert collected(project) == ["tasks/a.yaml::a"]
    assert collected(project, "tasks/a.yaml") == ["tasks/a.yaml::a"]


@pytest.mark.parametrize("mode", ["plain", "xdist"])
def test_globs_on_the_command_line(project: Project, mode: str) -> None:
    for name in ("fix-a", "fix-b", "other"):
        project.task(name, agent=scripted(WRITE))
    run = project.run("tasks/fix-*.yaml", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    assert run.statuses == {"fix-a": "passed", "fix-b": "passed"}
    nothing = project.run("tasks/nope-*.yaml", "--codeprobe-agent=scripted", mode=mode)
    assert nothing.code == 4, nothing.output


def test_lists_and_documents(project: Project) -> None:
    project.write(
        "tasks/many.yaml", "- " + TASK.format("a").replace("\n", "\n  ").rstrip() + "\n---\n" + TASK.format("b") + "---\nnote: no task\n"
    )
    run = project.run("tasks", "--codeprobe-agent=nop").assert_consistent()
    assert {t["node_id"] for t in run.plan} == {"tasks/many.yaml::a", "tasks/many.yaml::b"}


def test_collection_is_the_same_in_every_process(project: Project) -> None:
    """xdist refuses a run whose workers differ; the run and the list must agree as well."""
    referring(project)
    project.write("tasks/many.yaml", TASK.format("a") + "---\n" + TASK.format("b"))
    listed = collected(project, "tasks")
    run: Run = project.run("tasks", "--codeprobe-agent=nop", mode="xdist").assert_consistent()
    assert sorted(n.partition("::")[2] for n in listed) == sorted(run.junit())
