"""Upstream requests, and the interpretation of failed replies.

The head is built here from the provider key, once for each route. Of the caller's headers, only those in
`Target.forwarded_headers` go upstream.
"""

from __future__ import annotations

import hmac
import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import orjson
from multidict import CIMultiDictProxy

from penstock import __version__
from penstock.gateway.dialects.base import Dialect
from penstock.gateway.refusal import Refusal
from penstock.gateway.resources.snapshot import Model, ProviderKey
from penstock.gateway.routes import BY_PATH, DEFAULT_BASES, PREFIX
from penstock.gateway.upstream.hosts import Host, Hosts
from penstock.secrets import REDACTED
from penstock.wire.content_encoding import LARGEST, decoded
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.http1 import request_head

TIMEOUT = "TimedOut"
UNDECODABLE = "Undecodable"
_UNAUTHORIZED = 401
CALLER_GONE = WireError("CallerGone", "The caller closed the connection.", "network")
_GATEWAY_HEADERS = frozenset(
    (
        "accept-encoding",
        "authorization",
        "connection",
        "content-length",
        "content-type",
        "host",
        "transfer-encoding",
        "x-penstock-request-id",
    )
)
"""Headers that `default_headers` cannot replace."""
_DEFAULT_HEADERS = (("Accept", "application/json, text/event-stream"), ("User-Agent", f"penstock/{__version__}"))
"""Headers that `default_headers` can replace."""
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
_TRACE_HEADERS = ("traceparent", "tracestate")
_IDEMPOTENCY = "idempotency-key"
_MAX_FORWARDED_CHARS = 1024
_MAX_MESSAGE_CHARS = 1024
_MAX_ERROR_BYTES = 1 << 20
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_DATE = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
"""The only form of a date that a sender may generate in HTTP."""
LONGEST_RETRY_AFTER_S = 86_400
"""The longest Retry-After in seconds that is passed on: clients that obey a longer one would seem to hang."""
_MIN_SECRET_CHARS = 6
_MASKED = re.compile(r"([A-Za-z0-9_-]{0,64})(?:\*{2,}|\.{3,}|•{2,}|…)([A-Za-z0-9_-]{0,64})")
"""A text whose middle is masked, as providers quote a wrong key."""
_MIN_SHOWN_CHARS = 3
"""With fewer visible characters, ordinary text with an ellipsis would match."""


class Base(NamedTuple):
    """A provider's base URL, in its parts."""

    scheme: str
    host: str
    port: int
    path: str
    query: str
    authority: str

    def target(self, dialect: Dialect) -> str:
        """Return the request target for a route."""
        return self.path + dialect.path + (f"?{self.query}" if self.query else "")


def base_of(key: ProviderKey, provider: str) -> Base | None:
    """Return the base URL of a provider key, also when it was pasted with a route's path; None if it is not usable."""
    text = (key.api_base or DEFAULT_BASES.get(provider) or DEFAULT_BASES.get(key.provider) or "").strip()
    try:
        parts = urlsplit(text)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    prefix = parts.path.rstrip("/")
    for dialect in BY_PATH.values():
        prefix = prefix.removesuffix(dialect.path)
    # A bare host gets the usual prefix; any other path is used as it is.
    return Base(parts.scheme, parts.hostname, port, prefix.rstrip("/") or PREFIX, parts.query, parts.netloc)


class Target:
    """A direct model on one route: its host and its request head."""

    def __init__(self, model: Model, key: ProviderKey, dialect: Dialect, hosts: Hosts) -> None:
        base = base_of(key, model.provider)
        headers = [(name, value.reveal()) for name, value in key.default_headers]
        texts = (key.secret.reveal(), *(text for pair in headers for text in pair))
        if base is None or not model.upstream or not all(map(_fits_header, texts)):
            raise Refusal(
                400,
                "invalid_request_error",
                f"The model `{model.name}` is not usable: it names no upstream model, or its provider key has an invalid "
                "base URL, secret or header.",
            )
        self.model = model
        self.key = key
        self.host: Host = hosts.get(base.scheme, base.host, base.port, key.verify_tls)
        self.upstream_json = orjson.dumps(model.upstream)
        names = {name.lower() for name, _ in headers}
        credential = dialect.credential_headers(key.secret.reveal())
        fixed = _GATEWAY_HEADERS.union(name.lower() for name, _ in credential)
        defaults = dict((*_DEFAULT_HEADERS, *dialect.default_headers()))
        self._forwarded = {
            name: defaults.pop(name, None)
            for name in (*_TRACE_HEADERS, _IDEMPOTENCY, *key.forward_client_headers)
            if name not in names
        }
        """Headers of the caller that go upstream, each with the value for a caller that does not send it."""
        self._head = request_head(
            "POST",
            base.target(dialect),
            base.authority,
            [
                *((name, value) for name, value in headers if name.lower() not in fixed),
                *credential,
                ("Content-Type", "application/json"),
                # Servers that compress hold events back.
                ("Accept-Encoding", "identity"),
                *((name, value) for name, value in defaults.items() if name.lower() not in names),
            ],
        )
        # Any header or query parameter may hold a credential. Short values are none, and would match ordinary text.
        values = [key.secret.reveal(), *(value for _, value in [*headers, *parse_qsl(base.query)])]
        self._secrets = [value for value in values if len(value) >= _MIN_SECRET_CHARS]
        self.secrets = [secret.encode() for secret in self._secrets]
        """The credentials that the upstream is sent."""
        self.renames = {old.encode(): new.encode() for old, new in key.param_renames.items()}
        self.defaults = {name.encode(): orjson.dumps(value) for name, value in key.default_body_fields.items()}
        """Changes of the members of a body: new names by old ones, and values of missing ones."""

    def sets(self, member: str) -> bool:
        """Return whether the provider key sets a member of the body by default."""
        return member.encode() in self.defaults

    def redact(self, text: str) -> str:
        """Return a text of the upstream without the credentials that it was sent."""
        for secret in self._secrets:
            text = text.replace(secret, REDACTED)
        # The search takes 8 µs for an ordinary id, so look for the characters first.
        if "**" in text or "..." in text or "•" in text or "…" in text:
            text = _MASKED.sub(self._redact_masked, text)
        return text

    def _redact_masked(self, match: re.Match[str]) -> str:
        """Redact a text such as `sk-pr****wxyz` if its ends are those of a secret."""
        head, tail = match[1], match[2]
        if len(head) + len(tail) < _MIN_SHOWN_CHARS:
            return match[0]
        is_secret = any(secret.startswith(head) and secret.endswith(tail) for secret in self._secrets)
        return REDACTED if is_secret else match[0]

    def head(self, length: int, request_id: str, forwarded: bytes = b"") -> bytes:
        """Return the head of a message with a body of that length. `forwarded` is the result of `forwarded_headers`."""
        return b"%b%bX-Penstock-Request-Id: %b\r\nContent-Length: %d\r\n\r\n" % (
            self._head,
            forwarded,
            request_id.encode(),
            length,
        )

    def forwarded_headers(self, headers: CIMultiDictProxy[str], key_id: str) -> bytes:
        """Return the lines of the head that come from the caller's headers."""
        lines = b""
        for name, default in self._forwarded.items():
            if name == "tracestate" and not lines:
                continue  # it means nothing without a valid traceparent
            value = self._forwarded_value(name, ",".join(headers.getall(name)), key_id) if name in headers else None
            if value := value or default:
                lines += f"{name}: {value}\r\n".encode()
        return lines

    def _forwarded_value(self, name: str, value: str, key_id: str) -> str | None:
        """Return the value that goes upstream; None if the caller's is not valid."""
        if len(value) > _MAX_FORWARDED_CHARS or not value.isascii() or not value.isprintable():
            return None
        if name == "traceparent":
            return value if _TRACEPARENT.fullmatch(value) else None
        if name == _IDEMPOTENCY:
            # Two callers may choose the same value, and all workers must send the same one for a repeated request.
            secret = self.key.secret.reveal().encode()
            return hmac.digest(secret, f"{key_id}\0{value}".encode(), "sha256").hex()
        return value


def _fits_header(text: str) -> bool:
    """Return whether a text is valid in a header: no line breaks, Latin-1 only."""
    return text.isprintable() and all(ord(char) < 256 for char in text)


class UpstreamFailure(NamedTuple):
    """Why an attempt did not serve the request, and the refusal for the caller."""

    error: str
    """A value of `ledger.entry.Attempt.error`."""
    status: int | None
    refusal: Refusal
    retryable: bool
    retry_after_s: float | None = None
    quotes_upstream: bool = False
    """True if the refusal repeats a text of the upstream."""


def failure_of(
    exchange: Exchange, headers: dict[bytes, bytes], target: Target, elapsed_ms: float
) -> UpstreamFailure | None:
    """Return the failure of an exchange, or None for a reply with a status of success."""
    error = exchange.error
    if error is not None:
        return _transport_failure(error, elapsed_ms)
    status = exchange.status
    if 200 <= status < 300:
        return None
    retry_after = _retry_after(headers, target)
    client_error = 400 <= status < 500
    if status == _UNAUTHORIZED:  # it refused the provider key, not the caller's
        message = "The upstream refused the credential of the gateway."
        refusal = Refusal(502, "upstream_auth_error", message, retry_after=retry_after)
    elif client_error:
        refusal = _client_error(status, _error_body(exchange, headers), target, retry_after)
    else:
        message = f"The upstream answered with status {status}."
        refusal = Refusal(502, "upstream_error", message, retry_after=retry_after)
    return UpstreamFailure(
        "upstream_status",
        status,
        refusal,
        retryable=not client_error,
        retry_after_s=_seconds(retry_after),
        quotes_upstream=client_error and status != _UNAUTHORIZED,
    )


def plain_body(exchange: Exchange, headers: dict[bytes, bytes], largest: int = LARGEST) -> bytes:
    """Return the decoded body; raise ValueError if it cannot be decoded, or only to more than `largest` bytes."""
    pieces = exchange.pieces
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return decoded(coding_of(headers), body, largest) if b"content-encoding" in headers else body


def coding_of(headers: dict[bytes, bytes]) -> bytes:
    coding = headers.get(b"content-encoding")
    return coding.strip().lower() or b"identity" if coding else b"identity"


def _error_body(exchange: Exchange, headers: dict[bytes, bytes]) -> bytes:
    """Return the decoded body of an error, or nothing if it cannot be decoded or is too long."""
    try:
        body = plain_body(exchange, headers, _MAX_ERROR_BYTES)
    except ValueError:
        return b""
    return body if len(body) <= _MAX_ERROR_BYTES else b""


def aborted() -> UpstreamFailure:
    refusal = Refusal(502, "stream_aborted", "The upstream ended the stream before it was complete.")
    return UpstreamFailure("aborted", None, refusal, retryable=True)


def undecodable() -> UpstreamFailure:
    refusal = Refusal(502, "upstream_decode_error", "The upstream's reply could not be decoded.")
    return UpstreamFailure("decode", None, refusal, retryable=True)


def _transport_failure(error: WireError, elapsed_ms: float) -> UpstreamFailure:
    if error.type == TIMEOUT:
        refusal = Refusal(504, "timeout", f"The upstream did not answer in time ({elapsed_ms:.0f} ms).")
        return UpstreamFailure("timeout", None, refusal, retryable=True)
    if error.type == UNDECODABLE:
        return undecodable()
    # The message of the wire error names hosts and ports, which the caller must not see.
    refusal = Refusal(502, "transport_error", "The connection to the upstream failed.")
    return UpstreamFailure("transport", None, refusal, retryable=True)


def _client_error(status: int, body: bytes, target: Target, retry_after: str | None) -> Refusal:
    """Return the provider's own error with its type, code and param: client libraries act on them."""
    error = _error_object(body)
    message = str(error.get("message") or f"The upstream answered with status {status}.")
    kind = error.get("type")
    refusal = Refusal(
        status,
        target.redact(str(kind)[:_MAX_MESSAGE_CHARS]) if kind else "upstream_error",
        target.redact(message[: 4 * _MAX_MESSAGE_CHARS])[:_MAX_MESSAGE_CHARS],
        param=_redacted(error.get("param"), target),
        retry_after=retry_after,
    )
    if error:  # without a code, if the provider gave none
        refusal.code = _redacted(error.get("code"), target)
    return refusal


def _error_object(body: bytes) -> dict[str, Any]:
    """Return the error object, with or without its `{"error": …}` envelope. Any other JSON becomes the message; a body
    that is not JSON is the page of a proxy, and is not passed on."""
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    error = parsed.get("error", parsed) if isinstance(parsed, dict) else None
    if isinstance(error, str):
        return {"message": error}
    if isinstance(error, dict) and (error is not parsed or "message" in error):
        return error
    return {"message": body[: 4 * _MAX_MESSAGE_CHARS].decode("utf-8", "replace")}


def _redacted(value: object, target: Target) -> str | float | None:
    """Redact a text. Numbers stay numbers: a code may be one."""
    if value is None or isinstance(value, int | float):
        return value
    return target.redact(str(value)[:_MAX_MESSAGE_CHARS])


def _retry_after(headers: dict[bytes, bytes], target: Target) -> str | None:
    """Return Retry-After if it is in seconds or a date, and may be passed on."""
    text = headers.get(b"retry-after", b"").decode("latin-1").strip()
    if not _SECONDS.fullmatch(text) and not _DATE.fullmatch(text):
        return None
    if _SECONDS.fullmatch(text) and float(text) > LONGEST_RETRY_AFTER_S:
        return str(LONGEST_RETRY_AFTER_S)
    return text if target.redact(text) == text else None


def _seconds(retry_after: str | None) -> float | None:
    """Return the seconds of a Retry-After in either form."""
    if retry_after is None:
        return None
    if _SECONDS.fullmatch(retry_after):
        return float(retry_after)
    from email.utils import parsedate_to_datetime
    from time import time

    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time())
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
