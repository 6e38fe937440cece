"""Task files in coder-eval's spelling, run: the verdicts that it documents, or ours where its own were wrong."""

from __future__ import annotations

from tests.front_door import Project

TASKS = """\
- task_id: hello
  description: The smallest.
  initial_prompt: Write hello.sh, which prints hello.
  max_iterations: 1
  agent: {type: scripted, scripted: {steps: [{write: {path: hello.sh, content: "echo hello\\n"}}]}}
  sandbox: {driver: tempdir, python: {env_packages: []}, limits: {timeout: 20}}
  success_criteria:
    - {type: file_exists, path: hello.sh, description: there}
    - {type: run_command, command: sh hello.sh, expected_stdout: hello, read_only: true, description: says it}
    - {type: file_matches_regex, path: hello.sh, pattern: ^ECHO, flags: 2, description: by echo}
- task_id: half
  description: A share below its threshold fails, whatever the weights.
  initial_prompt: Write out.txt.
  agent: {type: scripted, scripted: {steps: [{write: {path: out.txt, content: one}}]}}
  success_criteria:
    - {type: file_exists, path: out.txt, weight: 100, description: there}
    - {type: file_contains, path: out.txt, includes: [one, two], description: half of it}
- task_id: informed
  description: Weight 0 says something and decides nothing.
  initial_prompt: Write out.txt.
  agent: {type: scripted, scripted: {steps: [{write: {path: out.txt, content: one}}]}}
  success_criteria:
    - {type: file_exists, path: out.txt, description: there}
    - {type: file_exists, path: notes.txt, weight: 0, description: not there}
- task_id: scored
  description: A printed score against its threshold.
  initial_prompt: Write score.sh.
  agent: {type: scripted, scripted: {steps: [{write: {path: score.sh, content: "echo 0.7\\n"}}]}}
  success_criteria:
    - {type: run_command, command: sh score.sh, score_from_stdout: true, pass_threshold: 0.6, weight: 8, description: d}
- task_id: recorded
  description: A program that is recorded, and commands that were run.
  initial_prompt: Make a project.
  agent:
    type: scripted
    ignore_patterns: [cli_mocks]
    scripted: {steps: [{run: gh project create demo --title Fix-it}]}
  sandbox: {record_cli: [{tool: gh, exit_code: 0}]}
  success_criteria:
    - {type: cli_called, tool: gh, verb: project create, flags: {title: {matches_regex: ^fix, flags: 2}}, description: d}
    - {type: command_executed, tool_name: Bash, command_pattern: gh project, stop_early: {on_pass: stop}, description: d}
    - {type: command_not_executed, tool_name: Bash, command_pattern: rm -rf, description: d}
- task_id: nothing
  description: No agent; what is there is graded.
  agent: {type: none}
  sandbox: {python: null, template_sources: [{type: starter_files, files: [{path: a.txt, content: x}]}]}
  pre_run: [{command: "echo y >> a.txt", timeout: 5}]
  success_criteria: [{type: file_contains, path: a.txt, includes: [x, y], excludes: [z], description: d}]
- task_id: labels
  description: Labels of rows.
  initial_prompt: "Positive? ${row.text}"
  agent: {type: scripted, scripted: {steps: [{write: {path: out.txt, content: "yes"}}]}}
  dataset: {rows: [{id: a, text: good, label: "yes"}, {id: b, text: bad, label: "no"}]}
  success_criteria:
    - {type: classification_match, path: out.txt, expected_label: "${row.label}", allowed_labels: ["yes", "no"], description: d}
- task_id: broken
  description: What goes wrong before the agent is no failure of its.
  initial_prompt: Do it.
  agent: {type: scripted, scripted: {steps: [{say: done}]}}
  pre_run: [{command: exit 3}]
  success_criteria: [{type: file_exists, path: a, description: d}]
- task_id: quarantined
  description: Skipped.
  initial_prompt: Do it.
  skip: true
  agent: {type: scripted, scripted: {steps: [{say: done}]}}
  success_criteria: [{type: file_exists, path: a, description: d}]
"""
VERDICTS = {
    "hello": "passed",
    "half": "failed",
    "informed": "passed",
    "scored": "passed",
    "recorded": "passed",
    "nothing": "passed",
    "labels[row-a]": "passed",
    "labels[row-b]": "failed",
    "broken": "error",
    "quarantined": "skipped",
}
EXPERIMENT = """\
experiment_id: two
defaults:
  run_limits: {max_turns: 20, task_timeout: 60, stop_early: false}
  post_run: [{command: rm -rf node_modules}]
variants:
  - {variant_id: plain}
  - {variant_id: told, prompt_mutations: [{type: suffix, content: Be quick.}]}
"""


def test_verdicts_of_its_files_under_both_dialects(project: Project) -> None:
    project.write("tasks/all.yaml", TASKS)
    for dialect in ("native", "coder-eval"):
        project.write("pytest.ini", f"[pytest]\ncodeprobe_dialect = {dialect}\n")
        run = project.codeprobe("run", "tasks", "-j4").assert_consistent()
        assert (run.code, {node.partition("::")[2]: status for node, status in statuses(run.envelope).items()}) == (1, VERDICTS), dialect


def test_verdicts_of_its_experiment(project: Project) -> None:
    project.write("tasks/all.yaml", TASKS)
    project.write("experiments/two.yaml", EXPERIMENT)
    run = project.codeprobe("run", "tasks", "-e", "two", "-k", "hello or half", "-j4").assert_consistent()
    expected = {f"{name}[{variant}]": VERDICTS[name] for name in ("hello", "half") for variant in ("plain", "told")}
    assert {node.partition("::")[2]: status for node, status in statuses(run.envelope).items()} == expected


def statuses(envelope: dict[str, object]) -> dict[str, str]:
    data = envelope["data"]
    assert isinstance(data, dict)
    return {result["node_id"]: result["status"] for result in data["results"]}
