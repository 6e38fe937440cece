"""Run the real Claude Code CLI through one case against the scripted server, and record what it says.

    python tests/netns.py python -m tests.record_claude [--write] [CASE...]

prints one JSON object per case: exit code, seconds, stderr, requests, what the server sent, the lines of stdout and when they came, and
the files that were left in the workspace. With --write the lines go to tests/data/claude/CASE.jsonl and the rest to cases.json there,
with the folders of the run replaced by /work, /home/user and /tmp. Meant for a place where only loopback is up (tests/netns.py).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.install_clis import bin_folder
from tests.model_server import Fault, ModelServer, Scenario, Script, ToolCall, Turn, Usage

DATA = Path(__file__).resolve().parent / "data" / "claude"
MODEL = "claude-sonnet-4-5"
PROMPT = "add() in calc.py subtracts. Fix it, write NOTES.md, and run check.py."
FILES = {"calc.py": "def add(a, b):\n    return a - b\n", "check.py": "from calc import add\n\nassert add(2, 3) == 5\nprint('all good')\n"}
CASE_SECONDS = 120.0

FIX = Script(
    key="add() in calc.py subtracts",
    turns=[
        Turn("I look at the file first.", [ToolCall("Read", {"file_path": "{cwd}/calc.py"})], Usage(1001, 53, 307, 211)),
        Turn(
            "Now the fix and the note.",
            [
                ToolCall("Edit", {"file_path": "{cwd}/calc.py", "old_string": "a - b", "new_string": "a + b"}),
                ToolCall("Write", {"file_path": "{cwd}/NOTES.md", "content": "add() adds now.\n"}),
            ],
            Usage(409, 131, 1519, 97),
        ),
        Turn("", [ToolCall("Bash", {"command": "python3 check.py", "description": "Run the check"})], Usage(211, 61, 2029, 83)),
        Turn("add() adds now; check.py says: all good.", usage=Usage(103, 23, 2311, 0)),
    ],
)
PYTEST = Script(
    turns=[
        Turn("I run the tests.", [ToolCall("Bash", {"command": "pytest -q", "description": "Run the tests"})]),
        Turn("I could not run the tests."),
    ],
)
DELEGATE = Script(
    key="Ask a helper",
    turns=[
        Turn(
            "I ask a helper.",
            [
                ToolCall(
                    "Agent",
                    {
                        "description": "Count files",
                        "prompt": "COUNT-THE-FILES",
                        "subagent_type": "general-purpose",
                        "run_in_background": False,
                    },
                )
            ],
            Usage(1001, 53, 0, 0),
        ),
        Turn("The helper counted two files.", usage=Usage(509, 17, 0, 0)),
    ],
)
COUNT = Script(
    key="COUNT-THE-FILES",
    turns=[
        Turn("I count.", [ToolCall("Bash", {"command": "ls | wc -l", "description": "Count files"})], Usage(701, 31, 0, 0)),
        Turn("Two files.", usage=Usage(307, 7, 0, 0)),
    ],
)


@dataclass(frozen=True)
class Case:
    """One way for a session to go: what the server does, and what differs in the command line."""

    scenario: Scenario
    prompt: str = PROMPT
    model: str = MODEL
    permissions: Sequence[str] = ("--permission-mode", "bypassPermissions")
    arguments: Sequence[str] = ()
    environ: Mapping[str, str] = field(default_factory=dict)
    # The prompt comes by stdin instead of the command line.
    stdin: bool = False
    # Seconds after the start at which the CLI gets SIGTERM.
    stop_after: float | None = None


def _faulty(*faults: Fault, retries: int | None = 2, **more: Any) -> Case:
    environ = {} if retries is None else {"CLAUDE_CODE_MAX_RETRIES": str(retries)}
    return Case(Scenario([FIX], faults), environ=environ, **more)


ALWAYS: dict[str, Any] = {"times": None, "where": "all"}
CASES = {
    "ok": Case(Scenario([FIX])),
    "ok_allowed_tools": Case(
        Scenario([FIX]), permissions=("--permission-mode", "acceptEdits", "--allowedTools", "Bash,Read,Write,Edit,Glob,Grep,Skill")
    ),
    "ok_prompt_on_stdin": Case(Scenario([FIX]), stdin=True),
    "unknown_model": Case(Scenario([FIX]), model="some-model-1"),
    "subagent": Case(Scenario([DELEGATE, COUNT]), prompt="Ask a helper how many files there are."),
    "permission_denied": Case(Scenario([PYTEST]), prompt="Run the tests.", permissions=("--permission-mode", "acceptEdits")),
    "max_turns": Case(Scenario([FIX]), arguments=("--max-turns", "2")),
    "429_once": _faulty(Fault("status", status=429, retry_after=1)),
    "429_once_no_retry_after": _faulty(Fault("status", status=429)),
    "429_always": _faulty(Fault("status", status=429, retry_after=1, **ALWAYS)),
    "429_long_retry_after": _faulty(Fault("status", status=429, retry_after=90, **ALWAYS)),
    "500_once": _faulty(Fault("status", status=500)),
    "500_always": _faulty(Fault("status", status=500, **ALWAYS)),
    "500_in_mid_session": _faulty(Fault("status", status=500, turn=2, **ALWAYS)),
    "529_always": _faulty(Fault("status", status=529, **ALWAYS)),
    "400": _faulty(Fault("status", status=400, **ALWAYS)),
    "402": _faulty(Fault("status", status=402, **ALWAYS)),
    "404": _faulty(Fault("status", status=404, **ALWAYS)),
    "413": _faulty(Fault("status", status=413, **ALWAYS)),
    "no_name": Case(Scenario([FIX]), environ={"CLAUDE_CODE_MAX_RETRIES": "2", "ANTHROPIC_BASE_URL": "https://provider.invalid"}),
    "no_tls": Case(Scenario([FIX]), environ={"CLAUDE_CODE_MAX_RETRIES": "2", "ANTHROPIC_BASE_URL": "https://127.0.0.1:{port}"}),
    "401": _faulty(Fault("status", status=401, **ALWAYS)),
    "403": _faulty(Fault("status", status=403, **ALWAYS)),
    "cut_once": _faulty(Fault("cut", event_delay=0.2)),
    "cut_always": _faulty(Fault("cut", event_delay=0.2, **ALWAYS)),
    "cut_in_tool_call_once": _faulty(Fault("cut", turn=1, after_events=6, event_delay=0.1)),
    "malformed_once": _faulty(Fault("malformed", event_delay=0.2)),
    "malformed_always": _faulty(Fault("malformed", event_delay=0.2, **ALWAYS)),
    "empty_always": _faulty(Fault("empty", **ALWAYS)),
    "overloaded_event_once": _faulty(Fault("error_event")),
    "overloaded_event_always": _faulty(Fault("error_event", **ALWAYS)),
    "refused": _faulty(Fault("refused")),
    "slow_first_byte": _faulty(Fault("slow", delay=6)),
    "slow_events": _faulty(Fault("slow", event_delay=0.7)),
    "stopped_while_waiting": _faulty(Fault("slow", delay=30, turn=1), stop_after=4),
}


def run(case: Case) -> dict[str, Any]:
    """Run one case in fresh folders and return everything that was seen, paths replaced."""
    with tempfile.TemporaryDirectory(prefix="claude-case-") as folder, ModelServer(case.scenario) as server:
        root = Path(folder).resolve()
        for name in ("home", "tmp", "workspace"):
            (root / name).mkdir()
        for name, text in FILES.items():
            (root / "workspace" / name).write_text(text, encoding="utf-8")
        seen = _session(case, server.url, root)
        seen["stats"] = server.stats.as_json()
        seen["requests"] = [
            {"seconds": each.seconds, "kind": each.kind, "turn": each.turn, "stream": each.stream, "key": each.key, "reply": each.reply}
            for each in server.stats.log
        ]
        workspace = root / "workspace"
        seen["files"] = {
            str(path.relative_to(workspace)): path.read_text(encoding="utf-8")
            for path in sorted(workspace.rglob("*"))
            if path.is_file() and "__pycache__" not in path.parts
        }
        return _neutral(seen, root)


def argv(case: Case) -> list[str]:
    """The CLI's command line for a case."""
    return [
        str(bin_folder() / "claude"),
        *(["-p"] if case.stdin else ["-p", case.prompt]),
        *("--output-format", "stream-json", "--verbose", "--include-partial-messages"),
        *("--model", case.model),
        *case.permissions,
        *("--setting-sources", "project", "--strict-mcp-config"),
        *case.arguments,
    ]


def environ(case: Case, url: str, root: Path) -> dict[str, str]:
    """The CLI's whole environment for a case."""
    return {
        "PATH": os.defpath,
        "HOME": str(root / "home"),
        "TMPDIR": str(root / "tmp"),
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_API_KEY": "test-key",
        "CLAUDE_CONFIG_DIR": str(root / "home" / ".claude"),
        "IS_SANDBOX": "1",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_DISABLE_AUTO_MEMORY": "1",
        "DISABLE_AUTOUPDATER": "1",
        "DISABLE_TELEMETRY": "1",
        "DISABLE_ERROR_REPORTING": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        **{name: value.replace("{port}", url.rpartition(":")[2]) for name, value in case.environ.items()},
    }


def _session(case: Case, url: str, root: Path) -> dict[str, Any]:
    lines: list[str] = []
    moments: list[float] = []
    errors = root / "stderr"
    started = time.monotonic()
    prompt = root / "prompt"
    prompt.write_text(case.prompt if case.stdin else "", encoding="utf-8")
    with (
        errors.open("w") as stderr,
        prompt.open() as stdin,
        subprocess.Popen(
            argv(case),
            env=environ(case, url, root),
            cwd=root / "workspace",
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        # One alarm serves both ends: the case's own stop, and the bound for a CLI that never ends.
        wait, number = (CASE_SECONDS, signal.SIGKILL) if case.stop_after is None else (case.stop_after, signal.SIGTERM)
        signal.signal(signal.SIGALRM, lambda *_: process.send_signal(number))
        signal.setitimer(signal.ITIMER_REAL, wait)
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
            moments.append(round(time.monotonic() - started, 2))
        code = process.wait()
        signal.setitimer(signal.ITIMER_REAL, 0)
    return {
        "exit": code,
        "seconds": round(time.monotonic() - started, 2),
        "stderr": errors.read_text(encoding="utf-8"),
        "line_seconds": moments,
        "lines": lines,
    }


def _neutral(seen: dict[str, Any], root: Path) -> dict[str, Any]:
    """Replace the run's folders, also in the form in which Claude Code names its project folders."""
    text = json.dumps(seen)
    for name, neutral in (("workspace", "/work"), ("home", "/home/user"), ("tmp", "/tmp"), ("", "/run")):
        path = str(root / name) if name else str(root)
        text = text.replace(path, neutral).replace(re.sub(r"[^A-Za-z0-9]", "-", path), neutral.replace("/", "-"))
    neutral_seen: dict[str, Any] = json.loads(text)
    return neutral_seen


def _write(name: str, seen: dict[str, Any]) -> None:
    DATA.mkdir(parents=True, exist_ok=True)
    (DATA / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in seen["lines"]), encoding="utf-8")
    table = DATA / "cases.json"
    known: dict[str, Any] = json.loads(table.read_text(encoding="utf-8")) if table.exists() else {}
    known[name] = {each: value for each, value in seen.items() if each != "lines"} | {"argv": argv(CASES[name])[1:]}
    order = [case for case in CASES if case in known]
    table.write_text(json.dumps({case: known[case] for case in order}, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the cases that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m tests.record_claude")
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--write", action="store_true", help="keep the output in tests/data/claude")
    options = parser.parse_args(arguments)
    unknown = set(options.cases) - set(CASES)
    if unknown:
        parser.error(f"unknown case {min(unknown)!r}")
    for name in options.cases or CASES:
        seen = run(CASES[name])
        if options.write:
            _write(name, seen)
        sys.stdout.write(json.dumps({"case": name, **seen}) + "\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
