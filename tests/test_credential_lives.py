"""How long credentials hold, where a model is asked, and what --codeprobe-offline makes of it before a run."""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_codeprobe import agents
from pytest_codeprobe.agents.base.credentials import moment, token_expiry
from pytest_codeprobe.agents.claude import Claude
from pytest_codeprobe.agents.scripted import ScriptedAgent
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.agent import CredentialLife
from pytest_codeprobe.model.config import SandboxConfig
from pytest_codeprobe.model.context import Context, Registry
from pytest_codeprobe.model.network import Endpoint
from pytest_codeprobe.options import RunOptions
from pytest_codeprobe.run.offline.preflight import check_credentials, words
from pytest_codeprobe.run.plan import PlannedTrial
from tests.agent_sessions import make_trial

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
SOON, LATE = NOW + timedelta(minutes=30), NOW + timedelta(hours=5)


def context(environ: dict[str, str], **options: Any) -> Context:
    made = SimpleNamespace(
        environ=environ,
        options=RunOptions(**options),
        clock=SimpleNamespace(now=lambda: NOW),
        registry=Registry(agents={a.name: a for a in agents.BUILTIN}, drivers={}, criteria={}),
    )
    return cast(Context, made)


def home(folder: Path, **login: Any) -> dict[str, str]:
    """The environment of a user who is logged in."""
    (folder / ".claude").mkdir()
    content = {"claudeAiOauth": {"accessToken": "tok-tok-tok", "refreshToken": "ref-ref-ref", **login}}
    (folder / ".claude" / ".credentials.json").write_text(json.dumps(content))
    return {"HOME": str(folder)}


def jwt(**claims: Any) -> str:
    return ".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "none"}, claims, {}))


def planned(agent: str = "claude", *variables: str, starts: bool = True) -> PlannedTrial:
    return PlannedTrial(
        node_id="n", task_id="t", variant_id=None, row_id=None, repeat=1, folder="f", task_file="t.yaml", agent=agent, model=None,
        driver="auto", limits={}, variables=variables, starts=starts,
    )  # fmt: skip


def lives(environ: dict[str, str], *declared: str, **options: Any) -> Sequence[CredentialLife]:
    return Claude().credential_lives(context(environ, **options), frozenset(declared))


def only(found: Sequence[CredentialLife]) -> CredentialLife:
    (life,) = found
    return life


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("2030-01-02T03:04:05Z", NOW),
        ("2030-01-02T03:04:05", NOW),
        ("2030-01-02T05:04:05+02:00", NOW),
        (NOW.timestamp(), NOW),
        (NOW.timestamp() * 1000, NOW),
        (str(int(NOW.timestamp())), NOW),
        (str(int(NOW.timestamp() * 1000)), NOW),
        ("soon", None), ("", None), (None, None), (True, None), (-1, None), (float("nan"), None), (1e300, None), ([1], None),
        ("1e400", None),
    ],
)  # fmt: skip
def test_times(value: object, expected: datetime | None) -> None:
    assert moment(value) == expected


def test_tokens_that_say_when_they_expire() -> None:
    assert token_expiry(jwt(exp=NOW.timestamp())) == NOW
    for opaque in (
        "",
        "a.b",
        "a.b.c",
        "a.!!.c",
        "é.é.é",
        jwt(),
        jwt(exp="x"),
        ".".join(("e30", base64.b64encode(b"[" * 9999).decode(), "x")),
    ):
        assert token_expiry(opaque) is None


def test_a_stored_login_says_it(tmp_path: Path) -> None:
    life = only(lives(home(tmp_path, expiresAt=SOON.timestamp() * 1000)))
    assert life.expires_at == SOON
    assert life.name == str(tmp_path / ".claude" / ".credentials.json")
    assert "claude /login" in life.remedy


@pytest.mark.parametrize("expires", [None, "soon", True, -5, {}])
def test_a_login_that_does_not_say_it(tmp_path: Path, expires: object) -> None:
    assert only(lives(home(tmp_path, expiresAt=expires))).unknown


def test_keys_do_not_expire() -> None:
    for life in (only(lives({"ANTHROPIC_API_KEY": "k"})), only(lives({}, "ANTHROPIC_API_KEY")), only(lives({"ANTHROPIC_AUTH_TOKEN": "k"}))):
        assert life.expires_at is None
        assert not life.unknown


def test_the_one_that_the_cli_prefers_counts(tmp_path: Path) -> None:
    environ = home(tmp_path, expiresAt=1)
    assert only(lives({**environ, "ANTHROPIC_API_KEY": "k"})).name == "ANTHROPIC_API_KEY"
    assert only(lives({**environ, "ANTHROPIC_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": jwt(exp=SOON.timestamp())})).expires_at == SOON
    assert only(lives({**environ, "ANTHROPIC_API_KEY": "k"}, "CLAUDE_CODE_OAUTH_TOKEN")).unknown  # the task's own, alone
    assert only(lives({"CLAUDE_CODE_OAUTH_TOKEN": "t", "ANTHROPIC_API_KEY": ""})).unknown
    assert lives({}) == ()  # unavailable() refuses that


@pytest.mark.parametrize(
    ("environ", "expires", "unknown"),
    [
        ({"AWS_BEARER_TOKEN_BEDROCK": "k"}, None, False),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, None, False),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SESSION_TOKEN": "t"}, None, True),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SESSION_TOKEN": "t", "AWS_SESSION_EXPIRATION": SOON.isoformat()}, SOON, False),
        ({"AWS_ACCESS_KEY_ID": "a", "AWS_SESSION_TOKEN": "t", "AWS_CREDENTIAL_EXPIRATION": "2030-01-02T03:34:05Z"}, SOON, False),
        ({"AWS_SESSION_TOKEN": "t", "AWS_SESSION_EXPIRATION": "later"}, None, True),
        ({"AWS_PROFILE": "work"}, None, True),
        ({"AWS_PROFILE": "work", "AWS_SESSION_EXPIRATION": SOON.isoformat()}, SOON, False),
        # the profile counts, and whose expiry that is can't be told
        ({"AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}, None, True),
        ({"AWS_PROFILE": "work", "AWS_ACCESS_KEY_ID": "a", "AWS_SESSION_EXPIRATION": SOON.isoformat()}, None, True),
        ({"AWS_PROFILE": "work", "AWS_BEARER_TOKEN_BEDROCK": "k"}, None, False),
        ({}, None, True),
    ],
)
def test_aws(environ: dict[str, str], expires: datetime | None, unknown: bool) -> None:
    for life in (only(lives(environ, backend="bedrock")), only(lives(environ, "CLAUDE_CODE_USE_BEDROCK"))):
        assert (life.expires_at, bool(life.unknown)) == (expires, unknown)


def test_a_profile_of_long_term_keys_does_not_expire(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    keys = "aws_access_key_id=A\naws_secret_access_key=S\n"
    (tmp_path / ".aws" / "credentials").write_text(f"[default]\n{keys}[long]\n{keys}[short]\n{keys}aws_session_token=T\n")
    (tmp_path / ".aws" / "config").write_text(f"[profile role]\nrole_arn=r\nsource_profile=long\n{keys}[profile sso]\nsso_session=x\n")
    home = {"HOME": str(tmp_path)}
    for name, unknown in (("long", False), ("short", True), ("role", True), ("sso", True), ("none", True), (None, False)):
        profile = {"AWS_PROFILE": name} if name else {}
        life = only(lives({**home, **profile}, backend="bedrock"))
        assert (life.expires_at, bool(life.unknown)) == (None, unknown), name
    # one that the task names is not known here, and the user's own keys are not given beside it
    assert only(lives({**home, "AWS_ACCESS_KEY_ID": "a"}, "AWS_PROFILE", backend="bedrock")).unknown
    assert only(lives(home, "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN", backend="bedrock")).unknown
    assert only(lives({**home, "AWS_SESSION_TOKEN": "t"}, "AWS_ACCESS_KEY_ID", backend="bedrock")).name == "AWS_ACCESS_KEY_ID"
    assert only(lives(home, "ANTHROPIC_API_KEY", backend="bedrock")).name == "ANTHROPIC_API_KEY"


def test_google(tmp_path: Path) -> None:
    key, user = tmp_path / "key.json", tmp_path / "user.json"
    key.write_text(json.dumps({"type": "service_account"}))
    user.write_text(json.dumps({"type": "authorized_user"}))
    where = "GOOGLE_APPLICATION_CREDENTIALS"
    assert not only(lives({where: str(key)}, backend="vertex")).unknown
    assert only(lives({where: str(user)}, backend="vertex")).unknown
    assert only(lives({where: str(tmp_path / "none")}, "CLAUDE_CODE_USE_VERTEX")).unknown
    assert only(lives({where: str(key)}, where, backend="vertex")).unknown  # of the task's own nothing is read
    assert only(lives({f"{where}_TOKEN_EXPIRY": SOON.isoformat()}, backend="vertex")).expires_at == SOON


# ---- where the model is asked


def asked(tmp_path: Path, environ: dict[str, str], sandbox: dict[str, Any] | None = None, **more: Any) -> list[tuple[str, int | None]]:
    options = {"backend": more.pop("backend")} if "backend" in more else {}
    trial = make_trial(tmp_path, {"type": "claude", **more}).model_copy(update={"sandbox": SandboxConfig.model_validate(sandbox or {})})
    return [(e.host, e.port) for e in Claude().endpoints(trial, context(environ, **options))]


def test_endpoints_of_claude(tmp_path: Path) -> None:
    url = "ANTHROPIC_BASE_URL"
    assert asked(tmp_path, {}) == [("api.anthropic.com", 443)]
    assert asked(tmp_path, {url: "https://Gate.test/v1"}) == [("gate.test", 443)]
    assert asked(tmp_path, {url: "http://[::1]:8080"}) == [("::1", 8080)]
    assert asked(tmp_path, {url: "https://gate.test"}, {"env": {url: "http://own.test"}}) == [("own.test", 80)]
    assert asked(tmp_path, {url: "https://gate.test"}, env={url: "http://agent.test:81"}) == [("agent.test", 81)]
    assert asked(tmp_path, {url: "no url"}) == []
    assert asked(tmp_path, {url: "http://[broken"}) == []
    assert asked(tmp_path, {"AWS_REGION": "eu-west-1", url: "https://gate.test"}, backend="bedrock") == [
        ("bedrock-runtime.eu-west-1.amazonaws.com", 443),
        ("bedrock.eu-west-1.amazonaws.com", 443),
    ]
    passed = {"env_passthrough": ["agent:CLAUDE_CODE_USE_VERTEX", "grader:CLAUDE_CODE_USE_BEDROCK"]}
    environ = {"CLAUDE_CODE_USE_VERTEX": "1", "CLAUDE_CODE_USE_BEDROCK": "1", "CLOUD_ML_REGION": "global"}
    assert asked(tmp_path, environ, passed) == [("aiplatform.googleapis.com", 443), ("oauth2.googleapis.com", 443)]
    environ["ANTHROPIC_VERTEX_BASE_URL"] = "https://v.test"
    assert asked(tmp_path, environ, passed) == [("v.test", 443), ("oauth2.googleapis.com", 443)]


def test_an_agent_that_calls_no_model_asks_nowhere(tmp_path: Path) -> None:
    agent = ScriptedAgent()
    assert agent.endpoints(make_trial(tmp_path), context({})) == ()
    assert agent.credential_lives(context({})) == ()
    assert Endpoint.of_url("") is None


# ---- the refusal


def refusal(environ: dict[str, str], *trials: PlannedTrial, **options: Any) -> CodeprobeError | None:
    return check_credentials(trials or (planned(),), context(environ, **options))


def test_it_must_hold_for_longer_than_the_run(tmp_path: Path) -> None:
    environ = home(tmp_path, expiresAt=SOON.timestamp() * 1000)
    error = refusal(environ)
    assert error is not None
    assert error.code == "OFFLINE_PREFLIGHT_FAILED"
    assert "expires at 2030-01-02T03:34:05.000Z, in 30 min; the run is expected to take 1 h" in error.message
    assert error.remediation.startswith("Log in again with `claude /login`.")
    assert error.detail["failures"] == [
        {"agent": "claude", "credential": str(tmp_path / ".claude/.credentials.json"), "expires_at": "2030-01-02T03:34:05.000Z",
         "left_seconds": 1800.0, "unknown": None},
    ]  # fmt: skip
    assert "tok-tok-tok" not in json.dumps([error.message, error.remediation, error.detail])
    assert refusal(environ, offline_expected_run_duration=1800.0) is not None  # must exceed it
    assert refusal(environ, offline_expected_run_duration=1799.0) is None


def test_what_can_not_be_known_or_is_over_refuses(tmp_path: Path) -> None:
    unknown = refusal({"CLAUDE_CODE_OAUTH_TOKEN": "t"})
    assert unknown is not None
    assert "how long CLAUDE_CODE_OAUTH_TOKEN holds can't be known" in unknown.message
    assert unknown.remediation == "Set ANTHROPIC_API_KEY, or log in with `claude /login`. Or leave --codeprobe-offline out."
    over = refusal(home(tmp_path, expiresAt=1000))
    assert over is not None
    assert "expired at 1970-01-01T00:16:40.000Z" in over.message


def test_only_what_the_run_uses_counts(tmp_path: Path) -> None:
    environ = home(tmp_path, expiresAt=1000)
    assert refusal(environ, planned("scripted"), planned("claude", starts=False), planned("command")) is None
    assert refusal({**environ, "ANTHROPIC_API_KEY": "k"}) is None
    assert refusal({**environ, "AWS_SESSION_TOKEN": "t"}, planned("claude", "ANTHROPIC_API_KEY")) is None
    both = refusal(environ, planned("claude", "ANTHROPIC_API_KEY"), planned("claude"), planned("claude"))
    assert both is not None
    assert len(both.detail["failures"]) == 1


def test_durations_in_words() -> None:
    assert [words(s) for s in (0.4, 59, 60, 3661, 90000, 86400 * 3)] == ["0 s", "59 s", "1 min", "1 h 1 min", "1 d 1 h", "3 d"]


def test_a_life_is_no_place_for_a_value() -> None:
    assert {f.name for f in dataclasses.fields(CredentialLife)} == {"name", "expires_at", "unknown", "remedy"}
