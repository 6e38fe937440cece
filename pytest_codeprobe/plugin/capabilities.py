"""`codeprobe capabilities` in the pytest that it starts, so that conftest.py files, ini and hooks count. Nothing is collected."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.plugin.refusal import as_error
from pytest_codeprobe.plugin.state import STATE, State
from pytest_codeprobe.text import write_whole

if TYPE_CHECKING:
    from pytest_codeprobe.plugin.live import Live


def record(config: pytest.Config) -> int:
    """Write the snapshot, or the error, as JSON to the file that the option names; the exit code."""
    target = Path(config.option.codeprobe_record_capabilities)
    try:
        state = config.stash[STATE] = State(config)
        live = state.activate()
        with live.interrupts.held():
            text, code = _record(live), 0
    except (CodeprobeError, pytest.UsageError) as raised:
        error = as_error(raised)
        told = {"code": error.code, "message": error.message, "remediation": error.remediation, "detail": error.detail}
        text, code = json.dumps({"error": told}, default=str), error_codes()[error.code].exit_code
    write_whole(target, text + "\n")
    return code


def _record(live: Live) -> str:
    from pytest_codeprobe.plugin.checks import check_options
    from pytest_codeprobe.run.capabilities import record

    check_options(live)
    if live.state.options.agent is None:
        wanted = f"Name one with --agent: {', '.join(sorted(live.registry.agents))}."
        raise CodeprobeError("NO_BACKENDS_CONFIGURED", "no agent is named", remediation=wanted)
    found = record(_trial(live), live.context, live.make_sandbox)
    if live.interrupts.count:
        raise CodeprobeError("INTERRUPTED", "interrupted")
    return found.model_dump_json(indent=1)


def _trial(live: Live) -> Trial:
    """The first task of the file that is named, or one that asks for nothing."""
    named = live.config.args_source is pytest.Config.ArgsSource.ARGS
    return _of_task(live, str(live.config.args[0])) if named else _plain(live)


def _plain(live: Live) -> Trial:
    options = live.state.options
    asked = {"type": live.registry.agent(options.agent or "").name, "model": options.model, "permission_mode": options.permission_mode}
    return Trial(
        node_id="capabilities",
        task_id="capabilities",
        folder="_capabilities",
        task_file=str(live.config.rootpath / "capabilities"),
        prompt="Hello.",
        agent=AgentConfig.model_validate({name: value for name, value in asked.items() if value is not None}),
        sandbox=SandboxConfig(driver=options.driver or "auto"),
        limits=RunLimits(),
        criteria=(),
    )


def _of_task(live: Live, named: str) -> Trial:
    name, _, wanted = named.partition("::")
    path = (live.config.invocation_params.dir / name).absolute()
    found = live.task_files.models(path)
    if isinstance(found, CodeprobeError):
        raise found
    tasks = [task for task in found.tasks if not wanted or task.task.task_id == wanted]
    if not tasks:
        raise CodeprobeError("USAGE_ERROR", f"{named}: there is no such task")
    return next(live.expand(tasks[0]))
