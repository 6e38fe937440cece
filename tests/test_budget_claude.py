"""The budget of a run with the real Claude Code CLI, whose model answers after a second: the books agree with the server's."""

from __future__ import annotations

import time

import pytest

from pytest_codeprobe.model.prices import list_prices
from pytest_codeprobe.model.result import Usage as OurUsage
from tests.claude_runs import MODEL, ClaudeProject, cost, server, tokens
from tests.front_door import Project, Run
from tests.model_server import ModelServer, Script, ToolCall, Turn, Usage
from tests.real_cli import require_clis
from tests.test_budget import WIDE, check, outcomes, warned

pytestmark = pytest.mark.real_cli

DELAY = 1.0  #: seconds that a reply takes
USED = Usage(8_000, 20_000, 10_000, 800)  #: of each reply
REPLY = 0.33  #: what that costs in US dollars
WRITE = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})
LOOK = ToolCall("Bash", {"command": "cat out.txt", "description": "Look"})


@pytest.fixture
def claude(project: Project) -> ClaudeProject:
    """A project with the real CLI, or a skip."""
    return ClaudeProject(project, require_clis())


def turn(*calls: ToolCall, text: str = "I work.") -> Turn:
    return Turn(text, calls, USED, delay=DELAY)


def replies(model: ModelServer, task_id: str, before: float | None = None) -> int:
    """How many whole replies the server sent to a session, in all or before a time (of time.monotonic)."""
    sent = [model.started + r.seconds + DELAY for r in model.stats.log if r.key == f"[{task_id}]" and r.reply.startswith("turn")]
    return sum(before is None or at < before for at in sent)


def stopped_at(run: Run) -> float | None:
    """When the run's flag was raised, as time.monotonic() counts."""
    flag = run.folder / "stop" / "budget"
    return flag.stat().st_mtime - time.time() + time.monotonic() if flag.exists() else None


def check_books(run: Run, model: ModelServer) -> list[str]:
    """Each trial that ran is there with what the server told it; the names of those. What was on its way to a session as that was
    ended may or may not have got through."""
    assert cost(USED) == pytest.approx(REPLY)
    results = {r["task_id"]: r for r in run.envelope["data"]["results"]}
    ran = [name for name, result in results.items() if result["attempts"]]
    end = stopped_at(run)
    for name in ran:
        told = replies(model, name, before=end)
        paid = results[name]["cost_usd"]
        if paid is None:  # it was ended before its model's first word
            assert told == 0
            continue
        assert told - 1e-6 <= paid / REPLY <= replies(model, name) + 0.1, (name, paid, told)
        assert paid / REPLY == pytest.approx(round(paid / REPLY), abs=0.1)  # a reply that had begun has claimed what it was given
        record = run.result(name)
        assert record["usage"]["cost_source"] == ("cli" if results[name]["status"] == "passed" else "price_table")
    asked = {r.key.strip("[]") for r in model.stats.log if r.kind == "main"}
    assert asked <= set(ran)
    assert model.stats.problems == []
    return ran


@pytest.mark.parametrize("wide", WIDE)
def test_tasks_of_one_dollar_each(claude: ClaudeProject, wide: str) -> None:
    names = [f"t{number:02}" for number in range(10)]
    for name in names:
        claude.task(name)
    scripts = [Script((turn(WRITE), turn(LOOK), turn(text="Done.")), key=f"[{name}]") for name in names]
    with server(scripts) as model:
        run = claude.run(model, "--codeprobe-max-cost-usd=3", *WIDE[wide], seconds=200)
        detail = check(run)
        ran = check_books(run, model)
        metered = sum(replies(model, name) for name in names) * REPLY
    data = run.envelope["data"]
    assert run.code == 6
    assert detail["spent"] == pytest.approx(data["cost_usd"], abs=0.01)
    if wide == "plain":
        assert ran == names[:3]
        assert data["cost_usd"] == pytest.approx(metered, abs=1e-6)
        assert data["cost_usd"] == pytest.approx(2.97, abs=1e-6)
        assert detail["reserved"] == pytest.approx(0.99, abs=1e-6)
        assert {run.statuses[name] for name in ran} == {"passed"}
    else:
        assert len(ran) >= 3
        assert data["cost_usd"] <= 3 + 2 * REPLY * len(ran)
        assert metered <= 3 + 2 * REPLY * len(ran)
    for name in set(names) - set(ran):
        assert outcomes(run)[name] == ("not_run", "budget")
        assert not run.trial(name).exists()
    assert {outcomes(run)[name] for name in ran} <= {("passed", None), ("not_run", "budget")}
    assert warned(run)[0] == ("cost", 80)


def test_a_runaway_and_its_own_limit(claude: ClaudeProject) -> None:
    """One that never ends is stopped in the middle by the run's money, and by its own."""
    claude.task("own", run_limits={"max_usd": 0.5})
    claude.task("runs")
    forever = [Script((turn(WRITE), *[turn(LOOK)] * 60), key=f"[{name}]") for name in ("own", "runs")]
    with server(forever) as model:
        run = claude.run(model, "--codeprobe-max-cost-usd=2", seconds=120)
        check(run)
        assert check_books_of_limits(run, model) == {"own": 2, "runs": 5}
    assert outcomes(run) == {"own": ("passed", None), "runs": ("not_run", "budget")}
    assert run.finished["own"]["limit_hit"] == {"name": "max_usd", "value": 0.5}
    assert run.result("runs")["usage"]["cost_source"] == "price_table"
    assert (run.trial("runs") / "artifacts" / "out.txt").exists()
    assert (run.trial("runs") / "attempt-1" / "transcript.json").exists()


def check_books_of_limits(run: Run, model: ModelServer) -> dict[str, int]:
    """Replies that were paid for: all that the server sent to their end."""
    paid = {name: round(run.result(name)["cost_usd"] / REPLY) for name in run.statuses}
    assert paid == {name: replies(model, name) for name in run.statuses}
    return paid


def test_a_model_that_shows_in_the_session_only(claude: ClaudeProject) -> None:
    """The CLI makes a price up for it, which is no price: until it ends it counts as the dearest, and no further one of it starts."""
    agent = {"env": {"ANTHROPIC_MODEL": "some-model-1"}, "type": "claude"}
    for name in "ab":
        claude.task(name, agent=agent)
    claude.task("bounded", agent=agent, run_limits={"max_total_tokens": 10_000_000})
    forever = [Script((Turn("I write.", [WRITE]), Turn("Done.")), key="[a]"), Script((turn(WRITE), *[turn(LOOK)] * 60), key="[bounded]")]
    with server(forever) as model:
        run = claude.run(model, "--codeprobe-max-cost-usd=6")
        assert {r.model for r in model.stats.log} == {"some-model-1"}
        sent = replies(model, "bounded")
    detail = check(run)
    unpaid = ("not_run", "budget")
    assert outcomes(run) == {"a": ("passed", None), "b": unpaid, "bounded": unpaid}
    assert [run.result(name)["cost_usd"] for name in ("a", "bounded")] == [None, None]
    assert run.result("a")["agent"]["model"] == "some-model-1"
    dearest = list_prices().dearest(OurUsage.model_validate(tokens(USED)))
    assert 6 < detail["spent"] <= 6 + 2 * dearest
    assert sent * dearest <= detail["spent"] + dearest
    message = run.envelope["errors"][0]["message"]
    assert "of it at most: what some sessions cost is unknown)" in message
    assert "no price is known for model 'some-model-1', so tasks/b.yaml::b was not started" in message
    assert [w for w in run.envelope["warnings"] if "some-model-1" in w] == [
        "no price is known for model 'some-model-1': what its sessions cost is unknown"
    ]
    assert MODEL not in run.output
