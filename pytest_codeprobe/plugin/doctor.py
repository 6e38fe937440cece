"""`--codeprobe-doctor`, and behind it `codeprobe doctor`: in pytest's process, so that conftest.py, ini and plugins count.

No session of pytest begins, nothing is collected.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_codeprobe.errors import error_codes
from pytest_codeprobe.options import spelled
from pytest_codeprobe.plugin.refusal import called, refusal_line, refused
from pytest_codeprobe.plugin.state import STATE, State
from pytest_codeprobe.plugin.stdout import OUTPUT
from pytest_codeprobe.run.doctor import Check, Subject, as_data, examine, faults
from pytest_codeprobe.run.envelope import answer
from pytest_codeprobe.run.remedy import addressed
from pytest_codeprobe.tasks.availability import check_driver
from pytest_codeprobe.text import json_line

if TYPE_CHECKING:
    from pytest_codeprobe.model.agent import Agent
    from pytest_codeprobe.plugin.live import Live


def doctor(config: pytest.Config) -> int:
    """Configure pytest, look at everything, tell; the exit code."""
    try:
        return _doctor(config)
    except pytest.UsageError as error:  # pytest says it on stderr
        _end(config, error)
        raise
    except KeyboardInterrupt as stop:  # while it probes
        _end(config, stop)
        return error_codes()["INTERRUPTED"].exit_code
    except Exception as fault:  # noqa: BLE001  # a conftest.py's or ours; pytest would end with a bare traceback and exit 1
        traceback.print_exc(file=sys.stderr)
        _end(config, fault)
        return error_codes()["INTERNAL_ERROR"].exit_code


def _doctor(config: pytest.Config) -> int:
    scratch = _scratch()
    config._do_configure()  # not public: what --markers and --help do; it runs pytest_configure, and pytest itself undoes it
    state = config.stash[STATE]
    live = state.collecting()
    subject = Subject(
        context=live.context,
        chosen=_chosen(state, live),
        scratch=scratch,
        runs=state.run_dir if state.options.run_dir is not None else state.run_dir.parent,
    )
    checks = examine(subject)
    if config.option.codeprobe_doctor_probe:
        from pytest_codeprobe.run.doctor.probe import probe_chosen

        live.register()  # whoever makes the sandboxes of a run makes this one too
        checks.append(probe_chosen(subject, live.make_sandbox))
    invocation = called(config)
    errors = [addressed(line, invocation, state.options) for line in faults(checks)]
    code = error_codes()[errors[0].code].exit_code if errors else 0
    _tell(checks)
    output = config.stash.get(OUTPUT, None)
    if output is not None:
        warnings = [spelled(w, console=state.options.console) for w in live.warnings]
        output.envelope(json_line(answer("doctor", as_data(subject, checks), code, errors=errors, warnings=warnings)))
    return code


def _scratch() -> Path:
    """The system's temporary folder. Where none can be written Python has none; it is looked at all the same."""
    try:
        return Path(tempfile.gettempdir())
    except FileNotFoundError:
        tempfile.tempdir = os.environ.get("TMPDIR") or "/tmp"
        return Path(tempfile.tempdir)


def _chosen(state: State, live: Live) -> Agent | None:
    """What flag, environment or ini names; refused where there is no such agent or driver."""
    from pytest_codeprobe.errors import CodeprobeError

    options = state.options
    try:
        if options.driver is not None:
            check_driver(options.driver, live.registry.drivers, "--codeprobe-driver")
        return live.registry.agent(options.agent) if options.agent is not None else None
    except CodeprobeError as error:
        raise refused(error, state.config) from error


def _end(config: pytest.Config, error: BaseException) -> None:
    output = config.stash.get(OUTPUT, None)
    if output is not None:
        output.envelope(refusal_line(error, config))


def _tell(checks: Sequence[Check]) -> None:
    """For people. In the JSON modes this goes to stderr, as pytest's report does."""
    if sys.stdout is None:  # closed from the start
        return
    try:
        for line in _lines(checks):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()
    except OSError:  # its reader has gone, or its disk is full
        sys.stdout = None


def _lines(checks: Sequence[Check]) -> Iterator[str]:
    width = max(len(check.name) for check in checks)
    for check in checks:
        yield f"{check.status}  {check.name:<{width}}  {check.message}"
        if check.fix and check.status in ("warn", "fail"):
            yield f"{'':<{width + 8}}fix: {check.fix}"
    tally = [f"{n} {status}" for status in ("pass", "info", "warn", "fail") if (n := sum(c.status == status for c in checks))]
    yield ", ".join(tally)
