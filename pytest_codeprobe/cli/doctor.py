"""`codeprobe doctor`: a thin caller of pytest with --codeprobe-doctor."""

from __future__ import annotations

from typing import Any

import click

from pytest_codeprobe.cli.answers import json_by_environment
from pytest_codeprobe.cli.launch import options, start, translated

#: flags of a run that say what it would use
_FLAGS = ("agent", "model", "driver", "backend", "run-dir", "offline", "offline-expected-run-duration")


@click.command(
    short_help="Check what a run would need.",
    epilog="Exit codes: 0 nothing failed, 6 a check failed, 4 refused. What stands after -- goes to pytest.",
)
@click.option("--json", "as_json", is_flag=True, help="stdout = one line of JSON, in the envelope's form.")
@click.option("--probe", is_flag=True, help="Also let the chosen agent do one small task in a sandbox. It costs a model call.")
@click.pass_context
def doctor(ctx: click.Context, /, as_json: bool, probe: bool, **values: Any) -> None:
    """Check what a run would need: agents, credentials, drivers, git, disks, clock. Without --probe nothing is run."""
    head, rest = ctx.obj
    # pytest's capture needs a temporary file, for which there may be no space
    arguments = ["--codeprobe-doctor", "--capture=no", *translated(values)]
    if probe:
        arguments.append("--codeprobe-doctor-probe")
    if as_json or json_by_environment():
        arguments.append("--codeprobe-json")
    ctx.exit(start([*arguments, *rest], [*head, *(["--", *rest] if rest else [])]))


options(doctor, _FLAGS)
