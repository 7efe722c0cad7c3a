"""JSON of replies: decoding, and the failures that all endpoints share.

Lone surrogates are replaced: they are valid in JSON, but cannot be encoded as UTF-8. Some servers cut a reply between the
halves of a pair, or escape them separately.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from penstock.endpoints.reply import Failure, Reply

T = TypeVar("T")

DONE = b"[DONE]"
"""The end mark of a stream."""
UNREADABLE = (ValueError, RecursionError)
"""The exceptions of `json` and of a typed decoder for data that is not JSON, or not of the type."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""A surrogate as an escape, or in the bytes that UTF-8 forbids and `json` accepts."""
_EXCERPT_BYTES = 120


class _ErrorReply(msgspec.Struct):
    error: Any
    """An object or a text."""


_error_decoder = msgspec.json.Decoder(_ErrorReply)


def parse_json(data: bytes) -> Any:
    """Return the JSON value."""
    return json.loads(without_lone_surrogates(data) if _SURROGATE.search(data) else data)


def decode_typed(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode with a typed decoder, which refuses lone surrogates."""
    try:
        return decoder.decode(data)
    except UNREADABLE:
        if not _SURROGATE.search(data):
            raise
    return decoder.decode(without_lone_surrogates(data))


def without_lone_surrogates(data: bytes) -> bytes:
    text = json.dumps(json.loads(data), ensure_ascii=False)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def decode_all(
    data: list[bytes], decode_list: Callable[[bytes], list[T]], decode_one: Callable[[bytes], T]
) -> tuple[list[T], Failure | None]:
    """Return each event before the first that `decode_one` cannot decode, and the failure of that one.

    A JSON list of all events is decoded first, because that takes a fraction of the time."""
    if data and data[-1] == DONE:
        data = data[:-1]
    try:
        events = decode_list(b"[" + b",".join(data) + b"]")
        if len(events) == len(data):  # false if an event holds two objects with a comma between them
            return events, None
    except UNREADABLE:
        pass
    events = []
    for event in data:
        try:
            events.append(decode_one(event))
        except UNREADABLE:
            return events, malformed(event)
    return events, None


def decode_reply(body: bytes, decoder: msgspec.json.Decoder[T], reply: Reply, needs: str) -> T | None:
    """Decode a body whose type has required fields. If it is something else, set the failure of the reply and return None.

    `needs` completes the sentence "The reply has no …".
    """
    try:
        value = decode_typed(body, decoder)
    except msgspec.ValidationError:
        missing = Failure("InvalidReply", f"The reply has no {needs}: {excerpt(body)}", "server")
        try:
            reply.failure = error_failure(decode_typed(body, _error_decoder).error) or missing
        except UNREADABLE:
            reply.failure = missing
        return None
    except UNREADABLE:
        reply.failure = not_json(body)
        return None
    reply.done = True
    return value


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
    return Reply(Failure("InvalidReply", f"The reply is a stream of events: {excerpt(body)}", "server"))


def error_failure(error: Any) -> Failure | None:
    """Return the failure for an error object or text, in any of the forms that servers use; None if there is no error."""
    if not error:
        return None
    code = None
    message = error
    if isinstance(error, dict):
        message = error.get("message") or error
        code = error.get("code")
        type_ = as_text(error.get("type")) or code
        message = f"{as_text(message)} ({type_})" if type_ else message
    if not isinstance(message, str):
        message = json.dumps(message, ensure_ascii=False)
    status = code if isinstance(code, int) and abs(code) < 1 << 31 else None
    return Failure("ErrorObject", f"The server replied with an error object: {message}", "server", status)


def as_text(value: Any) -> str | None:
    """Return a string as it is, the joined text of content parts, or a non-empty object as JSON."""
    if isinstance(value, list):
        parts = [part.get("text") if isinstance(part, dict) else part for part in value]
        value = "".join(part for part in parts if isinstance(part, str))
    elif isinstance(value, dict) and value:
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return value if isinstance(value, str) else None
