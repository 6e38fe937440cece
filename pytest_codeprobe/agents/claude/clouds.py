"""What a Claude Code session gets where a cloud stands between it and the model: --codeprobe-backend bedrock or vertex.

Only what the CLI needs of that cloud is handed over, and no credential of the user's beside one that the task itself gives. Files of
credentials are copied into the session's own HOME, of AWS the sections of the one profile that is used; the user's own are never written.
"""

from __future__ import annotations

import configparser
import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pytest_codeprobe.agents.base import json_object, text
from pytest_codeprobe.errors import CodeprobeError
from pytest_codeprobe.model.context import Context
from pytest_codeprobe.text import is_secret_name

Cloud = Literal["bedrock", "vertex"]

#: which models the CLI asks for: their names differ between clouds
_MODELS = (
    "ANTHROPIC_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL",
    "ANTHROPIC_SMALL_FAST_MODEL_AWS_REGION",
    "ANTHROPIC_DEFAULT_OPUS_MODEL",
    "ANTHROPIC_DEFAULT_SONNET_MODEL",
    "ANTHROPIC_DEFAULT_HAIKU_MODEL",
)
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_AWS_BEARER = "AWS_BEARER_TOKEN_BEDROCK"
#: credentials that a container or a cluster provides
_AWS_PROVIDED = (
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
)
_AWS_PLAIN = ("AWS_REGION", "AWS_DEFAULT_REGION", "ANTHROPIC_BEDROCK_BASE_URL", "CLAUDE_CODE_SKIP_BEDROCK_AUTH")
_GOOGLE_FILE = "GOOGLE_APPLICATION_CREDENTIALS"
_AWS_FILES = ("AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
#: settings of a profile by which its keys are not its own, or not for ever
_AWS_LENT = ("aws_session_token", "role_arn", "sso_session", "sso_start_url", "credential_process", "web_identity_token_file")
_PROJECTS = ("ANTHROPIC_VERTEX_PROJECT_ID", "GOOGLE_CLOUD_PROJECT", "GCLOUD_PROJECT")
_GOOGLE_PLAIN = ("CLOUD_ML_REGION", "ANTHROPIC_VERTEX_BASE_URL", "CLAUDE_CODE_SKIP_VERTEX_AUTH", *_PROJECTS)
_GOOGLE_SECRETS = ("private_key", "private_key_id", "refresh_token", "client_secret")
#: of one model another region, such as VERTEX_REGION_CLAUDE_4_0_OPUS
_GOOGLE_REGIONS = "VERTEX_REGION_CLAUDE_"


#: variables that say who a session is there; one of them in a task takes the place of all of the user's
CREDENTIALS: Mapping[Cloud, frozenset[str]] = {
    "bedrock": frozenset({_AWS_BEARER, *_AWS_KEYS, *_AWS_PROVIDED, *_AWS_FILES, "CLAUDE_CODE_SKIP_BEDROCK_AUTH"}),
    "vertex": frozenset({_GOOGLE_FILE, "CLOUDSDK_CONFIG", "CLAUDE_CODE_SKIP_VERTEX_AUTH"}),
}


@dataclass(slots=True)
class Handed:
    """What a session gets."""

    env: dict[str, str] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)  #: below its HOME
    secrets: set[str] = field(default_factory=set)


def users_part(cloud: Cloud, environ: Mapping[str, str], declared: Iterable[str]) -> Mapping[str, str]:
    """The environment without its credentials for that cloud, where a task gives one of its own."""
    names = CREDENTIALS[cloud]
    return environ if names.isdisjoint(declared) else {name: value for name, value in environ.items() if name not in names}


def hand_over(cloud: Cloud, environ: Mapping[str, str], home: Path, given: Mapping[str, str] | None = None) -> Handed:
    """Variables and files of that cloud, from the harness's environment; `home` is the session's HOME, `given` what the task sets."""
    given = {name: value for name, value in (given or {}).items() if value}
    environ = {**users_part(cloud, environ, given), **given}
    handed = _bedrock(environ, home) if cloud == "bedrock" else _vertex(environ, home)
    handed.env.update(_picked(environ, _MODELS))
    handed.secrets.update(value for name, value in handed.env.items() if is_secret_name(name))
    return handed


def no_credentials(cloud: Cloud, context: Context, declared: frozenset[str]) -> CodeprobeError | None:
    """NO_BACKENDS_CONFIGURED where the session could not log in; `declared`: names of variables that the task gives it."""
    if cloud == "bedrock" and not declared.isdisjoint(_AWS_FILES):
        return None  # what a file leads to that the task names shows in the session
    environ = {**dict.fromkeys(declared, "-"), **users_part(cloud, context.environ, declared)}
    lacks = list(_bedrock_lacks(environ) if cloud == "bedrock" else _vertex_lacks(environ))
    if not lacks:
        return None
    what, remedy = lacks[0]
    return CodeprobeError(
        "NO_BACKENDS_CONFIGURED",
        f"agent claude has no {what} for backend {cloud}",
        remediation=remedy,
        detail={"agent": "claude", "backend": cloud},
    )


def _picked(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    return {name: environ[name] for name in names if environ.get(name)}


# ---- Amazon Bedrock


def _bedrock(environ: Mapping[str, str], home: Path) -> Handed:
    handed = Handed(env={"CLAUDE_CODE_USE_BEDROCK": "1", **_picked(environ, _AWS_PLAIN)})
    if environ.get(_AWS_BEARER):
        handed.env[_AWS_BEARER] = environ[_AWS_BEARER]
    elif environ.get("AWS_ACCESS_KEY_ID") and not environ.get("AWS_PROFILE"):
        handed.env.update(_picked(environ, _AWS_KEYS))
    elif sections := _profile(environ):
        name, folder = environ.get("AWS_PROFILE") or "default", home / ".aws"
        for variable, file in (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")):
            handed.files[f".aws/{file}"] = _ini(sections[file])
            handed.env[variable] = str(folder / file)
        handed.env["AWS_PROFILE"] = name
        handed.secrets |= {v for part in sections.values() for table in part.values() for k, v in table.items() if is_secret_name(k)}
        region = next((table["region"] for table in sections["config"].values() if table.get("region")), None)
        if region is not None:
            handed.env.setdefault("AWS_DEFAULT_REGION", region)
    else:
        handed.env.update(_picked(environ, _AWS_PROVIDED))
    if region := environ.get("AWS_REGION") or handed.env.get("AWS_DEFAULT_REGION"):
        handed.env["AWS_REGION"] = region  # the one that the CLI looks at
    return handed


def _bedrock_lacks(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    has_keys = environ.get("AWS_ACCESS_KEY_ID") and environ.get("AWS_SECRET_ACCESS_KEY") and not environ.get("AWS_PROFILE")
    provided = environ.get("AWS_WEB_IDENTITY_TOKEN_FILE") or any(environ.get(n) for n in _AWS_PROVIDED[3:5])
    skipped = environ.get("CLAUDE_CODE_SKIP_BEDROCK_AUTH")
    if not (environ.get(_AWS_BEARER) or has_keys or _profile(environ) or provided or skipped):
        named = f" (profile {environ['AWS_PROFILE']!r} was not found)" if environ.get("AWS_PROFILE") else ""
        keys = "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY"
        yield f"AWS credentials{named}", f"Set {_AWS_BEARER}, or {keys}, or AWS_PROFILE for a profile of ~/.aws/credentials."


def _profile(environ: Mapping[str, str]) -> dict[str, dict[str, dict[str, str]]] | None:
    """The sections that the profile in use needs, by file; None if there is no such profile."""
    home = Path(environ.get("HOME") or "/nonexistent")
    credentials = _read_ini(Path(environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials"))
    config = _read_ini(Path(environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config"))
    found: dict[str, dict[str, dict[str, str]]] = {"credentials": {}, "config": {}}
    todo, seen = [environ.get("AWS_PROFILE") or "default"], set[str]()
    while todo:
        name = todo.pop()
        seen.add(name)
        tables = [("credentials", name, credentials), ("config", name if name == "default" else f"profile {name}", config)]
        for file, section, source in tables:
            if (table := source.get(section)) is None:
                continue
            found[file][section] = table
            todo += [other for key in ("source_profile",) if (other := table.get(key)) and other not in seen]
            session = f"sso-session {table.get('sso_session')}"
            if session in config:
                found["config"][session] = config[session]
    return found if found["credentials"] or found["config"] else None


def holds_keys(environ: Mapping[str, str]) -> bool:
    """Whether the profile in use has long-term keys of its own."""
    name, sections = environ.get("AWS_PROFILE") or "default", _profile(environ) or {}
    own = {
        key: value for tables in sections.values() for title in (name, f"profile {name}") for key, value in tables.get(title, {}).items()
    }
    return "aws_access_key_id" in own and not any(own.get(key) for key in _AWS_LENT)


def _read_ini(path: Path) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(default_section="", strict=False)
    try:
        parser.read_string(path.read_bytes().decode("utf-8", "replace"))
    except (OSError, configparser.Error):
        return {}
    return {name: dict(parser.items(name)) for name in parser.sections()}


def _ini(sections: Mapping[str, Mapping[str, str]]) -> bytes:
    parser = configparser.RawConfigParser(default_section="")
    parser.read_dict(sections)
    text_of = io.StringIO()
    parser.write(text_of)
    return text_of.getvalue().encode()


# ---- Google Vertex AI


def _vertex(environ: Mapping[str, str], home: Path) -> Handed:
    handed = Handed(env={"CLAUDE_CODE_USE_VERTEX": "1", **_picked(environ, _GOOGLE_PLAIN)})
    handed.env.update({name: value for name, value in environ.items() if name.startswith(_GOOGLE_REGIONS) and value})
    content = _google_credentials(environ)
    if content is not None:
        handed.files[".config/gcloud/application_default_credentials.json"] = content
        handed.env[_GOOGLE_FILE] = str(home / ".config" / "gcloud" / "application_default_credentials.json")
        known = json_object(content) or {}
        handed.secrets.update(filter(None, (text(known.get(name)) for name in _GOOGLE_SECRETS)))
    if (project := _project(environ, content)) is not None:
        handed.env["ANTHROPIC_VERTEX_PROJECT_ID"] = project
    return handed


def _vertex_lacks(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    content = _google_credentials(environ)
    if content is None and not environ.get("CLAUDE_CODE_SKIP_VERTEX_AUTH") and environ.get(_GOOGLE_FILE) != "-":
        remedy = f"Set {_GOOGLE_FILE} to a file of credentials, or log in with `gcloud auth application-default login`."
        yield "Google Cloud credentials", remedy
    if _project(environ, content) is None:
        yield "project", f"Set {_PROJECTS[0]} to the Google Cloud project that has the models."


def _google_credentials(environ: Mapping[str, str]) -> bytes | None:
    given = environ.get(_GOOGLE_FILE)
    home = Path(environ.get("HOME") or "/nonexistent")
    folder = Path(environ.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
    try:
        return Path(given or folder / "application_default_credentials.json").read_bytes()
    except OSError:
        return None


def _project(environ: Mapping[str, str], content: bytes | None) -> str | None:
    known = (json_object(content) or {}) if content is not None else {}
    named = next((environ[name] for name in _PROJECTS if environ.get(name)), None)
    return named or text(known.get("project_id")) or text(known.get("quota_project_id")) or None
