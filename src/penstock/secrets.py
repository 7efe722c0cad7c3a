"""Credentials, and redaction of values that can contain credentials."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

REDACTED = "<redacted>"

_CREDENTIAL_SUFFIXES = (
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
"""A name is that of a credential if its last word ends in one of these: `x_api_key`, `openaiApiKey`, `X-Amz-Signature`.
Plurals are counts (`max_tokens`)."""
_CREDENTIAL_WORDS = frozenset(("assertion", "auth", "cookie", "jwt", "pass", "pwd", "sig"))
"""Last words that name a credential only as whole words."""
_CREDENTIAL_NAME = "code"
"""Names a credential only as the whole name (a function key, an OAuth grant), not in `language_code`."""
_NOT_CREDENTIALS = frozenset(("bos", "cache", "cls", "eos", "mask", "pad", "sep", "stop", "unk"))
"""Words before `token` or `key` that rule out a credential: special tokens of a vocabulary, cache keys."""

_MIN_REDACTED_LENGTH = 8
"""Shorter header values may be ordinary words, so they are not searched for in texts."""

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
_PARAMETER = re.compile(r"(?<=[?&;#])([^=?&;#]+)=([^&;#]*)")


class Secret:
    """A value that cannot be printed, logged or serialised by accident; only `reveal()` returns it."""

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


class RedactedSecret(Secret):
    """The rest of a secret after redaction, such as a URL without its password. It may be shown and stored."""

    __slots__ = ()

    def __init__(self, value: str = REDACTED) -> None:
        super().__init__(value)

    def __repr__(self) -> str:
        return self._value

    __str__ = __repr__

    def __reduce__(self) -> Any:
        return RedactedSecret, (self._value,)

    __getstate__ = __reduce__


def redact_values(text: str, values: Iterable[str]) -> str:
    """Replace the values in a text from elsewhere: some servers quote a refused key in their error message."""
    for value in values:
        text = text.replace(value, REDACTED)
    return text


def secret_values(
    headers: Iterable[tuple[str, Secret]], key: Secret | None = None, urls: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the values for `redact_values`, longest first, because one may contain another."""
    values = {key.reveal()} if key is not None else set()
    for url in urls:
        values |= {part[2] for part in _PARAMETER.finditer(url) if _is_credential_name(part[1])}
    for name, secret in headers:
        value = secret.reveal()
        if len(value) >= _MIN_REDACTED_LENGTH or _is_credential_name(name):
            values |= {value, value.partition(" ")[2]}  # with and without the scheme, as in `Bearer …`
    return tuple(sorted(values - {""}, key=len, reverse=True))


def redact_url(url: str) -> str:
    """Redact the userinfo of a URL, and the query values of a URL or path whose names are those of credentials."""
    scheme, separator, rest = url.partition("://") if "://" in url else ("", "", url)
    end = min((index for index in map(rest.find, "/?#") if index >= 0), default=len(rest))
    authority, tail = rest[:end], rest[end:]
    if "@" in authority:
        authority = f"{REDACTED}@{authority.rpartition('@')[2]}"
    elif "@" in tail and not _has_valid_port(authority):  # a password that contains an unescaped slash
        authority, tail = "", f"{REDACTED}@{rest.rpartition('@')[2]}"
    return scheme + separator + authority + _PARAMETER.sub(_redact_parameter, tail)


def redact_fields(value: Any) -> Any:
    """Redact the body fields whose names are those of credentials."""
    if isinstance(value, dict):
        return {name: _redact_field(name, field) for name, field in value.items()}
    if isinstance(value, list):
        return [redact_fields(item) for item in value]
    return value


def is_credential_header(name: str, value: str) -> bool:
    """Return whether the name of a header is that of a credential, or its value begins like one."""
    return _is_credential_name(name) or value.lower().startswith(("bearer ", "basic ", "sk-"))


def redact_headers(text: str) -> str:
    """Redact the values of headers as the user wrote them: `Name:Value` or a JSON object."""
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
    if field is None or isinstance(field, bool):  # a switch, not a credential
        return field
    return REDACTED if _is_credential_name(name) else redact_fields(field)


def _redact_parameter(match: re.Match[str]) -> str:
    name = match[1]
    if "%" in name:
        from urllib.parse import unquote

        name = unquote(name)
    return f"{match[1]}={REDACTED}" if _is_credential_name(name) else match[0]


def _has_valid_port(authority: str) -> bool:
    port = authority.rpartition("]")[2].partition(":")[2]
    return not port or port.isdecimal()


def _is_credential_name(name: str) -> bool:
    words = [word.lower() for word in _WORD.findall(name)]
    if not words or (len(words) > 1 and words[-2] in _NOT_CREDENTIALS):
        return False
    return words == [_CREDENTIAL_NAME] or words[-1] in _CREDENTIAL_WORDS or words[-1].endswith(_CREDENTIAL_SUFFIXES)
