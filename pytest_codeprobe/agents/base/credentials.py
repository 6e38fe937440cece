"""How long credentials hold that several agents use: a provider's cloud sessions, and tokens that say it themselves."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from pytest_codeprobe.agents.base import amount, json_object, mapping, text
from pytest_codeprobe.model.agent import CredentialLife

#: variables that tell when a cloud session expires, in the order in which they are believed
_AWS_EXPIRY = ("AWS_SESSION_EXPIRATION", "AWS_CREDENTIAL_EXPIRATION")
_GOOGLE_EXPIRY = ("GOOGLE_APPLICATION_CREDENTIALS_TOKEN_EXPIRY",)
_AWS_REMEDY = f"Get a new session, and set {_AWS_EXPIRY[0]} to the time when it expires (ISO 8601)."
_GOOGLE_REMEDY = f"Use the key of a service account, or set {_GOOGLE_EXPIRY[0]} to the time when the token expires (ISO 8601)."
_LATEST = datetime(9999, 1, 1, tzinfo=UTC).timestamp()


def moment(value: object) -> datetime | None:
    """A time as credential files and variables give it: ISO 8601 (without a zone: UTC), or seconds or milliseconds since 1970."""
    number = amount(value)
    if number is None and isinstance(value, str):
        try:
            number = amount(float(value))
        except ValueError:
            try:
                found = datetime.fromisoformat(value.strip())
            except ValueError:
                return None
            return found if found.tzinfo is not None else found.replace(tzinfo=UTC)
    if number is None:
        return None
    seconds = number / 1000 if number > 1e11 else number
    return datetime.fromtimestamp(seconds, UTC) if seconds < _LATEST else None


def token_expiry(token: str) -> datetime | None:
    """When a JSON Web Token says that it expires; None for any other token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return None
    return moment(mapping(claims).get("exp"))


def aws_lives(
    environ: Mapping[str, str], declared: frozenset[str] = frozenset(), *, profile_has_keys: bool = False
) -> Sequence[CredentialLife]:
    """Of an AWS session, as Bedrock takes it: a bearer token, else the profile that is named, else keys, else the default profile.

    Long-term keys don't expire, in a profile neither (`profile_has_keys`); what else a profile leads to can't be known.
    """

    def has(name: str) -> bool:
        return bool(environ.get(name)) or name in declared

    if has("AWS_BEARER_TOKEN_BEDROCK"):
        return [CredentialLife(name="AWS_BEARER_TOKEN_BEDROCK")]
    by_profile, has_keys = has("AWS_PROFILE"), has("AWS_ACCESS_KEY_ID")
    if has_keys and not by_profile:
        if not has("AWS_SESSION_TOKEN"):
            return [CredentialLife(name="AWS_ACCESS_KEY_ID")]
        return [_by_variable("AWS_SESSION_TOKEN", _AWS_EXPIRY, environ, _AWS_REMEDY)]
    name = "AWS_PROFILE" if by_profile else "AWS session"
    if profile_has_keys:
        return [CredentialLife(name=name)]
    if by_profile and has_keys:  # of which the variables may tell
        why = "it counts before AWS_ACCESS_KEY_ID, and what it leads to is no long-term key"
        return [CredentialLife(name=name, unknown=why, remedy="Unset AWS_PROFILE or AWS_ACCESS_KEY_ID.")]
    return [_by_variable(name, _AWS_EXPIRY, environ, _AWS_REMEDY)]


def google_lives(environ: Mapping[str, str], declared: frozenset[str] = frozenset()) -> Sequence[CredentialLife]:
    """Of Google Cloud credentials, as Vertex takes them. The key of a service account doesn't expire."""
    name = "GOOGLE_APPLICATION_CREDENTIALS"
    if name in declared:
        why = "the task itself names the file, which is not looked at beforehand"
        return [CredentialLife(name=name, unknown=why, remedy=f"Set {name} in your environment instead of the task.")]
    if path := environ.get(name):
        try:
            kind = text(mapping(json_object(Path(path).read_bytes())).get("type"))
        except OSError:
            kind = ""
        if kind == "service_account":
            return [CredentialLife(name=name)]
    return [_by_variable(name, _GOOGLE_EXPIRY, environ, _GOOGLE_REMEDY)]


def _by_variable(name: str, variables: Sequence[str], environ: Mapping[str, str], remedy: str) -> CredentialLife:
    given = next((v for v in variables if environ.get(v)), None)
    if given is None:
        return CredentialLife(name=name, unknown=f"none of {', '.join(variables)} says when it expires", remedy=remedy)
    expires = moment(environ[given])
    if expires is None:
        return CredentialLife(name=name, unknown=f"{given} is no time that can be read", remedy=remedy)
    return CredentialLife(name=name, expires_at=expires, remedy=remedy)
