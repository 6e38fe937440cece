"""The real Claude Code CLI against the scripted server, without our plugin: what the claude adapter is built on still holds."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.install_clis import COMMANDS, locked_version
from tests.netns import netns_argv, why_no_netns
from tests.real_cli import require_clis

ROOT = Path(__file__).resolve().parent.parent
DATA = ROOT / "tests" / "data" / "claude"
RECORDED = json.loads((DATA / "cases.json").read_text(encoding="utf-8"))


def run_case(name: str) -> dict[str, Any]:
    """Run one case of tests/record_claude.py in a namespace of its own."""
    require_clis()
    argv = netns_argv([sys.executable, "-m", "tests.record_claude", name])
    done = subprocess.run(argv, check=False, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, done.stderr
    seen: dict[str, Any] = json.loads(done.stdout)
    assert seen["stats"]["problems"] == []
    return seen


def result_of(seen: dict[str, Any]) -> dict[str, Any]:
    lines = [json.loads(line) for line in seen["lines"]]
    assert [line["type"] for line in lines].count("result") == 1
    assert lines[-1]["type"] == "result"
    last: dict[str, Any] = lines[-1]
    return last


def retries_of(seen: dict[str, Any]) -> list[tuple[int, int | None, str]]:
    lines = [json.loads(line) for line in seen["lines"]]
    return [(line["attempt"], line["error_status"], line["error"]) for line in lines if line.get("subtype") == "api_retry"]


def usage_of(result: dict[str, Any]) -> dict[str, int]:
    """Tokens by kind over all models, named as the server names them."""
    names = {
        "input": "inputTokens",
        "output": "outputTokens",
        "cache_read": "cacheReadInputTokens",
        "cache_write": "cacheCreationInputTokens",
    }
    return {kind: sum(model[name] for model in result["modelUsage"].values()) for kind, name in names.items()}


@pytest.mark.real_cli
@pytest.mark.parametrize("case", ["ok", "500_once", "overloaded_event_once"])
def test_it_solves_the_task_and_counts_what_the_server_sent(case: str) -> None:
    seen = run_case(case)
    assert seen["exit"] == 0
    assert seen["files"]["calc.py"] == "def add(a, b):\n    return a + b\n"
    assert seen["files"]["NOTES.md"] == "add() adds now.\n"
    result = result_of(seen)
    assert (result["is_error"], result["result"]) == (False, "add() adds now; check.py says: all good.")
    assert usage_of(result) == seen["stats"]["tokens"] == {"input": 1724, "output": 268, "cache_read": 6166, "cache_write": 391}
    assert result["total_cost_usd"] == pytest.approx((1724 * 3 + 268 * 15 + 6166 * 0.3 + 391 * 3.75) / 1e6)
    outputs = [line["tool_use_result"] for line in map(json.loads, seen["lines"]) if line["type"] == "user"]
    assert outputs[-1]["stdout"] == "all good"


@pytest.mark.real_cli
@pytest.mark.parametrize(
    ("case", "status", "retry"),
    [
        ("401", 401, "authentication_failed"),
        ("refused", None, "unknown"),
    ],
)
def test_a_provider_fault_is_told_at_once_and_ends_within_its_retries(case: str, status: int | None, retry: str) -> None:
    seen = run_case(case)
    assert seen["exit"] == 1
    assert retries_of(seen) == [(1, status, retry), (2, status, retry)]
    result = result_of(seen)
    assert (result["is_error"], result["subtype"], result["terminal_reason"]) == (True, "success", "api_error")
    assert result["api_error_status"] == status
    assert result["total_cost_usd"] == 0
    assert seen["stats"]["requests"].get("main", 0) == (0 if case == "refused" else 3)


@pytest.mark.real_cli
def test_sub_agents_are_in_model_usage_only() -> None:
    seen = run_case("subagent")
    result = result_of(seen)
    assert usage_of(result) == seen["stats"]["tokens"]
    assert result["usage"]["input_tokens"] < seen["stats"]["tokens"]["input"]


@pytest.mark.real_cli
def test_a_denied_tool_is_reported_and_the_run_still_calls_itself_a_success() -> None:
    seen = run_case("permission_denied")
    result = result_of(seen)
    assert (seen["exit"], result["is_error"]) == (0, False)
    assert [(each["tool_name"], each["tool_input"]["command"]) for each in result["permission_denials"]] == [("Bash", "pytest -q")]


# -- the recordings


def test_the_recordings_are_of_the_locked_version_and_name_no_folder_of_a_machine() -> None:
    assert RECORDED
    for name, case in RECORDED.items():
        lines = (DATA / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        assert json.loads(lines[0])["claude_code_version"] == locked_version("@anthropic-ai/claude-code")
        assert len(lines) == len(case["line_seconds"])
        text = "\n".join(lines) + json.dumps(case)
        assert set(re.findall(r'"cwd": ?"([^"]*)"', text)) == {"/work"}
        assert "claude-case" not in text


# -- what they stand on


def test_the_lock_file_pins_every_command_and_names_no_registry() -> None:
    manifest = json.loads((ROOT / "package.json").read_text(encoding="utf-8"))
    lock = (ROOT / "package-lock.json").read_text(encoding="utf-8")
    assert manifest["dependencies"] == {package: locked_version(package) for package in COMMANDS.values()}
    assert "://" not in lock
    assert '"resolved"' not in lock


def test_installing_without_npm_says_what_is_missing_and_leaves_nothing_half_done(tmp_path: Path) -> None:
    argv = [sys.executable, str(ROOT / "tests" / "install_clis.py")]
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(argv, check=False, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "npm is not on PATH; install Node.js 20 or newer\n")
    assert [path.suffix for path in (tmp_path / "pytest-codeprobe" / "clis").iterdir()] == [".lock"]


def test_the_namespace_has_loopback_and_nothing_else() -> None:
    why = why_no_netns()
    if why is not None:
        require_clis()
    code = """
import errno, socket
with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
    assert [name for _, name in socket.if_nameindex()] and "lo" in dict((n, i) for i, n in socket.if_nameindex())
outside = socket.socket()
assert outside.connect_ex(("192.0.2.1", 80)) == errno.ENETUNREACH
raise SystemExit(41)
"""
    done = subprocess.run(netns_argv([sys.executable, "-c", code]), check=False, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (41, "")
    missing = subprocess.run(netns_argv(["/no/such/command"]), check=False, capture_output=True, text=True, timeout=60)
    assert (missing.returncode, missing.stderr) == (127, "/no/such/command: ENOENT: No such file or directory\n")


def test_pytest_server_and_client_run_together_inside_the_namespace(tmp_path: Path) -> None:
    if why_no_netns() is not None:
        require_clis()
    (tmp_path / "test_inside.py").write_text(
        "import http.client\n"
        "from tests.model_server import ModelServer, Script, Turn\n"
        "def test_it():\n"
        "    with ModelServer([Script([Turn('x')])]) as server:\n"
        "        connection = http.client.HTTPConnection('127.0.0.1', server.port, timeout=10)\n"
        "        connection.request('HEAD', '/')\n"
        "        assert connection.getresponse().status == 200\n",
        encoding="utf-8",
    )
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c", "/dev/null", "test_inside.py"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "CODEPROBE_", "_CODEPROBE_", "COV_"))}
    done = subprocess.run(
        netns_argv(argv), check=False, cwd=tmp_path, env=clean | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
