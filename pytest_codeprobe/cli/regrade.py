"""`codeprobe regrade`: criteria again on the workspaces that a run has kept."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from pytest_codeprobe.cli.answers import json_by_environment
from pytest_codeprobe.cli.launch import start
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.options import BUILT
from pytest_codeprobe.run.planfile import plans
from pytest_codeprobe.text import REDACTED

#: options of the earlier run that decide which trials there are, beside those that `-D` could set too
_SHAPE = frozenset((
    "experiment", "repeats", "sample", "sample-per-stratum", "include-skipped", "backend",
))  # fmt: skip


@click.command(short_help="Grade the kept workspaces of a run again.")
@click.option("--json", "as_json", is_flag=True, help="stdout = the envelope alone, one line of JSON.")
@click.option("-j", "--max-parallel", "jobs", metavar="N", help="Trials at once.")
@click.option("-k", "keyword", metavar="EXPR", help="pytest's -k: select by name or tag.")
@click.option("--run-dir", "target", metavar="DIR", help="Where the new run goes, instead of below .codeprobe/runs.")
@click.argument("run_dir", metavar="RUN_DIR", type=click.UNPROCESSED)
@click.pass_context
def regrade(ctx: click.Context, run_dir: str, as_json: bool, jobs: str | None, keyword: str | None, target: str | None) -> None:
    """Evaluate the criteria again, as the task files have them now, on what the sessions of RUN_DIR have left.

    No agent starts and nothing is paid but for judges. The run goes to a run dir of its own; RUN_DIR stays as it is.
    """
    from pytest_codeprobe.tasks.overrides import flags_again  # not at import: the other commands do without the loader

    known = list(plans(Path(run_dir)))
    if not known:
        raise CodeprobeError("USAGE_ERROR", f"{run_dir} holds no run", remediation="Name a run dir, such as .codeprobe/runs/latest.")
    known = [plan for plan in known if _files_of(plan)]  # a resume that selected nothing has none
    if not known:
        raise CodeprobeError("USAGE_ERROR", f"{run_dir} has no trial of a task file", remediation="Name the run dir of another run.")
    options = known[0].get("options") or {}
    if lost := [text for text in options.get("set") or () if REDACTED in text]:
        raise CodeprobeError(
            "USAGE_ERROR",
            f"{run_dir} was made with a secret in {lost[0]!r}, which no run dir keeps",
            remediation="Name a variable in such an override: -D 'agent.env={A_KEY: $A_KEY}'.",
        )
    arguments = [f"--codeprobe-regrade={run_dir}", *_shape(options), *flags_again(options), *_files(known)]
    arguments += ["--codeprobe-json"] if as_json or json_by_environment() else []
    arguments += [f"--codeprobe-jobs={jobs}"] if jobs else []
    arguments += [f"--codeprobe-run-dir={target}"] if target else []
    arguments += ["-k", keyword] if keyword else []
    ctx.exit(start(arguments, sys.argv[1:]))


def _shape(options: Mapping[str, Any]) -> Iterator[str]:
    for option in BUILT:
        value = options.get(option.field)
        if option.name not in _SHAPE or value in (None, False, [], ""):
            continue
        if option.kind == "flag":
            yield option.flag
        else:
            yield from (f"{option.flag}={each}" for each in (value if option.kind == "list" else (value,)))


def _files(known: Sequence[Mapping[str, Any]]) -> list[str]:
    """The task files, each once. Of those of the newest plan that are gone pytest says so; it may have been made without older ones."""
    newest, *older = map(_files_of, known)
    there = [file for files in older for file in files if Path(file).exists()]
    return list(dict.fromkeys((*newest, *there)))


def _files_of(plan: Mapping[str, Any]) -> list[str]:
    return list(dict.fromkeys(str(t["task_file"]) for t in plan.get("trials") or () if not t.get("marked")))
