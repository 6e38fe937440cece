"""The controller's book without pytest: what a killed process had written, and what of it counts."""

from __future__ import annotations

import json
from pathlib import Path

from pytest_codeprobe.model.clock import SystemClock
from pytest_codeprobe.model.result import Attempt, TrialResult, Usage
from pytest_codeprobe.run.book import Progress, RunBook
from pytest_codeprobe.run.folder import RunFolder

NODE = "tasks/a.yaml::a"
TRIAL: dict[str, object] = {
    "node_id": NODE, "task_id": "a", "variant_id": None, "row_id": None, "repeat": 1, "folder": "default/a/r001", "task_file": "/x/a.yaml",
    "agent": "scripted", "model": None, "driver": "auto", "limits": {},
}  # fmt: skip


def make_book(tmp_path: Path) -> tuple[RunBook, list[dict[str, object]]]:
    folder = RunFolder(tmp_path)
    folder.publish_plan({"run_id": "r", "plugin_version": "1", "trials": [TRIAL]})
    lines: list[dict[str, object]] = []
    book = RunBook(folder, "r", SystemClock(), lambda line: lines.append(json.loads(line)))
    assert book.take_plan()
    return book, lines


def spool(tmp_path: Path, *events: str, end: str = "\n") -> None:
    with (tmp_path / "spool" / "gw0.ndjson").open("a") as file:
        file.write("\n".join(events) + end)


def started(attempt: int) -> str:
    return json.dumps({"event": "trial_started", "node_id": NODE, "attempt": attempt, "worker": "gw0", "time": "2026-01-01T00:00:00.000Z"})


def record(number: int, cost: float) -> TrialResult:
    attempts = tuple(
        Attempt(number=n, started_at="2026-01-01T00:00:00.000Z", duration_seconds=1.0, usage=Usage(cost_usd=cost))
        for n in range(1, number + 1)
    )
    return TrialResult(
        run_id="r", node_id=NODE, task_id="a", variant_id=None, row_id=None, repeat=1, status="failed", verdict="failed", attempts=attempts,
        started_at="2026-01-01T00:00:00.000Z", ended_at="2026-01-01T00:00:01.000Z", duration_seconds=1.0, worker="gw0",
    )  # fmt: skip


def test_a_rerun_that_dies_is_not_the_try_before(tmp_path: Path) -> None:
    book, _ = make_book(tmp_path)
    book.folder.write_result("default/a/r001", record(1, 0.5))
    spool(tmp_path, started(1), started(2))
    book.drain("gw0")
    assert book.recovered(NODE) is None
    lost = book.lost(NODE, "gw0", "error", "died", code="WORKER_DIED")
    assert [(a.number, a.usage.cost_usd) for a in lost.attempts] == [(1, 0.5), (2, None)]


def test_what_the_last_try_wrote_counts(tmp_path: Path) -> None:
    book, lines = make_book(tmp_path)
    spool(tmp_path, started(1))
    book.folder.write_result("default/a/r001", record(1, 0.5))
    book.close("stopped")
    assert [(e["event"], e["seq"]) for e in lines] == [("run_started", 0), ("trial_started", 1), ("trial_finished", 2)]
    assert book.final[NODE].status == "failed"
    assert not (tmp_path / "spool").exists()


def test_a_cut_line_waits_for_its_rest(tmp_path: Path) -> None:
    book, lines = make_book(tmp_path)
    line = started(1)
    spool(tmp_path, line[:20], end="")
    book.drain("gw0")
    assert len(lines) == 1
    spool(tmp_path, line[20:])
    book.drain("gw0")
    book.drain("gw0")
    assert [e["event"] for e in lines] == ["run_started", "trial_started"]


def test_a_line_that_could_not_be_taken_is_taken_again(tmp_path: Path) -> None:
    """A signal may raise in the middle of it: nothing that a worker said is lost."""
    book, lines = make_book(tmp_path)
    spool(tmp_path, started(1))
    raised = []

    def interrupted(event: str, fields: object) -> None:
        raised.append(event)
        raise KeyboardInterrupt

    original, book._write_trial = book._write_trial, interrupted  # type: ignore[method-assign]
    try:
        book.drain("gw0")
    except KeyboardInterrupt:
        book._write_trial = original  # type: ignore[method-assign]
    book.drain("gw0")
    assert raised == ["trial_started"]
    assert [e["event"] for e in lines] == ["run_started", "trial_started"]


def test_a_plan_of_another_run_is_not_ours(tmp_path: Path) -> None:
    RunFolder(tmp_path).publish_plan({"run_id": "other", "plugin_version": "1", "trials": [TRIAL]})
    book = RunBook(RunFolder(tmp_path), "r", SystemClock(), print)
    assert not book.take_plan()
    assert not (tmp_path / "events.ndjson").exists()


def test_events_that_were_deleted_are_missed(tmp_path: Path) -> None:
    book, _ = make_book(tmp_path)
    (tmp_path / "events.ndjson").unlink()
    book.close("stopped")
    assert book.trouble is not None
    assert book.trouble.code == "SANDBOX_FAILED"
    assert "events.ndjson: was deleted" in book.trouble.message


def test_a_result_of_a_trial_that_never_began_is_a_strangers(tmp_path: Path) -> None:
    book, _ = make_book(tmp_path)
    book.folder.write_result("default/a/r001", record(1, 0.5).model_copy(update={"status": "passed"}))
    book.close("maxfail")
    assert (book.final[NODE].status, book.final[NODE].reason) == ("not_run", "maxfail")


def test_progress(tmp_path: Path) -> None:
    book, _ = make_book(tmp_path)
    assert book.progress() == Progress(total=1, running=0, done=0, graded=0, passed=0, errors=0, cost_usd=None)
    book.opened(NODE)
    assert book.progress().running == 1
    for _ in range(2):  # the second record of a trial counts no more
        book.finish(record(2, 0.5).model_copy(update={"cost_usd": 1.0}))
    assert book.progress() == Progress(total=1, running=0, done=1, graded=1, passed=0, errors=0, cost_usd=1.0)
