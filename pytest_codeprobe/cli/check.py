"""`codeprobe check`: whether tasks can be trusted. Their own solutions must pass, every time, and doing nothing must not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import click

from pytest_codeprobe.cli.answers import complain, json_by_environment, say
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.run.envelope import ErrorEntry, answer
from pytest_codeprobe.text import json_line

Finding = Literal["ok", "flaky", "unsolvable", "trivial", "broken", "not_checkable"]
_WORDS: Mapping[Finding, str] = {
    "ok": "fine",
    "flaky": "FLAKY: its own solution passes at times",
    "unsolvable": "UNSOLVABLE: its own solution never passes",
    "trivial": "TRIVIAL: it passes without any work",
    "broken": "BROKEN: it ended in an error",
    "not_checkable": "not checkable",
}
_BAD: tuple[Finding, ...] = ("flaky", "unsolvable", "trivial", "broken")
_KEY = ("task_id", "variant_id", "row_id")


@dataclass(slots=True)
class _Checked:
    """What the two runs say of one task, row and variant."""

    name: str
    oracle: list[Mapping[str, Any]] = field(default_factory=list)
    nop: list[Mapping[str, Any]] = field(default_factory=list)

    @property
    def passes(self) -> str:
        """`2/3` of the oracle's repeats."""
        verdicts = [r for r in self.oracle if r["status"] in ("passed", "failed")]
        return f"{sum(r['status'] == 'passed' for r in verdicts)}/{len(verdicts)}"

    def finding(self) -> tuple[Finding, str]:
        """What is to be said of it, and why."""
        broken = next((r for r in (*self.oracle, *self.nop) if r["status"] == "error"), None)
        if broken is not None:
            return "broken", f"{broken['code']}: {broken['reason']}"
        statuses = {r["status"] for r in self.oracle}
        if {"passed", "failed"} <= statuses:
            failed = next(r for r in self.oracle if r["status"] == "failed")
            return "flaky", f"{self.passes} times: {failed['reason']}"
        if "failed" in statuses:
            return "unsolvable", str(self.oracle[0]["reason"])
        if any(r["status"] == "passed" for r in self.nop):
            return "trivial", ""
        left = next((r for r in (*self.oracle, *self.nop) if r["status"] in ("skipped", "not_run")), None)
        return ("not_checkable", str(left["reason"])) if left is not None else ("ok", "")


@click.command(short_help="Check tasks with their own solutions, and with no work at all.")
@click.option("--times", metavar="N", default=3, show_default=True, type=click.IntRange(1, 99), help="How often each solution must pass.")
@click.option("-j", "--max-parallel", "jobs", metavar="N", default=None, help="Trials at once.")
@click.option("-k", "keyword", metavar="EXPR", help="pytest's -k: select by name or tag.")
@click.option("--experiment", "-e", "experiment", metavar="X", help="Experiment file, or the bare name of one.")
@click.option("--driver", metavar="D", help="Kind of sandbox.")
@click.option("--json", "as_json", is_flag=True, help="One line of JSON, in the envelope's form.")
@click.argument("paths", nargs=-1, metavar="[PATH]...", type=click.UNPROCESSED)
@click.pass_context
def check(
    ctx: click.Context,
    paths: tuple[str, ...],
    times: int,
    jobs: str | None,
    keyword: str | None,
    experiment: str | None,
    driver: str | None,
    as_json: bool,
) -> None:
    """Run agent `oracle`, which applies each task's own solution, N times, and `nop`, which does nothing, on the tasks below PATH.

    It also warns of test runners that files of the workspace can tell to succeed, where those files are not protected.

    Exit code 1 where a solution fails at times or always, or a task passes without any work; 6 where a trial ended in an error.
    """
    as_json = as_json or json_by_environment()
    flags = [*paths, *(["-k", keyword] if keyword else []), "-m", "codeprobe"]
    given = {"jobs": jobs, "experiment": experiment, "driver": driver}
    flags += [f"--codeprobe-{name}={value}" for name, value in given.items() if value is not None]
    _headline(f"each task's own solution, {times} times: all must pass", quiet=as_json)
    oracle = _run("oracle", [*flags, f"--codeprobe-repeats={times}"], quiet=as_json)
    _headline("no work at all: all must fail", quiet=as_json)
    wanted = ("--tb=no", "-rE")  # its failures are what is hoped for: nobody has to read why
    nop = _run("nop", [*flags, "--codeprobe-repeats=1", *wanted], quiet=as_json)
    found = _together(oracle, nop)
    findings = {name: checked.finding() for name, checked in found.items()}
    code = _exit_code([finding for finding, _ in findings.values()])
    warnings = list(dict.fromkeys((*oracle["warnings"], *nop["warnings"])))
    if as_json:
        data = {
            "tasks": [
                {**dict(zip(_KEY, name, strict=True)), "finding": findings[name][0], "why": findings[name][1], "oracle": found[name].passes}
                for name in found
            ],
            "run_dirs": {"oracle": oracle["data"]["run_dir"], "nop": nop["data"]["run_dir"]},
        }
        say(json_line(answer("check", data, code, warnings=warnings)))
    else:
        for line in _lines(found, findings):
            say(line)
        for warning in warnings:
            say(f"warning: {warning}")
        say(f"run dirs: {oracle['data']['run_dir']} (oracle), {nop['data']['run_dir']} (nop)")
    ctx.exit(code)


def _headline(text: str, *, quiet: bool) -> None:
    """On stderr, above what pytest says there."""
    if not quiet:
        click.echo(f"\n--- {text}", err=True)


def _run(agent: str, flags: Sequence[str], *, quiet: bool) -> dict[str, Any]:
    """The envelope of a run in a process of its own: pytest does not like to run twice in one. CodeprobeError where it was refused."""
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "codeprobe",
        "-q",
        f"--codeprobe-agent={agent}",
        "--codeprobe-check",
        "--codeprobe-json",
        *flags,
    ]
    env = {name: value for name, value in os.environ.items() if name != "PYTEST_ADDOPTS"}
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=None if not quiet else subprocess.DEVNULL)
    try:
        envelope: dict[str, Any] = json.loads(done.stdout)
    except ValueError as fault:
        said = "pytest refused its command line or configuration; what it says is on stderr"
        raise CodeprobeError("USAGE_ERROR", said) from fault
    for error in envelope["errors"]:
        line = ErrorEntry(error["code"], error["message"], error["remediation"], detail=error["detail"])
        if envelope["exit_code"] in (2, 3, 4) or (envelope["exit_code"] == 5 and not envelope["data"]["results"]):
            raise CodeprobeError(line.code, line.message, remediation=line.remediation, detail=line.detail)
        if not quiet and error["code"] != "NO_TASKS":
            complain(line)
    return envelope


def _together(oracle: Mapping[str, Any], nop: Mapping[str, Any]) -> dict[tuple[Any, ...], _Checked]:
    found: dict[tuple[Any, ...], _Checked] = {}
    for envelope, which in ((oracle, "oracle"), (nop, "nop")):
        for result in envelope["data"]["results"]:
            key = tuple(result[name] for name in _KEY)
            parts = [f"row-{key[2]}"] * bool(key[2]) + [str(key[1])] * bool(key[1] and key[1] != "default")
            name = f"{key[0]}[{'-'.join(parts)}]" if parts else str(key[0])
            getattr(found.setdefault(key, _Checked(name)), which).append(result)
    return found


def _exit_code(findings: Sequence[Finding]) -> int:
    if any(finding in _BAD and finding != "broken" for finding in findings):
        return 1
    if "broken" in findings:
        return 6
    return 0 if "ok" in findings else 5


def _lines(found: Mapping[tuple[Any, ...], _Checked], findings: Mapping[tuple[Any, ...], tuple[Finding, str]]) -> Iterator[str]:
    for name, (finding, why) in findings.items():
        if finding != "ok":
            yield f"{found[name].name}: {_WORDS[finding]}" + (f": {why}" if why else "")
    counts = {word: sum(finding == word for finding, _ in findings.values()) for word in _WORDS}
    told = ", ".join(f"{number} {word.replace('_', ' ')}" for word, number in counts.items() if number)
    yield f"{len(findings)} checked: {told}"
