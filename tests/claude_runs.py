"""Real pytest with the real Claude Code CLI, against a scripted model server, where loopback is the only network."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_codeprobe.model.transcript import Transcript
from tests.front_door import Project, Run
from tests.model_server import Fault, ModelServer, Scenario, Script, Usage
from tests.netns import netns_argv, receive_listener

KEY = "sk-ant-api03-0f1e2d3c4b5a69788796a5b4c3d2e1f0"
MODEL = "claude-sonnet-4-5"
#: list price of that model, USD per million tokens
PRICES = {"input": 3.0, "output": 15.0, "cache_read": 0.3, "cache_write": 3.75}
#: what stands in the user's own files and must be seen nowhere
USER_MARK = "USER-SETTINGS-LEAKED"


@dataclass
class ClaudeProject:
    """A project whose user has a Claude Code of their own: settings, memory, skills and hooks, and the CLIs of the lock file on PATH."""

    project: Project
    clis: Path
    seen_as: str | None = None  #: address of the server where that is not loopback's, as in containers on a bridge

    def __post_init__(self) -> None:
        self.home = self.project.scratch / "user"
        settings = {
            "env": {"USER_LEAK": USER_MARK},
            "hooks": {event: [{"hooks": [{"type": "command", "command": f"touch {self.leaked}"}]}] for event in ("SessionStart", "Stop")},
        }
        for name, text in {
            ".claude/settings.json": json.dumps(settings),
            ".claude/CLAUDE.md": f"{USER_MARK}\n",
            ".claude/skills/mine/SKILL.md": f"---\nname: mine\ndescription: {USER_MARK}\n---\n{USER_MARK}\n",
            ".claude/commands/mine.md": f"{USER_MARK}\n",
            ".claude.json": json.dumps({"mcpServers": {"mine": {"command": "touch", "args": [str(self.leaked)]}}}),
        }.items():
            path = self.home / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        # nothing of the Claude Code of whoever runs these tests: an empty variable counts as none
        nobody = dict.fromkeys((name for name in os.environ if name.startswith(("ANTHROPIC_", "CLAUDE_"))), "")
        # and pytest was started by a Claude Code: the last of these, if it got to a session, would take most tools from it, `Agent` too
        around = {"CLAUDECODE": "1", "CLAUDE_CODE_ENTRYPOINT": "cli", "CLAUDE_CODE_CHILD_SESSION": "1", "CLAUDE_CODE_SIMPLE": "1"}
        programs = os.pathsep.join((str(self.clis), str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))
        self.project.environment.update({**nobody, **around, "HOME": str(self.home), "PATH": programs})

    @property
    def leaked(self) -> Path:
        """A file that the user's hooks and servers would make."""
        return self.project.scratch / "leaked"

    @property
    def trials(self) -> Path:
        """Where the private folders of trials are made."""
        return self.project.scratch / "tmp"

    def task(self, task_id: str, *, files: Mapping[str, str] | None = None, **fields: Any) -> None:
        """A task for agent claude whose prompt holds its id, in brackets: the server's script of that key answers it."""
        sources = [{"type": "starter_files", "files": [{"path": name, "content": text} for name, text in (files or {}).items()]}]
        sandbox = {"template_sources": sources} if files else {}
        agent = fields.pop("agent", {})
        agent = agent if "type" in agent else {"type": "claude", "model": MODEL, **agent}
        self.project.task(task_id, **{"initial_prompt": f"[{task_id}] do it", "sandbox": sandbox, "agent": agent, **fields})

    def start(self, server: ModelServer, *args: str, key: str | None = KEY, mode: str = "plain") -> Run:
        """Start pytest on every task file, in a namespace in which the server, and nobody else, listens."""
        url = server.url if self.seen_as is None else f"http://{self.seen_as}:{server.port}"
        env = {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_API_KEY": key or ""}
        # named one by one: that chooses the agent that each of them names
        argv = (*sorted(f"tasks/{path.name}" for path in (self.project.path / "tasks").iterdir()), *args)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            prefix = tuple(netns_argv([], listen=(theirs.fileno(), server.port), host="127.0.0.1" if self.seen_as is None else "0.0.0.0"))
            run = self.project.start(*argv, mode=mode, env=env, prefix=prefix, pass_fds=(theirs.fileno(),))
            theirs.close()
            server.join(receive_listener(ours))
        return run

    def run(self, server: ModelServer, *args: str, key: str | None = KEY, mode: str = "plain", seconds: float = 120.0) -> Run:
        """Run pytest to its end, and see that what holds of every run does."""
        run = self.start(server, *args, key=key, mode=mode).wait(seconds)
        run.assert_consistent()
        self.assert_nothing_left()
        return run

    def processes(self) -> Iterator[tuple[int, list[str], dict[str, str]]]:
        """Live processes of trials: id, argv, environment."""
        mark = str(self.trials).encode()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with contextlib.suppress(OSError):
                    argv, environ = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
                    if b"HOME=" + mark in environ:
                        pairs = (part.partition("=") for part in environ.decode(errors="replace").split("\0"))
                        yield int(entry.name), argv.decode(errors="replace").split("\0"), {name: value for name, _, value in pairs}

    def assert_nothing_left(self) -> None:
        """No process of a trial lives, and no private folder is on disk."""
        left = [(number, argv) for number, argv, _ in self.processes()]
        assert not left, left
        assert not list(self.trials.glob("codeprobe-*"))

    def snapshot(self) -> dict[str, tuple[Any, ...]]:
        """Everything below the user's HOME: kind, size, times, content."""
        found: dict[str, tuple[Any, ...]] = {}
        for path in [self.home, *sorted(self.home.rglob("*"))]:
            status = path.lstat()
            content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None
            found[str(path)] = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, content)
        return found


def server(scripts: Sequence[Script] | Scenario, faults: Sequence[Fault] = (), *, key: str | None = KEY) -> ModelServer:
    """A server that takes this key and no other."""
    return ModelServer(scripts, faults, api_key=key, keep_bodies=True)


def cost(usage: Usage) -> float:
    """USD at list price."""
    return sum(float(getattr(usage, kind)) * price for kind, price in PRICES.items()) / 1e6


def told(model: ModelServer, *scripts: str) -> Usage:
    """What the server sent by these scripts, broken-off replies included."""
    total = Usage(0, 0, 0, 0)
    for record in model.stats.log:
        if record.key.strip("[]") in scripts:
            total = total + record.usage
    return total


def tokens(usage: Usage) -> dict[str, int]:
    """As a record's usage names them."""
    return {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cache_read,
        "cache_write_tokens": usage.cache_write,
    }


def tokens_of(record: Mapping[str, Any]) -> dict[str, int]:
    """The four kinds out of a record's usage."""
    return {kind: record[kind] for kind in tokens(Usage())}


def transcript(run: Run, task_id: str, attempt: int = 1) -> Transcript:
    """An attempt's transcript, which must be a valid one."""
    return Transcript.model_validate_json((run.trial(task_id) / f"attempt-{attempt}" / "transcript.json").read_text(encoding="utf-8"))


def calls(found: Transcript) -> list[tuple[str, dict[str, Any], str]]:
    """Tool calls with what they returned, in order."""
    results = {r.source_call_id: str(r.content) for step in found.steps if step.observation for r in step.observation.results}
    return [
        (call.function_name, dict(call.arguments), results[call.tool_call_id]) for step in found.steps for call in step.tool_calls or ()
    ]


def messages(model: ModelServer, task_id: str) -> list[str]:
    """The text blocks of the first user message that a task's session sent."""
    body = next(record.body for record in model.stats.log if record.key == f"[{task_id}]")
    content = next(message["content"] for message in body["messages"] if message["role"] == "user")
    return [content] if isinstance(content, str) else [block["text"] for block in content if block["type"] == "text"]
