"""`codeprobe explain` in the pytest that it starts, so that conftest.py files, ini and hooks count. Nothing is collected, nothing runs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_codeprobe.errors import CodeprobeError, did_you_mean, error_codes
from pytest_codeprobe.plugin.refusal import as_error
from pytest_codeprobe.plugin.state import STATE, State
from pytest_codeprobe.text import write_whole

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live
    from pytest_codeprobe.tasks.load import LoadedTask


def explain(config: pytest.Config) -> int:
    """Write how the settings of the named task came to be, or the error, as JSON to the file that the option names; the exit code."""
    code = 0
    try:
        state = config.stash[STATE] = State(config)
        told: dict[str, Any] = {"tasks": [dict(each) for each in _explained(state.activate())]}
    except (CodeprobeError, pytest.UsageError) as raised:
        error = as_error(raised)
        told = {"error": {"code": error.code, "message": error.message, "remediation": error.remediation, "detail": error.detail}}
        code = error_codes()[error.code].exit_code
    write_whole(Path(config.option.codeprobe_explain), json.dumps(told, default=str) + "\n")
    return code


def _explained(live: Live) -> Iterator[dict[str, Any]]:
    """For each variant: settings, and where each leaf comes from. The agent need not be there: its layers are all that counts."""
    from pytest_codeprobe.tasks.expand import explained

    task = _named(live)
    for found in explained(task, live.experiment.plan):
        yield {
            "task_id": found.task_id,
            "variant_id": found.variant_id,
            "file": task.name,
            "line": task.line,
            "settings": live.context.redactor.json(found.settings),
            "origins": found.origins,
        }


def _named(live: Live) -> LoadedTask:
    """The task that a path, a node id, or an id alone means. USAGE_ERROR, TASK_INVALID."""
    config = live.config
    if config.args_source is not pytest.Config.ArgsSource.ARGS or len(config.args) != 1:
        raise CodeprobeError("USAGE_ERROR", "name one task", remediation="Name it as FILE, FILE::TASK_ID or TASK_ID.")
    name, _, wanted = str(config.args[0]).partition("::")
    path = (config.invocation_params.dir / name).absolute()
    if not path.is_file() and (path.exists() or path.suffix in (".yaml", ".yml")):
        what = "is a folder" if path.is_dir() else "does not exist"
        raise CodeprobeError("USAGE_ERROR", f"{name} {what}: name one task", remediation="Name it as FILE, FILE::TASK_ID or TASK_ID.")
    files = [path] if path.is_file() else sorted(_task_files(live))
    wanted = wanted.partition("[")[0] if path.is_file() else name
    tasks: list[LoadedTask] = []
    for file in files:
        loaded = live.task_files.models(file)
        if not isinstance(loaded, CodeprobeError):
            tasks += loaded.tasks
        elif path.is_file():
            raise loaded
    found = [task for task in tasks if not wanted or task.task.task_id == wanted]
    if len(found) != 1:
        ids = [task.task.task_id for task in tasks]
        what = f"{config.args[0]}: {'there is no such task' if not found else 'it holds several tasks'}"
        known = f"{did_you_mean(wanted, ids)}" or (f" (it holds {', '.join(ids[:10])})" if ids else "")
        raise CodeprobeError("USAGE_ERROR", what + known, remediation="Name it as FILE, FILE::TASK_ID or TASK_ID.")
    return found[0]


def _task_files(live: Live) -> Iterator[Path]:
    top = live.config.rootpath / "tasks"
    for pattern in ("**/*.yaml", "**/*.yml"):
        yield from (file for file in top.glob(pattern) if file.is_file())
