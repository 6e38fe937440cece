"""`codeprobe` and its commands."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import Any

import click

from pytest_codeprobe import __version__
from pytest_codeprobe.cli.answers import complain, envelope_line, json_by_environment, open_standard_streams, say
from pytest_codeprobe.cli.capabilities import capabilities
from pytest_codeprobe.cli.check import check
from pytest_codeprobe.cli.clean import clean
from pytest_codeprobe.cli.doctor import doctor
from pytest_codeprobe.cli.experiment import experiment
from pytest_codeprobe.cli.explain import explain
from pytest_codeprobe.cli.launch import options, program, start, translated
from pytest_codeprobe.cli.regrade import regrade
from pytest_codeprobe.cli.schema import schema
from pytest_codeprobe.errors import CodeprobeError, did_you_mean, error_codes
from pytest_codeprobe.model.clock import SystemClock, stamp
from pytest_codeprobe.options import BUILT
from pytest_codeprobe.run.envelope import entry, refusal
from pytest_codeprobe.run.remedy import Invocation, addressed, nearest
from pytest_codeprobe.text import json_line

_BEHIND = "pytest's own options go behind --, such as: codeprobe run -- --lf"
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT, invoke_without_command=True)
@click.version_option(__version__, prog_name="codeprobe")
@click.pass_context
def group(ctx: click.Context) -> None:
    """Run coding agents on tasks, as pytest does, for scripts and agents that want a fixed contract."""
    if ctx.invoked_subcommand is None:
        say(ctx.get_help())


@group.command(
    short_help="Run tasks.",
    context_settings={**_CONTEXT, "ignore_unknown_options": False, "allow_interspersed_args": True},
    epilog="What stands after -- goes to pytest as it is, such as -- -n 4 -x. Exit codes: 0 all passed, 1 a verdict failed, "
    "2 interrupted, 3 internal error, 4 refused before any trial, 5 no task ran, 6 inconclusive.",
)
@click.option("--no-json", is_flag=True, help="pytest's text on stdout, also on a pipe.")
@click.option("-v", "--verbose", is_flag=True, help="pytest's -v with --log-level DEBUG.")
@click.option("--log-file", metavar="FILE", help="pytest's --log-file.")
@click.option("--log-level", metavar="LEVEL", help="pytest's --log-level.")
@click.option("-k", "keyword", metavar="EXPR", help="pytest's -k: select by name or tag.")
@click.option("-x", "--exitfirst", is_flag=True, help="pytest's -x: stop at the first failure.")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, /, paths: tuple[str, ...], **values: Any) -> None:
    """Run the tasks below PATH (default: tasks/ below rootdir): files, folders, globs or node ids."""
    head, rest = ctx.obj
    ctx.exit(start(_arguments(values, list(paths), rest), [*head, *(["--", *rest] if rest else [])]))


group.add_command(capabilities)
group.add_command(check)
group.add_command(clean)
group.add_command(doctor)
group.add_command(experiment)
group.add_command(explain)
group.add_command(regrade)
group.add_command(schema)


def _arguments(values: dict[str, Any], paths: list[str], rest: list[str]) -> list[str]:
    chosen = [name for name in ("json", "json_lines", "no_json") if values.get(name)]
    if len(chosen) > 1:
        spelled = " and ".join("--" + name.replace("_", "-") for name in chosen)
        raise CodeprobeError("USAGE_ERROR", f"{spelled} exclude each other")
    arguments = translated(values)
    mode = chosen[0] if chosen else _mode_by_environment()
    if mode in ("json", "json_lines"):
        arguments.append(f"--codeprobe-{mode.replace('_', '-')}")
    if values["verbose"]:
        arguments += ["-v", "--log-level=DEBUG"]
    arguments += [f"--log-file={values['log_file']}"] if values["log_file"] else []
    arguments += [f"--log-level={values['log_level']}"] if values["log_level"] else []
    arguments += ["-k", values["keyword"]] if values["keyword"] else []
    arguments += ["-x"] if values["exitfirst"] else []
    return [*arguments, *paths, *rest]


def _mode_by_environment() -> str:
    asked = os.environ.get("CODEPROBE_JSON", "").strip().lower()
    if asked in ("1", "true"):
        return "json"
    if asked == "lines":
        return "json_lines"
    if asked not in ("", "0"):
        raise CodeprobeError("USAGE_ERROR", f"CODEPROBE_JSON: {asked!r} is neither 1 nor lines")
    return "no_json" if sys.stdout.isatty() else "json_lines"


def main(argv: list[str] | None = None) -> None:
    """The console script: every refusal has an envelope where JSON is wanted."""
    open_standard_streams()
    given = list(sys.argv[1:] if argv is None else argv)
    head, tail = _cut(given)
    try:
        code = group.main(head, prog_name="codeprobe", standalone_mode=False, obj=(head, tail))
    except click.exceptions.Abort:  # Ctrl-C outside of pytest
        sys.exit(_refuse(given, CodeprobeError("INTERRUPTED", "interrupted"), None))
    except click.ClickException as error:
        sys.exit(_refuse(given, _usage_error(given, error), error))
    except CodeprobeError as wrong:
        sys.exit(_refuse(given, wrong, None))
    sys.exit(code if isinstance(code, int) else 0)


def _usage_error(argv: list[str], error: click.ClickException) -> CodeprobeError:
    """What click refuses."""
    message = error.format_message()
    if isinstance(error, click.NoSuchOption):
        meant = _flag_of_pytest(argv, error.option_name) or nearest(error.option_name, {*(error.possibilities or ())} - {"--help"})
        message = f"no such option: {error.option_name}" + (f" (did you mean {meant!r}?)" if meant else "")
        corrected = (program(), *(_renamed(a, error.option_name, meant) for a in argv)) if meant else None
        if argv[:1] == ["run"]:
            return CodeprobeError("USAGE_ERROR", message, remediation=_BEHIND, command=corrected)
        if (command := _later_command(argv)) is not None:
            message = f"{error.option_name} stands before the command; options come behind it"
            corrected = (program(), command, *(a for number, a in enumerate(argv) if number != argv.index(command)))
            return CodeprobeError("USAGE_ERROR", message, remediation=f"Begin with `codeprobe {command}`.", command=corrected)
    elif argv and _command(argv) is None:
        return _no_command(argv)
    command = _command(argv)
    words = " ".join(("codeprobe", *([command] if command else []), "--help"))
    return CodeprobeError("USAGE_ERROR", message, remediation=f"See `{words}`.")


def _flag_of_pytest(argv: list[str], name: str) -> str | None:
    """Our spelling of a flag that is called so on pytest's command line, with or without `codeprobe`."""
    command = _command(argv)
    known = {flag for parameter in group.commands[command].params for flag in parameter.opts} if command is not None else set()
    spellings = next((option.cli for option in BUILT if name in (option.flag, f"--{option.name}")), ())
    return next((flag for flag in sorted(spellings, key=len, reverse=True) if flag in known), None)


def _no_command(argv: list[str]) -> CodeprobeError:
    """The first word is no command. Where a slip shows which one was meant, the same call with that."""
    meant = nearest(argv[0], group.commands)
    return CodeprobeError(
        "USAGE_ERROR",
        f"no such command: {argv[0]}{did_you_mean(argv[0], group.commands)}",
        remediation=f"The commands are: {', '.join(sorted(group.commands))}.",
        command=(program(), meant, *argv[1:]) if meant else None,
    )


def _later_command(argv: list[str]) -> str | None:
    """The command that stands behind flags of its own."""
    found = next((a for a in _cut(argv)[0] if a in group.commands), None)
    if found is None or argv[0] == found:
        return None
    known = {flag for parameter in group.commands[found].params for flag in parameter.opts}
    return found if argv[0].partition("=")[0] in known else None


def _renamed(argument: str, wrong: str, right: str) -> str:
    name, equals, value = argument.partition("=")
    return right + equals + value if name == wrong else argument


def _command(argv: list[str]) -> str | None:
    return argv[0] if argv and argv[0] in group.commands else None


def _cut(argv: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what stands behind `--`."""
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def _refuse(argv: list[str], error: CodeprobeError, shown: click.ClickException | None) -> int:
    command = _command(argv)
    called = (program(), *([command] if command else []))
    invocation = Invocation(program=called, arguments=tuple(argv[len(called) - 1 :]), console=True, command=command or "")
    line = addressed(entry(error), invocation)
    if shown is not None:
        if isinstance(shown, click.NoSuchOption):
            shown = click.UsageError(error.message, shown.ctx)  # with the flag that we think was meant
            line = dataclasses.replace(line, message=error.message)  # and the one that was typed
        shown.show(file=sys.stderr)
        if error.remediation == _BEHIND:
            click.echo(_BEHIND, err=True)
    else:
        complain(line)
    code = error_codes()[error.code].exit_code
    if _wants_json(argv):
        if command == "run":
            say(json_line(refusal(line, code, stamp(SystemClock().now()))))
        else:
            say(envelope_line(command, {}, [line])[0])
    return code


def _wants_json(argv: list[str]) -> bool:
    """Of a command line that may not be readable as a whole."""
    ours = set(_cut(argv)[0])
    if ours & {"--json", "--json-lines"}:
        return True
    if argv[:1] != ["run"]:
        return json_by_environment()
    return "--no-json" not in ours and (json_by_environment() or not sys.stdout.isatty())


options(run)
