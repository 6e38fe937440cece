"""Which credential a Claude Code session uses, how long it holds, and which hosts it asks its model at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_codeprobe.agents.base import json_object, mapping, text
from pytest_codeprobe.agents.base.credentials import aws_lives, google_lives, moment, token_expiry
from pytest_codeprobe.agents.claude import clouds
from pytest_codeprobe.agents.claude.clouds import Cloud
from pytest_codeprobe.agents.claude.sources import FILES, setting_sources
from pytest_codeprobe.model.agent import CredentialLife, SessionRequest
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.model.network import Endpoint
from pytest_codeprobe.model.trial import Trial

#: variables that hold a credential, in the order in which the CLI prefers them
KEYS = ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_API_KEY", "CLAUDE_CODE_OAUTH_TOKEN")
BASE_URL = "ANTHROPIC_BASE_URL"
_OWN_HOSTS = ("api.anthropic.com",)
#: a cloud that stands between the CLI and the model -> the variable by which the CLI is told so, and its base URL's
_CLOUDS: Mapping[Cloud, tuple[str, str]] = {
    "bedrock": ("CLAUDE_CODE_USE_BEDROCK", "ANTHROPIC_BEDROCK_BASE_URL"),
    "vertex": ("CLAUDE_CODE_USE_VERTEX", "ANTHROPIC_VERTEX_BASE_URL"),
}
_OFF = frozenset({"", "0", "false", "no", "off"})  #: of a switch
_GOOGLE_TOKENS = "oauth2.googleapis.com"
_RENEW: Mapping[Cloud | None, str] = {
    None: "Set a valid ANTHROPIC_API_KEY whose account has credit, or log in again with `claude /login`.",
    "bedrock": "Renew the AWS credentials (AWS_BEARER_TOKEN_BEDROCK, AWS_ACCESS_KEY_ID or AWS_PROFILE), and that they may use the model.",
    "vertex": "Renew the Google Cloud credentials (GOOGLE_APPLICATION_CREDENTIALS), and that they may use the model in this project.",
}
_LOG_IN = "Log in again with `claude /login`."
_OTHER_KEY = "Set ANTHROPIC_API_KEY, or log in with `claude /login`."


def login_file(environ: Mapping[str, str]) -> Path | None:
    """Where the CLI stores what it needs when its user logs in; it need not exist."""
    folder = environ.get("CLAUDE_CONFIG_DIR") or (f"{environ['HOME']}/.claude" if environ.get("HOME") else None)
    return None if folder is None else Path(folder) / ".credentials.json"


def refused_remedy(request: SessionRequest) -> str:
    """What to do where the provider has refused a session's credential; a sentence."""
    cloud = cloud_of(request.context, {**request.trial.sandbox.env, **request.trial.agent.env})
    return _RENEW[cloud]


def stored_login(environ: Mapping[str, str]) -> dict[str, Any] | None:
    """What is stored there; None if nobody is logged in."""
    file = login_file(environ)
    if file is None:
        return None
    try:
        content = file.read_bytes()
    except OSError:
        return None
    login = mapping(mapping(json_object(content)).get("claudeAiOauth"))
    return dict(login) if text(login.get("accessToken")) else None


def cloud_of(context: Context, given: Mapping[str, str]) -> Cloud | None:
    """The cloud that a session asks; None: Anthropic itself. `given`: what its task sets, which counts before what the run chose."""
    for cloud, (switch, _) in _CLOUDS.items():
        if given.get(switch, "").lower() not in _OFF:
            return cloud
    if any(given.get(name) for name in KEYS):
        return None  # a key of the task's own, which is Anthropic's
    chosen = context.options.backend
    return chosen if chosen == "bedrock" or chosen == "vertex" else None


def named(declared: Iterable[str]) -> Mapping[str, str]:
    """Variables of a task of which the names alone are known."""
    return dict.fromkeys(declared, "1")


def lives(context: Context, declared: frozenset[str]) -> Sequence[CredentialLife]:
    """Of the one credential that counts; `declared`: names of variables that the task itself gives the session."""
    environ, cloud = context.environ, cloud_of(context, named(declared))
    if cloud is not None:
        environ = clouds.users_part(cloud, environ, declared)
        if cloud == "vertex":
            return google_lives(environ, declared)
        return aws_lives(environ, declared, profile_has_keys="AWS_PROFILE" not in declared and clouds.holds_keys(environ))
    own = next((name for name in KEYS if name in declared), None)  # the task's own credential, alone
    name = own or next((name for name in KEYS if environ.get(name)), None)
    if name is None:
        return _login_lives(environ)
    if name == "CLAUDE_CODE_OAUTH_TOKEN":
        return [CredentialLife(name=name, unknown="a token of this kind does not say when it expires", remedy=_OTHER_KEY)]
    if name == "ANTHROPIC_AUTH_TOKEN" and own is None:
        return [CredentialLife(name=name, expires_at=token_expiry(environ[name]), remedy="Set a fresh token.")]
    return [CredentialLife(name=name)]


def _login_lives(environ: Mapping[str, str]) -> Sequence[CredentialLife]:
    """Of the access token: the session is not given the one that would renew it."""
    login = stored_login(environ)
    if login is None:
        return ()
    name, expires = str(login_file(environ)), moment(login.get("expiresAt"))
    if expires is None:
        return [CredentialLife(name=name, unknown="its expiresAt is missing or no time that can be read", remedy=_LOG_IN)]
    return [CredentialLife(name=name, expires_at=expires, remedy=_LOG_IN)]


def _given(trial: Trial, context: Context) -> dict[str, str]:
    """Variables that the task gives the session, or lets through to it."""
    passed = {entry.rpartition(":")[2] for entry in trial.sandbox.env_passthrough if not entry.startswith("grader:")}
    let_through = {name: context.environ[name] for name in passed if name in context.environ}
    return {**let_through, **trial.sandbox.env, **trial.agent.env}


def paid_anyway(trial: Trial, context: Context, settings: Mapping[str, Any], workspace: Path) -> str | None:
    """What leads the CLI elsewhere than its base URL says: a cloud, or a file of settings whose variables beat those of its environment."""
    if context.options.backend in _CLOUDS:
        return f"the backend {context.options.backend} could be reached all the same"
    sources: dict[str, Mapping[str, Any]] = {"the task": _given(trial, context), "agent.claude.settings": mapping(settings.get("env"))}
    for file in (FILES[source] for source in setting_sources(trial.agent) if source in FILES):
        try:
            project = json_object((workspace / file).read_bytes())
        except OSError:
            project = None
        sources[f"the workspace's {file}"] = mapping(mapping(project).get("env"))
    for place, variables in sources.items():
        on = [switch for switch, _ in _CLOUDS.values() if str(variables.get(switch, "")).strip().lower() not in _OFF]
        if place != "the task" and BASE_URL in variables:
            on.append(BASE_URL)
        if on:
            return f"{place} sets {on[0]}, and the model behind it could be reached all the same"
    return None


def endpoints(trial: Trial, context: Context) -> Sequence[Endpoint]:
    """The host of the base URL that the session gets, else those of the provider."""
    given = _given(trial, context)
    cloud = cloud_of(context, given)
    variable = BASE_URL if cloud is None else _CLOUDS[cloud][1]
    url = given.get(variable) or context.environ.get(variable)
    if url:
        asked = [Endpoint.of_url(url)]
    else:
        asked = [Endpoint(host, 443) for host in (_OWN_HOSTS if cloud is None else _cloud_hosts(cloud, {**context.environ, **given}))]
    if cloud == "vertex":
        asked.append(Endpoint(_GOOGLE_TOKENS, 443))  # where a service account's key is changed for a token
    return [endpoint for endpoint in asked if endpoint is not None]


def _cloud_hosts(cloud: Cloud, environ: Mapping[str, str]) -> Sequence[str]:
    if cloud == "bedrock":
        region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        return [f"bedrock-runtime.{region}.amazonaws.com", f"bedrock.{region}.amazonaws.com"]
    region = environ.get("CLOUD_ML_REGION") or "us-east5"
    return ["aiplatform.googleapis.com" if region == "global" else f"{region}-aiplatform.googleapis.com"]
