"""Error replies and error events for callers. No I/O."""

from __future__ import annotations

import orjson

from penstock.gateway.guardrails import block_code, block_message, block_type
from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.upstream_attempt import UpstreamAttempt
from penstock.gateway.relay.usage import StreamReader
from penstock.gateway.routes import Route

__all__ = [
    "JSON",
    "blocked",
    "body_timeout",
    "content_type",
    "error_event",
    "incomplete_body",
    "shutting_down",
    "too_large",
]

JSON = ("content-type", "application/json")


def too_large(limit: int) -> Refusal:
    return Refusal(413, "invalid_request_error", f"The request body is larger than the limit of {limit} bytes.")


def body_timeout() -> Refusal:
    return Refusal(408, "timeout", "The request body did not arrive in time.")


def incomplete_body() -> Refusal:
    return Refusal(400, "invalid_request_error", "The request body ended before it was complete.")


def shutting_down() -> Refusal:
    return Refusal(503, "shutting_down", "The gateway is shutting down.")


def blocked(side: str, guardrail: str | None, *, timed_out: bool = False, too_long: bool = False) -> Refusal:
    message = block_message(side, guardrail, timed_out=timed_out, too_long=too_long)
    return Refusal(422, block_type(timed_out=timed_out), message, code=block_code(too_long=too_long))


def content_type(attempt: UpstreamAttempt, default: str) -> tuple[str, str]:
    """Return the upstream's Content-Type header, or the default if its value is not printable ASCII."""
    value = attempt.headers.get(b"content-type", b"").decode("latin-1")
    return "content-type", value if value.isascii() and value.isprintable() and value else default


def error_event(route: Route, attempt: UpstreamAttempt, reader: StreamReader, kind: str) -> bytes:
    """Return the event that ends an incomplete stream whose head has been sent."""
    message = "The stream ended before it was complete."
    lead = b"\n\n" if attempt.mid_event else b""
    if route == "responses":
        number = reader.sequence + 1
        event = {"type": "error", "sequence_number": number, "code": kind, "message": message, "param": None}
        return lead + b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"
    return lead + b"data: " + orjson.dumps({"error": {"message": message, "type": kind}}) + b"\n\n"
