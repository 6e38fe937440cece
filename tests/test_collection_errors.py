"""A wrong task file is a collection error of one line with its place and a hint; nothing runs unless the user says go on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.front_door import Project, Run, scripted

AGENT = "--codeprobe-agent=scripted"
TAIL = "success_criteria: [{type: file_exists, path: a}]\n"
#: name -> the file's text, code, the one line that is said
FAULTS = {
    "misspelt-field": (
        f"task_id: b\ninital_prompt: x\n{TAIL}",
        "TASK_INVALID",
        "tasks/b.yaml:2:1: unknown field 'inital_prompt' (did you mean 'initial_prompt'?)",
    ),
    "misspelt-id": (
        f"tsak_id: b\ninitial_prompt: x\n{TAIL}",
        "TASK_INVALID",
        "tasks/b.yaml:1:1: unknown field 'tsak_id' (did you mean 'task_id'?)",
    ),
    "duplicate-key": (
        f"task_id: b\ninitial_prompt: x\ninitial_prompt: y\n{TAIL}",
        "TASK_INVALID",
        "tasks/b.yaml:3:1: duplicate key 'initial_prompt' (first in line 2)",
    ),
    "tab": (
        "task_id: b\ninitial_prompt: x\nsuccess_criteria:\n\t- {type: file_exists, path: a}\n",
        "TASK_INVALID",
        "tasks/b.yaml:4:1: a tab where YAML wants spaces: indent with spaces only",
    ),
    "missing-prompt-file": (
        f"task_id: b\ninitial_prompt_file: none.md\n{TAIL}",
        "TASK_INVALID",
        "tasks/b.yaml:2:22: 'initial_prompt_file' names a file that is not there: 'none.md'",
    ),
    "template-outside": (
        f"task_id: b\ninitial_prompt: x\nsandbox: {{template_sources: [{{type: template_dir, path: ../../..}}]}}\n{TAIL}",
        "TASK_INVALID",
        "tasks/b.yaml:3:57: 'sandbox.template_sources[0].path' leads out of ROOT: '../../..'; see ini codeprobe_template_roots",
    ),
    "driver-cannot": (
        f"task_id: b\ninitial_prompt: x\nsandbox: {{driver: tempdir, network: off}}\n{TAIL}",
        "TASK_INVALID",
        "tasks/b.yaml:3:37: sandbox.network: off needs driver bubblewrap or docker",
    ),
    "one-id-twice": (
        f"task_id: good\ninitial_prompt: x\n{TAIL}",
        "DUPLICATE_TASK",
        "tasks/b.yaml:1: task_id 'good' stands twice: here and in tasks/a.yaml:1",
    ),
}


def good(project: Project) -> None:
    """A task that passes and leaves a sign outside the project, so that nobody need believe the report."""
    mark = f"echo ran >> {project.marks}/ran"
    project.task("good", file="tasks/a.yaml", agent=scripted({"run": mark}, {"write": {"path": "out.txt", "content": "x"}}))
    project.write("tests/test_ordinary.py", f"def test_it(): open({str(project.marks / 'ordinary')!r}, 'w').close()\n")


def collecting(run: Run, node: str) -> str:
    """What pytest's report says below `ERROR collecting <node>`, on whatever stream."""
    found = re.findall(rf"^_+ ERROR collecting {re.escape(node)} _+\n(.*?)(?=^[_=-]{{3}})", run.output, re.MULTILINE | re.DOTALL)
    assert len(found) == 1, run.output
    return str(found[0]).strip()


@pytest.mark.parametrize(
    ("mode", "fault"), [("plain", "misspelt-field"), ("xdist", "tab"), ("xdist", "one-id-twice"), ("jobs", "driver-cannot")]
)
def test_one_line_says_it_and_nothing_runs(project: Project, mode: str, fault: str) -> None:
    text, code, line = FAULTS[fault]
    line = line.replace("ROOT", str(project.path))
    good(project)
    project.write("tasks/b.yaml", text)
    run = project.run("tests", "tasks", AGENT, "--codeprobe-json", mode=mode, junit=False)
    (error,) = run.assert_pure(events=False)["errors"]
    assert (error["code"], error["message"], error["count"]) == (code, line, 1)
    assert error["remediation"]
    assert collecting(run, "tasks/b.yaml") == line
    assert run.code == 4
    assert not run.wrote
    assert not (project.path / ".codeprobe").exists()
    assert list(project.marks.iterdir()) == []


def all_faults(project: Project) -> dict[str, tuple[str, str]]:
    """A file for each; its name -> code and line."""
    good(project)
    lines = {}
    for number, (text, code, line) in enumerate(FAULTS.values()):
        name = f"tasks/b{number}.yaml"
        project.write(name, text.replace("task_id: b\n", f"task_id: b{number}\n"))
        lines[name] = (code, line.replace("ROOT", str(project.path)).replace("tasks/b.yaml", name))
    return lines


def test_all_faults_at_once_and_nothing_runs(project: Project) -> None:
    lines = all_faults(project)
    run = project.run("tests", "tasks", AGENT, "--codeprobe-json", junit=False)
    errors = run.assert_pure(events=False)["errors"]
    assert [(e["code"], e["message"], e["count"], bool(e["remediation"])) for e in errors] == [(*v, 1, True) for v in lines.values()]
    for name, (_, line) in lines.items():
        assert collecting(run, name) == line
    assert run.code == 4
    assert not (project.path / ".codeprobe").exists()
    assert list(project.marks.iterdir()) == []


@pytest.mark.joint
def test_all_faults_at_once_and_the_others_run(project: Project, mode: str) -> None:
    lines = all_faults(project)
    run = project.run("tests", "tasks", AGENT, "--codeprobe-json-lines", "--continue-on-collection-errors", mode=mode, junit=False)
    envelope = run.assert_pure()
    run.assert_consistent()
    assert [(e["code"], e["message"]) for e in envelope["errors"]] == list(lines.values())
    for name, (_, line) in lines.items():
        assert collecting(run, name) == line
    assert run.statuses == {"good": "passed"}
    assert run.code == 4  # the broken files, as no verdict failed
    assert sorted(p.name for p in project.marks.iterdir()) == ["ordinary", "ran"]
    assert envelope["data"]["ordinary_tests"] == {"passed": 1}


def test_all_faults_of_a_file_are_counted_in_one_line(project: Project) -> None:
    project.write("tasks/b.yaml", f"task_id: b\ninital_prompt: x\nsandbx: 1\n{TAIL}")
    project.write("tasks/c.yaml", "task_id: c\n" + "".join(f"field{n}: 1\n" for n in range(40)))
    run = project.run("tasks", AGENT, "--codeprobe-json", junit=False)
    (error,) = [e for e in run.assert_pure(events=False)["errors"] if "b.yaml" in e["message"]]
    assert error["message"].startswith("tasks/b.yaml:2:1: unknown field 'inital_prompt'")
    *shown, more = collecting(run, "tasks/c.yaml").splitlines()
    assert len(shown) == 20
    assert re.fullmatch(r"… and \d+ more", more)
    assert error["message"].endswith("(and 1 more in this file)")
    assert [(e["line"], e["column"]) for e in error["detail"]["errors"]] == [(2, 1), (3, 1)]
    first, second = collecting(run, "tasks/b.yaml").splitlines()
    assert first == error["message"]
    assert second.startswith("tasks/b.yaml:3:1: unknown field 'sandbx'")


@pytest.mark.parametrize(
    ("mode", "text", "line"),
    [
        (
            "xdist",
            "defaults:\n  run_limits: {task_timeot: 3}\n",
            "experiments/default.yaml:2:16: unknown field 'task_timeot' (did you mean 'task_timeout'?) in 'defaults.run_limits'",
        ),
        ("plain", "defaults:\n\tsandbox: {}\n", "experiments/default.yaml:2:1: a tab where YAML wants spaces: indent with spaces only"),
    ],
)
def test_a_broken_default_experiment_stops_every_task(project: Project, mode: str, text: str, line: str) -> None:
    good(project)
    project.task("other", agent=scripted())
    project.write("experiments/default.yaml", text)
    run = project.run("tests", "tasks", AGENT, "--codeprobe-json", mode=mode, junit=False)
    (error,) = run.assert_pure(events=False)["errors"]
    assert (error["code"], error["message"]) == ("TASK_INVALID", line)
    assert collecting(run, "tasks/a.yaml") == line  # xdist reports one text once, pytest below each file
    assert run.code == 4
    assert not run.wrote
    assert list(project.marks.iterdir()) == []


def test_a_file_that_is_not_chosen_stops_nothing(project: Project) -> None:
    """As with pytest's own modules: only what is collected counts."""
    good(project)
    project.write("tasks/b.yaml", FAULTS["tab"][0])
    run = project.run("tasks/a.yaml", AGENT, junit=False)
    assert run.code == 0, run.output
    assert run.statuses == {"good": "passed"}


def test_a_file_that_cannot_be_read(project: Project) -> None:
    good(project)
    Path(project.path, "tasks/b.yaml").write_bytes(b"task_id: \xff\xfe\n")
    run = project.run("tasks", AGENT, "--codeprobe-json", junit=False)
    (error,) = run.assert_pure(events=False)["errors"]
    assert error["code"] == "TASK_INVALID"
    assert re.match(r"tasks/b\.yaml:1:\d+: ", error["message"])
