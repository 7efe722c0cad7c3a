"""Unstreamed replies that are one JSON value of a known type."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from penstock.endpoints.openai_types import Chunk, error_failure
from penstock.endpoints.parse_json import UNREADABLE, decode_typed
from penstock.endpoints.reply import Failure, Reply
from penstock.endpoints.reply_errors import excerpt, not_json

__all__ = ["decode_reply"]

T = TypeVar("T")


class _ErrorReply(msgspec.Struct):
    error: Any
    """An object or a text."""


_error_decoder = msgspec.json.Decoder(_ErrorReply)


def decode_reply(body: bytes, decoder: msgspec.json.Decoder[T], reply: Reply, needs: str) -> T | None:
    """Decode a body whose type has required fields. If it is something else, set the failure of the reply and return None.

    `needs` completes the sentence "The reply has no …".
    """
    try:
        value = decode_typed(body, decoder)
    except msgspec.ValidationError:
        reply.failure = _error(body) or Failure("InvalidReply", f"The reply has no {needs}: {excerpt(body)}", "server")
        return None
    except UNREADABLE:
        reply.failure = not_json(body)
        return None
    reply.done = True
    return value


def _error(body: bytes) -> Failure | None:
    try:
        error = decode_typed(body, _error_decoder).error
    except UNREADABLE:
        return None
    return error_failure(Chunk(error=error))
