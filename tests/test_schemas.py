"""The shipped JSON Schemas against real output of a run of every kind; strict enough that a wrong value fails."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import pytest

from pytest_codeprobe.errors import error_codes
from pytest_codeprobe.model.result import Status
from tests.front_door import Project, Run, make_project, scripted
from tests.schemas import ALL, NAMES, check, result_schema, shipped, validator

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
