"""What a person reads of a trial that failed or could not be judged."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pluggy
import pytest

from pytest_codeprobe.amounts import dollars
from pytest_codeprobe.errors import CodeprobeError, did_you_mean
from pytest_codeprobe.model.result import CriterionResult, TrialResult
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.text import one_line, plain, shorten

_MAX_FILES = 20
_MAX_WARNINGS = 5
#: where no test can have skipped: of a skip that is raised in a hook of ours, whose frame is hidden, pytest finds the frame around it
_NO_PLACES = (Path(__file__).parents[1], Path(pluggy.__file__).parent)


class _Told(Exception):
    """Its message is all that is shown."""


def told(record: TrialResult, excinfo: pytest.ExceptionInfo[BaseException], text: str, path: Path, line: int) -> object:
    """The text as pytest's representation of a failure: no traceback, and a head line of its own.

    pytest takes the head line for the short summary, `--tb=line` and JUnit's message. A plain string would put the whole text there.
    """
    carrier = _Told(text).with_traceback(excinfo.value.__traceback__)
    shown = pytest.ExceptionInfo.from_exception(carrier).getrepr(style="value", tbfilter=False, chain=False)
    if shown.reprcrash is not None:
        shown.reprcrash.path, shown.reprcrash.lineno, shown.reprcrash.message = str(path), line, head_line(record)
    return shown


def head_line(record: TrialResult) -> str:
    """One line on why a trial is not passed: what was missed, or the code with its reason."""
    reason = one_line(plain(record.reason or ""), 300)
    if record.status == "error":
        return f"{record.code}: {reason}" if reason else str(record.code)
    limit = record.limit_hit
    if limit is not None and f"limit {limit.name}" not in reason:
        reason += f"{'; ' if reason else ''}limit {limit.name} = {limit.value:g} was hit"
    return reason or "verdict fail"


def allowed_miss(trial: Trial | PlannedTrial, record: TrialResult) -> str | None:
    """What is said of a miss with which the gate over its repeats can still hold; None for any other record."""
    if record.miss is None or trial.min_passes is None or record.miss > trial.repeats - trial.min_passes:
        return None
    return f"miss {record.miss} of {trial.repeats - trial.min_passes} allowed"


def failure_text(record: TrialResult, run_dir: str | None) -> str:
    """Criteria, limit, the agent's last words, changed files, cost, where the rest lies."""
    return "\n".join(_failure(record, run_dir))


def _failure(record: TrialResult, run_dir: str | None) -> Iterator[str]:
    score = "none" if record.score is None else f"{record.score:.2f}"
    verdict = "pass" if record.verdict == "passed" else "fail"
    yield f"{record.task_id}: verdict {verdict}, score {score}" + (
        f", pass_score {record.pass_score:.2f}" if record.pass_score is not None else ""
    )
    yield ""
    yield from criteria_table(record.criteria)
    if record.limit_hit is not None:
        yield ""
        yield f"limit hit: {record.limit_hit.name} = {record.limit_hit.value:g}"
    if record.dialog is not None:
        yield ""
        number = len(record.dialog.exchanges)
        yield f"dialog with {record.dialog.user.name}: {number} exchange{'s' * (number != 1)}, ended by {record.dialog.stop}"
    if record.final_message:
        yield ""
        yield "the agent's last message:"
        yield from _indented(shorten(plain(record.final_message), 1200))
    yield ""
    yield from (f"warning: {one_line(plain(w), 400)}" for w in record.warnings[:_MAX_WARNINGS])
    yield from _changes(record)
    yield f"cost: {money(record.cost_usd)}"
    yield from _where(record, run_dir)


def harness_text(record: TrialResult, run_dir: str | None) -> str:
    """Phase, code, the CLI's own stderr, the remedy."""
    return "\n".join(_harness(record, run_dir))


def _harness(record: TrialResult, run_dir: str | None) -> Iterator[str]:
    yield f"{record.task_id}: error in phase {record.phase or 'set-up'}: {record.code}"
    yield from _indented(plain(record.reason or ""))
    if record.remediation:
        yield f"what to do: {plain(record.remediation)}"
    if record.stderr_tail.strip():
        yield "the agent's stderr ends with:"
        yield from _indented(shorten(plain(record.stderr_tail.strip()), 1500))
    yield from _where(record, run_dir)


def no_fixture(error: pytest.FixtureLookupError) -> CodeprobeError:
    """Of a task that names a fixture which nobody defines; pytest's own words show a function of ours, and every fixture there is."""
    name = str(error.argname)
    shown = " ".join(str(getattr(error.formatrepr(), "errorstring", "")).split())
    found = re.search(r"available fixtures: ([\w, ]+)", shown)
    return CodeprobeError(
        "FIXTURE_FAILED",
        f"fixture {name!r} is not defined{did_you_mean(name, found[1].split(', ') if found is not None else ())}",
        remediation="Correct `fixtures` of the task, or define it in a conftest.py at or above the task's folder, or in a plugin.",
        detail={"fixture": name},
    )


def criteria_table(criteria: Sequence[CriterionResult]) -> Iterator[str]:
    """One line for each criterion; a longer reason goes on below it."""
    names = [one_line(c.description or c.type, 40) for c in criteria]
    width = max([9, *map(len, names)])
    yield f"       score  needs  weight  {'criterion':<{width}}  why"
    for name, c in zip(names, criteria, strict=True):
        mark = {"passed": "ok", "failed": "MISS", "left out": "-"}[c.verdict] if c.gate or c.verdict == "left out" else "info"
        score = "    -" if c.score is None else f"{c.score:5.2f}"
        first, *rest = plain(c.explanation).splitlines() or [""]
        yield f"  {mark:<4} {score}  {c.threshold:5.2f}  {c.weight:6g}  {name:<{width}}  {first}".rstrip()
        yield from (f"{'':<{31 + width}}{line}" for line in rest[:15])


def _changes(record: TrialResult) -> Iterator[str]:
    if not record.changed_total:
        yield "changed files: none"
        return
    yield f"changed files: {record.changed_total}"
    yield from (f"  {one_line(plain(f), 200)}" for f in record.changed_files[:_MAX_FILES])
    if record.changed_total > _MAX_FILES:
        yield f"  … and {record.changed_total - min(_MAX_FILES, len(record.changed_files))} more"


def _where(record: TrialResult, run_dir: str | None) -> Iterator[str]:
    if record.folder is not None and run_dir is not None:
        yield f"artifacts: {run_dir}/trials/{record.folder}"


def _indented(text: str) -> Iterator[str]:
    return (f"  {line}" for line in text.splitlines())


def money(cost: float | None) -> str:
    """Dollars; `unknown` is never shown as 0."""
    return "unknown" if cost is None else dollars(cost)


def place_skip(item: pytest.Item, report: pytest.TestReport) -> None:
    """A skip that was raised in here is said of the task's place, not of this file."""
    if isinstance(report.longrepr, tuple) and any(map(Path(report.longrepr[0]).is_relative_to, _NO_PLACES)):
        path, line, _ = item.reportinfo()
        report.longrepr = (str(path), (line or 0) + 1, report.longrepr[2])
