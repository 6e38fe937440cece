"""--codeprobe-backend with the real Claude Code CLI: with what it is handed it asks that cloud, signed in, and nobody else."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_codeprobe.agents.claude import clouds
from tests.front_door import clean_environment
from tests.netns import netns_argv
from tests.real_cli import require_clis

pytestmark = pytest.mark.real_cli

#: starts the CLI beside a server that refuses everything, and prints what the server was asked: path and begin of the authorization
_PROGRAM = """
import http.server, json, subprocess, sys, threading
argv, env, asked = json.loads(sys.argv[1]), json.loads(sys.argv[2]), []
class Refuses(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers.get("content-length") or 0))
        asked.append([self.path, (self.headers.get("authorization") or "")[:40]])
        self.send_response(400); self.end_headers(); self.wfile.write(b'{"message": "no"}')
    do_GET = do_POST
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_port}"
env = {name: value.replace("URL", url) if name.endswith("_BASE_URL") else value for name, value in env.items()}
subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=60)
print(json.dumps(asked))
"""
_KEYS = {"AWS_ACCESS_KEY_ID": "AKIAKEYS", "AWS_SECRET_ACCESS_KEY": "aws-secret-access-value"}
_AWS = {"AWS_REGION": "eu-central-1", "ANTHROPIC_BEDROCK_BASE_URL": "URL"}


def asked(tmp_path: Path, cloud: clouds.Cloud, environ: Mapping[str, str], **beside: str) -> list[tuple[str, str]]:
    """What a session asks its cloud. `beside`: what the CLI finds in its environment, though we don't hand it over."""
    claude, home = require_clis() / "claude", tmp_path / "home"
    handed = clouds.hand_over(cloud, {"HOME": str(tmp_path / "user"), "ANTHROPIC_API_KEY": "sk-never-used", **environ}, home)
    home.mkdir()
    for name, content in handed.files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_bytes(content)
    quiet = {"CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_RETRIES": "0", "CLAUDE_CONFIG_DIR": str(home / ".claude")}
    env = {"PATH": clean_environment()["PATH"], "HOME": str(home), **quiet, **handed.env, **beside}
    program = [sys.executable, "-c", _PROGRAM, json.dumps([str(claude), "-p", "hi"]), json.dumps(env)]
    done = subprocess.run(
        netns_argv(program), cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=90, check=True
    )
    return [(path, authorization) for path, authorization in json.loads(done.stdout)]


def test_bedrock_by_bearer_token(tmp_path: Path) -> None:
    found = asked(tmp_path, "bedrock", {**_AWS, "AWS_BEARER_TOKEN_BEDROCK": "bearer-token-value"}, **_KEYS, AWS_PROFILE="work")
    assert any(path.startswith("/model/") and "/invoke" in path for path, _ in found), found
    assert {authorization for _, authorization in found} == {"Bearer bearer-token-value"}


def test_bedrock_by_keys(tmp_path: Path) -> None:
    found = asked(tmp_path, "bedrock", {**_AWS, **_KEYS})
    assert any(path.startswith("/model/") for path, _ in found), found
    assert all(authorization.startswith("AWS4-HMAC-SHA256 Credential=AKIAKEYS") for _, authorization in found)


def test_bedrock_by_a_profile(tmp_path: Path) -> None:
    (tmp_path / "user" / ".aws").mkdir(parents=True)
    (tmp_path / "user" / ".aws" / "credentials").write_text("[work]\naws_access_key_id=WORKID\naws_secret_access_key=work-secret-value\n")
    found = asked(tmp_path, "bedrock", {**_AWS, "AWS_PROFILE": "work"}, **_KEYS)  # it counts before them
    assert any(path.startswith("/model/") for path, _ in found), found
    assert all(authorization.startswith("AWS4-HMAC-SHA256 Credential=WORKID") for _, authorization in found)


def test_vertex(tmp_path: Path) -> None:
    given = {
        "CLOUD_ML_REGION": "us-east5",
        "ANTHROPIC_VERTEX_PROJECT_ID": "p1",
        "ANTHROPIC_VERTEX_BASE_URL": "URL",
        "CLAUDE_CODE_SKIP_VERTEX_AUTH": "1",
    }
    found = asked(tmp_path, "vertex", given)
    assert found
    assert all(path.startswith("/projects/p1/locations/us-east5/publishers/anthropic/models/") for path, _ in found), found
