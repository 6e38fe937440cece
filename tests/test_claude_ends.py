"""How a Claude Code session may end that does not end well, with a CLI that does as the prompt says: all of it in one run."""

from __future__ import annotations

import json
import os
import sys

from tests.claude_runs import transcript
from tests.front_door import Project, Run

_PROGRAM = """\
#!{python}
import json, os, sys
if sys.argv[1:] == ["--version"]:
    print("2.1.332 (Claude Code)")
    sys.exit()
kind = sys.stdin.read().split()[0]
def say(**event):
    print(json.dumps(event), flush=True)
def work():
    use = {{"type": "tool_use", "id": "t1", "name": "Write", "input": {{"file_path": "out.txt"}}}}
    say(type="assistant", message={{"id": "m1", "model": "m", "content": [use], "usage": {{}}}})
    open("out.txt", "w").write("done")
    say(type="user", message={{"content": [{{"type": "tool_result", "tool_use_id": "t1", "content": "ok"}}]}})
def result(text, **more):
    say(**{{"type": "result", "subtype": "success", "is_error": False, "result": text, "total_cost_usd": 0.1, "usage": {{}}, **more}})
if kind == "old":
    sys.exit("error: unknown option '--include-partial-messages'")
if kind == "junk":
    print("Warning: no stdin data received in 3s\\n(node:1) [DEP0040] DeprecationWarning: punycode")
say(type="system", subtype="init", session_id="s", tools=["Write"], mcp_servers=[], model="m", claude_code_version="2.1.332")
if kind == "leaves":
    sys.exit(0)
if kind == "bare":
    result("Unknown slash command: x")
    sys.exit(0)
if kind == "long":
    result("Prompt is too long", is_error=True, terminal_reason="prompt_too_long")
    sys.exit(1)
if kind == "floods":
    for _ in range(200):
        os.write(2, b"debug: all is well\\n" * 5000)
work()
if kind == "window":
    result("Prompt is too long", is_error=True, terminal_reason="prompt_too_long")
    sys.exit(1)
if kind == "during":
    result("", subtype="error_during_execution", is_error=True, errors=["spawn ENOMEM"])
    sys.exit(1)
if kind == "turns":
    result("", subtype="error_max_turns", is_error=True)
    sys.exit(1)
if kind != "quits":
    result("done")
"""
#: kind -> status, code, words of the reason or of a warning
ENDS: dict[str, tuple[str, str | None, str]] = {
    "old": ("error", "AGENT_CRASHED", "claude ended without a result: exit status 1: error: unknown option '--include-partial-messages'"),
    "leaves": ("error", "AGENT_CRASHED", "claude 2.1.332 ended without a result: exit status 0"),
    "bare": ("error", "AGENT_CRASHED", "claude 2.1.332 ended without asking the model: Unknown slash command: x"),
    "long": ("error", "AGENT_CRASHED", "claude 2.1.332 ended with an error: Prompt is too long"),
    "junk": ("passed", None, ""),
    "floods": ("passed", None, ""),
    "turns": ("passed", None, ""),
    "window": ("passed", None, "claude 2.1.332 ended with an error: Prompt is too long"),
    "during": ("passed", None, "claude 2.1.332 ended with an error: spawn ENOMEM"),
    "quits": ("passed", None, "claude 2.1.332 ended without a result: exit status 0"),
}


def test_ends_of_the_cli(project: Project) -> None:
    folder = project.scratch / "bin"
    folder.mkdir()
    (folder / "claude").write_text(_PROGRAM.format(python=sys.executable))
    (folder / "claude").chmod(0o755)
    nobody = dict.fromkeys((name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE_"))), "")
    path = os.pathsep.join((str(folder), os.environ.get("PATH", os.defpath)))
    project.environment.update({**nobody, "PATH": path, "ANTHROPIC_API_KEY": "sk-ant-api03-0f1e2d3c4b5a6978"})
    for kind in ENDS:
        project.task(kind, initial_prompt=f"{kind} it", run_limits={"max_turns": 3})
    run = project.run("tasks", "--codeprobe-agent=claude", "--codeprobe-jobs=5").assert_consistent()
    for kind, (status, code, says) in ENDS.items():
        record = run.result(kind)
        assert (record["status"], record["code"]) == (status, code), record
        if code is None:
            assert len(record["attempts"]) == 1
            assert [w for w in record["warnings"] if "no price" not in w] == ([says] if says else [])
        else:
            assert (len(record["attempts"]), record["reason"]) == (2, says)
            assert record["cost_usd"] == (0.2 if kind in ("bare", "long") else 0.0)
    assert run.code == 6
    check_evidence(run)


def check_evidence(run: Run) -> None:
    assert f"`{run.project.scratch}/bin/claude --version`" in run.result("old")["remediation"]
    assert run.result("turns")["limit_hit"] == {"name": "max_turns", "value": 3.0}
    (raw,) = [step for step in transcript(run, "junk").steps if (step.extra or {}).get("raw")]
    assert raw.message == "Warning: no stdin data received in 3s\n(node:1) [DEP0040] DeprecationWarning: punycode"
    assert (run.trial("floods") / "attempt-1" / "agent.stderr").stat().st_size == 200 * 5000 * len("debug: all is well\n")
    assert json.loads((run.trial("window") / "result.json").read_text())["changed_files"] == ["A out.txt"]
    run.assert_nothing_left()
