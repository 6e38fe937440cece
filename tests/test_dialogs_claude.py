"""A simulated user and agent claude with the real Claude Code CLI: sessions that are resumed, and both sides' books."""

from __future__ import annotations

import signal
import time
from typing import Any

import pytest

from tests.claude_runs import MODEL, ClaudeProject, cost, server, tokens, tokens_of, told, transcript
from tests.front_door import Project, scripted
from tests.model_server import Script, ToolCall, Turn, Usage
from tests.real_cli import require_clis

pytestmark = pytest.mark.real_cli

WRITE = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})
LOOK = ToolCall("Bash", {"command": "ls", "description": "Look"})
EXPERIMENT = f"experiment_id: e\njudge: {{model: {MODEL}}}\n"


@pytest.fixture
def claude(project: Project) -> ClaudeProject:
    """A project with the real CLI, or a skip, in which a model plays the user where a task names nobody."""
    project.write("experiments/e.yaml", EXPERIMENT)
    return ClaudeProject(project, require_clis())


def agent(key: str, *turns: Turn) -> Script:
    return Script(turns, key=f"[{key}]")


def user(key: str, *turns: Turn) -> Script:
    """Played by a model without tools."""
    return Script(turns, key=f"play {key}", tools=False)


def test_three_exchanges_and_both_sides_are_booked(claude: ClaudeProject) -> None:
    """Agent and user each go on with one conversation; it ends by the token, by the criteria, by the turns."""
    talk = (
        Turn("Which file?", usage=Usage(101, 11, 0, 7)),
        Turn("And then?", [LOOK], Usage(211, 13, 17, 0)),
        Turn("What is in it?", usage=Usage(223, 19, 23, 0)),
        Turn("I write it.", [WRITE], Usage(307, 29, 31, 0)),
        Turn("Done.", usage=Usage(311, 37, 41, 0)),
    )
    kinds: dict[str, dict[str, Any]] = {
        "token": {},
        "goal": {"check_criteria": "every_turn", "stop_on_criteria_pass": True},
        "turns": {"max_turns": 2},
    }
    for name, more in kinds.items():
        claude.task(name, simulation={"goal": f"play {name}", "persona": "a baker", **more})
    plays = (Turn("out.txt", usage=Usage(43, 3)), Turn("a word", usage=Usage(47, 5)), Turn("Bye <<<END>>>", usage=Usage(53, 6)))
    scripts = [script for name in ("token", "goal", "turns") for script in (agent(name, *talk), user(name, *plays))]
    with server(scripts) as model:
        run = claude.run(model, "--codeprobe-experiment=e", "--codeprobe-max-cost-usd=50", mode="jobs")
    assert run.statuses == {"token": "passed", "goal": "passed", "turns": "failed"}, run.output
    ends = {task: (run.result(task)["dialog"]["stop"], len(run.result(task)["dialog"]["exchanges"])) for task in run.statuses}
    assert ends == {"token": ("stop_token", 3), "goal": ("criteria_passed", 3), "turns": ("max_turns", 2)}
    found = [(step.source, step.message) for step in transcript(run, "token").steps if step.message and step.source != "system"]
    assert found == [
        ("user", "[token] do it"), ("agent", "Which file?"), ("user", "out.txt"), ("agent", "And then?"), ("agent", "What is in it?"),
        ("user", "a word"), ("agent", "I write it."), ("agent", "Done."),
    ]  # fmt: skip
    for name in ends:
        record, sent = run.result(name), (told(model, name), told(model, f"play {name}"))
        assert tokens_of(record["usage"]) == tokens(sent[0]), name
        assert tokens_of(record["dialog"]["usage"]) == tokens(sent[1]), name
        assert record["usage"]["cost_usd"] == pytest.approx(cost(sent[0])), name
        assert record["cost_usd"] == pytest.approx(cost(sent[0]) + cost(sent[1])), name
    record = run.result("token")
    assert [e["usage"]["output_tokens"] for e in record["dialog"]["exchanges"]] == [11, 32, 66]
    assert (record["usage"]["turns"], record["usage"]["replies"], record["dialog"]["user"]["name"]) == (2, 5, "claude")
    # the user has no tools, and is told its part in its system prompt
    bodies = [r.body for r in model.stats.log if r.key == "play token"]
    assert not any(body.get("tools") for body in bodies)
    assert all("a baker" in str(body["system"]) for body in bodies)
    # one conversation on each side
    assert str(bodies[-1]["messages"]).count("out.txt") >= 1
    assert "a baker" not in str([r.body for r in model.stats.log if r.key == "[token]"])


def test_limits_and_kills_in_the_second_exchange(claude: ClaudeProject) -> None:
    """What the first one has used counts; work of the first one is work; nothing is left when pytest is killed between two."""
    first = (Turn("I write it.", [WRITE], Usage(600, 10)), Turn("More?", usage=Usage(1, 1)))
    plays = scripted({"say": "more"}, {"say": "and more"})
    limits = {"tokens": {"max_input_tokens": 1000}, "usd": {"max_usd": 0.004}}
    for name, own in limits.items():
        claude.task(name, run_limits=own, simulation={"goal": "g", "agent": plays})
    second = (Turn("I look.", [LOOK], Usage(600, 10)), Turn("too late", delay=90))
    with server([agent(name, *first, *second) for name in limits]) as model:
        run = claude.run(model, mode="jobs")
    assert set(run.statuses.values()) == {"passed"}, run.output
    assert {task: e["limit_hit"]["name"] for task, e in run.finished.items()} == {"tokens": "max_input_tokens", "usd": "max_usd"}
    assert {len(run.result(task)["dialog"]["exchanges"]) for task in limits} == {2}
    for path in (claude.project.path / "tasks").iterdir():
        path.unlink()
    claude.task("kill", simulation={"goal": "g", "agent": scripted({"run": f"touch {claude.project.marks}/user"}, {"sleep": 300})})
    with server([agent("kill", *first)]) as model:
        run = claude.start(model)
        run.wait_for("user")
        run.signal(signal.SIGKILL)
        run.wait()
        until = time.monotonic() + 10
        while list(claude.processes()) and time.monotonic() < until:
            time.sleep(0.1)
        assert not list(claude.processes())
