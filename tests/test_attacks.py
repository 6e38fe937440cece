"""What an agent may try to turn a failure into a pass, into an error, or into a run that never ends."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.front_door import Project, scripted

DRIVERS = ("tempdir", "bubblewrap")
TESTS = [{"path": "tests/test_x.py", "content": "raise SystemExit(1)\n"}, {"path": "m.py", "content": ""}]
PROTECTED = {"template_sources": [{"type": "starter_files", "files": TESTS}], "protected": ["tests/"]}
BY_HAND = {"type": "run_command", "command": "python tests/test_x.py"}
PROGRAM_FIRST = [{"type": "run_command", "command": "python m.py"}, BY_HAND]
#: what the agent's program does while a grader runs it
AT_GRADING = {
    "protected": "open('tests/test_x.py', 'w').close()",
    "python": "import os\np = os.environ['HOME'] + '/../bin/python'\nos.unlink(p)\n"
    "open(p, 'w').write('#!/bin/sh\\nexit 0\\n')\nos.chmod(p, 0o755)",
    "site": "import os, sys\nd = os.environ['HOME'] + '/../lib/python%d.%d/site-packages' % sys.version_info[:2]\n"
    "open(d + '/sitecustomize.py', 'w').write('import os; os._exit(0)')",
    "next": "import os\nos.makedirs(os.environ['HOME'] + '/../../scratch/2')",
}


def json_check(*assertions: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    return [{"type": "json_check", "path": "a.json", "assertions": list(assertions), **fields}]


@pytest.mark.parametrize("driver", DRIVERS)
def test_no_pass_is_forged(project: Project, driver: str) -> None:
    """A grader that runs the agent's program leaves the next one neither its files nor its tools; protected means all of them."""
    for name, body in AT_GRADING.items():
        agent = scripted({"write": {"path": "m.py", "content": body}})
        project.task(name, agent=agent, sandbox=PROTECTED, success_criteria=PROGRAM_FIRST)
    # the list of changes is bounded; what is put back must not be
    many = scripted({"run": "mkdir a; cd a; seq 10001 | xargs touch; cd ..; : > tests/test_x.py"})
    project.task("many", agent=many, sandbox=PROTECTED, success_criteria=[BY_HAND])
    run = project.run("tasks/*.yaml", f"--codeprobe-driver={driver}", mode="jobs").assert_consistent()
    assert run.statuses == dict.fromkeys((*AT_GRADING, "many"), "failed")
    assert [c["verdict"] for c in run.result("protected")["criteria"]] == ["passed", "failed"]


#: done to the files beside its task by a session, or by its program while a criterion runs it
TO_WHAT_GRADES = {
    "overwritten": "echo 'def test_it(): pass' > {task}/hidden/test_x.py",
    "same-size-and-time": "cd {task}/hidden; cp -p test_x.py $TMPDIR; sed -i s/False/True_/ test_x.py; touch -r $TMPDIR/* test_x.py",
    "added": "echo 'def pytest_collection_modifyitems(items): items.clear()' > {task}/hidden/conftest.py",
    "removed": "rm {task}/hidden/test_x.py",
    "linked": "echo 'def test_it(): pass' > mine.py; ln -sf $PWD/mine.py {task}/hidden/test_x.py",
    "schema": "echo true > {task}/schema.json",
    "named": "echo > {task}/check.py",
    "nothing": "cat {task}/hidden/test_x.py > seen.txt; mkdir {task}/hidden/__pycache__ {task}/.cache",
}


@pytest.mark.parametrize(("driver", "status"), [("tempdir", "error"), ("bubblewrap", "passed")])
def test_who_may_edit_what_grades(project: Project, driver: str, status: str) -> None:
    """While trials run: where no session can have been it, nothing is lost by it."""
    hidden = project.write("tasks/hidden/test_x.py", "def test_it(): pass\n")
    edit = f"pathlib.Path({str(hidden)!r}).write_text('def test_it(): assert 1\\n')"
    project.write(
        "conftest.py",
        f"import pathlib, pytest\n@pytest.fixture\ndef codeprobe_session(codeprobe_session):\n    {edit}\n    return codeprobe_session\n",
    )
    project.task("t", agent=scripted({"say": "done"}), success_criteria=[{"type": "pytest", "paths": ["hidden"]}])
    run = project.run("tasks", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}").assert_consistent()
    assert run.statuses == {"t": status}, run.output


def test_what_grades_is_what_it_was(project: Project) -> None:
    """Where a driver does not keep a session from it."""
    for name, command in TO_WHAT_GRADES.items():
        project.write(f"tasks/{name}/hidden/test_x.py", "def test_it(): assert False\n")
        project.write(f"tasks/{name}/check.py", "raise SystemExit(1)\n")
        project.write(f"tasks/{name}/schema.json", "false")
        program = {"write": {"path": "m.py", "content": f"import os; os.system({command.format(task=project.path / 'tasks' / name)!r})"}}
        graded = [{"type": "pytest", "paths": ["hidden"]}, {"type": "run_command", "command": 'python "$TASK_DIR/check.py"'},
                  {"type": "json_check", "path": "a.json", "json_schema": "schema.json"}]  # fmt: skip
        at_once = scripted(program, {"run": "echo 1 > a.json; python3 m.py"})
        project.task(name, file=f"tasks/{name}/{name}.yaml", agent=at_once, success_criteria=graded)
        later = [{"type": "run_command", "command": "python m.py", "weight": 0}, *graded]
        project.task(
            f"{name}-later", file=f"tasks/{name}/later.yaml", agent=scripted(program, {"run": "echo 1 > a.json"}), success_criteria=later
        )
    for which in (TO_WHAT_GRADES, [f"{name}-later" for name in TO_WHAT_GRADES]):
        files = [f"tasks/{name.removesuffix('-later')}/{'later' if name.endswith('-later') else name}.yaml" for name in which]
        run = project.run(*files, "--codeprobe-agent=scripted", "--codeprobe-driver=tempdir").assert_consistent()
        told = {name: (e["status"], e["code"]) for name, e in run.finished.items()}
        spoilt = ("error", "VERIFIER_FAILED")
        assert told == {name: ("failed", None) if name.startswith("nothing") else spoilt for name in which}, run.output
        assert all("what grades this trial was changed" in e["reason"] for e in run.finished.values() if e["status"] == "error")
        for name in TO_WHAT_GRADES:  # as it was, for the second run
            for path, text in (
                ("hidden/test_x.py", "def test_it(): assert False\n"),
                ("check.py", "raise SystemExit(1)\n"),
                ("schema.json", "false"),
            ):
                (project.path / "tasks" / name / path).unlink(missing_ok=True)
                project.write(f"tasks/{name}/{path}", text)
            (project.path / "tasks" / name / "hidden/conftest.py").unlink(missing_ok=True)


#: done in the workspace by a session that did not do its work
SABOTAGE = {
    "transcript-fifo": "mkfifo ../logs/transcript.json",
    "transcript-folder": "mkdir -p ../logs/transcript.json/x",
    "diff-folder": "mkdir -p ../logs/diff.patch/x",
    "log-link": "rm ../logs/agent.stdout; ln -s /etc/passwd ../logs/agent.stdout",
    "log-folder": "rm ../logs/trial.log ../logs/agent.stderr; mkdir ../logs/trial.log ../logs/agent.stderr",
    "kept": "mkdir -p ../kept/x ../graded/x; echo yes > ../kept/out.txt",
    "run-logs": "for i in 1 2 3 4 5 6 7 8 9; do touch ../logs/run-$i.out; mkfifo ../logs/run-$i.err; done",
}


@pytest.mark.parametrize("driver", DRIVERS)
def test_sabotage_is_a_failure(project: Project, driver: str) -> None:
    """Whatever is planted in the harness's own places, the session's failure stays one, and nothing waits for it."""
    fails = [{"type": "run_command", "command": "grep yes out.txt"}]
    for name, command in SABOTAGE.items():
        project.task(name, agent=scripted({"run": command}), success_criteria=fails)
    leaves = {"type": "command", "command": ["sh", "-c", "echo no > out.txt; exit 127"]}
    project.task("leaves-as-not-found", agent=leaves, success_criteria=fails)
    env = {"A_SECRET_KEY": "not-found-anywhere"}
    run = project.run("tasks/*.yaml", f"--codeprobe-driver={driver}", mode="jobs", env=env, seconds=60).assert_consistent()
    assert set(run.statuses.values()) == {"failed"}, {k: (e["status"], e["reason"]) for k, e in run.finished.items()}
    if driver == "tempdir":  # else there are no logs to be found
        assert any("agent.stdout is not kept" in w for w in run.result("log-link")["warnings"])
        assert not (run.trial("log-link") / "attempt-1" / "agent.stdout").exists()
    assert not (run.trial("kept") / "artifacts" / "out.txt").exists()


HUGE, INFINITE, DEEP = '{"a": 1' + "0" * 400 + "}", '{"a": 1e999}', "[" * 900 + "]" * 900
STEP = {"properties": {"a": {"multipleOf": 0.1}}}


@pytest.mark.parametrize(
    ("content", "criteria"),
    [
        (INFINITE, json_check({"expression": "a", "operator": "gt", "expected": 1})),
        (INFINITE, json_check({"expression": "ceil(a)", "expected": 1})),
        (INFINITE, json_check(json_schema=STEP)),
        (HUGE, json_check(json_schema=STEP)),
        *((DEEP[60 * n : len(DEEP) - 60 * n], json_check({"expression": "@", "expected": 1})) for n in range(6)),
    ],
)
def test_numbers_and_depths_of_json_are_no_error(
    tmp_path_factory: pytest.TempPathFactory, content: str, criteria: list[dict[str, Any]]
) -> None:
    from pytest_codeprobe.criteria.json_check import JsonCheck
    from tests.fake_grading import FakeGrading

    grading = FakeGrading(folder=tmp_path_factory.mktemp("json"))
    (grading.workspace / "a.json").write_text(content)
    assert JsonCheck.model_validate(criteria[0]).evaluate(grading).value == 0


#: done to the spool of the run, which no agent knows but can look for under tempdir
SPOOLED = {
    "fifo": "for f in {spool}/*; do rm $f; mkfifo $f; done",
    "folder": "for f in {spool}/*; do rm $f; mkdir $f; done",
    "link": "for f in {spool}/*; do rm $f; ln -s /dev/zero $f; done",
    "lines": "for f in {spool}/*; do cat {lines} >> $f; done",
}
LINES: list[object] = [
    [1],
    5,
    {},
    {"event": [1], "node_id": {}},
    {"event": "run_started", "node_id": "tasks/t.yaml::t"},
    {"event": "trial_finished", "node_id": "tasks/t.yaml::t", "status": "passed"},
    {"event": "trial_started", "node_id": "tasks/t.yaml::t", "seq": 0},
    {"event": "trial_started", "node_id": "elsewhere"},
]


@pytest.mark.parametrize("kind", SPOOLED)
def test_a_spool_that_is_none(project: Project, kind: str) -> None:
    """The controller neither waits for it, nor falls over it, nor says what a stranger wrote."""
    lines = project.scratch / "lines"
    lines.write_bytes(b"\xff\xfe\n" + b"".join(json.dumps(line).encode() + b"\n" for line in LINES))
    spool = project.path / "chosen" / "spool"
    project.task("s", agent=scripted({"run": SPOOLED[kind].format(spool=spool, lines=lines)}))
    project.task("t", agent=scripted({"write": {"path": "out.txt", "content": "x"}}))
    run = project.run("tasks/s.yaml", "tasks/t.yaml", "--codeprobe-run-dir=chosen", seconds=40)
    assert "INTERNALERROR" not in run.output
    assert run.statuses == {"s": "failed", "t": "passed"}
    assert run.code == 1
    assert [e["event"] for e in run.events].count("run_started") == 1


SECRET = "sk-$^.*[x](+)-of-mine"
NAMED = """
touch "n-$MY_API_KEY"; mkdir -p "d-$MY_API_KEY/in"; touch "d-$MY_API_KEY/in/f"; ln -s "$MY_API_KEY" l; ln -s "x/$MY_API_KEY" "$MY_API_KEY"
ln -s . here; echo x > out.txt
"""
IN_PYTHON = """
import pytest

@pytest.mark.codeprobe(task="tasks/t.yaml")
def test_fails(codeprobe_session):
    message = codeprobe_session.final_message
    print("printed", message)
    assert message == "other"

@pytest.mark.codeprobe(task="tasks/t.yaml")
def test_skips(codeprobe_session):
    pytest.skip(codeprobe_session.final_message)
"""


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("mode", ["xdist"])  # what pytest tells of a test comes from a worker, to be shown elsewhere
def test_secrets_in_names_links_and_failures_of_python_tests(project: Project, mode: str, driver: str) -> None:
    agent = {**scripted({"run": NAMED}, {"say": f"it is {SECRET}"}), "env": {"MY_API_KEY": SECRET}}
    project.task("t", agent=agent)
    project.write("test_it.py", IN_PYTHON)
    run = project.run(
        "tasks/t.yaml", "test_it.py", "--codeprobe-agent=scripted", f"--codeprobe-driver={driver}", "-vv", "--showlocals", "-rA", mode=mode
    )
    run.assert_consistent()
    assert run.junit()["test_fails"] == "failure"
    assert run.code == 1
    assert "it is [REDACTED]" in run.output
    places = [*run.folder.resolve().rglob("*"), run.junit_file, project.scratch / "stdout", project.scratch / "stderr"]
    for path in places:
        assert SECRET not in str(path)
        if path.is_symlink():
            assert SECRET not in str(path.readlink())
        elif path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path
    kept = run.trial("t") / "artifacts"
    assert (kept / "out.txt").read_text() == "x\n"
    assert str((kept / "here").readlink()) == "."
    assert run.result("t")["kept"] == "partial"
