"""`codeprobe experiment`: experiment files."""

from __future__ import annotations

from pathlib import Path

import click

from pytest_codeprobe.cli.answers import envelope_line, json_by_environment, say
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.tasks.experiments import FOLDER, NAME
from pytest_codeprobe.text import write_whole

#: whichever of its comments about settings are uncommented, the file stays right
_STARTER = """\
# Settings of an experiment. `defaults` is a layer below every task: what a task sets itself wins.
# Take the # away from a line to set what it says.
# Run it with `codeprobe run --experiment {name}`, or `pytest tasks/ --codeprobe-experiment {name}`.
experiment_id: {name}
description: ""

# Whether the defaults of experiments/default.yaml, if there is one, hold where this file says nothing.
inherit: true

defaults:
  # Bounds of each trial: seconds, model replies, tokens, US dollars.
  run_limits:
    # task_timeout: 600
    # max_turns: 40
    # max_total_tokens: 500000
    # max_usd: 2.00

  # Where each session runs and what it finds there; paths are relative to this file.
  sandbox:
    # driver: auto
    # env: {{EXAMPLE: value}}
    # template_sources: [{{type: template_dir, path: ../shared}}]

variants:
  - variant_id: default
"""


@click.group(short_help="Make experiment files.")
def experiment() -> None:
    """Experiment files: named sets of settings for a run."""


@experiment.command(short_help="Write a commented experiment file to begin with.")
@click.argument("name", default="default")
@click.option("--dir", "folder", default=str(FOLDER), show_default=True, metavar="DIR", help="Folder that it is written to.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON, in the envelope's form.")
def new(name: str, folder: str, as_json: bool) -> None:
    """Write NAME.yaml, a commented experiment file to begin with. Without NAME: default, which holds for every run.

    A file that is there is never overwritten.
    """
    if not NAME.fullmatch(name):
        raise CodeprobeError(
            "USAGE_ERROR",
            f"{name!r} is no name of an experiment",
            remediation="Use lower-case letters, digits and single hyphens: fast-model.",
        )
    target = Path(folder) / f"{name}.yaml"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, _STARTER.format(name=name), replace=False)
    except FileExistsError:
        raise CodeprobeError(
            "USAGE_ERROR", f"{target} is there already, and is not overwritten", remediation="Choose another name, or edit the file."
        ) from None
    except OSError as error:
        raise CodeprobeError("USAGE_ERROR", f"{target}: {error.strerror}", remediation="Choose another folder with --dir.") from error
    if as_json or json_by_environment():
        say(envelope_line("experiment", {"name": name, "file": str(target)})[0])
    else:
        say(f"wrote {target}; run it with: codeprobe run --experiment {name}")
