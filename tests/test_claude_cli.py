"""Agent claude through the plugin, with the real Claude Code CLI, where the only network is loopback."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.claude_runs import KEY, MODEL, USER_MARK, ClaudeProject, calls, cost, messages, server, tokens, tokens_of, told, transcript
from tests.front_door import Project, Run
from tests.install_clis import locked_version
from tests.model_server import Fault, ModelServer, Script, ToolCall, Turn, Usage
from tests.real_cli import require_clis

pytestmark = pytest.mark.real_cli

CALC = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "test_calc.py": "from calc import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n",
}
WRITE = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})
#: no events of the CLI, but what a tool may print, a file hold, or a model say
SHOUTS = (
    '{"type":"system","subtype":"api_retry","error_status":401,"error":"authentication_failed"}',
    '{"type":"result","subtype":"success","is_error":true,"terminal_reason":"api_error","api_error_status":529,"result":"overloaded"}',
    '{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}',
    "API Error: 401 invalid x-api-key",
    "API Error: 429 rate limit",
    "Invalid API key · Please run /login",
    "Credit balance is too low",
)
WORK = (Turn("I write it.", [WRITE], Usage(701, 41, 503, 307)), Turn("Done.", usage=Usage(89, 13, 907, 0)))


@pytest.fixture
def claude(project: Project) -> ClaudeProject:
    """A project with the real CLI, or a skip."""
    return ClaudeProject(project, require_clis())


def script(task_id: str, *turns: Turn, faults: tuple[Fault, ...] = ()) -> Script:
    """The model's side of a task; by default it writes out.txt, which is what a task wants by default."""
    return Script(turns or WORK, key=f"[{task_id}]", faults=faults)


def bash(command: str) -> ToolCall:
    return ToolCall("Bash", {"command": command, "description": "A command"})


def hold(seconds: float = 90.0) -> Turn:
    """A reply that nobody waits for."""
    return Turn("too late", delay=seconds)


# ---- sessions that work


def solve(claude: ClaudeProject) -> list[Script]:
    """Tasks that end well, and the scripts that solve them."""
    claude.task(
        "solve",
        initial_prompt=PROMPT,
        files={**CALC, "CLAUDE.md": "WORKSPACE-RULES: be kind to the calculator.\n"},
        success_criteria=[
            {"type": "run_command", "command": "python -c 'from calc import add; assert add(2, 3) == 5'", "expected_exit_code": 0},
            {"type": "file_contains", "path": "NOTES.md", "includes": ["add() adds"]},
            {"type": "answer_contains", "includes": ["adds now"]},
        ],
    )
    claude.task("busy")
    claude.task("shouts", files={"errors.log": "\n".join(SHOUTS)})
    claude.task("waits", run_limits={"provider_patience": 20})
    claude.task("delegates")
    arguments = {"description": "Write it", "prompt": "[helper] write it", "subagent_type": "general-purpose"}
    helper = ToolCall("Agent", {**arguments, "run_in_background": False})
    return [
        script(
            "solve",
            Turn("I look first.", [ToolCall("Read", {"file_path": "{cwd}/calc.py"})], Usage(1001, 53, 307, 211)),
            Turn(
                "The fix and a note.",
                [
                    ToolCall("Edit", {"file_path": "{cwd}/calc.py", "old_string": "a - b", "new_string": "a + b"}),
                    ToolCall("Write", {"file_path": "{cwd}/NOTES.md", "content": "add() adds.\n"}),
                ],
                Usage(409, 131, 1519, 97),
            ),
            Turn("", [bash("python -m pytest -q -p no:cacheprovider test_calc.py")], Usage(211, 61, 2029, 83)),
            Turn("It adds now.", usage=Usage(103, 23, 2311, 0)),
        ),
        script("busy", faults=(Fault("status", status=429, retry_after=1),)),
        script(
            "shouts",
            Turn("", [bash("cat errors.log errors.log >&2; exit 3")]),
            Turn("\n".join(SHOUTS), [ToolCall("Read", {"file_path": "{cwd}/errors.log"}), bash("cat errors.log; exit 0")]),
            *WORK,
        ),
        script("waits", faults=(Fault("slow", delay=4, turn=0),)),
        script("delegates", Turn("", [helper], Usage(509, 29, 0, 101)), Turn("It is done.", usage=Usage(331, 11, 101, 0))),
        script("helper", Turn("", [bash("echo done > out.txt")], Usage(613, 37, 0, 0)), Turn("Written.", usage=Usage(71, 5, 613, 0))),
    ]


#: YAML keeps it as it is; the CLI gets it byte for byte
PROMPT = """[solve] add() subtracts: mend it.

\t--help -p 'x' "y" $HOME `id` \\n %s {cwd} é ü 漢字 😀 \u200b

/not-a-command
   trailing blanks   \n"""


def test_sessions_solve_their_tasks_and_every_token_is_booked(claude: ClaudeProject) -> None:
    scripts = solve(claude)
    before = claude.snapshot()
    with server(scripts) as model:
        run = claude.run(model, mode="jobs")
        assert model.stats.problems == []
        assert run.code == 0, run.output
        assert set(run.statuses.values()) == {"passed"}
        for task_id in run.statuses:
            record, sent = run.result(task_id), told(model, task_id, *(["helper"] if task_id == "delegates" else []))
            assert [a["cause"] for a in record["attempts"]] == ["first"], task_id
            assert tokens_of(record["usage"]) == tokens(sent), task_id
            assert record["cost_usd"] == pytest.approx(cost(sent)), task_id
            assert (record["usage"]["tokens_source"], record["usage"]["cost_source"]) == ("cli", "cli")
            assert record["agent"] == {"name": "claude", "version": locked_version("@anthropic-ai/claude-code"), "model": MODEL}
            found = transcript(run, task_id).final_metrics
            assert found is not None
            assert found.total_prompt_tokens == sent.input + sent.cache_read + sent.cache_write
            assert (found.total_completion_tokens, found.total_cached_tokens) == (sent.output, sent.cache_read)
        data = run.envelope["data"]
        assert data["tokens"] == tokens(model.stats.tokens)
        assert data["cost_usd"] == pytest.approx(cost(model.stats.tokens), abs=1e-6)
        assert model.stats.cut_tokens == Usage(0, 0, 0, 0)
        check_solution(run, model)
        assert {record.model for record in model.stats.log} == {MODEL}
        # the CLI's own retry: one more request than there are replies
        assert [r.reply for r in model.stats.log if r.key == "[busy]"] == ["fault:429", "turn 0", "turn 1"]
        printed, read, again, _ = (result for _, _, result in calls(transcript(run, "shouts")))
        assert all(shout in seen for shout in SHOUTS for seen in (printed, read, again))
        # two at a time: some session began before another had ended
        starts = [e["event"] for e in run.events if e["event"] in ("trial_started", "trial_finished")]
        assert starts[:2] == ["trial_started", "trial_started"]
        everything = json.dumps([record.body for record in model.stats.log])
    assert USER_MARK not in everything
    assert not claude.leaked.exists()
    assert claude.snapshot() == before
    assert_key_is_nowhere(run.folder)


def check_solution(run: Run, model: ModelServer) -> None:
    record = run.result("solve")
    assert sorted(name for name in record["changed_files"] if "__pycache__" not in name) == ["A NOTES.md", "M calc.py"]
    assert (record["usage"]["replies"], record["usage"]["turns"], record["usage"]["tool_calls"]) == (4, 3, 4)
    assert record["final_message"] == "It adds now."
    found = transcript(run, "solve")
    assert [name for name, _, _ in calls(found)] == ["Read", "Edit", "Write", "Bash"]
    results = [result for _, _, result in calls(found)]
    assert "return a - b" in results[0]
    assert "1 passed" in results[3]
    assert [step.message for step in found.steps if step.source == "agent"] == ["I look first.", "The fix and a note.", "", "It adds now."]
    said = messages(model, "solve")
    assert PROMPT in said
    assert "WORKSPACE-RULES" in "".join(said)


def assert_key_is_nowhere(folder: Path, key: str = KEY) -> None:
    """No file below holds the key."""
    holding = [str(path) for path in folder.rglob("*") if path.is_file() and key.encode() in path.read_bytes()]
    assert not holding, holding


# ---- the provider fails


def test_an_outage_is_tried_twice_and_both_attempts_are_kept(claude: ClaudeProject) -> None:
    always: dict[str, Any] = {"times": None, "where": "all"}
    claude.task("down")
    claude.task("silent", run_limits={"provider_patience": 8})
    claude.task("overloaded")
    claude.task("refused", agent={"env": {"ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}})
    claude.task("back")
    claude.task("limited")
    scripts = [
        script("down", faults=(Fault("status", status=500, **always),)),
        script("silent", faults=(Fault("slow", delay=60, **always),)),
        script("overloaded", faults=(Fault("status", status=529, turn=1, **always),)),
        script("back", faults=(Fault("status", status=503, times=3),)),
        script("limited", faults=(Fault("status", status=429, retry_after=1, times=3),)),
    ]
    with server(scripts) as model:
        run = claude.run(model, "--codeprobe-jobs=6", "--codeprobe-trace-max-bytes=700")  # they wait more than they work
        requests = {task_id: sum(r.key == f"[{task_id}]" for r in model.stats.log) for task_id in run.statuses}
        spent = cost(told(model, "overloaded"))
        sent = told(model, "overloaded")
    assert run.code == 6, run.output
    down = dict.fromkeys(("down", "silent", "overloaded", "refused"), "error")
    assert run.statuses == {**down, "back": "passed", "limited": "passed"}
    for task_id in ("down", "silent", "overloaded", "refused"):
        record = run.result(task_id)
        assert record["code"] == "LLM_UNAVAILABLE", record
        assert record["duration_seconds"] < 90
        assert [(a["cause"], a["code"]) for a in record["attempts"]] == [("first", "LLM_UNAVAILABLE"), ("retry", "LLM_UNAVAILABLE")]
        for attempt in (1, 2):
            kept = {path.name for path in (run.trial(task_id) / f"attempt-{attempt}").iterdir()}
            assert kept >= {"agent.stdout", "trial.log", "transcript.json"}, (task_id, kept)
            assert transcript(run, task_id, attempt).steps
        assert not (run.trial(task_id) / "attempt-3").exists()
    assert "500" in run.result("down")["reason"]
    assert run.result("down")["cost_usd"] == run.result("refused")["cost_usd"] == 0
    assert {name: requests[name] for name in ("down", "silent", "refused")} == {"down": 6, "silent": 2, "refused": 0}
    # both attempts' replies are paid for
    usage = run.result("overloaded")["usage"]
    assert (tokens_of(usage), usage["cost_usd"]) == (tokens(sent), pytest.approx(spent))
    assert sent.input == 2 * WORK[0].usage.input
    for task_id in ("back", "limited"):  # until the CLI gave up, and then not any more
        back = run.result(task_id)
        assert [a["code"] for a in back["attempts"]] == ["LLM_UNAVAILABLE", None]
        assert back["changed_files"] == ["A out.txt"]
        assert {path.name for path in run.trial(task_id).glob("attempt-*")} == {"attempt-1", "attempt-2"}
        assert requests[task_id] == 3 + len(WORK)
        last = transcript(run, task_id, 2).steps[-1]
        assert (last.message, last.extra) == ("[transcript truncated after 700 bytes; the raw log has the rest]", {"truncated": True})
        assert '"subtype":"success"' in (run.trial(task_id) / "attempt-2" / "agent.stdout").read_text()
    assert {e["code"] for e in run.envelope["errors"]} == {"LLM_UNAVAILABLE"}


def test_a_refused_credential_ends_it_at_once_and_nothing_else_is_started(claude: ClaudeProject) -> None:
    for task_id in ("a", "b", "c"):
        claude.task(task_id)
    claude.task("d-other", agent={"type": "nop"})
    faults = [Fault("status", status=401, times=None, where="all")]
    with server([Script(WORK)], faults) as model:
        run = claude.run(model)
        assert model.stats.main <= 2
        (session,) = {record.session for record in model.stats.log}
        assert session
    assert run.code == 1, run.output  # the other agent's verdict
    assert run.statuses == {"a": "error", "b": "not_run", "c": "not_run", "d-other": "failed"}
    record = run.result("a")
    assert (record["code"], len(record["attempts"])) == ("AUTH_FAILED", 1)
    assert record["duration_seconds"] < 10
    assert "401" in record["reason"]
    assert "ANTHROPIC_API_KEY" in record["remediation"]
    assert {run.finished[name]["reason"] for name in "bc"} == {"auth"}


# ---- it is stopped


def test_limits_end_a_session_and_what_it_did_is_graded(claude: ClaudeProject) -> None:
    claude.task("late", run_limits={"task_timeout": 10})
    claude.task("turns", run_limits={"max_turns": 2})
    claude.task("tokens", run_limits={"max_total_tokens": 2500, "on_limit": "fail"})
    claude.task("asks", agent={"permission_mode": "default"})
    claude.task("talks")
    # not done at once: what ends the session must wait for the CLI's own end, which names the price
    look = Turn("", [bash("python -c 'import time; time.sleep(1)'")], Usage(800, 20, 0, 0))
    scripts = [
        script("late", WORK[0], hold()),
        Script((WORK[0], *[look] * 20), key="[turns]"),
        Script((WORK[0], *[look] * 20), key="[tokens]"),
        script("asks", WORK[0], Turn("I may not write.")),
        Script((WORK[0], *[Turn("", [bash("python -c 'print(25_000 * chr(120))'")])] * 20), key="[talks]"),
    ]
    with server(scripts) as model:
        run = claude.run(model, "--codeprobe-trace-overflow=fail", "--codeprobe-trace-max-bytes=60000", mode="jobs")
        assert model.stats.problems == []
        sent = {task_id: told(model, task_id) for task_id in run.statuses}
        replies = {task_id: sum(r.key == f"[{task_id}]" for r in model.stats.log) for task_id in run.statuses}
    assert run.code == 1, run.output
    assert run.statuses == {"late": "passed", "turns": "passed", "tokens": "failed", "asks": "error", "talks": "error"}
    talks = run.result("talks")
    assert (talks["code"], len(talks["attempts"])) == ("TRACE_OVERFLOW_FIRED", 1)
    assert "over its limit of 60000 bytes" in talks["reason"]
    assert replies["talks"] < 8
    assert talks["cost_usd"] > 0
    late = run.result("late")
    assert late["limit_hit"] == {"name": "task_timeout", "value": 10.0}
    assert late["criteria"][0]["verdict"] == "passed"
    # the CLI names its price at the end only, which this session did not come to: then the price table does
    assert tokens_of(late["usage"]) == tokens(sent["late"]) == tokens(WORK[0].usage)
    assert late["cost_usd"] == pytest.approx(cost(WORK[0].usage))
    assert (late["usage"]["cost_source"], late["usage"]["tokens_source"]) == ("price_table", "cli")
    assert [name for name, _, _ in calls(transcript(run, "late"))] == ["Write"]
    turns = run.result("turns")
    assert (turns["limit_hit"], turns["code"]) == ({"name": "max_turns", "value": 2.0}, None)
    assert turns["usage"]["tool_calls"] == 3
    assert replies["turns"] == 3
    assert tokens_of(turns["usage"]) == tokens(sent["turns"])
    assert turns["cost_usd"] == pytest.approx(cost(sent["turns"]))
    assert run.result("tokens")["limit_hit"] == {"name": "max_total_tokens", "value": 2500.0}
    assert replies["tokens"] < 8
    asks = run.result("asks")
    assert (asks["code"], len(asks["attempts"])) == ("AGENT_BLOCKED", 1)
    assert "Write" in asks["reason"]
    assert tokens_of(asks["usage"]) == tokens(sent["asks"])


def in_the_middle(claude: ClaudeProject, model: ModelServer, *args: str) -> Run:
    """A run with one ended session and one whose model has been asked for its second reply; a tool of it still runs."""
    claude.task("a-ended")
    claude.task("b-open")
    run = claude.start(model, *args)
    run.poll(lambda: any(r.key == "[b-open]" and r.turn == 1 for r in model.stats.log), 60)
    return run


MIDDLE = (
    script("a-ended"),
    script("b-open", Turn("I write.", [WRITE, bash("setsid sleep 87654 >/dev/null 2>&1 & echo ok")], Usage(701, 41, 503, 307)), hold()),
)


def test_ctrl_c_keeps_what_is_known_and_the_key_was_on_no_command_line(claude: ClaudeProject) -> None:
    with server(MIDDLE) as model:
        run = in_the_middle(claude, model)
        run.poll(lambda: any("87654" in argv for _, argv, _ in claude.processes()))  # the tool has answered before its child is there
        seen = list(claude.processes())
        sessions = [environ for _, argv, environ in seen if argv[0].endswith("claude")]
        assert sessions
        assert any("87654" in argv for _, argv, _ in seen)
        run.signal(signal.SIGINT)
        run.wait(30)
        sent = told(model, "b-open")
    run.assert_consistent()
    claude.assert_nothing_left()
    assert run.code == 2, run.output
    assert run.statuses == {"a-ended": "passed", "b-open": "not_run"}
    record = run.result("b-open")
    assert record["reason"] == "interrupted"
    assert tokens_of(record["usage"]) == tokens(sent) == tokens(MIDDLE[1].turns[0].usage)
    assert [name for name, _, _ in calls(transcript(run, "b-open"))] == ["Write", "Bash"]
    data = run.envelope["data"]
    assert data["tokens"]["input_tokens"] == sent.input + sum(turn.usage.input for turn in WORK)
    assert run.result("a-ended")["cost_usd"] == pytest.approx(cost(WORK[0].usage) + cost(WORK[1].usage))
    # how a session was started, while it ran
    for _, argv, _ in seen:
        assert not [part for part in argv if KEY in part], argv
    for environ in sessions:
        assert environ["ANTHROPIC_API_KEY"] == KEY
        assert "USER_LEAK" not in environ
        assert Path(environ["HOME"]).is_relative_to(claude.trials)
        assert Path(environ["CLAUDE_CONFIG_DIR"]).is_relative_to(environ["HOME"])
        assert not [name for name in environ if name.startswith(("PYTEST_", "CODEPROBE_", "_CODEPROBE_", "COV_"))]
    assert_key_is_nowhere(run.folder)


def test_kill_9_leaves_no_session(claude: ClaudeProject) -> None:
    with server(MIDDLE) as model:
        run = in_the_middle(claude, model)
        assert any("87654" in argv for _, argv, _ in claude.processes())
        run.signal(signal.SIGKILL)
        run.process.wait()
        until = time.monotonic() + 2
        while (left := list(claude.processes())) and time.monotonic() < until:
            time.sleep(0.02)
        assert not left
    kept = [json.loads(line) for line in (run.folder / "events.ndjson").read_text().splitlines()]
    assert [e["status"] for e in kept if e["event"] == "trial_finished"] == ["passed"]


# ---- what chooses model, mode and credential


def test_flags_reach_the_cli_and_a_login_is_lent_without_its_refresh_token(claude: ClaudeProject) -> None:
    token, refresh = "sk-ant-oat01-5f4e3d2c1b0a99887766554433221100", "sk-ant-ort01-00112233445566778899aabbccddeeff"
    login = {"accessToken": token, "refreshToken": refresh, "expiresAt": int(time.time() * 1000) + 36_000_000, "scopes": ["user:inference"]}
    credentials = claude.home / ".claude" / ".credentials.json"
    credentials.write_text(json.dumps({"claudeAiOauth": login}))
    credentials.chmod(0o600)
    before = claude.snapshot()
    claude.task("writes", agent={"permission_mode": "plan", "model": "claude-haiku-4-5"})
    look = bash(f"cat $CLAUDE_CONFIG_DIR/.credentials.json {credentials}")
    with server([script("writes", Turn("", [look]), *WORK)], key=token) as model:
        run = claude.run(model, "--codeprobe-model=claude-opus-4-5", "--codeprobe-permission-mode=bypassPermissions", key=None)
        assert model.stats.problems == []
        assert {(r.model, r.credential) for r in model.stats.log} == {("claude-opus-4-5", token)}
    assert run.code == 0, run.output
    assert (run.result("writes")["agent"] or {})["model"] == "claude-opus-4-5"
    started = json.loads((run.trial("writes") / "attempt-1" / "agent.stdout").read_text().splitlines()[0])
    assert (started["permissionMode"], started["model"]) == ("bypassPermissions", "claude-opus-4-5")
    ((_, _, looked), _) = calls(transcript(run, "writes"))
    assert '"refreshToken": null' in looked
    assert looked.count("accessToken") == 2
    for secret in (token, refresh):
        assert_key_is_nowhere(run.folder, secret)
    assert claude.snapshot() == before


@pytest.mark.parametrize(("missing", "says"), [("cli", "not on PATH"), ("credentials", "no credentials")])
def test_without_the_cli_or_a_credential_nothing_is_started(claude: ClaudeProject, missing: str, says: str) -> None:
    claude.task("a")
    claude.task("b")
    if missing == "cli":
        claude.project.environment["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.defpath))
    with server([Script(WORK)]) as model:
        run = claude.start(model, "--codeprobe-run-dir=refused", key=None if missing == "credentials" else KEY).wait()
        assert model.stats.all == 0
    run.assert_consistent()
    assert run.code == 4, run.output
    assert len(run.plan) == 2
    assert set(run.statuses.values()) == {"not_run"}
    (error,) = run.envelope["errors"]
    assert error["code"] == "NO_BACKENDS_CONFIGURED"
    assert says in error["message"]
    assert not [e for e in run.events if e["event"] == "trial_started"]
    claude.assert_nothing_left()
