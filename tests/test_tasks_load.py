"""Loading: what a good file becomes, and what each fault of a bad one is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.tasks.load import Identities, LoadedFile, load_file
from tests.task_files import MINIMAL, faults, load_one, settings, write


def load(rootdir: Path, text: str | bytes, **more: Any) -> LoadedFile:
    return load_file(write(rootdir / "tasks" / "t.yaml", text), settings(rootdir, **more))


def refused(rootdir: Path, text: str, **more: Any) -> list[str]:
    with pytest.raises(CodeprobeError) as caught:
        load(rootdir, text, **more)
    error = caught.value
    assert error.code == "TASK_INVALID"
    found = faults(error)
    place, _, message = found[0].partition(" ")
    rest = f" (and {len(found) - 1} more in this file)" if len(found) > 1 else ""
    assert error.message == f"tasks/t.yaml:{place}: {message}{rest}"
    assert "\n" not in error.message
    assert error.detail["file"] == "tasks/t.yaml"
    json.dumps(error.detail)
    return found


def test_a_task_with_everything_beside_it(tmp_path: Path) -> None:
    here = tmp_path / "tasks"
    for name in ("workspace/a", "hidden/h", "solution/s", "ref/r", "schema.json", "system.md", "skill/SKILL.md"):
        write(here / name, "{}")
    prompt = "ä\r\nline\n\n".encode()
    write(here / "prompt.md", prompt)
    task = load_one(
        tmp_path,
        """\
# a comment first
task_id: group/fix-1.2_b
initial_prompt_file: prompt.md
tags: [smoke, "lang:python"]
metadata: {difficulty: easy, version: 3.10}
agent: {type: claude-code, model: 4.10, system_prompt_file: system.md, skills: [skill], claude: {}}
sandbox:
  template_sources: [{type: template_dir, path: workspace}]
  env: {VERSION: 3.10, COMMIT: 0123456789}
reference: {directory: ref}
solution: {directory: solution}
success_criteria:
  - {type: json_check, path: a.json, json_schema: schema.json}
  - {type: file_contains, path: a, includes: [3.10]}
""",
    )
    assert (task.task.task_id, task.line, task.prompt) == ("group/fix-1.2_b", 2, prompt.decode())
    assert task.task.agent is not None
    assert task.task.sandbox is not None
    assert task.task.agent.model == "4.10"
    assert task.task.sandbox.env == {"VERSION": "3.10", "COMMIT": "0123456789"}
    assert task.task.sandbox.template_sources[0].path == str(here / "workspace")
    assert {(ref.role, Path(ref.path).relative_to(here).as_posix()) for ref in task.refers_to} == {
        ("prompt", "prompt.md"),
        ("template", "workspace"),
        ("reference", "ref"),
        ("solution", "solution"),
        ("schema", "schema.json"),
        ("system_prompt", "system.md"),
        ("skill", "skill"),
    }
    first, second = (criterion.model_dump() for criterion in task.criteria)
    assert first["json_schema"] == str(here / "schema.json")
    assert list(second["includes"]) == ["3.10"]


def test_an_inline_schema_is_no_path(tmp_path: Path) -> None:
    task = load_one(tmp_path, MINIMAL + "  - {type: json_check, path: a.json, json_schema: {type: object}}\n")
    assert task.refers_to == ()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("run_limts: {}", "5:1 unknown field 'run_limts' (did you mean 'run_limits'?)"),
        ("nonsense: 1", "5:1 unknown field 'nonsense'"),
        ("run_limits: {max_turns: -3}", "5:25 'run_limits.max_turns' must be greater than 0, not -3"),
        ("run_limits: {max_turns: 1.5}", "5:25 'run_limits.max_turns' must be a whole number, not 1.5"),
        ("run_limits: {max_turns: true}", "5:25 'run_limits.max_turns' is a boolean, not a number"),
        ("run_limits: {task_timeout: soon}", "5:28 'run_limits.task_timeout' is text, not a number"),
        ("run_limits: {task_timeout: .inf}", "5:28 'run_limits.task_timeout' must be a finite number, not .inf"),
        ("run_limits: {on_limit: gradee}", "5:24 'run_limits.on_limit' must be 'grade' or 'fail', not 'gradee' (did you mean 'grade'?)"),
        ("run_limits: {max_turn: 3}", "5:14 unknown field 'max_turn' (did you mean 'max_turns'?) in 'run_limits'"),
        ("description: true", "5:14 'description' is true, not text; put it in quotes if the text 'true' is meant"),
        ("description: [a]", "5:14 'description' must be text, not a list"),
        ("xfail:", "5:7 'xfail' has no value (null); give it one or leave the field out"),
        ("tags: smoke", "5:7 'tags' must be a list, not 'smoke'"),
        ("tags: [Bug_Fix]", "5:8 'tags[0]' must be in kebab-case, such as 'bug-fix', or key:value, not 'Bug_Fix'"),
        ("skip: no", "5:7 'skip' must be true, false or the reason as text, not 'no'"),
        ("pass_score: 2", "5:13 'pass_score' must be at most 1, not 2"),
        ("pass_score: -1", "5:13 'pass_score' must be at least 0, not -1"),
        ("pass_score: .nan", "5:13 'pass_score' must be a finite number, not .nan"),
        ("expect: fail", "5:9 'expect' is only for a task with the tag 'canary'"),
        ("fixtures: [a-b]", "5:12 'fixtures[0]' must be the name of a fixture, not 'a-b'"),
        ("metadata: [1]", "5:11 'metadata' must be a mapping, not a list"),
        ("reference: {}", "5:12 'reference': give exactly one of 'code', 'file', 'directory'"),
        ("solution: x", "5:11 'solution' must be a mapping, not 'x'"),
        ("solution: {patch: no.patch}", "5:19 'solution.patch' names a file that is not there: 'no.patch'"),
        ("solution: {directory: t.yaml}", "5:23 'solution.directory' must name a folder, not a file: 't.yaml'"),
        ("reference: {file: .}", "5:19 'reference.file' must name a file, not a folder: '.'"),
        (
            "sandbox: {setup: {python: {packages: [a, '../no[x]']}}}",
            "5:42 'sandbox.setup.python.packages[1]' names a path that is not there: '../no[x]'",
        ),
        ("pre_run: [echo]", "5:11 'pre_run[0]' must be a mapping, not 'echo'; write {command: 'echo'}"),
        ("pre_run: [{command: x, timeout: 0}]", "5:33 'pre_run[0].timeout' must be greater than 0, not 0"),
        ("pre_run: [{comand: x}]", "5:12 unknown field 'comand' (did you mean 'command'?) in 'pre_run[0]'"),
        ("agent: [1]", "5:8 'agent' must be a mapping, not a list"),
        ("agent: {type: cladue}", "5:15 unknown agent 'cladue' (did you mean 'claude'?)"),
        ("agent: {typ: claude}", "5:9 unknown field 'typ' (did you mean 'type'?) in 'agent'"),
        ("agent: {scriptd: {}}", "5:9 unknown field 'scriptd' (did you mean 'scripted'?) in 'agent'"),
        (
            "sandbox: {record_cli: [{tool: sh}]}",
            "5:31 'sandbox.record_cli[0].tool' can't be 'sh': no shell, interpreter or git is replaced, since the agent itself may need it",
        ),
        (
            "sandbox: {record_cli: [{tool: gh, responses: [{when: {verb: a, flags: {x: {equals: 1, contains: 2}}}}]}]}",
            (
                "5:75 'sandbox.record_cli[0].responses[0].when.flags.x' needs exactly one of "
                "equals, contains, matches_regex, any_of, absent, present"
            ),
        ),
        (
            "sandbox: {mock_path_dirs: [a, ../b]}",
            "5:31 'sandbox.mock_path_dirs[1]' must be a path inside the workspace, without '..': '../b'",
        ),
        ("agent: {codex: {}}", "5:9 agent 'codex' is not available yet"),
        ("agent: {nop: {}}", "5:9 agent 'nop' has no settings of its own"),
        ("agent: {scripted: 3}", "5:19 'agent.scripted' must be a mapping, not 3"),
        ("agent: {claude: {}, claude-code: {}}", "5:21 'claude-code' and 'claude' are one agent; use one of the two"),
        (
            "agent: {scripted: {steps: [{sy: a}]}}",
            "5:29 unknown field 'sy' (did you mean 'say'?) in 'agent.scripted.steps[0]'",
        ),
        (
            "agent: {system_prompt: a, system_prompt_file: t.yaml}",
            "5:47 'agent': give 'system_prompt' or 'system_prompt_file', not both",
        ),
        ("agent: {env: {A=B: x}}", "5:20 'agent.env' has 'A=B', which can't be the name of a variable"),
        ("agent: {env: {A: $NOPE}}", "5:18 'agent.env.A' needs the variable NOPE, which is not set; set it or write ${NOPE:-default}"),
        ("agent: {env: {A: '${1}'}}", "5:18 'agent.env.A' has '${1}', which names no variable; write $$ for a dollar sign"),
        ("sandbox: {env: {A: null, B: false}}", "5:29 'sandbox.env.B' is false, not text; put it in quotes if the text 'false' is meant"),
        (
            "sandbox: {env_passthrough: ['judge:X']}",
            "5:29 'sandbox.env_passthrough[0]' must be NAME, agent:NAME or grader:NAME, not 'judge:X'",
        ),
        ("sandbox: {network: {a: b}}", "5:20 'sandbox.network' must be text or a list, not a mapping"),
        ("sandbox: {network: [on, true]}", "5:25 'sandbox.network[1]' is true, not text; put it in quotes if the text 'true' is meant"),
        ("sandbox: {limits: {memory: 3}}", "5:20 unknown field 'memory' (did you mean 'memory_mb'?) in 'sandbox.limits'"),
        (
            "sandbox: {template_sources: [{type: template_dir}]}",
            "5:30 'sandbox.template_sources[0]': a template_dir needs 'path'",
        ),
        (
            "sandbox: {template_sources: [{type: template_dir, path: nope}]}",
            "5:57 'sandbox.template_sources[0].path' names a folder that is not there: 'nope'",
        ),
        (
            "sandbox: {template_sources: [{type: template_dir, path: .., mount_point: /x}]}",
            "5:74 'sandbox.template_sources[0].mount_point' must be a path inside the workspace, without '..': '/x'",
        ),
        (
            "sandbox: {template_sources: [{type: starter_files, files: [{path: ../x, content: a}]}]}",
            "5:67 'sandbox.template_sources[0].files[0].path' must be a path inside the workspace, without '..': '../x'",
        ),
        (
            "sandbox: {template_sources: [{type: starter_files, files: [{path: x, content: a, mode: 999}]}]}",
            "5:88 'sandbox.template_sources[0].files[0].mode' must match ^0?[0-7]{3,4}$, not '999'",
        ),
        ("  - {typ: file_exists}", "5:6 unknown field 'typ' (did you mean 'type'?) in 'success_criteria[1]'"),
        ("  - {path: a}", "5:5 field 'type' is missing in 'success_criteria[1]'"),
        ("  - {type: 3}", "5:12 'success_criteria[1].type' must be the name of a criterion, not 3"),
        ("  - file_exists", "5:5 'success_criteria[1]' must be a mapping, not 'file_exists'"),
        ("  - {type: file_exist}", "5:12 unknown criterion 'file_exist' (did you mean 'file_exists'?)"),
        ("  - {type: llm_judge}", "5:12 criterion 'llm_judge' is not available yet"),
        ("  - {type: file_exists}", "5:5 field 'path' is missing in 'success_criteria[1]'"),
        ("  - {type: file_exists, path: a, weight: -1}", "5:42 'success_criteria[1].weight' must be at least 0, not -1"),
        ("  - {type: file_exists, path: a, wieght: 1}", "5:34 unknown field 'wieght' (did you mean 'weight'?) in 'success_criteria[1]'"),
        ("  - {type: file_exists, path: a, exists: 1}", "5:42 'success_criteria[1].exists' must be true or false, not 1"),
        (
            "  - {type: json_check, path: a, json_schema: no.json}",
            "5:46 'success_criteria[1].json_schema' names what is not there: 'no.json'",
        ),
    ],
)
def test_one_fault_is_one_sentence_at_its_place(tmp_path: Path, line: str, expected: str) -> None:
    assert refused(tmp_path, f"{MINIMAL}{line}\n") == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("task_idd: t\ninitial_prompt: x\n", "1:1 unknown field 'task_idd' (did you mean 'task_id'?)"),
        ("# c\n\nsuccess_criteria: []\nid: 3\n", "3:1 a task needs the field 'task_id'; unknown field 'id'"),
        ("initial_prompt: x\n", "1:1 a task needs the field 'task_id'"),
        ("- foo: 1\n  run_limits: {}\n", "1:3 a task needs the field 'task_id'; unknown field 'foo'"),
        ("task_id: t\ninitial_prompt: x\n", "1:1 field 'success_criteria' is missing"),
        ("task_id: t\ninitial_prompt: x\nsuccess_criteria: []\n", "3:19 'success_criteria' is empty"),
        ("task_id: t\ninitial_prompt: x\nsuccess_criteria: x\n", "3:19 'success_criteria' must be a list, not 'x'"),
        (
            "success_criteria: [{type: file_exists, path: a}]\ntask_id: t\n",
            "1:1 a task needs 'initial_prompt' or 'initial_prompt_file'; only one of agent 'none' does without",
        ),
        (
            MINIMAL.replace("do it", "''"),
            "2:17 'initial_prompt' is empty",
        ),
        (
            MINIMAL.replace("initial_prompt: do it", "initial_prompt_file: p.md"),
            "2:22 'initial_prompt_file' names a file that is not there: 'p.md'",
        ),
        (
            MINIMAL.replace("do it", "do it\ninitial_prompt_file: t.yaml"),
            "3:22 give 'initial_prompt' or 'initial_prompt_file', not both",
        ),
        (
            "task_id: t\nagent: {type: none}\nsuccess_criteria:\n- {type: answer_contains, includes: [x]}\n",
            "4:10 criterion 'answer_contains' needs a session, and a task of agent 'none' has none",
        ),
        *(
            (
                MINIMAL.replace("task_id: t", f"task_id: {bad}"),
                f"1:10 'task_id' must be made of letters, digits and . _ - / (no '..', no empty part), not {bad!r}",
            )
            for bad in ("a..b", "../a", "a b", "/a", "a/", "a//b", "a/./b", "ä", "a::b")
        ),
        (MINIMAL.replace("task_id: t", f"task_id: {'a' * 101}"), "1:10 'task_id' must have at most 100 characters, not 101"),
        (MINIMAL.replace("task_id: t", "task_id:"), "1:9 'task_id' has no value (null); give it one or leave the field out"),
    ],
)
def test_faults_of_the_whole_task(tmp_path: Path, text: str, expected: str) -> None:
    assert refused(tmp_path, text) == [expected]


def test_all_faults_of_a_file_are_told_in_order(tmp_path: Path) -> None:
    text = MINIMAL.replace("path: a}", "pth: a}") + "repeats: 0\n---\ntask_idd: u\nrun_limits: {}\n---\n" + MINIMAL + "skp: 1\n"
    found = refused(tmp_path, text)
    assert [fault.split()[0] for fault in found] == ["4:25", "5:10", "7:1", "14:1"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "---\n",
        "- hosts: all\n  tasks: !vault x\n",
        "tags: [a]\nmetadata: {}\ndescription: x\n",
        "a: 'run_limits'\n",
        "[1, 2]\n",
        "{{ broken",
    ],
)
def test_a_file_without_a_sign_is_no_task_file(tmp_path: Path, text: str) -> None:
    loaded = load(tmp_path, text)
    assert (loaded.tasks, loaded.warnings) == ((), ())


def test_lists_and_documents_hold_several_tasks(tmp_path: Path) -> None:
    two = "".join(f"- task_id: l{n}\n  initial_prompt: x\n  success_criteria: [{{type: file_exists, path: a}}]\n" for n in (1, 2))
    loaded = load(tmp_path, f"{two}---\n{MINIMAL}---\nother: 1\n---\n")
    assert [(task.task.task_id, task.line) for task in loaded.tasks] == [("l1", 1), ("l2", 4), ("t", 8)]
    assert loaded.warnings == ("tasks/t.yaml:13:1: is no task and is left out",)
    assert str(loaded.tasks[1].error(("success_criteria", 0, "path"), "x")) == "TASK_INVALID: tasks/t.yaml:6:48: x"


def test_unknown_top_level_fields_may_be_forgiven(tmp_path: Path) -> None:
    loaded = load(tmp_path, MINIMAL + "run_limts: {}\n", unknown_fields="warn")
    assert loaded.warnings == ("tasks/t.yaml:5:1: unknown field 'run_limts' (did you mean 'run_limits'?) is ignored",)
    assert len(loaded.tasks) == 1
    assert refused(tmp_path, MINIMAL + "run_limits: {x: 1}\n", unknown_fields="warn") == ["5:14 unknown field 'x' in 'run_limits'"]


def test_null_takes_away_in_layers_and_is_no_fault_there(tmp_path: Path) -> None:
    task = load_one(tmp_path, MINIMAL + "agent: {claude: null}\nrun_limits: {task_timeout: null}\nsandbox: {env: {A: null}}\n")
    assert task.layer == {"agent": {"claude": None}, "run_limits": {"task_timeout": None}, "sandbox": {"env": {"A": None}}}


def test_a_prompt_that_is_no_text(tmp_path: Path) -> None:
    text = MINIMAL.replace("initial_prompt: do it", "initial_prompt_file: p.md")
    write(tmp_path / "tasks/p.md", b"ab\xff")
    assert refused(tmp_path, text) == ["2:22 'initial_prompt_file' must name a file in UTF-8: byte 2 of it is not"]
    write(tmp_path / "tasks/p.md")
    assert refused(tmp_path, text) == ["2:22 'initial_prompt_file' names an empty file"]


TEMPLATE = MINIMAL + "sandbox: {template_sources: [{type: template_dir, path: %s}]}\n"


def test_a_template_may_lie_anywhere_in_the_repository_and_nowhere_else(tmp_path: Path) -> None:
    repo, project = tmp_path / "repo", tmp_path / "repo" / "project"
    write(repo / ".git/HEAD")
    write(repo / "shared/a")
    write(tmp_path / "outside/a")
    write(project / "tasks/w/a")
    for path in ("w", "../../shared", "../..", "${WHERE:-w}", str(repo / "shared")):
        assert load_one(project, TEMPLATE % f"'{path}'").refers_to
    (project / "tasks/link").symlink_to(tmp_path / "outside")
    assert refused(project, TEMPLATE % "../../../outside") == [
        f"5:57 'sandbox.template_sources[0].path' leads out of {repo}: '../../../outside'; see ini codeprobe_template_roots"
    ]
    assert refused(project, TEMPLATE % "link") == [
        f"5:57 'sandbox.template_sources[0].path' leads out of {repo} through a symlink: 'link'; see ini codeprobe_template_roots"
    ]
    for path in ("link", "../../../outside"):
        assert load_one(project, TEMPLATE % path, template_roots=("../../outside",)).refers_to
        assert load_one(project, TEMPLATE % path, template_roots=(str(tmp_path / "outside"),)).refers_to


def test_variables_stand_for_what_is_set(tmp_path: Path) -> None:
    write(tmp_path / "tasks/w/a")
    text = (
        TEMPLATE % "$W"
        + "agent: {env: {A: '${X:-d}-$Y-$$Z $5'}, mcp_servers: {m: {command: $Y, env: {PORT: 8080}, timeout: 3}}}\ndescription: $NOPE\n"
    )
    task = load_one(tmp_path, text, environ={"W": "w", "Y": "y", "X": ""})
    assert task.task.agent is not None
    assert task.task.agent.env == {"A": "d-y-$Z $5"}
    assert task.task.agent.mcp_servers == {"m": {"command": "y", "env": {"PORT": "8080"}, "timeout": 3}}
    assert task.task.description == "$NOPE"


def test_skills_and_plugins_may_lie_elsewhere(tmp_path: Path) -> None:
    project = tmp_path / "p"
    write(tmp_path / "skills/SKILL.md")
    write(project / "plugins/x/a")
    task = load_one(
        project, MINIMAL + "agent: {skills: [$S/skills], plugins: [{type: local, path: plugins/x}]}\n", environ={"S": str(tmp_path)}
    )
    assert {ref.path for ref in task.refers_to} == {str(tmp_path / "skills"), str(project / "plugins/x")}


def test_ids_are_unique_in_a_run_case_and_folders_included() -> None:
    seen = Identities()
    seen.add("a/b", "x.yaml:1")
    seen.add("c", "x.yaml:9")
    for other, words in (
        ("a/b", "task_id 'a/b' stands twice"),
        ("A/b", "task_id 'A/b' and 'a/b' are too alike"),
        ("a__b", "are too alike"),
    ):
        with pytest.raises(CodeprobeError) as caught:
            seen.add(other, "y.yaml:2")
        assert caught.value.code == "DUPLICATE_TASK"
        assert words in caught.value.message
        assert caught.value.message.startswith("y.yaml:2: ")
        assert caught.value.message.endswith("here and in x.yaml:1")
        assert caught.value.detail["places"] == ["x.yaml:1", "y.yaml:2"]


def test_the_shipped_tasks_load(pytestconfig: pytest.Config) -> None:
    files = sorted((pytestconfig.rootpath / "tasks").glob("*/task.yaml"))
    assert len(files) >= 10
    seen = Identities()
    for file in files:
        for task in load_file(file, settings(pytestconfig.rootpath)).tasks:
            seen.add(task.task.task_id, f"{file}:{task.line}")
