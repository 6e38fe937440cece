"""--codeprobe-offline with the real Claude Code CLI: its provider works, also through the tunnel; what it asks beside that is caught."""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import subprocess
from pathlib import Path

import pytest

from tests.claude_runs import KEY, ClaudeProject, server
from tests.front_door import Project, Run
from tests.loopback_proxy import LoopbackProxy
from tests.model_server import Script, ToolCall, Turn, Usage
from tests.netns import netns_argv, receive_listener
from tests.real_cli import require_clis

pytestmark = pytest.mark.real_cli

OFFLINE = "--codeprobe-offline"
WRITE = ToolCall("Write", {"file_path": "{cwd}/out.txt", "content": "done\n"})
WORK = (Turn("I write it.", [WRITE], Usage(701, 41, 503, 307)), Turn("Done.", usage=Usage(89, 13, 907, 0)))
ASK = ToolCall("Bash", {"command": "curl -sS -m 20 https://outside.test/x; true", "description": "Ask"})
CURIOUS = (Turn("I ask.", [ASK], Usage(10, 5, 0, 0)), *WORK)
PROXIES = [name for word in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (word, word.upper())]


@pytest.fixture
def claude(project: Project) -> ClaudeProject:
    made = ClaudeProject(project, require_clis())
    project.environment.update(dict.fromkeys(PROXIES, ""))
    return made


def attempts(run: Run, task_id: str) -> list[tuple[str, str, int]]:
    return [(a["component"], a["host"], a["port"]) for a in run.result(task_id)["detail"].get("attempts", ())]


def test_its_provider_works_and_its_tools_are_held(claude: ClaudeProject) -> None:
    for name in ("works", "curious"):
        claude.task(name)
    with server([Script(WORK, key="[works]"), Script(CURIOUS, key="[curious]")]) as model:
        run = claude.run(model, OFFLINE, mode="jobs")
    assert run.code == 6
    assert run.statuses == {"works": "passed", "curious": "error"}
    assert run.result("curious")["code"] == "OFFLINE_NET_ATTEMPT"
    assert attempts(run, "curious") == [("agent", "outside.test", 443)]
    assert run.result("curious")["cost_usd"] > 0
    assert (run.trial("curious") / "attempt-1" / "transcript.json").exists()
    assert attempts(run, "works") == []


def run_behind(claude: ClaudeProject, users: LoopbackProxy, base_url: str, **environ: str) -> Run:
    """A run whose network is loopback and the user's proxy, which stands there."""
    claude.project.environment.update(dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY"), users.url))
    claude.project.environment.update(ANTHROPIC_BASE_URL=base_url, ANTHROPIC_API_KEY=KEY, **environ)
    tasks = sorted(f"tasks/{path.name}" for path in (claude.project.path / "tasks").iterdir())
    ours, theirs = socket.socketpair()
    with ours, theirs:
        prefix = tuple(netns_argv([], listen=(theirs.fileno(), users.port)))
        run = claude.project.start(*tasks, OFFLINE, prefix=prefix, pass_fds=(theirs.fileno(),))
        theirs.close()
        users.join(receive_listener(ours))
    run.wait(120).assert_consistent()
    claude.assert_nothing_left()
    return run


def certificate(folder: Path, host: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context for that host, and the file that makes clients trust it."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={host}", "-addext",
         f"subjectAltName=DNS:{host}", "-keyout", key, "-out", cert],
        check=True, capture_output=True, timeout=60, env={**os.environ, "RANDFILE": str(folder / "rnd")},
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context, cert


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_provider_elsewhere_is_reached_through_the_tunnel(claude: ClaudeProject, tmp_path: Path, scheme: str) -> None:
    """The provider's host is for the agent alone: a grader that asks the same one is caught."""
    place = "provider.test:443" if scheme == "https" else "provider.test:80"
    tls, cert = certificate(tmp_path, "provider.test") if scheme == "https" else (None, None)
    claude.task("works")
    greedy = {"type": "run_command", "command": f"curl -sS -m 20 {scheme}://provider.test/; true"}
    claude.task("greedy", success_criteria=[{"type": "file_exists", "path": "out.txt"}, greedy])
    claude.task("curious")
    scripts = [Script(WORK, key="[works]"), Script(WORK, key="[greedy]"), Script(CURIOUS, key="[curious]")]
    with server(scripts) as model, LoopbackProxy({place: model.port}, tls=tls) as users:
        run = run_behind(claude, users, f"{scheme}://provider.test", **({"NODE_EXTRA_CA_CERTS": str(cert)} if cert else {}))
    assert run.statuses == {"works": "passed", "greedy": "error", "curious": "error"}, run.output[-3000:]
    assert attempts(run, "greedy") == [("grader", "provider.test", 443 if scheme == "https" else 80)]
    assert attempts(run, "curious") == [("agent", "outside.test", 443)]
    assert set(users.asked) == {place}
    assert run.code == 6
