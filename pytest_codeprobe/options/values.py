"""From what stands on the command line, in the environment and in the ini file to RunOptions. Standard library only."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_codeprobe.options.table import BUILT, NEEDS_VALUE, OUTCOMES, Option, RunOptions


def _error(code: str, message: str, **more: Any) -> Exception:
    from pytest_codeprobe.errors import CodeprobeError  # not at import: a plain pytest run pays for this module alone

    return CodeprobeError(code, message, **more)


def _word(option: str, text: str) -> str:
    """Text without spaces; USAGE_ERROR otherwise: no model has one in its name, and an expression of marks does."""
    if len(text.split()) > 1:
        raise _error(
            "USAGE_ERROR",
            f"{option}: {text!r} is no name of a model",
            remediation="To select tasks by mark use pytest's own -m (codeprobe run: behind --, as in `-- -m smoke`).",
        )
    return text.strip()


def _money(option: str, text: str) -> float:
    """US dollars, with or without `$`; USAGE_ERROR otherwise."""
    try:
        value = float(text.strip().removeprefix("$"))
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise _error("USAGE_ERROR", f"{option}: {text!r} is no amount of US dollars above 0, such as 2.50")
    return value


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SIZES = {"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "kib": 2**10, "mib": 2**20, "gib": 2**30}


def _with_unit(option: str, text: str, units: Mapping[str, float], what: str) -> float:
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    value = float(match[1]) * units[match[2]] if match and match[2] in units else math.nan
    if not (math.isfinite(value) and value > 0):
        raise _error("USAGE_ERROR", f"{option}: {text!r} is no {what}")
    return value


def _duration(option: str, text: str) -> float:
    """Seconds; USAGE_ERROR otherwise."""
    return _with_unit(option, text, _UNITS, "duration above 0, such as 90, 90s, 30m, 2h or 1d")


def _size(option: str, text: str) -> int:
    """Bytes; USAGE_ERROR otherwise."""
    return math.ceil(_with_unit(option, text, _SIZES, "number of bytes above 0, such as 1000000, 512KiB or 64MiB"))


def _switch(option: str, text: str) -> bool:
    """A flag from environment or ini; USAGE_ERROR if it is neither on nor off."""
    word = text.strip().lower()
    if word not in ("1", "true", "yes", "on", "0", "false", "no", "off"):
        raise _error("USAGE_ERROR", f"{option}: {text!r} is neither 1 nor 0")
    return word in ("1", "true", "yes", "on")


def _count(option: str, text: str, most: int) -> int:
    """A whole number from 1 to `most`; USAGE_ERROR otherwise."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= most:
        raise _error("USAGE_ERROR", f"{option}: {text!r} is not a whole number from 1 to {most}")
    return value


def _names(option: str, text: str) -> tuple[str, ...]:
    """Names between commas; USAGE_ERROR where one is empty."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names):
        raise _error("USAGE_ERROR", f"{option}: {text!r} has an empty name; write A,B")
    return names


def _share(option: str, text: str) -> float:
    """A number from 0 to 1, or a percentage; USAGE_ERROR otherwise."""
    word = text.strip()
    try:
        value = float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1:
        raise _error("USAGE_ERROR", f"{option}: {text!r} is no number from 0 to 1, such as 0.8 or 80%")
    return value


_READERS: Mapping[str, Callable[[str, str], Any]] = {
    "word": _word,
    "money": _money,
    "duration": _duration,
    "size": _size,
    "flag": _switch,
    "words": _names,
    "share": _share,
}


def _value(option: Option, spelled: str, text: str) -> Any:
    """The value of one option as RunOptions holds it; CodeprobeError with the option's code if it can't be read."""
    if text == NEEDS_VALUE or not text.strip():
        raise _error("USAGE_ERROR", f"{spelled} needs a value" + (f": {option.metavar}" if option.metavar else ""))
    if option.kind == "count":
        return _count(spelled, text, option.most)
    if reader := _READERS.get(option.kind):
        return reader(spelled, text)
    if option.kind == "choice":
        value = (option.cli_choices or {}).get(text.upper(), text)
        near = {c.lower(): c for c in option.choices}.get(value.lower())
        if near is None:
            raise _error(
                option.code,
                f"{spelled}: {text!r} is not one of {', '.join(option.choices)}",
                remediation=f"Use one of: {', '.join(option.choices)}."
                + (" Which one the agent gets is for a human to decide." if option.code == "INVALID_PERMISSION_MODE" else ""),
                detail={"option": spelled, "setting": option.name, "value": text, "choices": list(option.choices)},
            )
        return near
    return text


def _check_resume(values: dict[str, Any]) -> None:
    """Say what outcomes are meant; USAGE_ERROR where resume and rerun can't be."""
    if values["resume"] and values.get("run_dir") is None:
        raise _error(
            "USAGE_ERROR",
            "--codeprobe-resume needs --codeprobe-run-dir",
            remediation="Name the run dir of the run that is to be gone on with.",
        )
    if values["resume"] and values["dry_run"]:
        raise _error(
            "USAGE_ERROR",
            "--codeprobe-dry-run can't be given with --codeprobe-resume: it would write its own plan over that of the run",
            remediation="Leave out --codeprobe-resume and --codeprobe-run-dir for a dry run of everything.",
        )
    asked = values.get("rerun")
    if asked is None:
        return
    if not values["resume"]:
        raise _error("USAGE_ERROR", "--codeprobe-rerun is of use with --codeprobe-resume alone")
    wrong = [word for word in asked if word not in (*OUTCOMES, "all", "none")]
    if wrong or (len(asked) > 1 and {"all", "none"} & set(asked)):
        raise _error("USAGE_ERROR", f"--codeprobe-rerun: {','.join(asked)!r} is no list of {', '.join(OUTCOMES)}, nor all, nor none")
    values["rerun"] = OUTCOMES if asked == ("all",) else () if asked == ("none",) else asked


def resolve(command_line: Mapping[str, Any], environ: Mapping[str, str], ini: Callable[[str], Any], *, console: bool = False) -> RunOptions:
    """Precedence: flag > environment > ini > default. `command_line` maps Option.dest to what the parser stored."""
    values: dict[str, Any] = {}
    given: list[str] = []
    for option in BUILT:
        raw = command_line.get(option.dest)
        if option.kind == "flag":
            values[option.field] = raw = bool(raw)
            if raw:
                given.append(option.name)
                continue
            raw = None
        if option.kind == "list":
            values[option.field] = tuple(_value(option, option.flag, str(text)) for text in raw or ())
            given += [option.name] * bool(raw)
        elif raw is not None:
            given.append(option.name)
            values[option.field] = _value(option, option.flag, str(raw))
        elif (option.settable or option.environ) and environ.get(option.variable, "").strip():
            values[option.field] = _value(option, option.variable, environ[option.variable].strip())
        elif option.settable and (text := str(ini(option.dest) or "").strip()):
            values[option.field] = _value(option, f"ini {option.dest}", text)
    if values["json"] and values["json_lines"]:
        raise _error("USAGE_ERROR", "--codeprobe-json and --codeprobe-json-lines exclude each other")
    _check_resume(values)
    unknown = str(ini("codeprobe_unknown_fields"))
    if unknown not in ("error", "warn"):
        raise _error("USAGE_ERROR", f"ini codeprobe_unknown_fields: {unknown!r} is neither error nor warn")
    dialect = str(ini("codeprobe_dialect"))
    if dialect != "native" and dialect != "coder-eval":
        raise _error("USAGE_ERROR", f"ini codeprobe_dialect: {dialect!r} is neither native nor coder-eval")
    return RunOptions(
        **values,
        dialect="coder-eval" if dialect == "coder-eval" else "native",
        on_command_line=tuple(given),
        unknown_fields=unknown,
        template_roots=_words(ini("codeprobe_template_roots")),
        ahead_fixtures=_words(ini("codeprobe_ahead_fixtures")),
        runs_dir=str(ini("codeprobe_runs_dir")),
        offline_allow=_hosts(_words(ini("codeprobe_offline_allow"))),
        secrets=_words(ini("codeprobe_secrets")),
        bind=_words(ini("codeprobe_bind")),
        engine=str(ini("codeprobe_engine")).strip(),
        files=_words(ini("codeprobe_files")),
        ignore=_words(ini("codeprobe_ignore")),
        console=console,
    )


#: what ini codeprobe_offline_allow takes, by its shape
ALLOWED_HOST = re.compile(
    r"(?P<host>(?:\*\.)?\w(?:[\w.-]*\w)?\.?(?:/\d+)?|\[[0-9a-f:.]+\]|[0-9a-f]*:[0-9a-f:.]*:[0-9a-f:.]*(?:/\d+)?)(?::(?P<port>\d+))?",
    re.IGNORECASE,
)


def _hosts(words: tuple[str, ...]) -> tuple[str, ...]:
    """Hosts that can be read; USAGE_ERROR for one that can't."""
    for word in words:
        found = ALLOWED_HOST.fullmatch(word)
        good = found is not None and 0 < int(found["port"] or 1) < 1 << 16
        if good and found is not None and re.search("[/:]", found["host"]):
            import ipaddress  # of no use to other runs

            try:
                ipaddress.ip_network(found["host"].strip("[]"), strict=False)
            except ValueError:
                good = False
        if not good:
            raise _error(
                "USAGE_ERROR", f"ini codeprobe_offline_allow: {word!r} is no host, host:port, *.domain, address or network (and no URL)"
            )
    return words


def _words(value: Sequence[str] | str) -> tuple[str, ...]:
    return tuple(value.split()) if isinstance(value, str) else tuple(map(str, value))
