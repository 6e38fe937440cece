"""What the user of a run should do now: in the flags of the front door that was used, with a command where no human is needed."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.options import OPTIONS, Option, RunOptions, spelled
from pytest_codeprobe.run.envelope import ErrorEntry
from pytest_codeprobe.run.final import Final
from pytest_codeprobe.text import Redactor, secret_values

_BY_NAME: Mapping[str, Option] = {option.name: option for option in OPTIONS}
#: code -> the setting that lets the same call go through, and its value. Callers run such a command without asking anybody: none may
#: give an agent more than the call did (less isolation, more permissions) or make a proof in the place of one that no longer fits
_CORRECTED: Mapping[str, tuple[str, str]] = {
    "CANARY_PROOF_REQUIRED": ("canary", "auto"),
    "TRACE_OVERFLOW_FIRED": ("trace-overflow", "truncate"),
    "TRACE_BUDGET_EXCEEDED": ("trace-overflow", "truncate"),
}
#: what a human has to ask for letter by letter: a slip that is near to one of these is not corrected
_BY_HAND = frozenset((("permission-mode", "bypassPermissions"), ("canary", "renew"), ("canary", "off"), ("driver", "tempdir")))
#: an override of `-D`, in whatever argument it stands
_SETTING = re.compile(r"(?:agent|sandbox|run_limits)[.=].*", re.DOTALL)
#: codes whose cause doctor looks for
_DOCTOR = frozenset((
    "NO_BACKENDS_CONFIGURED", "UNKNOWN_BACKEND", "OFFLINE_PREFLIGHT_FAILED", "CANARY_PROOF_FAILED", "LLM_UNAVAILABLE", "SANDBOX_FAILED",
    "AGENT_CRASHED", "WORKER_DIED",
))  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Invocation:
    """How this run was called: what can be typed again in the same folder."""

    program: tuple[str, ...]  #: `pytest`, or `codeprobe` and its command
    arguments: tuple[str, ...] = ()  #: as they were typed behind it
    console: bool = False  #: by `codeprobe`
    command: str = "run"  #: the envelope's: run, doctor
    reruns_failed: bool = False  #: pytest's --lf is there

    @property
    def is_private(self) -> bool:
        """Whether an argument holds a secret: one of the environment, or a value in an override that is named like a key.

        No command that is told has the arguments in it then: it would be kept in the run dir, and with a mark instead it would not work.
        """
        known = Redactor(secret_values(os.environ))
        if any(known.text(argument) != argument for argument in self.arguments):
            return True
        settings = [found[0] for argument in self.arguments if (found := _SETTING.search(argument)) is not None]
        return bool(settings) and any(map(_sets_secret, settings))

    def ours(self) -> tuple[str, ...]:
        """What is not behind `--`."""
        return self.arguments[: self.arguments.index("--")] if "--" in self.arguments else self.arguments

    def again(self, setting: str = "", value: str = "", *, failed_only: bool = False) -> tuple[str, ...]:
        """The same call with another value of one setting, into a run dir of its own."""
        at = self.arguments.index("--") if "--" in self.arguments else len(self.arguments)
        ours, rest = list(self.arguments[:at]), list(self.arguments[at:])
        for name in filter(None, ("run-dir", setting)):
            ours = _without(ours, _BY_NAME[name], console=self.console)
        if setting:
            ours += _given(_BY_NAME[setting], value, console=self.console)
        if failed_only and self.console:
            rest = [*(rest or ["--"]), *(["--lf"] if "--lf" not in rest else [])]
        elif failed_only and "--lf" not in ours:
            ours.append("--lf")
        return (*self.program, *ours, *rest)

    def resumed(self, run_dir: str) -> tuple[str, ...]:
        """The same call, to go on with what it has left in its run dir."""
        at = self.arguments.index("--") if "--" in self.arguments else len(self.arguments)
        ours, rest = list(self.arguments[:at]), list(self.arguments[at:])
        resume, place = _BY_NAME["resume"], _BY_NAME["run-dir"]
        flags = {resume.flag, *resume.cli}
        ours = [argument for argument in _without(ours, place, console=self.console) if argument not in flags]
        ours += [resume.cli[0] if self.console else resume.flag, *_given(place, run_dir, console=self.console)]
        return (*self.program, *ours, *rest)

    def help(self) -> tuple[str, ...]:
        """What lists the flags."""
        return (*self.program, "--help")

    def doctor(self, agent: str | None) -> tuple[str, ...]:
        """Doctor, for the agent that the run uses."""
        if self.console:
            return (self.program[0], "doctor", *(("--agent", agent) if agent else ()), "--json")
        return (*self.program, "--codeprobe-doctor", *((f"--codeprobe-agent={agent}",) if agent else ()))


def _sets_secret(setting: str) -> bool:
    from pytest_codeprobe.tasks.overrides import secrets_in  # loads YAML

    with contextlib.suppress(CodeprobeError):  # one that is refused, or none at all
        return any(secrets_in([setting]))
    return False


def _given(option: Option, value: str, *, console: bool) -> list[str]:
    return [option.cli[0], value] if console else [f"{option.flag}={value}"]


def _without(arguments: Sequence[str], option: Option, *, console: bool) -> list[str]:
    """The arguments without an option that takes a value, however it is spelled."""
    names = option.cli if console else (option.flag,)
    short = tuple(name for name in names if not name.startswith("--"))
    kept: list[str] = []
    value_follows = False
    for argument in arguments:
        if value_follows and not argument.startswith("-"):
            value_follows = False
            continue
        value_follows = argument in names
        if value_follows or argument.partition("=")[0] in names or (short and argument.startswith(short)):
            continue
        kept.append(argument)
    return kept


def addressed(line: ErrorEntry, called: Invocation, options: RunOptions | None = None) -> ErrorEntry:
    """The line as the user of this front door needs it."""
    return dataclasses.replace(
        line,
        message=spelled(line.message, console=called.console),
        remediation=spelled(line.remediation, console=called.console),
        command=line.command or _command(line, called, options),
    )


def _command(line: ErrorEntry, called: Invocation, options: RunOptions | None) -> tuple[str, ...] | None:
    correction = _correction(line.code, line.detail)
    if correction is not None and called.command == "run":
        now = getattr(options, _BY_NAME[correction[0]].field, None)
        if now != correction[1]:
            return None if called.is_private else called.again(*correction)
    if line.code == "INTERRUPTED" and called.command == "run" and line.detail.get("run_dir") and not called.is_private:
        return called.resumed(str(line.detail["run_dir"]))
    if line.code == "NO_TASKS" and "rootdir" in line.detail:
        return ("pytest", "--collect-only", "-q", str(line.detail["rootdir"]))
    if line.code in _DOCTOR and called.command != "doctor":
        agent = line.detail.get("agent") if line.code != "UNKNOWN_BACKEND" else None
        return called.doctor(agent or (options.agent if options is not None and line.code != "UNKNOWN_BACKEND" else None))
    return called.help() if line.code == "USAGE_ERROR" else None


def _correction(code: str, detail: Mapping[str, Any]) -> tuple[str, str] | None:
    """The setting and the value that were meant."""
    setting, value, known = detail.get("setting"), detail.get("value"), detail.get("choices", ())
    if setting is None and code == "UNKNOWN_BACKEND":
        setting, value, known = "agent", detail.get("agent"), detail.get("known", ())
    elif setting is None and "driver" in detail and code == "USAGE_ERROR":
        setting, value, known = "driver", detail["driver"], detail.get("available", ())
    if setting is not None:
        meant = nearest(str(value), known)
        return None if meant is None or (setting, meant) in _BY_HAND else (str(setting), meant)
    return _CORRECTED.get(code)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """What was probably meant."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)), None)


def next_steps(
    finals: Sequence[Final], errors: Sequence[ErrorEntry], exit_code: int, called: Invocation, trials: Path | None
) -> list[dict[str, Any]]:
    """What to do after a run that has failed or is inconclusive; nothing after a terminal error. `trials`: the run's folder of them."""
    if exit_code not in (1, 6) or any(error_codes()[e.code].terminal for e in errors):
        return []
    steps: list[dict[str, Any]] = []
    for status, what in (("failed", "Read why {} failed"), ("error", "Read what kept {} from a verdict")):
        first = next((f for f in finals if f.status == status and not f.expected and f.folder is not None), None)
        if first is not None and trials is not None:
            steps.append({"summary": what.format(first.node_id), "command": ["cat", str(trials / str(first.folder) / "result.json")]})
    if any(f.status == "error" for f in finals):
        agent = next((f.agent for f in finals if f.status == "error" and f.agent), None)
        steps.append({"summary": "See whether this machine has what the run needs", "command": list(called.doctor(agent))})
    missed, cut = (any(f.status in statuses for f in finals) for statuses in (("failed", "error"), ("not_run",)))
    if called.reruns_failed and missed and not cut and not called.is_private:
        steps.append({"summary": "Run what did not pass once more", "command": list(called.again(failed_only=True))})
    return steps
