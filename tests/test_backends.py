"""--codeprobe-backend: which provider's environment a session of claude gets, and what is missing for it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_codeprobe.agents.claude import Claude
from pytest_codeprobe.model.agent import SessionCommand
from pytest_codeprobe.options import RunOptions
from tests.agent_sessions import make_request
from tests.front_door import MODES, Project

DIRECT = {"ANTHROPIC_API_KEY": "sk-ant-direct-key", "ANTHROPIC_BASE_URL": "http://127.0.0.1:1"}
AWS = {"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "AKIA-some-key-id", "AWS_SECRET_ACCESS_KEY": "aws-secret-access-value"}
CLOUD_WORDS = ("AWS_", "GOOGLE_", "CLOUD_ML", "VERTEX", "BEDROCK", "GCLOUD")
SERVICE_ACCOUNT = {"type": "service_account", "project_id": "proj-1", "private_key": "-----BEGIN\nsecret key\n-----END"}


def session(tmp_path: Path, backend: str | None, environ: dict[str, str], **agent: Any) -> SessionCommand:
    options = RunOptions(backend=backend)  # type: ignore[arg-type]  # one of three words
    return Claude().command(make_request(tmp_path, agent or None, environ={"HOME": str(tmp_path / "user"), **environ}, options=options))


def aws_files(tmp_path: Path) -> None:
    folder = tmp_path / "user" / ".aws"
    folder.mkdir(parents=True)
    (folder / "credentials").write_text(
        "[default]\naws_access_key_id = DEFAULTID\naws_secret_access_key = default-secret-value\n"
        "[work]\naws_access_key_id=WORKID\naws_secret_access_key=work-secret-value\n[other]\naws_secret_access_key=other-secret-value\n"
    )
    (folder / "config").write_text(
        "[default]\nregion = us-west-2\n[profile work]\nregion=eu-west-1\n"
        "[profile role]\nrole_arn=arn:x\nsource_profile=work\nregion=eu-west-3\n"
    )


@pytest.mark.parametrize("backend", [None, "direct"])
def test_direct_gets_nothing_of_a_cloud(tmp_path: Path, backend: str | None) -> None:
    aws_files(tmp_path)
    cloud = {
        **AWS,
        "CLAUDE_CODE_USE_BEDROCK": "1",
        "CLAUDE_CODE_USE_VERTEX": "1",
        "CLOUD_ML_REGION": "x",
        "GOOGLE_APPLICATION_CREDENTIALS": "/x",
    }
    command = session(tmp_path, backend, {**DIRECT, **cloud})
    assert command.env["ANTHROPIC_API_KEY"] == DIRECT["ANTHROPIC_API_KEY"]
    assert command.env["ANTHROPIC_BASE_URL"] == DIRECT["ANTHROPIC_BASE_URL"]
    assert not [name for name in command.env if any(word in name for word in CLOUD_WORDS)]
    assert not command.files


@pytest.mark.parametrize("backend", ["bedrock", "vertex"])
def test_a_cloud_gets_no_key_of_anthropics(tmp_path: Path, backend: str) -> None:
    environ = {**DIRECT, "ANTHROPIC_AUTH_TOKEN": "a-token-value", "CLAUDE_CODE_OAUTH_TOKEN": "an-oauth-value", **AWS}
    command = session(tmp_path, backend, {**environ, "ANTHROPIC_DEFAULT_HAIKU_MODEL": "h-1"})
    assert command.env[f"CLAUDE_CODE_USE_{backend.upper()}"] == "1"
    assert command.env["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "h-1"
    assert not {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "CLAUDE_CODE_OAUTH_TOKEN"} & command.env.keys()
    other = "CLAUDE_CODE_USE_VERTEX" if backend == "bedrock" else "CLAUDE_CODE_USE_BEDROCK"
    assert other not in command.env
    assert backend == "bedrock" or not [name for name in command.env if name.startswith("AWS_")]


def test_bedrock_by_keys(tmp_path: Path) -> None:
    aws_files(tmp_path)
    more = {"AWS_SESSION_TOKEN": "aws-session-token-value", "ANTHROPIC_BEDROCK_BASE_URL": "http://127.0.0.1:2"}
    command = session(tmp_path, "bedrock", {**AWS, **more})
    assert {**AWS, **more}.items() <= command.env.items()
    assert not command.files
    assert {AWS["AWS_SECRET_ACCESS_KEY"], more["AWS_SESSION_TOKEN"]} <= command.secrets


def test_bedrock_by_bearer_token(tmp_path: Path) -> None:
    command = session(tmp_path, "bedrock", {"AWS_BEARER_TOKEN_BEDROCK": "bearer-token-value", **AWS, "AWS_DEFAULT_REGION": "us-east-2"})
    assert command.env["AWS_BEARER_TOKEN_BEDROCK"] in command.secrets
    assert "AWS_ACCESS_KEY_ID" not in command.env
    assert command.env["AWS_REGION"] == AWS["AWS_REGION"]


@pytest.mark.parametrize(
    ("profile", "sections", "region"),
    [
        (None, {"default"}, "us-west-2"),
        ("work", {"work", "profile work"}, "eu-west-1"),
        ("role", {"work", "profile work", "profile role"}, "eu-west-3"),
    ],
)
def test_bedrock_by_the_sections_of_one_profile(tmp_path: Path, profile: str | None, sections: set[str], region: str) -> None:
    aws_files(tmp_path)
    before = {p: p.read_bytes() for p in (tmp_path / "user" / ".aws").iterdir()}
    command = session(tmp_path, "bedrock", {"AWS_PROFILE": profile} if profile else {})
    home = tmp_path / "home" / ".aws"
    assert command.files.keys() == {home / "credentials", home / "config"}
    text = b"".join(command.files.values()).decode()
    assert {line.strip("[]") for line in text.splitlines() if line.startswith("[")} == sections
    assert "other-secret-value" not in text
    assert command.env["AWS_SHARED_CREDENTIALS_FILE"] == str(home / "credentials")
    assert command.env["AWS_PROFILE"] == (profile or "default")
    assert command.env["AWS_REGION"] == region
    assert ("default-secret-value" if profile is None else "work-secret-value") in command.secrets
    assert {p: p.read_bytes() for p in (tmp_path / "user" / ".aws").iterdir()} == before


def test_bedrock_as_a_container_provides_it(tmp_path: Path) -> None:
    given = {"AWS_WEB_IDENTITY_TOKEN_FILE": "/var/token", "AWS_ROLE_ARN": "arn:x", "AWS_REGION": "us-east-1"}
    assert given.items() <= session(tmp_path, "bedrock", given).env.items()


def test_vertex_by_a_copy_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "key.json"
    file.write_text(json.dumps(SERVICE_ACCOUNT, indent=1))
    given = {"GOOGLE_APPLICATION_CREDENTIALS": str(file), "CLOUD_ML_REGION": "us-east5", "VERTEX_REGION_CLAUDE_4_0_OPUS": "europe-west1"}
    command = session(tmp_path, "vertex", given)
    ((path, content),) = command.files.items()
    assert path.is_relative_to(tmp_path / "home")
    assert json.loads(content) == SERVICE_ACCOUNT
    assert command.env["GOOGLE_APPLICATION_CREDENTIALS"] == str(path)
    assert command.env["ANTHROPIC_VERTEX_PROJECT_ID"] == "proj-1"
    assert (command.env["CLOUD_ML_REGION"], command.env["VERTEX_REGION_CLAUDE_4_0_OPUS"]) == ("us-east5", "europe-west1")
    assert SERVICE_ACCOUNT["private_key"] in command.secrets


def test_vertex_by_gclouds_own_login(tmp_path: Path) -> None:
    folder = tmp_path / "user" / ".config" / "gcloud"
    folder.mkdir(parents=True)
    (folder / "application_default_credentials.json").write_text('{"type": "authorized_user", "refresh_token": "a-refresh-token"}')
    command = session(tmp_path, "vertex", {"GOOGLE_CLOUD_PROJECT": "proj-2"})
    assert command.env["ANTHROPIC_VERTEX_PROJECT_ID"] == "proj-2"
    assert "a-refresh-token" in command.secrets


def test_what_the_task_declares_wins(tmp_path: Path) -> None:
    command = session(tmp_path, "bedrock", AWS, env={"AWS_REGION": "ap-south-1"})
    assert "AWS_REGION" not in command.env  # the task's own comes with the session's environment


@pytest.mark.parametrize(
    ("backend", "own", "absent"),
    [
        # a credential of the task's own, alone
        ("bedrock", {"AWS_ACCESS_KEY_ID": "OWN", "AWS_SECRET_ACCESS_KEY": "own-secret-value"}, {"AWS_SESSION_TOKEN", "AWS_PROFILE"}),
        ("bedrock", {"AWS_BEARER_TOKEN_BEDROCK": "own-bearer"}, {"AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", "AWS_PROFILE"}),
        # a backend of its own
        ("direct", {"CLAUDE_CODE_USE_BEDROCK": "1"}, {"ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"}),
        ("bedrock", {"CLAUDE_CODE_USE_VERTEX": "true"}, {"CLAUDE_CODE_USE_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_REGION"}),
        ("bedrock", {"ANTHROPIC_API_KEY": "own-key"}, {"CLAUDE_CODE_USE_BEDROCK", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"}),
        # both
        (
            "direct",
            {"CLAUDE_CODE_USE_BEDROCK": "1", "AWS_PROFILE": "work"},
            {"ANTHROPIC_API_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"},
        ),
    ],
)
def test_a_task_that_names_its_own_gets_nothing_of_the_users_beside_it(
    tmp_path: Path, backend: str, own: dict[str, str], absent: set[str]
) -> None:
    aws_files(tmp_path)
    environ = {**DIRECT, **AWS, "AWS_SESSION_TOKEN": "users-session-token"}
    command = session(tmp_path, backend, environ, env=own)
    assert not absent & command.env.keys()
    assert not own.keys() & command.env.keys()  # they come with the session's environment
    held = "".join([*command.env.values(), *(content.decode() for content in command.files.values())])
    by_profile, users = "AWS_PROFILE" in own, "AWS_ACCESS_KEY_ID" not in absent and "CLAUDE_CODE_USE_BEDROCK" in own
    assert ("work-secret-value" in held) == by_profile
    assert (AWS["AWS_SECRET_ACCESS_KEY"] in held) == users
    assert "other-secret-value" not in held


@pytest.mark.parametrize(
    ("backend", "declared", "lacks"),
    [
        ("bedrock", {"AWS_SESSION_TOKEN"}, True),  # half of one
        ("bedrock", {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}, False),
        ("bedrock", {"AWS_PROFILE"}, False),
        ("bedrock", {"ANTHROPIC_API_KEY"}, False),
        ("vertex", {"AWS_PROFILE"}, True),  # a file of the other cloud says nothing
        ("direct", {"CLAUDE_CODE_USE_VERTEX"}, True),
        ("direct", {"CLAUDE_CODE_USE_BEDROCK"}, False),
    ],
)
def test_what_is_missing_beside_what_a_task_names(tmp_path: Path, backend: Any, declared: set[str], lacks: bool) -> None:
    (tmp_path / "claude").write_text("#!/bin/sh\n")
    (tmp_path / "claude").chmod(0o755)
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path / "user"), **DIRECT, **AWS}
    context = make_request(tmp_path, environ=environ, options=RunOptions(backend=backend)).context
    assert (Claude().unavailable(context, frozenset(declared)) is not None) == lacks


@pytest.mark.parametrize("content", [b"", b"[", b"[default]\nno value", b"\xff\xfe", b"[default]\n[default]\n", b"key = outside"])
def test_broken_files_of_aws_neither_raise_nor_count(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "user" / ".aws"
    folder.mkdir(parents=True)
    (folder / "credentials").write_bytes(content)
    (folder / "config").mkdir()
    assert session(tmp_path, "bedrock", {}).env["CLAUDE_CODE_USE_BEDROCK"] == "1"


# ---- through the front door


FAKE = """#!/bin/sh
case "$1" in --version) echo 2.1.0; exit;; esac
env > "$PWD/env.txt"
cat "$HOME"/.aws/credentials >> env.txt 2>/dev/null
cat <<'END'
{"type":"system","subtype":"init","session_id":"s","tools":[],"model":"m"}
{"type":"assistant","message":{"id":"1","model":"m","content":[{"type":"text","text":"done"}],"usage":{"input_tokens":1}}}
{"type":"result","subtype":"success","is_error":false,"result":"done","num_turns":1,"total_cost_usd":0.1,"usage":{"input_tokens":1}}
END
"""
CLAUDE = "--codeprobe-agent=claude"


@pytest.fixture
def clouded(project: Project) -> Project:
    """A project with a claude that writes down what it gets, in a HOME of its own."""
    folder = project.scratch / "bin"
    folder.mkdir()
    (folder / "claude").write_text(FAKE)
    (folder / "claude").chmod(0o755)
    (project.scratch / "user").mkdir()
    keys = {n: "" for n in os.environ if n.startswith(("AWS_", "GOOGLE_", "ANTHROPIC_", "CLAUDE_", "CLOUD_ML", "GCLOUD"))}
    project.environment |= {**keys, "PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(project.scratch / "user"), **AWS, **DIRECT}
    project.task("t", success_criteria=[{"type": "file_exists", "path": "env.txt"}])
    return project


@pytest.mark.parametrize(
    ("mode", "given", "cloud"),
    [
        ("plain", (), False),
        ("plain", ("--codeprobe-backend=direct",), False),
        *((mode, ("--codeprobe-backend=Bedrock",), True) for mode in MODES),
    ],
)
def test_a_session_gets_it_and_no_key_is_kept(clouded: Project, mode: str, given: tuple[str, ...], cloud: bool) -> None:
    run = clouded.run(
        "tasks", CLAUDE, *given, mode=mode, env={"API_BACKEND": "bedrock"} if given[-1:] == ("--codeprobe-backend=direct",) else {}
    )
    assert run.assert_consistent().code == 0, run.output
    raw = "".join(p.read_text(errors="replace") for p in run.folder.rglob("*") if p.is_file())
    for secret in (AWS["AWS_SECRET_ACCESS_KEY"], DIRECT["ANTHROPIC_API_KEY"]):
        assert secret not in raw
    kept = (run.trial("t") / "artifacts" / "env.txt").read_text()
    assert "removed by pytest-codeprobe" in kept, "it held a key of the provider"
    diff = (run.trial("t") / "diff.patch").read_text()
    assert ("CLAUDE_CODE_USE_BEDROCK=1" in diff) == cloud
    assert ("AWS_REGION" in diff) == cloud
    assert ("ANTHROPIC_API_KEY" in diff) != cloud


def test_by_the_environment(clouded: Project) -> None:
    run = clouded.run("tasks", CLAUDE, env={"API_BACKEND": "vertex", "CLAUDE_CODE_SKIP_VERTEX_AUTH": "1", "GCLOUD_PROJECT": "p"})
    assert run.code == 0, run.output
    assert (
        "CLAUDE_CODE_USE_VERTEX=1" in (run.trial("t") / "diff.patch").read_text() + (run.trial("t") / "artifacts" / "env.txt").read_text()
    )


@pytest.mark.parametrize(
    ("mode", "backend", "said"), [("xdist", "bedrock", "AWS credentials"), ("plain", "vertex", "Google Cloud credentials")]
)
def test_without_credentials_nothing_starts(clouded: Project, mode: str, backend: str, said: str) -> None:
    environ = dict.fromkeys(AWS, "")
    run = clouded.run("tasks", CLAUDE, f"--codeprobe-backend={backend}", "--codeprobe-json", mode=mode, env=environ, junit=False)
    (error,) = run.assert_pure(events=False)["errors"]
    assert (error["code"], run.code) == ("NO_BACKENDS_CONFIGURED", 4)
    assert f"agent claude has no {said} for backend {backend}" in error["message"]
    assert "Set " in error["remediation"]


def test_a_profile_that_is_not_there_is_named(clouded: Project) -> None:
    environ = {**dict.fromkeys(AWS, ""), "AWS_PROFILE": "nobody"}
    run = clouded.run("tasks", CLAUDE, "--codeprobe-backend=bedrock", "--codeprobe-json", env=environ, junit=False)
    (error,) = run.assert_pure(events=False)["errors"]
    assert "profile 'nobody' was not found" in error["message"]


@pytest.mark.parametrize("where", ["flag", "environment"])
def test_an_unknown_backend(clouded: Project, where: str) -> None:
    flag = ("--codeprobe-backend=azure",) if where == "flag" else ()
    environ = {} if flag else {"API_BACKEND": "azure"}
    run = clouded.run("tasks", CLAUDE, *flag, "--codeprobe-json", env=environ, junit=False)
    (error,) = run.assert_pure(events=False)["errors"]
    assert (error["code"], run.code) == ("UNKNOWN_BACKEND", 4)
    assert "direct, bedrock, vertex" in error["message"] + error["remediation"]


def test_an_agent_that_knows_no_backend_says_so(project: Project) -> None:
    project.task("t", agent={"type": "command", "command": ["touch", "out.txt"]})
    run = project.codeprobe("run", "-b", "bedrock", "--json")
    assert run.code == 0
    assert [w for w in run.assert_pure(events=False)["warnings"] if "backend bedrock: agent command gets no variables for it" in w]
