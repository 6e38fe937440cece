"""What a run may cost, money and time: nobody is paid beyond it but for what was under way, and every trial says what became of it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.amounts import dollars, span
from pytest_codeprobe.model.prices import list_prices
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.run.ledger import LedgerFile
from tests.front_door import Project, Run, scripted

AGENT = "--codeprobe-agent=scripted"
WRITE = {"write": {"path": "out.txt", "content": "done\n"}}
REPLY = 0.25  #: US dollars
#: many at once, in every way
WIDE: Mapping[str, tuple[str, ...]] = {"plain": (), "xdist": ("-n", "8"), "jobs": ("--codeprobe-jobs=8",)}


@pytest.fixture(params=list(WIDE))
def wide(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Arguments for one, or for eight trials at once."""
    return WIDE[str(request.param)]


def paid(cost: float = REPLY, **more: Any) -> dict[str, Any]:
    """A reply of a model."""
    return {"usage": {"model": "m1", "input_tokens": 100, "output_tokens": 10, "cost_usd": cost, **more}}


def metered(project: Project, task_id: str, replies: int, *, seconds: float = 1.0) -> list[dict[str, Any]]:
    """A session whose replies take their time, each marked outside of it just before it is told."""
    steps: list[dict[str, Any]] = [WRITE]
    for number in range(replies):
        steps += [{"sleep": seconds}, {"run": f"touch {project.marks}/{task_id}-{number}"}, paid()]
    return steps


def check(run: Run, *, code: str | None = "BUDGET_EXCEEDED") -> dict[str, Any]:
    """What holds of every run with a budget; its error's detail."""
    run.assert_consistent()
    run.assert_nothing_left()
    assert not list(Path(run.project.environment["TMPDIR"]).glob("codeprobe-*"))
    envelope = run.envelope
    data = envelope["data"]
    ran = [r for r in data["results"] if r["attempts"]]
    known = [r["cost_usd"] for r in ran if r["cost_usd"] is not None]
    assert (data["cost_usd"] or 0) == pytest.approx(sum(known), abs=1e-6)
    for result in data["results"]:
        if result["status"] == "not_run":
            assert result["code"] is None
        if not result["attempts"]:
            assert result["cost_usd"] is None
    codes = [e["code"] for e in envelope["errors"]]
    if code is None:
        assert "BUDGET_EXCEEDED" not in codes
        return {}
    error = envelope["errors"][0]
    assert (error["code"], error["terminal"], error["retryable"], error["kind"]) == ("BUDGET_EXCEEDED", True, "no", "diagnostic")
    assert "human" in error["remediation"]
    assert error["command"] is None
    assert "BUDGET_EXCEEDED: " in run.output
    return dict(error["detail"])


def outcomes(run: Run) -> dict[str, tuple[str, str | None]]:
    return {task: (e["status"], e["reason"]) for task, e in run.finished.items()}


def marks(project: Project, task_id: str) -> int:
    return len(list(project.marks.glob(f"{task_id}-*")))


def warned(run: Run) -> list[tuple[str, int]]:
    return [(e["kind"], e["percent"]) for e in run.events if e["event"] == "budget_warning"]


# ---- the ceiling


def test_tasks_of_one_dollar_each(project: Project, wide: tuple[str, ...]) -> None:
    """Three fit. More at once than that are stopped in the middle: nobody is paid but for the reply that crosses, and one after it."""
    names = [f"t{number:02}" for number in range(12)]
    for name in names:
        project.task(name, agent=scripted(*metered(project, name, 4)))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=3", "--codeprobe-json-lines", *wide)
    run.assert_pure()
    detail = check(run)
    assert run.code == run.envelope["exit_code"] == 6
    assert [path.name for path in run.folder.glob("ledger*")] == ["ledger.sqlite"]  # nothing of it is left beside
    assert (detail["kind"], detail["limit"]) == ("cost", 3.0)
    results = {r["task_id"]: r for r in run.envelope["data"]["results"]}
    ran = [name for name in names if results[name]["attempts"]]
    spent = sum(results[name]["cost_usd"] for name in ran)
    assert detail["spent"] == pytest.approx(spent)
    if wide:
        assert 3 <= len(ran) <= 9
        assert 3 < spent <= 3 + len(ran) * 2 * REPLY
        assert detail["reserved"] == 0
    else:
        assert ran == names[:3]
        assert spent == 3
        assert {results[name]["status"] for name in ran} == {"passed"}
    for name in ran:
        # what was told is what was paid; a session may have been ended between the mark and the word
        assert marks(project, name) - 1 <= results[name]["cost_usd"] / REPLY <= marks(project, name)
        assert (results[name]["status"], results[name]["reason"]) in (("passed", None), ("not_run", "budget"))
        record = run.result(name)
        assert record["usage"]["input_tokens"] == 100 * results[name]["cost_usd"] / REPLY
        if results[name]["status"] == "not_run":
            assert (record["criteria"], record["verdict"], record["limit_hit"]) == ([], None, None)
            assert (run.trial(name) / "artifacts" / "out.txt").exists()
            assert (run.trial(name) / "attempt-1" / "transcript.json").exists()
    for name in set(names) - set(ran):
        assert (results[name]["status"], results[name]["reason"], run.finished[name]["folder"]) == ("not_run", "budget", None)
        assert marks(project, name) == 0
        assert not run.trial(name).exists()
    assert warned(run) == [("cost", 80), ("cost", 100)]
    first = next(e for e in run.events if e["event"] == "budget_warning")
    assert 2.4 <= first["spent"] <= spent
    assert "budget $3.00" in run.output


@pytest.mark.parametrize("mode", ["plain", "jobs"])  # across workers the test above shows it
def test_a_runaway_is_stopped_in_the_middle(project: Project, mode: str) -> None:
    """It is not graded; what it cost, its transcript and its folder are kept, and post_run is run."""
    steps = metered(project, "a", 100, seconds=0.2)
    project.task("a", agent=scripted(*steps), post_run=[{"command": f"touch {project.marks}/post"}])
    project.task("b", agent=scripted(*metered(project, "b", 1, seconds=0)), fixtures=["late"])
    project.write("conftest.py", LATE.format(run_dir=project.path / "run"))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=1", "--codeprobe-run-dir=run", "--reruns=2", mode=mode)
    detail = check(run)
    assert outcomes(run) == {"a": ("not_run", "budget"), "b": ("not_run", "budget")}
    record = run.result("a")
    assert len(record["attempts"]) == 1  # no rerun of it either
    assert 1 < record["cost_usd"] <= 1 + 6 * REPLY  # five replies a second: what begins within half a second
    assert detail["spent"] == pytest.approx(record["cost_usd"])
    assert (record["criteria"], record["verdict"], record["limit_hit"]) == ([], None, None)
    folder = run.trial("a")
    assert len(json.loads((folder / "attempt-1" / "transcript.json").read_text())["steps"]) >= 5
    assert (folder / "artifacts" / "out.txt").exists()
    assert (project.marks / "post").exists()
    assert not run.trial("b").exists()
    assert marks(project, "b") == 0


#: a fixture that lets a trial go on once the flag stands; under xdist and in a slot of its own
LATE = """
import pathlib, time, pytest
@pytest.fixture
def late(codeprobe_trial):
    until = time.monotonic() + 60
    while not pathlib.Path("{run_dir}/stop/budget").exists() and time.monotonic() < until:
        time.sleep(0.05)
"""


def test_its_own_limit_is_graded(project: Project) -> None:
    """A session over its own max_usd ends as ever: at once, and what it did counts. The rest is within money and time."""
    project.task("a", agent=scripted(*metered(project, "a", 100, seconds=0.2)), run_limits={"max_usd": 0.6})
    project.task("b", agent=scripted(WRITE, paid()))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=$10", "--codeprobe-max-duration=1h")
    check(run, code=None)
    assert (run.code, run.statuses) == (0, {"a": "passed", "b": "passed"})
    assert run.finished["a"]["limit_hit"] == {"name": "max_usd", "value": 0.6}
    assert 0.6 < run.result("a")["cost_usd"] <= 0.6 + 6 * REPLY
    assert warned(run) == []
    assert "budget $10.00, at most 1 h, " in run.output


def test_an_end_that_uses_up_the_rest_is_an_end(project: Project) -> None:
    """The last reply of the last trial is over the budget: it had finished, so it is graded; the run says that it was too much."""
    project.task("a", agent=scripted(WRITE, paid(), paid(), {"say": "done"}))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=0.3")
    detail = check(run)
    assert (run.code, run.statuses) == (6, {"a": "passed"})
    assert detail == {"kind": "cost", "limit": 0.3, "spent": 0.5, "reserved": 0.0}


def test_grading_that_has_begun_ends_as_ever(project: Project) -> None:
    wait = f"touch {project.marks}/grading; until [ -e {project.path}/run/stop/budget ]; do sleep 0.1; done"
    project.task("a", agent=scripted(WRITE, paid()), success_criteria=[{"type": "run_command", "command": wait, "timeout": 60}])
    go_on = f"until [ -e {project.marks}/grading ]; do sleep 0.1; done"
    project.task("b", agent=scripted({"run": go_on}, *metered(project, "b", 50, seconds=0.2)))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=1", "--codeprobe-run-dir=run", mode="xdist")
    check(run)
    assert outcomes(run) == {"a": ("passed", None), "b": ("not_run", "budget")}
    assert run.result("a")["cost_usd"] == REPLY


# ---- reservations


def test_a_trial_that_does_not_fit_is_not_run(project: Project, wide: tuple[str, ...]) -> None:
    """Two are kept back for, and cost nearly that: there is too little left for a third, though not nothing."""
    names = [f"t{number}" for number in range(6)]
    for name in names:
        project.task(name, agent=scripted(WRITE, *[paid(0.3)] * 3), run_limits={"max_usd": 1})
    project.task("z-small", agent=scripted(WRITE, paid(0.1)), run_limits={"max_usd": 0.2})
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=2.5", *wide)
    detail = check(run)
    ends = outcomes(run)
    assert run.code == 6
    assert sorted(ends[name] for name in names) == sorted([("passed", None)] * 2 + [("not_run", "budget")] * 4)
    assert detail["kind"] == "cost"
    assert (detail["limit"], detail["reserved"]) == (2.5, 1.0)
    assert detail["spent"] <= 1.9
    assert ends["z-small"] == ("passed", None)  # what does fit is run
    assert "did not fit" in run.envelope["errors"][0]["message"]


@pytest.mark.parametrize("mode", ["xdist", "jobs"])
def test_what_is_not_spent_is_free_for_others(project: Project, mode: str) -> None:
    """Only one fits at a time, all want to start at once, and all are run: as they see for themselves, one after the other."""
    room = f"{project.marks}/room"
    alone = {"run": f"mkdir {room} || touch {project.marks}/most-$$; sleep 0.3; rmdir {room} || touch {project.marks}/most-$$"}
    for name in "abcd":
        project.task(name, agent=scripted(WRITE, alone, paid(0.1)), run_limits={"max_usd": 1})
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=1.5", mode=mode)
    check(run, code=None)
    assert (run.code, set(run.statuses.values())) == (0, {"passed"})
    assert marks(project, "most") == 0
    assert run.envelope["data"]["cost_usd"] == pytest.approx(0.4)


def test_the_money_of_a_killed_worker_is_spent(project: Project) -> None:
    """All was kept back for it: what its session had told stays booked, and the rest is free for others."""
    project.write(
        "conftest.py",
        "import os, pathlib, signal, threading, time, pytest\n"
        f"marks = pathlib.Path({str(project.marks)!r})\n"
        "def wait(name):\n"
        "    until = time.monotonic() + 60\n"
        "    while not (marks / name).exists() and time.monotonic() < until: time.sleep(0.05)\n"
        "def die():\n"
        "    wait('told'); os.kill(os.getpid(), signal.SIGKILL)\n"
        "@pytest.fixture\n"
        "def dies(): threading.Thread(target=die, daemon=True).start()\n"
        "@pytest.fixture\n"
        "def later(): wait('a-0')\n",
    )
    # a second after the last reply was told it has been booked: sessions are looked at ten times as often
    told: list[dict[str, Any]] = [{"sleep": 1}, {"run": f"touch {project.marks}/told"}, {"sleep": 60}]
    project.task("a", agent=scripted(*metered(project, "a", 3, seconds=0.1), *told), run_limits={"max_usd": 2}, fixtures=["dies"])
    for name in "bc":
        project.task(name, agent=scripted(WRITE, paid(0.9)), run_limits={"max_usd": 1}, fixtures=["later"])
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=2", mode="xdist")
    run.assert_consistent()
    run.assert_nothing_left()
    ends = outcomes(run)
    assert (ends["a"][0], run.finished["a"]["code"]) == ("error", "WORKER_DIED")
    assert sorted([ends["b"], ends["c"]], key=str) == [("not_run", "budget"), ("passed", None)]
    ledger = LedgerFile(run.folder / "ledger.sqlite", 2.0)
    assert ledger.balance().spent == pytest.approx(3 * REPLY + 0.9)
    assert ledger.balance().reserved == 0
    ledger.close()
    assert run.envelope["errors"][0]["detail"]["spent"] == pytest.approx(3 * REPLY + 0.9)


def test_a_full_disk_ends_what_can_not_be_booked(project: Project) -> None:
    """A session whose spending nobody could write down does not go on."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system takes root")
    disk = project.scratch / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {mounted.stderr.strip()}")
    try:
        fill = {"run": f"head -c 20000000 /dev/zero >{disk}/fill; true"}
        many = [step for _ in range(600) for step in ({"sleep": 0.1}, paid(0.001))]
        project.task("a", agent=scripted(WRITE, paid(), fill, *many))
        run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=9", "--codeprobe-json", f"--codeprobe-run-dir={disk}/run")
        (envelope,) = run.lines
        assert (run.code, envelope["exit_code"]) == (6, 6)
        assert "INTERNALERROR" not in run.output
        (result,) = envelope["data"]["results"]
        assert (result["status"], result["code"]) == ("error", "SANDBOX_FAILED")
        assert "what the run spends can't be written down" in result["reason"]
        assert REPLY <= result["cost_usd"] < REPLY + 0.6
        run.assert_nothing_left()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_wait_ends_with_an_interrupt(project: Project) -> None:
    """One of the two has all the money, whichever asked first; the other waits for it."""
    held = f"touch {project.marks}/holds; sleep 600; : {project.mark_text}"
    for name in ("a", "b"):
        project.task(name, agent=scripted({"run": held}), run_limits={"max_usd": 1})
    run = project.start("tasks", AGENT, "--codeprobe-max-cost-usd=1", mode="jobs")
    run.wait_for("holds")
    run.signal(signal.SIGINT)
    run.wait(30)
    run.assert_consistent()
    run.assert_nothing_left()
    assert run.code == 2
    assert outcomes(run) == {"a": ("not_run", "interrupted"), "b": ("not_run", "interrupted")}
    assert [e["code"] for e in run.envelope["errors"]] == ["INTERRUPTED"]


def test_a_second_attempt_asks_again(project: Project) -> None:
    """There is no money for one that would be over it."""
    project.task("a", agent=scripted(paid(), {"fail": "LLM_UNAVAILABLE"}), run_limits={"max_usd": 0.5})
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=0.6")
    check(run)
    assert outcomes(run) == {"a": ("not_run", "budget")}
    record = run.result("a")
    assert (record["cost_usd"], [a["code"] for a in record["attempts"]]) == (REPLY, ["LLM_UNAVAILABLE"])
    assert "; 1 trial ended early and not graded; tasks/a.yaml::a did not fit (" in run.envelope["errors"][0]["message"]


def test_two_runs_at_once_have_two_budgets(project: Project) -> None:
    """One has used up its own, and is killed with a session open; the other neither waits for it nor pays for it."""
    project.task("a", agent=scripted(WRITE, paid(0.8), {"run": f"touch {project.marks}/told; sleep 600; : {project.mark_text}"}))
    project.task("b", agent=scripted(WRITE, paid(0.8)), run_limits={"max_usd": 0.9})
    first = project.start("tasks/a.yaml", AGENT, "--codeprobe-max-cost-usd=1")
    first.wait_for("told")
    second = project.run("tasks/b.yaml", AGENT, "--codeprobe-max-cost-usd=1", "--codeprobe-run-dir=second")
    check_own(second)
    first.signal(signal.SIGKILL)
    first.wait()
    third = project.run("tasks/b.yaml", AGENT, "--codeprobe-max-cost-usd=1", "--codeprobe-run-dir=third")
    check_own(third)
    third.assert_nothing_left()


def check_own(run: Run) -> None:
    run.assert_consistent()
    assert (run.code, run.statuses, run.envelope["data"]["cost_usd"]) == (0, {"b": "passed"}, 0.8)
    ledger = LedgerFile(run.folder / "ledger.sqlite", 1.0)
    assert ledger.balance().spent == pytest.approx(0.8)
    assert ledger.balance().reserved == 0
    ledger.close()


# ---- prices


COUNTS_ONLY = """
from pytest_codeprobe.agents.base import QuietParser
from pytest_codeprobe.model.agent import Agent, SessionCommand
from pytest_codeprobe.model.result import Usage

class CountsOnly(Agent):
    name = "counts"
    usage_known = "live"
    supports = frozenset({"model"})
    def command(self, request): return SessionCommand(argv=("sh", "-c", "echo done >out.txt; " + request.prompt))
    def parser(self, request): return CountsParser(request)

class CountsParser(QuietParser):
    agent = CountsOnly
    replied = True
    def usage(self): return Usage(input_tokens=1_000_000, output_tokens=0, cache_read_tokens=0, cache_write_tokens=0, tokens_source="cli")

def pytest_codeprobe_agents(config): return [CountsOnly()]
"""
NO_PRICE = "no price is known for model 'nobodys-model-1'"


def test_tokens_are_priced_by_the_table(project: Project) -> None:
    """As they come, so that a limit holds, and whoever wrote the agent; the record says where a cost comes from."""
    project.write("conftest.py", COUNTS_ONLY)
    million = {"usage": {"model": "anthropic/claude-sonnet-4-5-20250929", "input_tokens": 1_000_000, "output_tokens": 100_000}}
    project.task("s", agent=scripted(WRITE, million, {"sleep": 60}), run_limits={"max_usd": 4})
    project.task("a", agent={"type": "counts", "model": "openai/gpt-5-2025-08-07"}, initial_prompt="true")
    project.task("b", agent={"type": "counts", "model": "gpt-5"}, initial_prompt="echo; sleep 60", run_limits={"max_usd": 1})
    for name in "cd":
        project.task(name, agent={"type": "counts", "model": "nobodys-model-1"}, initial_prompt="true", run_limits={"max_usd": 1})
    project.task("e", agent={"type": "command", "command": ["sh", "-c", "echo done >out.txt"]}, run_limits={"max_usd": 0.4})
    run = project.run(*(f"tasks/{name}.yaml" for name in "sabcde")).assert_consistent()
    assert (run.code, set(run.statuses.values())) == (0, {"passed"})
    assert [run.result(name)["cost_usd"] for name in "sabcde"] == [pytest.approx(4.5), 1.25, 1.25, None, None, None]
    sources = [run.result(name)["usage"]["cost_source"] for name in "sabcde"]
    assert sources == ["price_table"] * 3 + ["unknown"] * 3
    assert [run.finished[name]["limit_hit"]["name"] for name in "sb"] == ["max_usd"] * 2
    assert (run.envelope["data"]["cost_usd"], run.envelope["data"]["cost_complete"]) == (pytest.approx(7.0), False)
    assert sorted(w for w in run.envelope["warnings"] if "max_usd" in w or "price" in w) == [  # each once
        f"{NO_PRICE}: run_limits.max_usd could not be held",
        f"{NO_PRICE}: what its sessions cost is unknown",
        "tasks/e.yaml::e: run_limits.max_usd can't be held: agent command never tells what a session uses",
    ]
    assert not list(run.folder.glob("ledger*"))


UNKNOWN: dict[str, Any] = {"usage": {"model": "nobodys-model-1", "input_tokens": 1000, "output_tokens": 10}}


def unknown(replies: int) -> list[dict[str, Any]]:
    """A session that goes on and on, at a price that nobody knows."""
    return [UNKNOWN, {"sleep": 0.2}] * replies


def test_a_model_that_shows_in_the_session_only(project: Project) -> None:
    """Nobody could know before; no further session of it starts, but for those with a bound in tokens, which count as the dearest do."""
    for name in "abc":
        project.task(name, agent=scripted(WRITE, UNKNOWN))
    project.task("d", agent=scripted(WRITE, UNKNOWN), run_limits={"max_total_tokens": 5000})
    project.task("e", agent=scripted(WRITE, *unknown(200)), run_limits={"max_total_tokens": 10**7, "max_usd": 0.1})
    project.task("f", agent={**scripted(WRITE, paid()), "model": "other"})
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=2")
    detail = check(run)
    assert outcomes(run) == {**dict.fromkeys("adef", ("passed", None)), **dict.fromkeys("bc", ("not_run", "budget"))}
    assert [run.result(name)["cost_usd"] for name in "ade"] == [None, None, None]
    assert run.finished["e"]["limit_hit"] == {"name": "max_usd", "value": 0.1}, "no more than was kept back for it"
    used = {name: run.result(name)["usage"] for name in "ade"}
    dearest = sum(list_prices().dearest(Usage(input_tokens=u["input_tokens"], output_tokens=u["output_tokens"])) for u in used.values())
    assert detail["spent"] == pytest.approx(dearest + REPLY, abs=1e-6)
    message = run.envelope["errors"][0]["message"]
    assert f"({dollars(dearest)} of it at most: what some sessions cost is unknown)" in message
    assert f"{NO_PRICE}, so tasks/b.yaml::b and 1 more were not started" in message


def test_a_session_whose_price_nobody_knows_is_stopped_all_the_same(project: Project) -> None:
    """It counts as if its model were the dearest: more than that it has not cost, and that is over the budget."""
    project.task("a", agent=scripted(WRITE, *unknown(300)))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=0.1")
    detail = check(run)
    assert outcomes(run) == {"a": ("not_run", "budget")}
    record = run.result("a")
    one = list_prices().dearest(Usage(input_tokens=1000, output_tokens=10))
    assert (record["cost_usd"], record["usage"]["cost_source"], run.envelope["data"]["cost_complete"]) == (None, "unknown", False)
    assert detail["spent"] == pytest.approx(one * record["usage"]["input_tokens"] / 1000)
    assert 0.1 < detail["spent"] <= 0.1 + 6 * one
    assert f"({dollars(detail['spent'])} of it at most: what some sessions cost is unknown)" in run.envelope["errors"][0]["message"]


def test_a_session_of_unknown_cost_counts_as_its_bound(project: Project) -> None:
    command = {"type": "command", "command": ["sh", "-c", "echo done >out.txt"]}
    for name in "abc":
        project.task(name, agent=command, run_limits={"max_usd": 0.4})
    run = project.run(*(f"tasks/{name}.yaml" for name in "abc"), "--codeprobe-max-cost-usd=1")
    detail = check(run)
    assert outcomes(run) == {"a": ("passed", None), "b": ("passed", None), "c": ("not_run", "budget")}
    assert (detail["spent"], detail["reserved"]) == (0.8, 0.4)
    data = run.envelope["data"]
    assert (data["cost_usd"], data["cost_complete"]) == (None, False)
    assert "$0.80 of $1.00 are spent ($0.80 of it at most" in run.envelope["errors"][0]["message"]


def test_what_could_not_be_held_is_refused(project: Project) -> None:
    project.task("a", agent=scripted(WRITE))
    project.task("b", agent={"type": "command", "command": ["true"]})
    run = project.run("tasks/a.yaml", "tasks/b.yaml", "--codeprobe-max-cost-usd=1", "--codeprobe-run-dir=refused")
    run.assert_consistent()
    (error,) = run.envelope["errors"]
    assert (run.code, error["code"]) == (4, "USAGE_ERROR")
    assert "tasks/b.yaml::b: agent command never tells what a session costs" in error["message"]
    assert set(run.statuses.values()) == {"not_run"}
    assert not [e for e in run.events if e["event"] == "trial_started"]
    run.assert_nothing_left()


# ---- time


def timed(project: Project, begun: int, *args: str, mode: str) -> tuple[Run, float]:
    """A run that its time ends after so many marks `begun-*` were left, and its limit: on a busy machine a larger one is needed."""
    for limit in (7.0, 25.0, 60.0):
        for mark in project.marks.iterdir():
            mark.unlink()
        shutil.rmtree(project.path / "run", ignore_errors=True)
        args = (*args, AGENT, f"--codeprobe-max-duration={limit:g}s", "--codeprobe-run-dir=run")
        run = project.run("tasks", *args, mode=mode, seconds=180)
        if marks(project, "begun") >= begun:
            return run, limit
    raise AssertionError("nothing began in a minute")


def check_time(run: Run, limit: float) -> None:
    detail = check(run)
    assert run.code == 6
    assert (detail["kind"], detail["limit"], detail["reserved"]) == ("time", limit, None)
    assert detail["spent"] >= limit
    assert warned(run) == [("time", 80), ("time", 100)]
    assert f"at most {span(limit)}" in run.output
    assert f" of {span(limit)}; " in run.envelope["errors"][0]["message"]


def holds(project: Project, task_id: str, until: str = "false") -> str:
    """A command that says that it has begun, and goes on until another one succeeds."""
    return f"touch {project.marks}/begun-{task_id}; until {until}; do sleep 0.1; done; : {project.mark_text}"


def test_the_wall_time_of_a_run(project: Project) -> None:
    for name in "abcd":
        project.task(name, agent=scripted(WRITE, paid(), {"run": holds(project, name)}))
    run, limit = timed(project, 2, mode="xdist")
    check_time(run, limit)
    assert set(outcomes(run).values()) == {("not_run", "time")}
    ran = [r["task_id"] for r in run.envelope["data"]["results"] if r["attempts"]]
    assert len(ran) == 2
    for name in ran:
        assert run.result(name)["cost_usd"] == REPLY
        assert (run.trial(name) / "attempt-1" / "transcript.json").exists()


def test_the_wall_time_ends_sessions_and_waits_and_lets_commands_end(project: Project) -> None:
    """Preparing comes to its own end, and no session after it; grading is done as ever; nobody waits for money any more."""
    over = f"[ -e {project.path}/run/stop/time ]"
    prepare = [{"command": holds(project, "prepares", over), "timeout": 300}]
    grader = [{"type": "run_command", "command": holds(project, "graded", over), "timeout": 300}]
    project.task("prepares", agent=scripted(WRITE), pre_run=prepare, run_limits={"max_usd": 0.1})
    project.task("graded", agent=scripted(WRITE, paid(0.1)), success_criteria=grader, run_limits={"max_usd": 0.1})
    for name in "xy":  # one of them has all that is left, and the other one waits for it
        project.task(name, agent=scripted(WRITE, {"run": holds(project, name)}), run_limits={"max_usd": 0.8})
    run, limit = timed(project, 3, "--codeprobe-max-cost-usd=1", mode="jobs")
    check_time(run, limit)
    assert outcomes(run) == {"graded": ("passed", None), **dict.fromkeys(("prepares", "x", "y"), ("not_run", "time"))}
    attempts = {r["task_id"]: r["attempts"] for r in run.envelope["data"]["results"]}
    assert sorted([attempts["x"], attempts["y"]]) == [0, 1]
    assert sorted([run.trial("x").exists(), run.trial("y").exists()]) == [False, True]


JUMPS = """
import pytest, time
real, ahead = time.time, [7200.0]
time.time = lambda: real() + ahead[0]  # as after a suspended machine has woken up
@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(): ahead[0] = -7200.0  # and as somebody has set it right
"""


def test_a_clock_that_jumps_takes_no_time_away(project: Project) -> None:
    project.write("conftest.py", JUMPS)
    project.task("a", agent=scripted(WRITE, paid()))
    run = project.run("tasks", AGENT, "--codeprobe-max-duration=1h", "--codeprobe-max-cost-usd=1")
    check(run, code=None)
    assert (run.code, run.statuses, warned(run)) == (0, {"a": "passed"}, [])
    data = run.envelope["data"]
    assert 0 <= data["duration_seconds"] < 3600
    assert data["started_at"] <= data["ended_at"]
