"""A program called `claude` that speaks Claude Code's stream, and is what a test says: version, model, tools, MCP servers, honesty."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.front_door import Project

KEY = "sk-ant-api03-0f1e2d3c4b5a69788796a5b4c3d2e1f0"
TOOLS = ("Bash", "Edit", "Read", "Write")
COST = 0.0125

_PROGRAM = """\
#!{python}
import json, os, re, sys, time, pathlib
self = pathlib.Path(__file__).parent
is_ = json.loads((self / "claude.json").read_text())
if sys.argv[1:] == ["--version"]:
    (self / "versions").open("a").write("asked\\n")
    if is_["mute"]:
        sys.exit(1)
    print(is_["version"] + " (Claude Code)")
    sys.exit()
prompt = sys.stdin.read()
with (self / "sessions").open("a") as log:
    log.write(json.dumps({{"canary": "codeprobe-canary" in prompt, "argv": sys.argv[1:], "prompt": prompt[:80]}}) + "\\n")
def say(**event):
    print(json.dumps(event), flush=True)
servers = [{{"name": name, "status": state}} for name, state in is_["servers"].items()]
say(type="system", subtype="init", session_id="s", tools=is_["tools"], mcp_servers=servers, model=is_["model"],
    permissionMode="acceptEdits", claude_code_version=is_["version"])
nonce, laid_out = re.search(r"(canary|probe)-[0-9a-f]{{16}}", prompt), next(pathlib.Path().glob("codeprobe-*.txt"), None)
name, text = (f"codeprobe-{{nonce[1]}}.txt", nonce[0]) if nonce else ("out.txt", "done")
if laid_out is not None:  # in a mode that lets it write nothing it is asked what is in there
    name, text = "", laid_out.read_text().strip()
if is_["hangs"]:
    (self / "hangs").touch()
    time.sleep(300)
if is_["fails"]:
    print(is_["fails"], file=sys.stderr)
    sys.exit(1)
usage = {{"input_tokens": 100, "output_tokens": 20, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}}
def reply(number, *content):
    message = {{"id": f"m{{number}}", "model": is_["model"], "role": "assistant", "content": list(content), "usage": usage}}
    say(type="assistant", message=message)
if is_["refuses"]:  # as the provider says it, once for each number
    status = is_["refuses"].pop(0)
    (self / "claude.json").write_text(json.dumps(is_))
    say(type="system", subtype="api_retry", error_status=status, error="", attempt=1, max_retries=2, retry_delay_ms=1200)
    said = f"API Error: {{status}}"
    say(type="result", subtype="success", is_error=True, result=said, api_error_status=status, terminal_reason="api_error",
        total_cost_usd=0, usage={{}})
    sys.exit(1)
if is_["writes"] and name:
    reply(1, {{"type": "tool_use", "id": "t1", "name": "Write", "input": {{"file_path": name, "content": text}}}})
    pathlib.Path(name).write_text(text + "\\n")
    say(type="user", message={{"role": "user", "content": [{{"type": "tool_result", "tool_use_id": "t1", "content": "written"}}]}})
reply(2, {{"type": "text", "text": text if is_["repeats"] else "All done."}})
say(type="result", subtype="success", is_error=False, result=text if is_["repeats"] else "All done.", total_cost_usd={cost}, usage=usage)
"""


@dataclass
class FakeClaude:
    """The program, on PATH of the project's runs. Change a field and call install() again: it is another CLI then."""

    project: Project
    version: str = "2.1.332"
    model: str = "claude-sonnet-4-5"
    tools: tuple[str, ...] = TOOLS
    servers: dict[str, str] = dataclasses.field(default_factory=dict)  #: name -> status
    writes: bool = True  #: False: it only claims to
    repeats: bool = True
    hangs: bool = False
    mute: bool = False  #: it does not tell its version
    refuses: tuple[int, ...] = ()  #: HTTP status of the provider's answer, of each of its next sessions
    fails: str = ""  #: its last words; it ends before its first reply

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        program = self.folder / "claude"
        program.write_text(_PROGRAM.format(python=sys.executable, cost=COST))
        program.chmod(0o755)
        nobody = dict.fromkeys((name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE_"))), "")
        path = os.pathsep.join((str(self.folder), os.environ.get("PATH", os.defpath)))
        self.project.environment.update({**nobody, "PATH": path, "ANTHROPIC_API_KEY": KEY})
        self.install()

    @property
    def folder(self) -> Path:
        """Where it lies."""
        return self.project.scratch / "fake"

    def install(self, **changes: Any) -> None:
        """Make it what its fields say."""
        for name, value in changes.items():
            setattr(self, name, value)
        said = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "project"}
        (self.folder / "claude.json").write_text(json.dumps(said))

    def task(self, task_id: str, **fields: Any) -> None:
        """A task that it does."""
        self.project.task(task_id, **{"agent": {"type": "claude"}, **fields})

    @property
    def sessions(self) -> list[dict[str, Any]]:
        """What it was started for, in this order."""
        file = self.folder / "sessions"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def asked(self) -> int:
        """How often it was asked for its version."""
        file = self.folder / "versions"
        return file.read_text().count("\n") if file.exists() else 0

    @property
    def canaries(self) -> int:
        """How often it was asked to do the built-in canary."""
        return sum(bool(session["canary"]) for session in self.sessions)

    @property
    def others(self) -> int:
        """How many other sessions it had."""
        return len(self.sessions) - self.canaries
