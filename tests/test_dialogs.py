"""A simulated user: exchanges of one conversation, each a session of its own, and what ends it."""

from __future__ import annotations

import json
import signal
from typing import Any

from pytest_codeprobe.model.config import Simulation
from pytest_codeprobe.trial.persona import first_words, next_words, role_of
from tests.front_door import Project, Run, scripted

GOAL = {"goal": "a file out.txt"}
DONE = {"say": "Thanks. <<<END>>>"}
WRITE = {"write": {"path": "out.txt", "content": "1\n"}}


def lines(*texts: str) -> dict[str, Any]:
    """Who plays the user by fixed lines."""
    return scripted(*({"say": text} for text in texts))


def usage(tokens: int, cost: float = 0.0) -> dict[str, Any]:
    return {"usage": {"model": "m", "input_tokens": tokens, "output_tokens": 0, "cost_usd": cost}}


def transcript(run: Run, task_id: str, attempt: int = 1) -> list[dict[str, Any]]:
    file = run.trial(task_id) / f"attempt-{attempt}" / "transcript.json"
    return list(json.loads(file.read_text())["steps"])


def said(run: Run, task_id: str) -> list[tuple[str, str]]:
    """Who said what, by the transcript."""
    return [(step["source"], step["message"]) for step in transcript(run, task_id) if step["message"]]


def stops(run: Run) -> dict[str, tuple[str, int]]:
    """How each dialog ended, and after how many exchanges."""
    found = {task: run.result(task)["dialog"] for task in run.statuses}
    return {task: (dialog["stop"], len(dialog["exchanges"])) for task, dialog in found.items() if dialog is not None}


def test_a_dialog_and_what_ends_it(project: Project, mode: str) -> None:
    """By the user's token, his silence, his turns, his tokens, and the criteria; the same however the run is spread."""
    agent = scripted({"say": "Which file?"}, usage(10, 0.25), WRITE, {"say": "Done."}, {"run": "echo never > never.txt"})
    user = scripted(usage(1, 0.5), {"say": "out.txt"}, usage(2, 0.5), DONE)
    project.task("asks", agent=agent, simulation={**GOAL, "agent": user})
    project.task("silent", agent=agent, simulation={**GOAL, "agent": lines("out.txt")})
    project.task("turns", agent=agent, simulation={**GOAL, "max_turns": 1, "agent": lines("never asked")})
    reads = scripted(usage(3), {"say": "a"}, {"say": "b"})
    project.task("tokens", agent=agent, simulation={**GOAL, "max_total_tokens": 12, "agent": reads})
    checked = {"check_criteria": "every_turn", "stop_on_criteria_pass": True}
    project.task("passes", agent=agent, simulation={**GOAL, **checked, "agent": lines("a", "b", "c")})
    project.task("opens", initial_prompt=None, agent=agent, simulation={**GOAL, "agent": lines("Hello", "out.txt", "<<<END>>>")})
    text = (project.path / "tasks" / "opens.yaml").read_text()
    project.write("tasks/opens.yaml", text.replace("initial_prompt: null\n", ""))
    run = project.run("tasks", "--codeprobe-agent=scripted", mode=mode).assert_consistent()
    run.assert_nothing_left()
    assert run.statuses == {**dict.fromkeys(("asks", "silent", "tokens", "passes", "opens"), "passed"), "turns": "failed"}, run.output
    assert stops(run) == {
        "asks": ("stop_token", 2),
        "silent": ("silence", 2),
        "turns": ("max_turns", 1),
        "tokens": ("max_total_tokens", 2),
        "passes": ("criteria_passed", 2),
        "opens": ("stop_token", 2),
    }
    assert said(run, "asks") == [("user", "do it"), ("agent", "Which file?"), ("user", "out.txt"), ("agent", "Done.")]
    assert said(run, "opens")[0] == ("user", "Hello")
    users = [step.get("extra", {}).get("simulated_user") for step in transcript(run, "asks") if step["source"] == "user"]
    assert users == [None, "scripted"]
    assert "dialog with scripted: 1 exchange, ended by max_turns" in run.output
    # both sides are paid, and told apart
    record = run.result("asks")
    assert [e["usage"]["input_tokens"] for e in record["dialog"]["exchanges"]] == [0, 10]
    assert (record["usage"]["cost_usd"], record["dialog"]["usage"]["cost_usd"], record["cost_usd"]) == (0.25, 1.0, 1.25)
    assert record["attempts"][0]["user_usage"]["input_tokens"] == 3
    assert record["final_message"] == "Done."
    # what was looked at between exchanges stands beside them
    assert [e["passed"] for e in run.result("passes")["dialog"]["exchanges"]] == [False, True]
    names = {path.name for path in (run.trial("asks") / "attempt-1").iterdir()}
    logs = {f"{who}-{n}.{stream}" for who in ("agent", "user") for n in (1, 2) for stream in ("stdout", "stderr")}
    assert names == logs | {"transcript.json", "trial.log"}
    assert not (run.trial("asks") / "artifacts" / "never.txt").exists()


def test_each_exchange_is_a_session_of_its_own(project: Project) -> None:
    """Nothing of one is alive in the next; the workspace and HOME stay; the user has neither, and nothing of the task's environment."""
    leave = {"run": f"echo here > kept.txt; echo x > $HOME/kept; (sleep 300 & echo $! > {project.marks}/pid)"}
    look = {"run": f"cat kept.txt $HOME/kept && ! kill -0 $(cat {project.marks}/pid) 2>/dev/null && touch out.txt"}
    spy = {"run": f"{{ ls -A; pwd; env; }} > {project.marks}/user"}
    project.write("tasks/secret/answer.txt", "42")
    project.task(
        "apart",
        agent=scripted(leave, {"say": "a"}, look, {"say": "b"}),
        reference={"file": "secret/answer.txt"},
        sandbox={
            "env": {"OF_THE_TASK": "1"},
            "template_sources": [{"type": "starter_files", "files": [{"path": "s.txt", "content": "s"}]}],
        },
        simulation={**GOAL, "agent": scripted(spy, {"say": "go on"}, DONE)},
    )
    run = project.run("tasks/apart.yaml").assert_consistent()
    run.assert_nothing_left()
    assert run.statuses == {"apart": "passed"}, (run.output, transcript(run, "apart"))
    seen = (project.marks / "user").read_text().splitlines()
    assert seen[0].endswith("/workspace"), seen  # no file comes before it
    assert not [line for line in seen if "OF_THE_TASK" in line or "answer.txt" in line or "REFERENCE" in line]


def test_what_is_graded_between_exchanges_is_a_copy(project: Project) -> None:
    """Graders leave nothing in it for the agent; what is protected is put back; at the end the workspace itself is graded."""
    check = "echo graded >> graders.txt; test $(wc -l < graders.txt) = 1 && grep -q 0 guard.txt && test -e out.txt"
    project.task(
        "copy",
        agent=scripted({"run": "echo 1 > guard.txt"}, {"say": "a"}, {"run": "! test -e graders.txt && touch out.txt"}, {"say": "b"}),
        sandbox={
            "template_sources": [{"type": "starter_files", "files": [{"path": "guard.txt", "content": "?\n"}]}],
            "protected": ["guard.txt"],
        },
        pre_run=[{"command": "echo 0 > guard.txt"}],
        success_criteria=[{"type": "run_command", "command": check}],
        simulation={**GOAL, "check_criteria": "both", "agent": lines("go on", "and on", "<<<END>>>")},
    )
    run = project.run("tasks/copy.yaml").assert_consistent()
    run.assert_nothing_left()
    assert run.statuses == {"copy": "passed"}, run.output
    assert [e["score"] for e in run.result("copy")["dialog"]["exchanges"]] == [0.0, 1.0, 1.0]
    assert run.result("copy")["changed_files"] == ["M guard.txt", "A out.txt"]


def test_limits_hold_over_all_exchanges(project: Project) -> None:
    """Tokens, money and time of both sides; turns for each exchange. Hit in the second one, what was done is graded."""
    call = {"run": "true"}
    first, ends = [WRITE, usage(60, 0.3), {"say": "a"}], [usage(60, 0.3), {"sleep": 60}, {"say": "b"}]
    for name, limits in {"tokens": {"max_input_tokens": 100}, "usd": {"max_usd": 0.5}}.items():
        project.task(name, agent=scripted(*first, *ends), run_limits=limits, simulation={**GOAL, "agent": lines("go on")})
    project.task("users", agent=scripted(*first), run_limits={"max_usd": 0.5}, simulation={**GOAL, "agent": scripted(*ends)})
    project.task(
        "turns",
        agent=scripted(WRITE, {"say": "a"}, call, call, {"say": "b"}, call, call, call, {"sleep": 60}),
        run_limits={"max_turns": 2},
        simulation={**GOAL, "agent": lines("go on", "and on")},
    )
    slow = scripted(WRITE, {"sleep": 0.5}, {"say": "a"}, {"sleep": 60})
    project.task("time", agent=slow, run_limits={"task_timeout": 1.5}, simulation={**GOAL, "agent": lines("go on")})
    project.task("turn-time", agent=slow, run_limits={"turn_timeout": 1.5}, simulation={**GOAL, "agent": lines("go on")})
    run = project.run("tasks", "--codeprobe-agent=scripted", mode="jobs").assert_consistent()
    run.assert_nothing_left()
    assert set(run.statuses.values()) == {"passed"}, run.output
    assert {task: e["limit_hit"]["name"] for task, e in run.finished.items()} == {
        "tokens": "max_input_tokens", "usd": "max_usd", "users": "max_usd", "turns": "max_turns", "time": "task_timeout",
        "turn-time": "turn_timeout",
    }  # fmt: skip
    assert stops(run) == {**dict.fromkeys(run.statuses, ("limit", 2)), "users": ("limit", 1), "turns": ("limit", 3)}
    assert run.result("usd")["cost_usd"] == run.result("users")["cost_usd"] == 0.6
    assert run.result("users")["usage"]["cost_usd"] == 0.3


def test_the_budget_counts_both_sides(project: Project) -> None:
    """The user's session is ended when the run's money is gone, and what both have spent is in the books."""
    agent, user = scripted(WRITE, usage(1, 0.4), {"say": "a"}), scripted(usage(1, 0.8), {"sleep": 60}, {"say": "b"})
    project.task("dear", agent=agent, simulation={**GOAL, "agent": user})
    run = project.run("tasks/dear.yaml", "--codeprobe-max-cost-usd=1").assert_consistent()
    run.assert_nothing_left()
    assert (run.code, run.statuses) == (6, {"dear": "not_run"}), run.output
    record = run.result("dear")
    assert (record["reason"], record["dialog"]["stop"], round(record["cost_usd"], 6)) == ("budget", "stopped", 1.2)


def test_an_error_of_either_side(project: Project) -> None:
    """It has its own code; a provider's outage is tried once more, from the beginning, and both tries are paid."""
    fail = {"fail": "AGENT_BLOCKED"}
    project.task("agents", agent=scripted(WRITE, {"say": "a"}, fail), simulation={**GOAL, "agent": lines("go on")})
    project.task("users", agent=scripted(WRITE, {"say": "a"}), simulation={**GOAL, "agent": scripted(fail)})
    project.task("mute", initial_prompt="x", agent=scripted(WRITE, {"say": "a"}), simulation={**GOAL, "agent": scripted(DONE)})
    text = (project.path / "tasks" / "mute.yaml").read_text()
    project.write("tasks/mute.yaml", text.replace("initial_prompt: x\n", ""))
    outage = scripted(usage(1, 0.5), {"fail": "LLM_UNAVAILABLE"})
    project.task("outage", agent=scripted(usage(1, 0.25), {"say": "a"}), simulation={**GOAL, "agent": outage})
    run = project.run("tasks", "--codeprobe-agent=scripted", mode="jobs").assert_consistent()
    run.assert_nothing_left()
    codes = {task: (e["status"], e["code"], run.result(task)["reason"]) for task, e in run.finished.items()}
    assert codes == {
        "agents": ("error", "AGENT_BLOCKED", "the script failed with AGENT_BLOCKED"),
        "users": ("error", "AGENT_BLOCKED", "simulated user: the script failed with AGENT_BLOCKED"),
        "mute": ("error", "AGENT_CRASHED", "simulated user: it ended the dialog before it had begun"),
        "outage": ("error", "LLM_UNAVAILABLE", "simulated user: the script failed with LLM_UNAVAILABLE"),
    }
    outage_record = run.result("outage")
    assert [a["user_usage"]["cost_usd"] for a in outage_record["attempts"]] == [0.5, 0.5]
    assert (outage_record["usage"]["cost_usd"], outage_record["dialog"]["usage"]["cost_usd"], outage_record["cost_usd"]) == (0.5, 1.0, 1.5)


def test_what_can_hold_no_dialog(project: Project) -> None:
    """An error at collection that names who can; an agent without a session has nobody to talk to, and is asked for nothing."""
    user = {**GOAL, "agent": lines("hello")}
    project.task("t", agent={"type": "command", "command": ["true"]}, simulation=user)
    run = project.run("tasks/t.yaml")
    assert run.code == 4 or "errors" in run.output
    assert "'simulation' needs an agent that can go on with its session, and command can't (these can: claude, scripted)" in run.output
    agent = scripted(WRITE)
    for simulation, message in (
        ({**GOAL, "agent": {"type": "oracle"}}, "agent oracle can't play a user: it says nothing"),
        ({**GOAL, "agent": {"effort": "much"}}, "NO_BACKENDS_CONFIGURED: a simulated user is asked for"),
        ({**GOAL, "agent": {"model": "m", "effort": "much"}}, "'simulation.agent.effort' must be one of low"),
        ({**GOAL, "agent": {"type": "codex"}}, "agent 'codex' is not available yet"),
        ({**GOAL, "agent": {"type": "scripted", "effort": "high"}}, "simulation.agent.effort is not supported by scripted"),
        ({**user, "stop_on_criteria_pass": True}, "'stop_on_criteria_pass' needs 'check_criteria: every_turn' or 'both'"),
        ({**user, "goal": " "}, "goal"),
        (GOAL, "NO_BACKENDS_CONFIGURED: a simulated user is asked for, and nothing says which model plays it (task 't', tasks/t.yaml:1)"),
    ):
        project.task("t", agent=agent, simulation=simulation)
        run = project.run("tasks/t.yaml", "--collect-only", junit=False)
        assert message in run.output, (message, run.output)
    project.task("t", simulation={**GOAL}, solution={"script": "touch out.txt"})
    run = project.run("tasks/t.yaml", "--codeprobe-agent=oracle").assert_consistent()
    assert (run.statuses, run.result("t")["dialog"]) == ({"t": "passed"}, None)
    project.task("t", agent=agent, simulation={**user, "enabled": False})
    run = project.run("tasks/t.yaml").assert_consistent()
    assert (run.statuses, run.result("t")["dialog"]) == ({"t": "passed"}, None)


def test_kills_between_exchanges(project: Project) -> None:
    """Nothing of either side outlives pytest, nor an interrupt; what the dialog has used by then is in the record."""
    waits = scripted({"run": f"touch {project.marks}/user"}, {"sleep": 300})
    project.task("t", agent=scripted(usage(1, 0.25), {"say": "a"}), simulation={**GOAL, "agent": waits})
    run = project.start("tasks/t.yaml")
    run.wait_for("user")
    run.signal(signal.SIGKILL)
    run.wait()
    run.assert_nothing_left(10)
    (project.marks / "user").unlink()
    run = project.start("tasks/t.yaml")
    run.wait_for("user")
    run.signal(signal.SIGINT)
    run.wait().assert_consistent()
    run.assert_nothing_left()
    record = run.result("t")
    assert (record["status"], record["reason"], record["dialog"]["stop"]) == ("not_run", "interrupted", "stopped")
    assert record["cost_usd"] == 0.25


def test_secrets_and_long_transcripts(project: Project) -> None:
    """A key of the user's stands in no log; a transcript too long is cut once, or ends the dialog."""
    key = "sk-0123456789abcdef0123"
    user = scripted({"run": "echo $USERS_API_KEY"}, {"say": "go on"}, {"say": "and on"}, {"say": "<<<END>>>"})
    long = [step for text in ("a", "b", "c") for step in ({"run": "seq 300"}, {"say": text})]
    project.task("t", agent=scripted(WRITE, *long), simulation={**GOAL, "agent": {**user, "env": {"USERS_API_KEY": key}}})
    run = project.run("tasks/t.yaml", "--codeprobe-trace-max-bytes=2500").assert_consistent()
    run.assert_nothing_left()
    assert run.statuses == {"t": "passed"}, run.output
    steps = transcript(run, "t")
    assert [step["message"] for step in steps if (step.get("extra") or {}).get("truncated")] == [steps[-1]["message"]]
    assert stops(run) == {"t": ("stop_token", 3)}
    for path in run.folder.rglob("*"):
        assert not path.is_file() or key.encode() not in path.read_bytes(), path
    assert "[redacted" in (run.trial("t") / "attempt-1" / "user-1.stdout").read_text().lower()
    run = project.run("tasks/t.yaml", "--codeprobe-trace-max-bytes=2500", "--codeprobe-trace-overflow=fail").assert_consistent()
    assert (run.finished["t"]["status"], run.finished["t"]["code"]) == ("error", "TRACE_OVERFLOW_FIRED")
    run = project.run("tasks/t.yaml", "--codeprobe-trace-overflow=off").assert_consistent()
    assert run.statuses == {"t": "passed"}
    assert not (run.trial("t") / "attempt-1" / "transcript.json").exists()


def test_resume_and_layers(project: Project) -> None:
    """What the user is belongs to what shapes the session; an experiment may set it, and a variant change it."""
    agent = scripted({"say": "a"}, WRITE, {"say": "b"})
    project.task("t", agent=agent, simulation={**GOAL, "agent": lines("go on", "<<<END>>>")})
    first = project.run("tasks/t.yaml", "--codeprobe-run-dir=out").assert_consistent()
    assert first.statuses == {"t": "passed"}, first.output
    first_dialog = first.result("t")["dialog"]
    again = project.run("tasks/t.yaml", "--codeprobe-run-dir=out", "--codeprobe-resume")
    assert again.finished["t"]["cached"]
    ok = [{"type": "file_exists", "path": "out.txt"}, {"type": "file_contains", "path": "out.txt", "includes": ["2"]}]
    project.task("t", agent=agent, simulation={**GOAL, "agent": lines("go on", "<<<END>>>")}, success_criteria=ok)
    graded = project.run("tasks/t.yaml", "--codeprobe-run-dir=out", "--codeprobe-resume")
    assert (graded.finished["t"]["status"], graded.result("t")["regraded"]) == ("failed", True), graded.output
    assert graded.result("t")["dialog"] == first_dialog
    project.task("t", agent=agent, simulation={"goal": "another", "agent": lines("go on", "<<<END>>>")})
    changed = project.run("tasks/t.yaml", "--codeprobe-run-dir=out", "--codeprobe-resume")
    assert "simulation" in changed.output
    assert not changed.finished["t"].get("cached")
    experiment = (
        "experiment_id: e\ndefaults:\n  simulation: {max_turns: 1}\n"
        "variants:\n  - {variant_id: short}\n  - {variant_id: long, simulation: {max_turns: 5}}\n"
    )
    project.write("experiments/e.yaml", experiment)
    both = project.run("tasks/t.yaml", "--codeprobe-experiment=e").assert_consistent()
    records = {path.parts[-4]: json.loads(path.read_text()) for path in both.folder.glob("trials/*/t/r001/result.json")}
    assert {name: (r["status"], r["dialog"]["stop"]) for name, r in records.items()} == {
        "short": ("failed", "max_turns"),
        "long": ("passed", "stop_token"),
    }


def test_what_a_user_is_told() -> None:
    """Role, goal and rules; the whole dialog where it remembers nothing, else the last message byte for byte."""
    simulation = Simulation.model_validate({"goal": "G", "persona": "P", "constraints": ["C1", "C2"], "stop_token": "STOP"})
    role = role_of(simulation)
    assert all(part in role for part in ("P", "G", "- C1\n- C2", "STOP"))
    assert "Who you are" not in role_of(Simulation(goal="G"))
    assert first_words("R", []) == "R\n\nWrite your first message to the agent."
    told = first_words("", [("user", "u1"), ("agent", "a1"), ("user", "u2"), ("agent", " ")])
    places = [told.index(part) for part in ("You:\nu1", "The agent:\na1", "You:\nu2", "The agent:\n(The agent said nothing.)")]
    assert places == sorted(places)
    assert next_words(" x\n") == " x\n"


def test_an_experiment_bounds_dialogs_and_makes_none(project: Project) -> None:
    """What it says of simulated users is for tasks that have one; the others stay what they are."""
    project.task("plain", agent=scripted(WRITE))
    project.task("talks", agent=scripted({"say": "a"}, WRITE, {"say": "b"}), simulation={**GOAL, "agent": lines("go on", "and on")})
    project.write("experiments/short.yaml", "experiment_id: short\ndefaults:\n  simulation: {max_turns: 2, n_trials: 1}\n")
    run = project.run("tasks", "--codeprobe-agent=scripted", "--codeprobe-experiment=short")
    assert (run.statuses, stops(run)) == ({"plain": "passed", "talks": "passed"}, {"talks": ("max_turns", 2)}), run.output
    told = project.codeprobe("explain", "plain", "-e", "short")
    assert (told.code, "simulation" in told.stdout) == (0, False)
