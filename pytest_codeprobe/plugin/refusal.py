"""From an exception that ended the run to a code of the contract."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError, error_codes
from pytest_codeprobe.model.clock import SystemClock, stamp
from pytest_codeprobe.options import spelled
from pytest_codeprobe.plugin.stdout import Output
from pytest_codeprobe.run.envelope import answer, entry, refusal
from pytest_codeprobe.run.remedy import Invocation, addressed
from pytest_codeprobe.text import json_line, one_line

_TRACEBACK = "Traceback (most recent call last)"
_OF_A_WORKER = "received keyboard-interrupt"  #: how xdist names the worker that was interrupted: which one is no matter


def _code_alone(refusal: Any) -> str:
    return str(refusal.msg).partition(":")[0]


#: before the session pytest tells of an exit twice: on stderr in full, and by its reporter, for which the code is enough
_EARLY: Any = type("Refused", (pytest.exit.Exception,), {"__module__": "codeprobe", "__str__": _code_alone, "__repr__": _code_alone})


def refused(error: CodeprobeError, config: pytest.Config, *, early: bool = False) -> BaseException:
    """The error as pytest takes it: told without a traceback, with its exit code. Raise it `from` the error itself.

    `early`: there is no session yet.
    """
    remedy = f"\n  {error.remediation}" if error.remediation else ""
    text = spelled(f"{error.code}: {error.message}{remedy}", console=bool(_given(config, "codeprobe_console")))
    code = error_codes()[error.code].exit_code
    if code == pytest.ExitCode.USAGE_ERROR:
        return pytest.UsageError(text)
    made: BaseException = (_EARLY if early else pytest.exit.Exception)(text, returncode=code)
    return made


def refusal_in(error: BaseException | None) -> CodeprobeError | None:
    """The error that refused() made this of; None if it is something else."""
    made = isinstance(error, pytest.UsageError | pytest.exit.Exception)
    return error.__cause__ if error is not None and made and isinstance(error.__cause__, CodeprobeError) else None


def called(config: pytest.Config) -> Invocation:
    """How this pytest was started."""
    command = "doctor" if _given(config, "codeprobe_doctor") else "run"
    has_lf = config.pluginmanager.hasplugin("lfplugin")
    if typed := _given(config, "codeprobe_console"):
        program, name, *rest = json.loads(str(typed))
        return Invocation(program=(program, name), arguments=tuple(rest), console=True, command=command, reruns_failed=has_lf)
    arguments = tuple(map(str, config.invocation_params.args))
    return Invocation(program=_pytest(), arguments=arguments, command=command, reruns_failed=has_lf)


def _given(config: pytest.Config, name: str) -> object:
    """An option's value, also where pytest has not got as far as config.option."""
    return getattr(config.option, name, None) or getattr(config.known_args_namespace, name, None)


def _pytest() -> tuple[str, ...]:
    """What starts this pytest from a shell."""
    script = Path(sys.argv[0])
    if script.name == "__main__.py" and script.parent.name == "pytest":
        return (sys.executable, "-m", "pytest")
    found = shutil.which(script.name) if script.name in ("pytest", "py.test") else None
    if found is not None or script.name not in ("pytest", "py.test"):
        return (script.name if found is not None else "pytest",)
    return (str(script.absolute()),)


def as_error(error: BaseException) -> CodeprobeError:
    """The code that an exception means for the run."""
    if isinstance(error, CodeprobeError):
        return error
    if (reason := refusal_in(error)) is not None:
        return reason
    text = one_line(str(error), 1000) or type(error).__name__
    if type(error).__name__ == "ConftestImportFailure":
        return CodeprobeError("USAGE_ERROR", text, remediation="Correct that conftest.py, or install what it imports.")
    if isinstance(error, pytest.UsageError):
        return CodeprobeError("USAGE_ERROR", text)
    if isinstance(error, KeyboardInterrupt | pytest.exit.Exception):
        return CodeprobeError("INTERRUPTED", stop_text(error))
    if _TRACEBACK in str(error):  # a worker's: xdist's controller raises its text by `assert False, text`
        lines = [line for line in str(error).splitlines() if line.strip() not in ("", "assert False")]
        return CodeprobeError("INTERNAL_ERROR", one_line(lines[-1], 1000))
    return CodeprobeError("INTERNAL_ERROR", f"{type(error).__name__}: {text}")


def usage_of(error: BaseException | None) -> dict[str, Any] | None:
    """What refused a worker's session, for its controller."""
    if error is None or (not isinstance(error, pytest.UsageError) and refusal_in(error) is None):
        return None
    reason = as_error(error)
    return {"code": reason.code, "message": reason.message, "remediation": reason.remediation, "detail": reason.detail, "text": str(error)}


def stop_text(stop: BaseException | None) -> str:
    """Why pytest ended its loop, in one line: the reason of pytest.exit(), say."""
    text = one_line(str(stop or ""), 1000)
    return text if text and not text.endswith(_OF_A_WORKER) else "interrupted"


def no_run(config: pytest.Config, output: Output) -> pytest.ExitCode:
    """Where a flag of pytest's or of a plugin's made it end before anything could run: USAGE_ERROR, told to both readers."""
    error = CodeprobeError(
        "USAGE_ERROR",
        "a flag that lists or explains something, such as --help, --version, --fixtures or --markers, ended pytest before it ran anything",
        remediation="What it says is on stderr. Leave the flag out, or ask for it without JSON.",
    )
    sys.stderr.write(f"ERROR: {refused(error, config)}\n")
    output.envelope(refusal_line(error, config))
    return pytest.ExitCode.USAGE_ERROR


def refusal_line(error: BaseException, config: pytest.Config) -> str:
    """The envelope of a run that ended before its session."""
    reason = as_error(error)
    code = error_codes()[reason.code].exit_code
    if isinstance(error, pytest.exit.Exception) and error.returncode is not None:
        code = error.returncode  # no hook can change it any more
    if isinstance(error, SystemExit) and error is sys.exc_info()[1]:  # on its way out of the process, caught by nobody
        reason = CodeprobeError("USAGE_ERROR", f"a conftest.py or a plugin ended the process: SystemExit({error.code!r})")
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    invocation = called(config)
    line = addressed(entry(reason), invocation)
    if invocation.command != "run":
        return json_line(answer(invocation.command, {}, code, errors=[line]))
    return json_line(refusal(line, code, stamp(SystemClock().now())))
