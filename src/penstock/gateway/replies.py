"""Error replies and headers for callers. No I/O."""

from __future__ import annotations

from penstock.gateway.guardrails import block_code, block_message, block_type
from penstock.gateway.refusal import Refusal
from penstock.gateway.upstream.target import Target

_MAX_ID_CHARS = 256
JSON = ("content-type", "application/json")


def too_large(limit: int) -> Refusal:
    return Refusal(413, "invalid_request_error", f"The request body is larger than the limit of {limit} bytes.")


def blocked(side: str, guardrail: str | None, *, timed_out: bool = False, too_long: bool = False) -> Refusal:
    message = block_message(side, guardrail, timed_out=timed_out, too_long=too_long)
    return Refusal(422, block_type(timed_out=timed_out), message, code=block_code(too_long=too_long))


def content_type(headers: dict[bytes, bytes], default: str) -> tuple[str, str]:
    """Return the upstream's Content-Type header, or the default if its value is not printable ASCII."""
    raw = headers.get(b"content-type", b"")
    if raw == b"application/json":  # the usual one
        return JSON
    value = raw.decode("latin-1")
    return "content-type", value if value.isascii() and value.isprintable() and value else default


def upstream_request_id(headers: dict[bytes, bytes], target: Target) -> str | None:
    """Return the upstream's id of the request, if it sent one that may be passed on."""
    value = headers.get(b"x-request-id") or headers.get(b"request-id")
    if not value or len(value) > _MAX_ID_CHARS or not value.isascii():
        return None
    upstream_id = value.decode()
    return upstream_id if upstream_id.isprintable() and target.redact(upstream_id) == upstream_id else None
