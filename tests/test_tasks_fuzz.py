"""Whatever a file holds, loading and expanding end in a trial or in one error with a place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.tasks.expand import expand
from pytest_codeprobe.tasks.heads import trial_of, trial_text
from pytest_codeprobe.tasks.load import load_file
from pytest_codeprobe.tasks.task import Task
from tests.task_files import plan, settings, write

words = st.sampled_from(
    ["", "a", "..", "/x", "none", "auto", "off", "oracle", "claude", "tempdir", "docker", "$A", "${B:-c}", "${", "template_dir", "pass"]
)
scalars = st.none() | st.booleans() | st.integers(-2, 10**20) | st.floats() | words
inner_names = st.sampled_from(
    ["type", "path", "files", "content", "command", "timeout", "env", "steps", "say", "rows", "goal", "directory", "claude", "python", "x"]
)
anything = st.recursive(scalars, lambda v: st.lists(v, max_size=3) | st.dictionaries(inner_names, v, max_size=4), max_leaves=8)


def table(*names: str, **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(st.sampled_from(names), anything, max_size=3).flatmap(
        lambda d: st.fixed_dictionaries(fixed).map(lambda f: {**d, **f})
    )


criterion = st.fixed_dictionaries(
    {"type": st.sampled_from(["file_exists", "json_check", "run_command", "answer_contains", "x"]) | scalars},
    optional={"path": words, "command": words, "weight": scalars, "json_schema": anything, "timeout": scalars},
)
good = st.just([{"type": "file_exists", "path": "a"}])
tasks = st.fixed_dictionaries(
    {
        "task_id": st.just("t") | scalars,
        "initial_prompt": st.just("x") | anything,
        "success_criteria": good | st.lists(criterion | anything, max_size=3),
    },
    optional={
        "agent": table(*AgentConfig.model_fields, "scripted", "claude") | anything,
        "sandbox": table(*SandboxConfig.model_fields) | anything,
        "run_limits": table(*RunLimits.model_fields) | anything,
        "simulation": anything,
        "dataset": anything,
    },
).flatmap(lambda task: st.dictionaries(st.sampled_from(sorted(Task.model_fields)), anything, max_size=2).map(lambda more: {**more, **task}))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write(tmp_path / "tasks/a")
    return tmp_path


@hypothesis_settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow], deadline=None)
@given(tasks, st.sampled_from([None, "oracle", "claude", "scripted", "command"]), st.sampled_from(["error", "warn"]))
def test_a_trial_or_one_error(project: Path, data: dict[str, Any], agent: str | None, unknown: str) -> None:
    file = write(project / "tasks/t.yaml", yaml.safe_dump(data))
    error, trials = outcome(file, project, agent, unknown)
    if error is not None:
        assert error.code == "TASK_INVALID"
        assert error.message.startswith("tasks/t.yaml:")
        assert "\n" not in error.message
    for trial in trials:
        assert Trial.model_validate_json(trial.model_dump_json()) == trial
        text = trial_text(trial)  # as it waits for its turn
        assert trial_of(text, trial.node_id) == trial
        assert isinstance(text, Trial) or (b"\n" not in text and b"\t" not in text)


def outcome(file: Path, project: Path, agent: str | None, unknown: str) -> tuple[CodeprobeError | None, list[Trial]]:
    made = settings(project, unknown_fields=unknown, environ={"A": "a"})
    options = RunOptions(agent=agent, on_command_line=("agent",))
    try:
        loaded = load_file(file, made)
        return None, [trial for task in loaded.tasks for trial in expand(task, plan(made, options))]
    except CodeprobeError as error:
        return error, []
