"""What is sent to a provider, and how what comes back is understood when it is not a success.

Nothing of the caller's head goes upstream: the head is built here from the provider key, once for each route.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import orjson

from penstock import __version__
from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.hosts import Host, Hosts
from penstock.gateway.relay.json_members import with_members
from penstock.gateway.resources.snapshot import Model, ProviderKey
from penstock.gateway.routes import PATHS, PREFIX, Route
from penstock.wire.content_encoding import decoded
from penstock.wire.exchange import Exchange, WireError
from penstock.wire.http1 import request_head

__all__ = [
    "DEFAULT_BASES",
    "GONE",
    "TIMEOUT",
    "UNDECODABLE",
    "Base",
    "Target",
    "UpstreamFailure",
    "aborted",
    "base_of",
    "coding_of",
    "failure_of",
    "plain_body",
    "undecodable",
]

DEFAULT_BASES = {"openai": "https://api.openai.com/v1"}
"""Where a provider lives when its key names no base."""

TIMEOUT = "TimedOut"
UNDECODABLE = "Undecodable"
GONE = WireError("CallerGone", "The caller closed the connection.", "network")
_OURS = frozenset(
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
"""Headers that the operator's cannot replace."""
_DEFAULTS = (("Accept", "application/json, text/event-stream"), ("User-Agent", f"penstock/{__version__}"))
"""Headers that the operator's can."""
_SNIPPET = 1024
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9})?")
_DATE = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
"""The one form of a date that HTTP lets anybody send."""
_SHORTEST_SECRET = 6


class Base(NamedTuple):
    scheme: str
    host: str
    port: int
    path: str
    query: str
    authority: str

    def target(self, route: Route) -> str:
        """Of a request for this route."""
        return self.path + PATHS[route] + (f"?{self.query}" if self.query else "")


def base_of(key: ProviderKey, provider: str) -> Base | None:
    """The provider key's base URL, tolerant of how people paste it; None when there is none to be used."""
    text = (key.api_base or DEFAULT_BASES.get(provider) or DEFAULT_BASES.get(key.provider) or "").strip()
    try:
        parts = urlsplit(text)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        return None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return None
    given = parts.path.rstrip("/")
    for path in PATHS.values():
        given = given.removesuffix(path)
    # A bare host gets the usual prefix; any path that was given is the provider's own.
    return Base(parts.scheme, parts.hostname, port, given.rstrip("/") or PREFIX, parts.query, parts.netloc)


class Target:
    """A direct model, ready to be called on one route."""

    __slots__ = ("_defaults", "_head", "_renames", "_secrets", "host", "key", "model", "upstream_json")

    def __init__(self, model: Model, key: ProviderKey, route: Route, hosts: Hosts) -> None:
        base = base_of(key, model.provider)
        headers = [(name, value.reveal()) for name, value in key.default_headers]
        texts = (key.secret.reveal(), *(text for pair in headers for text in pair))
        if base is None or not model.upstream or not all(map(_fits_header, texts)):
            raise Refusal(
                400,
                "invalid_request_error",
                f"The model `{model.name}` is not set up for use: its provider key has no usable base URL, no usable "
                "secret or header, or no upstream model is named.",
            )
        self.model = model
        self.key = key
        self.host: Host = hosts.get(base.scheme, base.host, base.port, key.verify_tls)
        self.upstream_json = orjson.dumps(model.upstream)
        given = {name.lower() for name, _ in headers}
        self._head = request_head(
            "POST",
            base.target(route),
            base.authority,
            [
                *((name, value) for name, value in headers if name.lower() not in _OURS),
                ("Authorization", f"Bearer {key.secret.reveal()}"),
                ("Content-Type", "application/json"),
                # Whoever compresses holds events back to do it well.
                ("Accept-Encoding", "identity"),
                *((name, value) for name, value in _DEFAULTS if name.lower() not in given),
            ],
        )
        # Any header or parameter may carry a credential. A short value is none, and would be found where it means
        # nothing.
        values = [key.secret.reveal(), *(value for _, value in [*headers, *parse_qsl(base.query)])]
        self._secrets = [value for value in values if len(value) >= _SHORTEST_SECRET]
        self._renames = {old.encode(): new.encode() for old, new in key.param_renames.items()}
        self._defaults = {name.encode(): orjson.dumps(value) for name, value in key.default_body_fields.items()}

    def redact(self, text: str) -> str:
        """Of what an upstream says: without what we told it in confidence."""
        for secret in self._secrets:
            text = text.replace(secret, "<redacted>")
        return text

    def message(self, body: bytes, request_id: str) -> bytes:
        if self._renames or self._defaults:
            body = with_members(body, self._renames, self._defaults)
        return b"%bX-Penstock-Request-Id: %b\r\nContent-Length: %d\r\n\r\n%b" % (
            self._head,
            request_id.encode(),
            len(body),
            body,
        )


def _fits_header(text: str) -> bool:
    """Nothing in it would begin another line."""
    return text.isprintable() and all(ord(char) < 256 for char in text)


class UpstreamFailure(NamedTuple):
    """Why an attempt did not serve the request, and what the caller would be told."""

    error: str
    """As in `ledger.entry.Attempt`."""
    status: int | None
    refusal: Refusal
    retryable: bool
    retry_after_s: float | None = None
    quotes: bool = False
    """The refusal is in the upstream's own words."""


def failure_of(
    exchange: Exchange, headers: dict[bytes, bytes], target: Target, elapsed_ms: float
) -> UpstreamFailure | None:
    """None for a reply that is a success as far as its head says."""
    trouble = exchange.error
    if trouble is not None:
        return _trouble(trouble, elapsed_ms)
    status = exchange.status
    if 200 <= status < 300:
        return None
    retry_after = _retry_after(headers, target)
    refused = 400 <= status < 500
    if refused:
        refusal = _client_error(status, _readable(exchange, headers), target, retry_after)
    else:
        message = f"The upstream answered with status {status}."
        refusal = Refusal(502, "upstream_error", message, retry_after=retry_after)
    hint = _seconds(retry_after)
    return UpstreamFailure(
        "upstream_status", status, refusal, retryable=not refused, retry_after_s=hint, quotes=refused
    )


def plain_body(exchange: Exchange, headers: dict[bytes, bytes]) -> bytes:
    """The body without its encoding; ValueError when that is not to be read."""
    pieces = exchange.pieces
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    return decoded(coding_of(headers), body)


def coding_of(headers: dict[bytes, bytes]) -> bytes:
    return headers.get(b"content-encoding", b"").strip().lower() or b"identity"


def _readable(exchange: Exchange, headers: dict[bytes, bytes]) -> bytes:
    """What an error says, as far as it can be read."""
    try:
        return plain_body(exchange, headers)
    except ValueError:
        return b""


def aborted(message: str = "The upstream closed its stream before it sent anything.") -> UpstreamFailure:
    return UpstreamFailure("aborted", None, Refusal(502, "stream_aborted", message), retryable=True)


def undecodable() -> UpstreamFailure:
    refusal = Refusal(
        502, "upstream_decode_error", "The upstream's reply is not what it says it is: it cannot be read."
    )
    return UpstreamFailure("decode", None, refusal, retryable=True)


def _trouble(trouble: WireError, elapsed_ms: float) -> UpstreamFailure:
    if trouble.type == TIMEOUT:
        refusal = Refusal(504, "timeout", f"The upstream did not answer in time ({elapsed_ms:.0f} ms).")
        return UpstreamFailure("timeout", None, refusal, retryable=True)
    if trouble.type == UNDECODABLE:
        return undecodable()
    # The wire's own sentence names hosts and ports: those are for the log, not for the caller.
    refusal = Refusal(502, "transport_error", "The connection to the upstream failed.")
    return UpstreamFailure("transport", None, refusal, retryable=True)


def _client_error(status: int, body: bytes, target: Target, retry_after: str | None) -> Refusal:
    """The provider's own error, whole: what its type, code and parameter say is what the caller's library acts on."""
    error = _error_object(body)
    message = error.get("message")
    kind = error.get("type")
    return Refusal(
        status,
        target.redact(str(kind)) if kind else "upstream_error",
        target.redact(str(message))[:_SNIPPET] if message else f"The upstream answered with status {status}.",
        code=_redacted(error.get("code"), target),
        param=_redacted(error.get("param"), target),
        retry_after=retry_after,
    )


def _error_object(body: bytes) -> dict[str, Any]:
    """`{"error": {…}}`, the same without the envelope, or whatever there is as the message."""
    try:
        found = orjson.loads(body)
        error = found.get("error", found)
    except (orjson.JSONDecodeError, AttributeError):
        error = None
    if isinstance(error, str):
        return {"message": error}
    if isinstance(error, dict) and (error is not found or "message" in error):
        return error
    return {"message": body[: 4 * _SNIPPET].decode("utf-8", "replace")}


def _redacted(value: object, target: Target) -> str | float | None:
    """A code may be a number, and stays one."""
    if value is None or isinstance(value, int | float):
        return value
    return target.redact(str(value))


def _retry_after(headers: dict[bytes, bytes], target: Target) -> str | None:
    """As it may be passed on: seconds or a date, and nothing else that somebody put there."""
    text = headers.get(b"retry-after", b"").decode("latin-1").strip()
    if not _SECONDS.fullmatch(text) and not _DATE.fullmatch(text):
        return None
    return text if target.redact(text) == text else None


def _seconds(retry_after: str | None) -> float | None:
    """Of a Retry-After in either of its forms."""
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
