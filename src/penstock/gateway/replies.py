"""What callers are told, and whole replies made readable. No I/O."""

from __future__ import annotations

import zlib

import orjson

from penstock.gateway.forward import Forward
from penstock.gateway.guardrails import block_message
from penstock.gateway.refusal import Refusal
from penstock.gateway.usage import Route, StreamReader

__all__ = ["JSON", "blocked", "content_type", "error_event", "late_body", "plain_body", "shutting_down", "too_large"]

JSON = ("content-type", "application/json")
MAX_BODY = 256 << 20


def too_large(limit: int) -> Refusal:
    return Refusal(413, "invalid_request_error", f"The request body is larger than the limit of {limit} bytes.")


def late_body() -> Refusal:
    return Refusal(408, "timeout", "The request body did not arrive in time.")


def shutting_down() -> Refusal:
    return Refusal(503, "shutting_down", "The gateway is shutting down.")


def blocked(side: str, guardrail: str | None) -> Refusal:
    return Refusal(422, "content_filter", block_message(side, guardrail))


def content_type(forward: Forward, default: str) -> tuple[str, str]:
    """The upstream's, as far as it can be passed on."""
    given = forward.headers.get(b"content-type", b"").decode("latin-1")
    return "content-type", given if given.isascii() and given.isprintable() and given else default


def plain_body(forward: Forward) -> bytes:
    """The body without its encoding; ValueError when that is not to be read. None was asked for, but some upstreams
    compress all the same."""
    pieces = forward.exchange.pieces
    body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    given = forward.headers.get(b"content-encoding")
    encoding = b"identity" if given is None else given.strip().lower()
    if encoding == b"identity":
        return body
    if encoding in (b"gzip", b"x-gzip", b"deflate"):
        try:
            reader = zlib.decompressobj(zlib.MAX_WBITS | 32)
            plain = reader.decompress(body, MAX_BODY)
        except zlib.error:
            raise ValueError("broken encoding") from None
        if reader.eof:
            return plain
    raise ValueError("unknown encoding")


def error_event(route: Route, reader: StreamReader, kind: str) -> bytes:
    """For a stream whose head has gone out and whose end will not come."""
    message = "The stream ended before it was complete."
    lead = b"" if reader.at_boundary else b"\n\n"
    if route == "responses":
        number = reader.sequence + 1
        event = {"type": "error", "sequence_number": number, "code": kind, "message": message, "param": None}
        return lead + b"event: error\ndata: " + orjson.dumps(event) + b"\n\n"
    return lead + b"data: " + orjson.dumps({"error": {"message": message, "type": kind}}) + b"\n\n"
