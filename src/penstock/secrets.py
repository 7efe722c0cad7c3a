"""Credentials, and what may be shown of a value that can carry one."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

__all__ = ["REDACTED", "Secret", "redact_fields", "redact_headers", "redact_url", "redact_values", "secret_values"]

REDACTED = "<redacted>"

_ENDINGS = (
    "authorization",
    "bearer",
    "credential",
    "credentials",
    "key",
    "passphrase",
    "passwd",
    "password",
    "secret",
    "signature",
    "token",
)
"""Of the last word of a name that tells of a credential: `x_api_key`, `openaiApiKey`, `X-Amz-Signature`, `hf_token`. Plurals
count things (`max_tokens`)."""
_WORDS = frozenset(("assertion", "auth", "cookie", "jwt", "pass", "pwd", "sig"))
"""Last words that tell of one only when they are whole."""
_ALONE = "code"
"""Tells of one as the whole name (a function's key, an OAuth grant), not in `language_code`."""
_HARMLESS = frozenset(("bos", "cache", "cls", "eos", "mask", "pad", "sep", "stop", "unk"))
"""Before `token` or `key`: the marks of a vocabulary, and what a cache is asked by."""

_LONG = 8
"""From so many characters on a header's value is hidden wherever it turns up: a shorter one may be a plain word."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PARAMETER = re.compile(r"(?<=[?&;#])([^=?&;#]+)=([^&;#]*)")


class Secret:
    """A value that refuses to be printed, logged or serialised; `reveal()` is the one way to it."""

    __slots__ = ("_value",)

    def __init__(self, value: str) -> None:
        self._value = value

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return REDACTED

    __str__ = __repr__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._value == other._value

    def __hash__(self) -> int:
        return hash(self._value)

    def __reduce__(self) -> Any:
        raise TypeError("a secret cannot be pickled")

    __getstate__ = __reduce__


def redact_values(text: str, values: Iterable[str]) -> str:
    """A text that somebody else wrote (servers quote the key that they refuse), without these values."""
    for value in values:
        text = text.replace(value, REDACTED)
    return text


def secret_values(
    headers: Iterable[tuple[str, Secret]], key: Secret | None = None, urls: Iterable[str] = ()
) -> tuple[str, ...]:
    """The values that `redact_values` must look for, the longest first: one may hold another."""
    found = {key.reveal()} if key is not None else set()
    for url in urls:
        found |= {part[2] for part in _PARAMETER.finditer(url) if _tells(part[1])}
    for name, secret in headers:
        value = secret.reveal()
        if len(value) >= _LONG or _tells(name):
            found |= {value, value.partition(" ")[2]}  # `Bearer …` and what follows it
    return tuple(sorted(found - {""}, key=len, reverse=True))


def redact_url(url: str) -> str:
    """The URL without its userinfo, and without the query values whose names tell of a credential; or the same of a path."""
    scheme, mark, rest = url.partition("://") if "://" in url else ("", "", url)
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    authority, tail = rest[:end], rest[end:]
    if "@" in authority:
        authority = f"{REDACTED}@{authority.rpartition('@')[2]}"
    elif "@" in tail and not _port_is_sound(authority):  # a password with a slash in it, not written as %2F
        authority, tail = "", f"{REDACTED}@{rest.rpartition('@')[2]}"
    return scheme + mark + authority + _PARAMETER.sub(_redact_parameter, tail)


def redact_fields(value: Any) -> Any:
    """Body fields with the values replaced whose names tell of a credential."""
    if isinstance(value, dict):
        return {name: _redact_field(name, field) for name, field in value.items()}
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


def _redact_field(name: str, field: Any) -> Any:
    if field is None or isinstance(field, bool):  # it turns something on or off
        return field
    return REDACTED if _tells(name) else redact_fields(field)


def _redact_parameter(found: re.Match[str]) -> str:
    name = found[1]
    if "%" in name:
        from urllib.parse import unquote

        name = unquote(name)
    return f"{found[1]}={REDACTED}" if _tells(name) else found[0]


def _port_is_sound(authority: str) -> bool:
    port = authority.rpartition("]")[2].partition(":")[2]
    return not port or port.isdecimal()


def _tells(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or (len(words) > 1 and words[-2] in _HARMLESS):
        return False
    return words == [_ALONE] or words[-1] in _WORDS or words[-1].endswith(_ENDINGS)
