"""What may be shown of a value that can carry a credential."""

from __future__ import annotations

from typing import Any

__all__ = ["REDACTED", "redact_fields", "redact_headers", "redact_url"]

REDACTED = "<redacted>"

_TELLING = frozenset(
    (
        "accesskey",
        "accesstoken",
        "apikey",
        "auth",
        "authorization",
        "authtoken",
        "bearer",
        "clientsecret",
        "credential",
        "credentials",
        "key",
        "passwd",
        "password",
        "secret",
        "secretkey",
        "sig",
        "signature",
        "token",
    )
)
"""Names of fields that tell of a credential, without `-` and `_`."""


def redact_url(url: str) -> str:
    """The URL without its userinfo, and without the query values whose names tell of a credential."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    authority, tail = rest[:end], rest[end:]
    if "@" in authority:
        authority = f"{REDACTED}@{authority.rpartition('@')[2]}"
    elif "@" in tail and not _port_is_sound(authority):  # a password with a slash in it, not written as %2F
        return f"{scheme}{mark}{REDACTED}@{rest.rpartition('@')[2]}"
    path, question, query = tail.partition("?")
    return scheme + mark + authority + path + question + "&".join(map(_redact_parameter, query.split("&")))


def redact_fields(value: Any) -> Any:
    """Body fields with the values replaced whose names tell of a credential."""
    if isinstance(value, dict):
        return {name: REDACTED if _tells(name) else redact_fields(field) for name, field in value.items()}
    if isinstance(value, list):
        return [redact_fields(item) for item in value]
    return value


def redact_headers(text: str) -> str:
    """A header as the user wrote it, `Name:Value` or a JSON object, with the values replaced."""
    if not text.lstrip().startswith("{"):
        name, colon, _ = text.partition(":")
        return name + colon + REDACTED if colon else REDACTED
    import json

    try:
        fields = json.loads(text)
    except ValueError:
        return REDACTED
    return json.dumps(dict.fromkeys(fields, REDACTED))


def _redact_parameter(parameter: str) -> str:
    name, equals, _ = parameter.partition("=")
    return f"{name}={REDACTED}" if equals and _tells(name) else parameter


def _port_is_sound(authority: str) -> bool:
    port = authority.rpartition("]")[2].partition(":")[2]
    return not port or port.isdecimal()


def _tells(name: str) -> bool:
    return name.lower().replace("-", "").replace("_", "") in _TELLING
