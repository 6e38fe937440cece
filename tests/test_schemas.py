"""The shipped JSON Schemas against real output of a run of every kind; strict enough that a wrong value fails."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.model.result import Status
from pytest_codeprobe.tasks.experiments import load_experiment
from pytest_codeprobe.tasks.load import load_file
from tests import file_schemas
from tests.front_door import Project, Run, make_project, scripted
from tests.schemas import ALL, NAMES, check, result_schema, shipped, validator
from tests.task_files import settings, write

WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
USAGE = {"usage": {"model": "m1", "input_tokens": 10, "output_tokens": 5, "cost_usd": 0.25}}


def every_kind(project: Project) -> Run:
    """One trial for each status, a retry, a limit, known and unknown costs, an error of the harness, an ordinary test."""
    project.task("a-pass", agent=scripted(WRITE, {"say": "done"}, USAGE))
    project.task("b-fail", agent=scripted({"run": "echo hi"}))
    project.task("c-error", agent=scripted(WRITE), pre_run=[{"command": "exit 3"}])
    project.task("d-skip", agent=scripted(WRITE), skip="not today")
    project.task("e-xfail", agent=scripted(), xfail="known gap")
    project.task("f-limit", agent=scripted(WRITE, {"sleep": 30}), run_limits={"task_timeout": 1})
    project.task("g-crash", agent=scripted({"fail": "AGENT_CRASHED"}))
    project.task("z-stopped", agent=scripted(WRITE))
    project.write("tasks/broken.yaml", "task_id: broken\n")
    project.write("stop/test_stop.py", "import pytest\ndef test_first(): pass\ndef test_stop(): pytest.exit('enough')\n")
    names = [f"tasks/{t}.yaml" for t in ("broken", "a-pass", "b-fail", "c-error", "d-skip", "e-xfail", "f-limit", "g-crash")]
    return project.run(*names, "stop", "tasks/z-stopped.yaml", "--codeprobe-agent=scripted", "--continue-on-collection-errors", junit=False)


def test_real_output_of_every_kind(project: Project) -> None:
    run = every_kind(project).assert_consistent()  # checks events, envelope and every result.json
    assert set(run.statuses.values()) == {"passed", "failed", "error", "skipped", "not_run"}
    assert {e["event"] for e in run.events} == {"run_started", "trial_started", "trial_retried", "trial_finished"}
    samples = {
        "event": run.events,
        "envelope": [run.envelope],
        "result": [json.loads(p.read_text()) for p in sorted(run.folder.glob("trials/**/result.json"))],
    }
    assert len(samples["result"]) >= 6
    for name, values in samples.items():
        for value in values:
            check(name, value)
            for spoiled, what in spoil(value):
                assert not validator(name).is_valid(spoiled), (name, what)


def spoil(value: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The value with one fault: a field away, one too many, one of a type that it never has."""
    for key in value:
        yield {k: v for k, v in value.items() if k != key}, f"without {key}"
        yield {**value, key: [[]]}, f"{key} of a wrong type"
    yield {**value, "surplus": 1}, "with a field too many"


def test_every_schema_is_sound() -> None:
    for name in ALL:
        validator(name)


@pytest.fixture(scope="module")
def good_envelope(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Of one real run."""
    for project in make_project(tmp_path_factory.mktemp("one")):
        project.task("a", agent=scripted(WRITE, USAGE))
        run = project.run("tasks", "--codeprobe-agent=scripted", junit=False).assert_consistent()
        assert run.code == 0, run.output
        yield run.envelope


@pytest.mark.parametrize(
    ("path", "wrong"),
    [
        (("status",), "error"),
        (("exit_code",), -1),
        (("data", "run_id"), "2024"),
        (("data", "tasks_total"), -1),
        (("data", "tasks_total"), 1.5),
        (("data", "pass_rate"), 1.1),
        (("data", "cost_usd"), -0.1),
        (("data", "cost_complete"), None),
        (("data", "started_at"), "yesterday"),
        (("data", "tokens", "input_tokens"), 1.5),
        (("data", "ordinary_tests"), {"skpped": 1}),
        (("data", "results", 0, "status"), "ok"),
        (("data", "results", 0, "score"), 2),
        (("data", "results", 0, "limit_hit"), "task_timeout"),
        (("data", "variants", 0, "pass_rate_interval"), [0.1]),
        (("errors",), [{"code": "X"}]),
        (("next_steps",), [{"summary": "x"}]),
        (("warnings",), [1]),
    ],
)
def test_a_wrong_field_of_an_envelope_fails(good_envelope: dict[str, Any], path: tuple[str | int, ...], wrong: Any) -> None:
    envelope = copy.deepcopy(good_envelope)
    part: Any = envelope
    for step in path[:-1]:
        part = part[step]
    part[path[-1]] = wrong
    assert not validator("envelope").is_valid(envelope)


def test_result_json_is_made_from_the_model() -> None:
    """To write it anew: `python -c 'from tests.schemas import result_schema; print(result_schema(), end="")'`."""
    assert shipped("result") == json.loads(result_schema())


def test_they_say_the_same_words() -> None:
    """Statuses and codes stand in several places."""
    status = list(Status.__args__)  # type: ignore[attr-defined]
    event, envelope, result = (shipped(name) for name in NAMES)
    assert event["$defs"]["status"]["enum"] == status
    assert envelope["$defs"]["result"]["properties"]["status"]["enum"] == status
    assert result["properties"]["status"]["enum"] == status
    error = envelope["$defs"]["error"]["properties"]
    assert {row.kind for row in error_codes().values()} == set(error["kind"]["enum"])
    assert {row.retryable for row in error_codes().values()} == set(error["retryable"]["enum"])


# ---------------------------------------------------------------- files that people write

ROOT = Path(__file__).resolve().parents[1]
PARTS = "task_id: t\ninitial_prompt: x\nsuccess_criteria: [{type: file_exists, path: a}]\n"
#: what an editor has to mark, and the loader refuses
WRONG_TASKS = (
    "task_id: t\n",
    "initial_prompt: x\nsuccess_criteria: [{type: file_exists, path: a}]\n",
    PARTS + "run_limts: {max_turns: 3}\n",
    PARTS + "run_limits: {max_turn: 3}\n",
    PARTS + "run_limits: {max_turns: many}\n",
    PARTS + "run_limits: {max_turns: 0}\n",
    PARTS + "run_limits: {on_limit: stop}\n",
    PARTS + "initial_prompt_file: p.md\n",
    PARTS + "description: true\n",
    PARTS + "tags: [Not Kebab]\n",
    PARTS + "tags: smoke\n",
    PARTS + "agent: {modle: m}\n",
    PARTS + "agent: {permission_mode: yolo}\n",
    PARTS + "agent: {scripted: {stepz: []}}\n",
    PARTS + "sandbox: {template_sources: [{type: folder, path: a}]}\n",
    PARTS + "sandbox: {env: [A]}\n",
    PARTS + "repeats: 0\n",
    PARTS + "expect: maybe\n",
    PARTS.replace("task_id: t", "task_id: a b"),
    PARTS.replace("path: a", "pth: a"),
    PARTS.replace("type: file_exists, ", ""),
    PARTS.replace("[{type: file_exists, path: a}]", "[]"),
    f"- {PARTS.replace(chr(10), chr(10) + '  ')}\n- task_id: u\n",
)
#: and what it must not
GOOD_TASKS = (
    PARTS,
    PARTS + "run_limits: {max_turns: null, task_timeout: 1.5}\nagent: null\n",
    PARTS + "agent: {type: scripted, model: null, scripted: {steps: [{write: {path: a, content: 3.10}}]}}\ndescription: 3.10\n",
    PARTS + "skip: true\nmetadata: {difficulty: 3, more: [a, {b: c}]}\ntags: [smoke, 'area:io', 2024]\n",
    PARTS + "sandbox: {driver: tempdir, env: {A: 1}, template_sources: [{type: starter_files, files: [{path: a, content: ''}]}]}\n",
)
WRONG_EXPERIMENTS = (
    "defaults: {run_limts: {}}\n",
    "defaults: {run_limits: {max_turns: -1}}\n",
    "variants: [{variant_id: A B}]\n",
    "inherit: 3\n",
    "[a]\n",
)
GOOD_EXPERIMENTS = ("", "experiment_id: x\ndefaults:\n  run_limits:\n  sandbox: {env: {A: 1}}\nvariants: [{variant_id: a}]\n")


def editor(name: str) -> Draft7Validator:
    return Draft7Validator(shipped(name))


@pytest.mark.parametrize("name", file_schemas.MADE)
def test_schemas_of_files_are_made_from_the_models(name: str) -> None:
    """To write them anew: `python -m tests.file_schemas`."""
    assert shipped(name) == json.loads(file_schemas.text_of(name))
    Draft7Validator.check_schema(shipped(name))


def test_every_sample_is_valid_to_an_editor() -> None:
    samples = sorted((ROOT / "tasks").glob("**/task.yaml"))
    assert len(samples) > 10
    for sample in samples:
        for document in yaml.safe_load_all(sample.read_text()):
            assert not [f"{sample}: {e.json_path}: {e.message}" for e in editor("task").iter_errors(document)]
    assert editor("experiment").is_valid(yaml.safe_load((ROOT / "experiments" / "default.yaml").read_text()))


@pytest.mark.parametrize(("kind", "texts", "good"), [
    ("task", WRONG_TASKS, False), ("task", GOOD_TASKS, True),
    ("experiment", WRONG_EXPERIMENTS, False), ("experiment", GOOD_EXPERIMENTS, True),
])  # fmt: skip
def test_editors_and_the_loader_agree(tmp_path: Path, kind: str, texts: tuple[str, ...], good: bool) -> None:
    for number, text in enumerate(texts):
        file = write(tmp_path / f"{kind}-{number}.yaml", text)
        try:
            (load_file if kind == "task" else load_experiment)(file, settings(tmp_path))
            loaded = True
        except CodeprobeError:
            loaded = False
        assert (loaded, editor(kind).is_valid(yaml.safe_load(text))) == (good, good), text
