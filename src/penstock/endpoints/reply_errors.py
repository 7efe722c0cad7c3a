"""Failures of replies that are common to all endpoints."""

from __future__ import annotations

from penstock.endpoints.reply import Failure, Reply

__all__ = ["excerpt", "malformed", "not_json", "unexpected_stream"]

_EXCERPT_BYTES = 120


def not_json(body: bytes) -> Failure:
    if not body.strip():
        return Failure("EmptyReply", "The reply has no body.", "server")
    return Failure("MalformedJSON", f"The reply is not JSON: {excerpt(body)}", "server")


def malformed(event: bytes) -> Failure:
    return Failure("MalformedEvent", f"An event of the stream is not JSON: {excerpt(event)}", "server")


def excerpt(data: bytes) -> str:
    text = data[:_EXCERPT_BYTES].decode("utf-8", "replace")
    return repr(text) + ("…" if len(data) > _EXCERPT_BYTES else "")


def unexpected_stream(body: bytes) -> Reply:
    """Return the reply for a stream of an API that has none."""
    reply = Reply()
    reply.failure = Failure("InvalidReply", f"The reply is a stream of events: {excerpt(body)}", "server")
    return reply
