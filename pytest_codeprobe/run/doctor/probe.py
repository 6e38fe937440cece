"""`--probe`: the chosen agent does a small task in a real sandbox. A wrong credential shows in no other way. It costs money."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pytest_codeprobe.amounts import dollars, span
from pytest_codeprobe.model.config import AgentConfig, RunLimits, SandboxConfig
from pytest_codeprobe.model.result import TrialResult
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.run.doctor.check import Check, Subject
from pytest_codeprobe.run.known_task import known_task
from pytest_codeprobe.run.spool import Spool
from pytest_codeprobe.run.stops import StopFolder
from pytest_codeprobe.sandboxes.sweep import new_folder
from pytest_codeprobe.sandboxes.trees import remove_tree
from pytest_codeprobe.trial.run import MakeSandbox, run

_NAME = "probe"


def probe_chosen(subject: Subject, make_sandbox: MakeSandbox) -> Check:
    """Run it, and say what came of it."""
    agent = subject.chosen
    if agent is None:
        fix = "Name one with --codeprobe-agent."
        return subject.clean(Check(name=_NAME, status="warn", message="no agent is chosen, so none was probed", fix=fix))
    if not agent.calls_model:
        return Check(name=_NAME, status="info", message=f"{agent.name} calls no model: there is nothing to probe")
    if "command" in agent.supports:
        return Check(name=_NAME, status="info", message=f"{agent.name}: its program is named in tasks; --codeprobe-canary probes it there")
    try:
        folder = new_folder(subject.scratch)  # should we be killed, the next run removes it
        try:
            record = _run(subject, agent.name, folder, make_sandbox)
        finally:
            remove_tree(folder)
    except OSError as error:
        fix = "Free disk space, or point TMPDIR to a place that has more."
        return subject.clean(Check(name=_NAME, status="fail", message=f"could not begin: {error}", fix=fix))
    return subject.clean(_told(agent.name, record))


def _run(subject: Subject, agent: str, folder: Path, make_sandbox: MakeSandbox) -> TrialResult:
    context = subject.context
    (folder / "spool").mkdir()
    place = dataclasses.replace(
        context,
        run_dir=folder,
        events=Spool(folder / "spool", context.worker, context.clock),
        stops=StopFolder(folder / "stop"),
        ledger=None,
        snapshot=None,
    )
    return run(_trial(subject, agent), place, make_sandbox)


def _trial(subject: Subject, agent: str) -> Trial:
    """Nothing but what the command line says of the agent and its sandbox."""
    options = subject.context.options
    settings = {"type": agent, "model": options.model, "permission_mode": options.permission_mode}
    base = Trial(
        node_id="doctor::probe",
        task_id=_NAME,
        folder=_NAME,
        task_file=str(subject.context.rootdir / "doctor"),  # in no folder of tasks: nothing of theirs counts
        prompt=None,
        agent=AgentConfig.model_validate({name: value for name, value in settings.items() if value is not None}),
        sandbox=SandboxConfig(driver=options.driver or "auto"),
        limits=RunLimits(),
        criteria=(),
    )
    return known_task(subject.context.registry.agent(agent), base, _NAME)


def _told(agent: str, record: TrialResult) -> Check:
    cost = "at an unknown cost" if record.cost_usd is None else f"for {dollars(record.cost_usd)}"
    model = f" ({record.agent.model})" if record.agent is not None and record.agent.model else ""
    detail = {
        "status": record.status,
        "code": record.code,
        "model": record.agent.model if record.agent is not None else None,
        "cost_usd": record.cost_usd,
        "duration_seconds": record.duration_seconds,
    }
    if record.status == "passed":
        message = f"{agent}{model} did a small task in {span(round(record.duration_seconds, 1))}, {cost}"
        return Check(name=_NAME, status="pass", message=message, detail=detail)
    what = f"{record.code}: {record.reason}" if record.code else f"verdict {record.status}: {record.reason or record.final_message}"
    tail = f"; its stderr ends with: {record.stderr_tail.strip()[-300:]}" if record.stderr_tail.strip() else ""
    fix = record.remediation or "The agent answers, but does not do what it is told: try another model, or look at its settings."
    return Check(name=_NAME, status="fail", message=f"{agent}{model}: {what}{tail}", fix=fix, detail=detail)
