"""What a run may cost, money and time: nobody is paid beyond it but for what was under way, and every trial says what became of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.prices import list_prices
from pytest_codeprobe.model.result import Usage
from pytest_codeprobe.options import BUILT, INIS, resolve
from pytest_codeprobe.run.ledger import LedgerFile
from tests.front_door import MODES, Project, Run, scripted

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
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=3", *wide)
    detail = check(run)
    assert run.code == 6
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
        assert run.result(name)["usage"]["input_tokens"] == 100 * results[name]["cost_usd"] / REPLY
    for name in set(names) - set(ran):
        assert (results[name]["status"], results[name]["reason"], run.finished[name]["folder"]) == ("not_run", "budget", None)
        assert marks(project, name) == 0
        assert not run.trial(name).exists()
    assert warned(run) == [("cost", 80), ("cost", 100)]
    first = next(e for e in run.events if e["event"] == "budget_warning")
    assert 2.4 <= first["spent"] <= spent
    assert "budget $3.00" in run.output


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


def test_its_own_limit_is_graded(project: Project, mode: str) -> None:
    """A session over its own max_usd ends as ever: at once, and what it did counts."""
    project.task("a", agent=scripted(*metered(project, "a", 100, seconds=0.2)), run_limits={"max_usd": 0.6})
    project.task("b", agent=scripted(WRITE, paid()))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=10", mode=mode)
    check(run, code=None)
    assert (run.code, run.statuses) == (0, {"a": "passed", "b": "passed"})
    assert run.finished["a"]["limit_hit"] == {"name": "max_usd", "value": 0.6}
    assert 0.6 < run.result("a")["cost_usd"] <= 0.6 + 6 * REPLY
    assert warned(run) == []


def test_an_end_that_uses_up_the_rest_is_an_end(project: Project, mode: str) -> None:
    """The last reply of the last trial is over the budget: it had finished, so it is graded; the run says that it was too much."""
    project.task("a", agent=scripted(WRITE, paid(), paid(), {"say": "done"}))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=0.3", mode=mode)
    detail = check(run)
    assert (run.code, run.statuses) == (6, {"a": "passed"})
    assert detail == {"kind": "cost", "limit": 0.3, "spent": 0.5, "reserved": 0.0}


def test_all_of_it_is_not_too_much(project: Project, mode: str) -> None:
    for name in "abc":
        project.task(name, agent=scripted(WRITE, *[paid(0.1)] * 10))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=3", mode=mode)
    check(run, code=None)
    assert (run.code, set(run.statuses.values())) == (0, {"passed"})
    assert warned(run)[-1] == ("cost", 100)


@pytest.mark.parametrize("mode", sorted(MODES.keys() - {"plain"}))  # there it is one after the other
def test_grading_that_has_begun_ends_as_ever(project: Project, mode: str) -> None:
    wait = f"touch {project.marks}/grading; until [ -e {project.path}/run/stop/budget ]; do sleep 0.1; done"
    project.task("a", agent=scripted(WRITE, paid()), success_criteria=[{"type": "run_command", "command": wait, "timeout": 60}])
    go_on = f"until [ -e {project.marks}/grading ]; do sleep 0.1; done"
    project.task("b", agent=scripted({"run": go_on}, *metered(project, "b", 50, seconds=0.2)))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=1", "--codeprobe-run-dir=run", mode=mode)
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


def test_what_is_not_spent_is_free_for_others(project: Project, wide: tuple[str, ...]) -> None:
    """Only two fit at once, and all are run: a trial waits, which counts in no limit of its time."""
    for number in range(6):
        limits = {"max_usd": 1, "task_timeout": 20, "setup_timeout": 20}
        project.task(f"t{number}", agent=scripted(WRITE, {"sleep": 0.3}, paid(0.2)), run_limits=limits)
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=2", *wide)
    check(run, code=None)
    assert (run.code, set(run.statuses.values())) == (0, {"passed"})
    running = most = 0
    for event in run.events:
        running += {"trial_started": 1, "trial_finished": -1}.get(event["event"], 0)
        most = max(most, running)
    assert run.envelope["data"]["cost_usd"] == pytest.approx(1.2)


def test_a_killed_worker_holds_nobody_up(project: Project) -> None:
    """It had the whole budget kept back for it; its session is over with it."""
    project.write(
        "conftest.py",
        "import os, pathlib, signal, time, pytest\n"
        f"marks = pathlib.Path({str(project.marks)!r})\n"
        "def wait(name):\n"
        "    until = time.monotonic() + 60\n"
        "    while not (marks / name).exists() and time.monotonic() < until: time.sleep(0.05)\n"
        "@pytest.fixture\n"
        "def dies(codeprobe_sandbox):\n"
        "    (marks / 'holds').touch(); wait('asks'); time.sleep(0.5)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "@pytest.fixture\n"
        "def asks(codeprobe_trial):\n"
        "    wait('holds'); (marks / 'asks').touch()\n",
    )
    project.task("a", agent=scripted(WRITE, paid()), run_limits={"max_usd": 1}, fixtures=["dies"])
    project.task("b", agent=scripted(WRITE, paid()), run_limits={"max_usd": 1}, fixtures=["asks"])
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=1", mode="xdist")
    run.assert_consistent()
    run.assert_nothing_left()
    assert run.statuses == {"a": "error", "b": "passed"}
    assert run.finished["a"]["code"] == "WORKER_DIED"


def test_the_money_of_a_killed_worker_is_spent(project: Project) -> None:
    """What its session had told stays booked, and counts against the others; what was kept back beyond it is free."""
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


def test_a_full_disk_ends_what_can_not_be_booked(project: Project, mode: str) -> None:
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
        run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=9", "--codeprobe-json", f"--codeprobe-run-dir={disk}/run", mode=mode)
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
    """Both count, and there is no money for one that would be over it."""
    fails = [paid(), {"fail": "LLM_UNAVAILABLE"}]
    project.task("a", agent=scripted(*fails), run_limits={"max_usd": 0.5})
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=1")
    check(run, code=None)
    assert (run.statuses["a"], run.result("a")["cost_usd"], len(run.result("a")["attempts"])) == ("error", 0.5, 2)
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=0.6")
    check(run)
    assert outcomes(run) == {"a": ("not_run", "budget")}
    record = run.result("a")
    assert (record["cost_usd"], [a["code"] for a in record["attempts"]]) == (REPLY, ["LLM_UNAVAILABLE"])


# ---- prices


def test_tokens_are_priced_by_the_table(project: Project, mode: str) -> None:
    """As they come, so that a limit holds; with the source in the record."""
    million = {"usage": {"model": "anthropic/claude-sonnet-4-5-20250929", "input_tokens": 1_000_000, "output_tokens": 100_000}}
    project.task("a", agent=scripted(WRITE, million))
    project.task("b", agent=scripted(WRITE, million, {"sleep": 60}), run_limits={"max_usd": 4})
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert (run.code, run.statuses) == (0, {"a": "passed", "b": "passed"})
    for name in "ab":
        assert run.result(name)["cost_usd"] == pytest.approx(4.5)
        assert run.result(name)["usage"]["cost_source"] == "price_table"
    assert run.finished["b"]["limit_hit"]["name"] == "max_usd"


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


def test_tokens_of_an_agent_that_names_no_price(project: Project, mode: str) -> None:
    """Whoever wrote it: the table prices them, for limits and budget too."""
    project.write("conftest.py", COUNTS_ONLY)
    project.task("a", agent={"type": "counts", "model": "openai/gpt-5-2025-08-07"}, initial_prompt="true")
    project.task("b", agent={"type": "counts", "model": "gpt-5"}, initial_prompt="echo; sleep 60", run_limits={"max_usd": 1})
    project.task("c", agent={"type": "counts", "model": "nobodys-model-1"}, initial_prompt="true")
    project.task("d", agent={"type": "counts", "model": "gpt-5"}, initial_prompt="echo; sleep 60")
    files = ("tasks/a.yaml", "tasks/b.yaml", "tasks/c.yaml")
    run = project.run(*files, mode=mode).assert_consistent()
    assert (run.code, set(run.statuses.values())) == (0, {"passed"})
    assert [run.result(name)["cost_usd"] for name in "abc"] == [1.25, 1.25, None]
    assert [run.result(name)["usage"]["cost_source"] for name in "abc"] == ["price_table", "price_table", "unknown"]
    assert run.finished["b"]["limit_hit"]["name"] == "max_usd"
    assert [w for w in run.envelope["warnings"] if "price" in w] == [
        "no price is known for model 'nobodys-model-1': what its sessions cost is unknown"
    ]
    run = project.run("tasks/d.yaml", "--codeprobe-max-cost-usd=1", mode=mode)
    check(run)
    assert outcomes(run) == {"d": ("not_run", "budget")}
    assert run.result("d")["cost_usd"] == 1.25


UNKNOWN = {"usage": {"model": "nobodys-model-1", "input_tokens": 1000, "output_tokens": 10}}


def test_no_price_is_no_cost_and_said_once(project: Project, mode: str) -> None:
    for name in "ab":
        project.task(name, agent=scripted(WRITE, UNKNOWN))
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert (run.code, run.envelope["data"]["cost_usd"], run.envelope["data"]["cost_complete"]) == (0, None, False)
    assert run.result("a")["usage"]["cost_source"] == "unknown"
    assert [w for w in run.envelope["warnings"] if "nobodys-model-1" in w] == [
        "no price is known for model 'nobodys-model-1': what its sessions cost is unknown"
    ]


def test_a_model_that_shows_in_the_session_only(project: Project) -> None:
    """Nobody could know before; no further session of it starts, but for those with a bound in tokens, which count as the dearest do."""
    for name in "abc":
        project.task(name, agent=scripted(WRITE, UNKNOWN))
    project.task("d", agent=scripted(WRITE, UNKNOWN), run_limits={"max_total_tokens": 5000})
    project.task("e", agent=scripted(WRITE, UNKNOWN), run_limits={"max_total_tokens": 5000})
    project.task("f", agent={**scripted(WRITE, paid()), "model": "other"})
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=0.5")
    detail = check(run)
    assert {name: end[0] for name, end in outcomes(run).items()} == {
        **dict.fromkeys("adef", "passed"),
        **dict.fromkeys("bc", "not_run"),
    }
    assert {end[1] for end in outcomes(run).values()} == {None, "budget"}
    assert [run.result(name)["cost_usd"] for name in "ade"] == [None, None, None]
    dearest = list_prices().dearest(Usage(input_tokens=1000, output_tokens=10))
    assert detail["spent"] == pytest.approx(2 * dearest + REPLY, abs=1e-6)
    assert "no price is known" in run.envelope["errors"][0]["message"]


# ---- refusals

OWN_AGENTS = """
from typing import Literal
from pytest_codeprobe.agents.scripted import ScriptedAgent

class Paid(ScriptedAgent):
    name = "paid"
    calls_model = True
    model_aliases = frozenset({"best"})

class Late(Paid):
    name = "late"
    usage_known = "end"

def pytest_codeprobe_agents(config):
    return [Paid(), Late()]
"""


def own(name: str, model: str | None = None) -> dict[str, Any]:
    return {"type": name, name: {"steps": [WRITE, paid()]}, **({"model": model} if model else {})}


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "command": ({"type": "command", "command": ["sh", "-c", "echo done >out.txt"]}, {}, "never tells what a session costs"),
    "late": (own("late", "claude-sonnet-4-5"), {}, "at its end only"),
    "price": (own("paid", "nobodys-model-1"), {}, "no price is known for model 'nobodys-model-1'"),
    "price-usd": (own("paid", "nobodys-model-1"), {"max_usd": 1}, "no price is known"),
    "late-price": (own("late", "nobodys-model-1"), {"max_usd": 1}, "no price is known"),
}
BOUNDED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "command-usd": (REFUSED["command"][0], {"max_usd": 0.1}),
    "command-tokens": (REFUSED["command"][0], {"max_total_tokens": 1000}),
    "late-usd": (own("late", "claude-sonnet-4-5"), {"max_usd": 0.5}),
    "late-tokens": (own("late", "nobodys-model-1"), {"max_total_tokens": 1000}),
    "paid": (own("paid", "claude-sonnet-4-5-20250929"), {}),
    "paid-tokens": (own("paid", "nobodys-model-1"), {"max_total_tokens": 1000}),
    "paid-alias": (own("paid", "best"), {}),
    "paid-default": (own("paid"), {}),
    "oracle": ({"type": "nop"}, {}),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_could_not_be_held_is_refused(project: Project, mode: str, case: str) -> None:
    agent, limits, says = REFUSED[case]
    project.write("conftest.py", OWN_AGENTS)
    project.task("a", agent=scripted(WRITE))
    project.task("b", agent=agent, run_limits=limits)
    run = project.run("tasks/a.yaml", "tasks/b.yaml", "--codeprobe-max-cost-usd=1", "--codeprobe-run-dir=refused", mode=mode)
    run.assert_consistent()
    (error,) = run.envelope["errors"]
    assert (run.code, error["code"]) == (4, "USAGE_ERROR")
    assert says in error["message"]
    assert "tasks/b.yaml::b" in error["message"]
    assert "max_total_tokens" in error["remediation"]
    assert set(run.statuses.values()) == {"not_run"}
    assert not [e for e in run.events if e["event"] == "trial_started"]
    run.assert_nothing_left()
    # without a budget nobody minds
    assert project.run("tasks/a.yaml", "tasks/b.yaml", mode=mode).code == 0


def test_what_is_bounded_is_not_refused(project: Project, mode: str) -> None:
    project.write("conftest.py", OWN_AGENTS)
    for name, (agent, limits) in BOUNDED.items():
        project.task(name, agent=agent, run_limits=limits)
    run = project.run(*sorted(f"tasks/{name}.yaml" for name in BOUNDED), "--codeprobe-max-cost-usd=9", mode=mode)
    check(run, code=None)
    assert run.statuses == {**dict.fromkeys(BOUNDED, "passed"), "oracle": "failed"}
    assert run.result("command-usd")["cost_usd"] is None


def test_a_session_of_unknown_cost_counts_as_its_bound(project: Project) -> None:
    command = REFUSED["command"][0]
    for name in "abc":
        project.task(name, agent=command, run_limits={"max_usd": 0.4})
    run = project.run(*(f"tasks/{name}.yaml" for name in "abc"), "--codeprobe-max-cost-usd=1")
    detail = check(run)
    assert outcomes(run) == {"a": ("passed", None), "b": ("passed", None), "c": ("not_run", "budget")}
    assert (detail["spent"], detail["reserved"]) == (0.8, 0.4)
    data = run.envelope["data"]
    assert (data["cost_usd"], data["cost_complete"]) == (None, False)


def test_a_limit_that_nobody_holds_is_refused_without_a_budget(project: Project, mode: str) -> None:
    project.task("a", agent=REFUSED["command"][0], run_limits={"max_usd": 0.4})
    run = project.run("tasks/a.yaml", "--codeprobe-run-dir=refused", mode=mode).assert_consistent()
    (error,) = run.envelope["errors"]
    assert (run.code, error["code"]) == (4, "TASK_INVALID")
    assert "run_limits.max_usd can't be held for agent command" in error["message"]


# ---- time


def test_the_wall_time_of_a_run(project: Project, mode: str) -> None:
    for name in "abcdef":
        project.task(name, agent=scripted(WRITE, paid(), {"sleep": 60}))
    limit = 20.0 if mode == "xdist" else 10.0  # workers take their time to start
    run = project.run("tasks", AGENT, f"--codeprobe-max-duration={limit:g}s", mode=mode)
    detail = check(run)
    assert run.code == 6
    assert set(outcomes(run).values()) == {("not_run", "time")}
    assert (detail["kind"], detail["limit"], detail["reserved"]) == ("time", limit, None)
    assert detail["spent"] >= limit
    ran = [r["task_id"] for r in run.envelope["data"]["results"] if r["attempts"]]
    assert ran
    for name in ran:
        assert run.result(name)["cost_usd"] == REPLY
        assert (run.trial(name) / "attempt-1" / "transcript.json").exists()
    assert warned(run) == [("time", 80), ("time", 100)]
    assert f"at most {limit:g} s" in run.output


def test_a_run_within_its_time(project: Project, mode: str) -> None:
    project.task("a", agent=scripted(WRITE, paid()))
    run = project.run("tasks", AGENT, "--codeprobe-max-duration=1h", "--codeprobe-max-cost-usd=$5", mode=mode)
    check(run, code=None)
    assert (run.code, warned(run)) == (0, [])


def test_without_a_budget_there_is_no_ledger(project: Project, mode: str) -> None:
    project.task("a", agent=scripted(WRITE, paid()))
    run = project.run("tasks", AGENT, mode=mode).assert_consistent()
    assert not list(run.folder.glob("ledger*"))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=5", mode=mode).assert_consistent()
    assert [path.name for path in run.folder.glob("ledger*")] == ["ledger.sqlite"]  # nothing of it is left beside


@pytest.mark.parametrize("name", ["max-cost-usd", "max-duration"])
@pytest.mark.parametrize("value", ["0", "-1", "-0.0", "nan", "inf", "1e400", "1,5", "1h30m", "$", "€1", "1 2", "0x10", "0s", "1w"])
def test_junk_is_no_budget(name: str, value: str) -> None:
    dest = next(option.dest for option in BUILT if option.name == name)
    ini = {key.name: key.default for key in INIS}
    for command_line, environ in (({dest: value}, {}), ({}, {dest.upper(): value})):
        with pytest.raises(CodeprobeError, match=rf"(?i)codeprobe.{name.replace('-', '.')}") as caught:
            resolve(command_line, environ, lambda key: ini.get(key, ""))
        assert caught.value.code == "USAGE_ERROR"


# ---- the same in every way


def test_the_outcome_of_a_used_up_budget_is_the_same_in_every_mode(project: Project, mode: str) -> None:
    """Which trials are reached may differ; the exit code, what the error says to a program, and one record for each do not."""
    for number in range(6):
        project.task(f"t{number}", agent=scripted(WRITE, *[{"sleep": 0.1}, paid()] * 40))
    run = project.run("tasks", AGENT, "--codeprobe-max-cost-usd=1", "--codeprobe-json-lines", mode=mode, junit=False)
    envelope = run.assert_pure()
    check(run)
    (error,) = envelope["errors"]
    for name in ("count", "detail", "message"):
        del error[name]
    assert run.code == envelope["exit_code"] == 6
    assert envelope["status"] == "error"
    assert error == {
        "code": "BUDGET_EXCEEDED",
        "kind": "diagnostic",
        "retryable": "no",
        "terminal": True,
        "remediation": error["remediation"],
        "command": None,
    }
    assert {(r["status"], r["reason"]) for r in envelope["data"]["results"]} == {("not_run", "budget")}
    assert envelope["data"]["tasks_not_run"] == 6
    assert [e["percent"] for e in run.lines if e.get("event") == "budget_warning"] == [80, 100]
