"""`codeprobe capabilities`: what an agent can use, as its own first event reports it."""

from __future__ import annotations

import os

import click

from pytest_codeprobe.cli.answers import take_stdout
from pytest_codeprobe.cli.inside import asked
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.text import write_whole


@click.command(short_help="Record what an agent can use.")
@click.option("--agent", "--type", "-T", "agent", metavar="NAME", help="The agent.")
@click.option("--model", "-m", metavar="M", help="Its model.")
@click.option("--driver", metavar="D", help="Kind of sandbox.")
@click.option("--permission-mode", metavar="MODE", help="Its permission mode.")
@click.option("--output", "-o", metavar="FILE", help="Where to write it, instead of stdout.")
@click.argument("task", required=False, type=click.UNPROCESSED)
def capabilities(
    agent: str | None, model: str | None, driver: str | None, permission_mode: str | None, output: str | None, task: str | None
) -> None:
    """Print CLI version, model, tools and MCP servers of an agent as JSON, for `codeprobe run --capabilities FILE`.

    The CLI is started where it reaches no model and is ended at its first event: it costs nothing. TASK is a task file whose
    settings of the agent count, such as its MCP servers.
    """
    stdout = take_stdout()  # what plugins and conftest.py files print as they are loaded is no part of it
    given = {"agent": agent, "model": model, "driver": driver, "permission-mode": permission_mode}
    arguments = [f"--codeprobe-{name}={value}" for name, value in given.items() if value is not None]
    text, _ = asked("--codeprobe-record-capabilities", [*arguments, *([task] if task is not None else [])])
    try:
        if output is not None:
            write_whole(output, text)
            return
        with os.fdopen(os.dup(stdout), "wb") as file:
            file.write(text.encode())
    except BrokenPipeError:  # the reader has seen enough
        return
    except OSError as error:
        place = "stdout" if output is None else f"--output {output}"
        raise CodeprobeError("USAGE_ERROR", f"{place}: {error.strerror}", remediation="Name a file that can be written.") from error
