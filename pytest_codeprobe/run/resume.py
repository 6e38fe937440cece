"""Going on with a run that ended early: which of its results still hold, and what is done with those that do not."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.result import VERDICTS, Attempt, Fingerprint, TrialResult
from pytest_codeprobe.model.trial import Trial
from pytest_codeprobe.run.decision import Decision
from pytest_codeprobe.run.folder import RunFolder
from pytest_codeprobe.run.plan import PlannedTrial
from pytest_codeprobe.run.planfile import newest_plan, number_of
from pytest_codeprobe.run.proportion import gate_of
from pytest_codeprobe.sandboxes.sources import NOTES
from pytest_codeprobe.trial.fingerprint import changed

SCHEMA = "1"  #: of plan.json
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Earlier:
    """What a run dir holds of the run that is gone on with."""

    results: Mapping[str, TrialResult] = field(default_factory=dict)  #: by the folder of the trial
    began: Mapping[str, int] = field(default_factory=dict)  #: folder of a trial -> number of the attempt that began last

    def attempts(self, folder: str) -> tuple[Attempt, ...]:
        """All of a trial: of its result, and those that nobody could write a record of."""
        result = self.results.get(folder)
        known = result.attempts if result is not None else ()
        return (*known, *killed(known, self.began.get(folder, 0)))

    def spent(self, plan: Collection[PlannedTrial]) -> float:
        """What all attempts have cost, US dollars, as a ledger counts.

        One whose cost nobody knows counts as the most that its trial may cost, by the plan, or else as the dearest that is known.
        """
        most = {trial.folder: trial.limits.get("max_usd") for trial in plan}
        # also of trials that are not in this plan, and calls of tests
        paid = {
            folder: [attempt.bill.cost_usd for attempt in self.attempts(folder)] for folder in dict.fromkeys((*self.results, *self.began))
        }
        dearest = max((cost for costs in paid.values() for cost in costs if cost is not None), default=0.0)
        spent = 0.0
        for folder, costs in paid.items():
            bound = most.get(folder)
            unknown = dearest if bound is None else bound
            spent += sum(unknown if cost is None else cost for cost in costs)
        return spent


def killed(known: Sequence[Attempt], last: int, reason: str = "the run was killed") -> Iterator[Attempt]:
    """One for each number after the known ones up to `last`: it spent something, and nobody knows how much."""
    for number in range(following(known), last + 1):
        started = known[-1].started_at if known else ""
        yield Attempt(number=number, reason=reason, started_at=started, duration_seconds=0.0)


def following(attempts: Sequence[Attempt]) -> int:
    """Number of the attempt after these."""
    return attempts[-1].number + 1 if attempts else 1


def plan_of(run_dir: Path, rootdir: Path) -> dict[str, Any]:
    """The newest plan of a run dir. RESUME_MISMATCH where it is another project's or of a newer version; USAGE_ERROR: there is none."""
    plan = newest_plan(run_dir)
    if plan is None:
        raise CodeprobeError(
            "USAGE_ERROR",
            f"{run_dir} holds no run that could be resumed",
            remediation="Name the run dir of an earlier run, or leave --codeprobe-resume out.",
        )
    problems = []
    if str(plan.get("schema_version")) != SCHEMA:
        problems.append(f"it is written in schema {plan.get('schema_version')}, and this version reads {SCHEMA}")
    if plan.get("rootdir") != str(rootdir):
        problems.append(f"it was made for rootdir {plan.get('rootdir')}, not {rootdir}")
    if problems:
        raise CodeprobeError(
            "RESUME_MISMATCH",
            f"{run_dir}: {'; '.join(problems)}",
            remediation="Resume it where and with what it was made, or start a new run.",
            detail={"run_dir": str(run_dir), "rootdir": plan.get("rootdir"), "schema_version": plan.get("schema_version")},
        )
    return plan


def read_earlier(run_dir: Path, rootdir: Path) -> Earlier:
    """What a run dir holds; refuses as plan_of() does."""
    plan_of(run_dir, rootdir)
    return Earlier(results=dict(_results(run_dir)), began=_began(run_dir))


def _began(run_dir: Path) -> dict[str, int]:
    """Attempts that have begun. Of those that were killed with all who knew of them nobody could write a record.

    By the folder: a trial that becomes one of several repeats has another node id. What is told at a trial's end says nothing here: where
    it was not run, that was no word on the attempts before.
    """
    found: dict[str, int] = {}
    with contextlib.suppress(OSError), (run_dir / "events.ndjson").open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                event = json.loads(line)
                if event["event"] == "trial_started":
                    folder = str(event["folder"])
                    found[folder] = max(int(event["attempt"]), found.get(folder, 0))
    return found


def _results(run_dir: Path) -> Iterator[tuple[str, TrialResult]]:
    trials = run_dir / "trials"
    for folder, folders, files in os.walk(trials):
        folders[:] = sorted(name for name in folders if name != "artifacts" and not name.startswith("attempt-"))
        if "result.json" in files:
            found = RunFolder(run_dir).read_result(os.path.relpath(folder, trials))
            if found is not None:
                yield os.path.relpath(folder, trials), found


def make_way(run_dir: Path) -> list[tuple[Path, Path]]:
    """Put plan and lock file of the earlier run aside, and take away what told its processes something; what was put where. OSError."""
    moved = []
    for name in ("plan.json", "lock.json"):
        path = run_dir / name
        if path.exists():
            number = max((number_of(old) for old in run_dir.glob(f"{name}.*")), default=0) + 1
            moved.append((path, path.rename(run_dir / f"{name}.{number}")))
    for folder in ("stop", "spool"):
        for path in (run_dir / folder).glob("*"):
            path.unlink()
    for folder in ("gates", NOTES):
        _remove_places(run_dir / folder)
    return moved


def put_back(run_dir: Path, moved: Sequence[tuple[Path, Path]]) -> None:
    """Undo make_way() where the resumed run has come to no plan, as one that is refused at collection. OSError."""
    if not (run_dir / "plan.json").exists():
        for path, aside in moved:
            aside.rename(path)


def _remove_places(top: Path) -> None:
    for folder, _, files in os.walk(top, topdown=False):
        for name in files:
            Path(folder, name).unlink()
        Path(folder).rmdir()


def decide(
    trial: Trial,
    old: TrialResult | None,
    new: Fingerprint,
    *,
    began: int = 0,
    rerun: Sequence[str],
    versions: Mapping[str, str | None],
    deadline: float | None = None,
) -> Decision:
    """Whether the result of a trial still holds. `versions`: of the CLIs of agents, as they are now. `began`: its last attempt."""
    if old is None or not old.attempts:
        return Decision("run")
    if began >= following(old.attempts):  # that one's files are among those of the result by now
        return Decision("run", "the run was killed in a later attempt")
    # its session had a verdict, and counts unless what has one is run again anyway
    only_graded = old.regraded and old.status == "error" and old.kept == "whole" and not set(VERDICTS) <= set(rerun)
    if old.status in rerun and not only_graded:
        return Decision("run", f"it ended {old.status}")
    if old.status not in VERDICTS and old.status not in rerun:
        return Decision("keep")
    parts = changed(old.fingerprint.session, new.session)
    if old.agent is not None and old.agent.version and old.agent.name in versions:
        now = versions[old.agent.name]
        if now is not None and now != old.agent.version:
            parts.append(f"version of {old.agent.name} ({old.agent.version} -> {now})")
    if parts:
        return Decision("run", f"changed: {', '.join(parts)}")
    if (raised := _raised_limit(trial, old, deadline)) is not None:
        return Decision("run", raised)
    if old.status not in VERDICTS:
        return Decision("grade", f"it ended {old.status} when it was graded again")
    parts = [part for part in changed(old.fingerprint.grade, new.grade) if part != "on_limit" or old.limit_hit is not None]
    if not parts:
        return Decision("keep")
    what = f"changed: {', '.join(parts)}"
    return Decision("grade", what) if old.kept == "whole" else Decision("run", f"{what}; its workspace was kept {old.kept}")


def is_gradable(record: TrialResult) -> bool:
    """Whether it tells of a session that has a verdict, or that lacks one since its grading failed."""
    failed = record.status == "error" and record.kept == "whole" and (record.phase == "grade" or record.regraded)
    return bool(record.attempts) and (record.status in VERDICTS or failed)


def _raised_limit(trial: Trial, old: TrialResult, deadline: float | None) -> str | None:
    """A limit that stopped the session and is another one now."""
    if old.limit_hit is None:
        return None
    name, value = old.limit_hit.name, old.limit_hit.value
    known = {**dict(trial.sandbox.limits), **dict(trial.limits), "timeout": deadline}
    if name not in known:  # of a version that had it
        return None
    now = known[name]
    if now is not None and float(now) == value:
        return None
    return f"limit {name} was {value:g}, and is {'none' if now is None else format(float(now), 'g')}"


def rebuild_gates(folder: Path, kept: Mapping[str, TrialResult]) -> None:
    """Lay the places anew that kept results took in the gates over their repeats: `gates/…/{pass,miss}-<k>`. OSError."""
    taken: dict[str, int] = {}
    for trial_folder, result in kept.items():
        if result.status not in VERDICTS:
            continue
        gate = folder / gate_of(trial_folder)
        kind = "pass" if result.status == "passed" else "miss"
        number = taken[f"{gate}/{kind}"] = taken.get(f"{gate}/{kind}", 0) + 1
        gate.mkdir(parents=True, exist_ok=True)
        (gate / f"{kind}-{number}").write_bytes(str(result.repeat).encode())


def listed(decisions: Mapping[str, Decision]) -> list[str]:
    """For the summary: what is not kept, by reason, with the first names."""
    by_reason: dict[tuple[str, str], list[str]] = {}
    for node_id, decision in decisions.items():
        if decision.why:
            by_reason.setdefault((decision.kind, decision.why), []).append(node_id)
    words = {"run": "run again: ", "grade": "graded again: "}
    return [
        f"{len(names)} {words.get(kind, '')}{why}: {', '.join(names[:_SHOWN])}"
        + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
        for (kind, why), names in by_reason.items()
    ]
