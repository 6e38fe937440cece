"""The tables of error codes in the docs and in SKILL.md, as error_codes.json makes them.

python -m tests.code_tables    writes them anew
"""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from pytest_codeprobe.errors import ErrorCode, error_codes
from pytest_codeprobe.options import spelled

ROOT = Path(__file__).resolve().parents[1]
SKILL = Path(str(importlib.resources.files("pytest_codeprobe").joinpath("skills", "codeprobe-run", "SKILL.md")))
_REGION = re.compile(r"(?<=<!-- codes -->\n).*?(?=<!-- end of codes -->)", re.DOTALL)


def _table(head: str, rows: Iterator[tuple[str, ...]]) -> str:
    names = head.split("|")
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)]) + "\n"


def for_agents() -> str:
    """The table of SKILL.md, in the flags of `codeprobe run`."""

    def action(row: ErrorCode) -> str:
        kind = "stop" if row.terminal or row.retryable == "no" else {"bounded": "retry", "after_fix": "repair"}[row.retryable]
        return spelled(f"{kind}: {row.summary} {row.remediation}", console=True)

    rows = (
        (f"`{r.code}`", r.kind, r.retryable, "yes" if r.terminal else "no", str(r.exit_code), action(r).replace("|", "\\|"))
        for r in error_codes().values()
    )
    return _table("code|kind|retryable|terminal|exit|what to do", rows)


#: what the printed command of a code does, as the tests show: `corrected` is the same call without the fault, `doctor` looks for the
#: cause, `look` prints something to read, `made` makes what is missing, `resume` goes on with the run, which a human decides. The others
#: need a person, or a change to a file
COMMANDS: Mapping[str, str] = {
    "INTERRUPTED": "resume",
    "USAGE_ERROR": "look",
    "NO_TASKS": "look",
    "NO_EXPERIMENT": "made",
    "UNKNOWN_BACKEND": "corrected",
    "INVALID_PERMISSION_MODE": "corrected",
    "CANARY_PROOF_REQUIRED": "corrected",
    "TRACE_OVERFLOW_FIRED": "corrected",
    "TRACE_BUDGET_EXCEEDED": "corrected",
    "NO_BACKENDS_CONFIGURED": "doctor",
    "SANDBOX_FAILED": "doctor",
    "AGENT_CRASHED": "doctor",
    "LLM_UNAVAILABLE": "doctor",
    "WORKER_DIED": "doctor",
    "OFFLINE_PREFLIGHT_FAILED": "doctor",
    "CANARY_PROOF_FAILED": "doctor",
}


def for_people() -> str:
    """The table of docs/codes.md, in the flags of pytest."""
    rows = (
        (
            f"`{r.code}`",
            str(r.exit_code),
            r.kind,
            "no: terminal" if r.terminal else r.retryable,
            COMMANDS.get(r.code, ""),
            r.summary.replace("|", "\\|"),
            r.remediation.replace("|", "\\|"),
        )
        for r in error_codes().values()
    )
    return _table("code|exit|kind|retryable|command|when|what to do", rows)


PAGES: Mapping[Path, Callable[[], str]] = {SKILL: for_agents, ROOT / "docs" / "codes.md": for_people}


def as_it_should_be(page: Path) -> str:
    """A page with its table made anew."""
    return _REGION.sub(lambda _: PAGES[page](), page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for each in PAGES:
        each.write_text(as_it_should_be(each), encoding="utf-8")
