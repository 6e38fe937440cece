"""`codeprobe` and its commands."""

from __future__ import annotations

import os
import sys
from typing import Any

import click
import pytest

from pytest_codeprobe import __version__
from pytest_codeprobe.cli.experiment import experiment
from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.model.clock import SystemClock, stamp
from pytest_codeprobe.options import BUILT
from pytest_codeprobe.run.envelope import refusal
from pytest_codeprobe.text import json_line, one_line

_BEHIND = "pytest's own options go behind --, such as: codeprobe run -- --lf"
_CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=_CONTEXT)
@click.version_option(__version__, prog_name="codeprobe")
def group() -> None:
    """Run coding agents on tasks, as pytest does, for scripts and agents that want a fixed contract."""


def _options(command: click.Command) -> click.Command:
    for option in reversed(BUILT):
        names = [*option.cli, option.field]
        text = option.help + ("" if option.kind == "flag" else f"  [default: {option.default}]")
        flag = option.kind == "flag"
        command.params.insert(0, click.Option(names, is_flag=flag, default=None, metavar=None if flag else option.metavar, help=text))
    return command


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
    ctx.exit(start(_arguments(values, list(paths), list(ctx.obj or ()))))


def _arguments(values: dict[str, Any], paths: list[str], rest: list[str]) -> list[str]:
    chosen = [name for name in ("json", "json_lines", "no_json") if values.get(name)]
    if len(chosen) > 1:
        spelled = " and ".join("--" + name.replace("_", "-") for name in chosen)
        raise CodeprobeError("USAGE_ERROR", f"{spelled} exclude each other")
    arguments = ["--codeprobe-console"]
    for option in BUILT:
        value = values.get(option.field)
        if option.name in ("json", "json-lines") or value is None or value is False:
            continue
        arguments.append(f"{option.flag}={value}" if option.kind != "flag" else option.flag)
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


class _Reached:
    """A plugin that tells whether pytest came as far as ours, which from there on answers for the envelope."""

    yes = False

    def pytest_load_initial_conftests(self) -> None:
        self.yes = True


def start(arguments: list[str]) -> int:
    """Run pytest in this process; its exit code. USAGE_ERROR where it refuses its command line before any plugin has a say."""
    reached = _Reached()
    try:
        # by name, for those who switch off the loading of installed plugins
        code = int(pytest.main(["-p", "codeprobe", *arguments], plugins=[reached]))
    except ImportError as error:  # -p with a plugin that is not there
        if reached.yes:
            raise
        raise CodeprobeError("USAGE_ERROR", one_line(str(error), 1000)) from error
    if code and not reached.yes:
        raise CodeprobeError("USAGE_ERROR", "pytest refused its command line or configuration; what it says is on stderr")
    return code


def main(argv: list[str] | None = None) -> None:
    """The console script: every refusal has an envelope where JSON is wanted."""
    given = list(sys.argv[1:] if argv is None else argv)
    head, tail = _cut(given)
    try:
        code = group.main(head, prog_name="codeprobe", standalone_mode=False, obj=tail)
    except click.exceptions.Abort:  # Ctrl-C outside of pytest
        sys.exit(_refuse(given, CodeprobeError("INTERRUPTED", "interrupted"), None))
    except click.ClickException as error:
        foreign = isinstance(error, click.NoSuchOption) and given[:1] == ["run"]
        remedy = _BEHIND if foreign else None
        sys.exit(_refuse(given, CodeprobeError("USAGE_ERROR", error.format_message(), remediation=remedy), error))
    except CodeprobeError as wrong:
        sys.exit(_refuse(given, wrong, None))
    sys.exit(code if isinstance(code, int) else 0)


def _cut(argv: list[str]) -> tuple[list[str], list[str]]:
    """What is ours, and what stands behind `--`."""
    at = argv.index("--") if "--" in argv else len(argv)
    return argv[:at], argv[at + 1 :]


def _refuse(argv: list[str], error: CodeprobeError, shown: click.ClickException | None) -> int:
    code = error_codes()[error.code].exit_code
    if shown is not None:
        shown.show(file=sys.stderr)
        if error.remediation == _BEHIND:
            click.echo(_BEHIND, err=True)
    else:
        click.echo(f"ERROR: {error.code}: {error.message}\n  {error.remediation}", err=True)
    if _wants_json(argv):
        line = json_line(refusal(error, code, stamp(SystemClock().now())))
        try:
            click.echo(line)
        except OSError:
            sys.stdout = None  # closed by its reader: nothing is left to be flushed
    return code


def _wants_json(argv: list[str]) -> bool:
    """Of a command line that may not be readable as a whole."""
    ours = set(_cut(argv)[0])
    if argv[:1] != ["run"]:
        return False
    if ours & {"--json", "--json-lines"}:
        return True
    return "--no-json" not in ours and (os.environ.get("CODEPROBE_JSON", "").strip() not in ("", "0") or not sys.stdout.isatty())


_options(run)
group.add_command(experiment)
