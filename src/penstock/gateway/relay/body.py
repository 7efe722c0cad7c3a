"""A request's body: the few members that the gateway needs, and the model's name replaced where it stands.

Everything else in the body stays as the caller wrote it, byte for byte: spelling of numbers, order, white space.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from penstock.gateway.refusal import Refusal
from penstock.gateway.relay.json_members import top_level_spans
from penstock.gateway.surrogates import whole_characters

__all__ = ["Probe", "Request", "read_body", "replace_model"]

_NO_RAW = msgspec.Raw(b"")
_MOST_OUTPUT = 100_000_000
"""No model writes more; what is above is reserved as this."""


class Probe(msgspec.Struct):
    """The members that the gateway looks at; msgspec skips the others at some 2 GB/s."""

    model: msgspec.Raw = _NO_RAW
    stream: Any = None
    max_output_tokens: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    messages: msgspec.Raw = _NO_RAW


_decode = msgspec.json.Decoder(Probe).decode


class Request:
    """What was asked: the bytes, and what the gateway understood of them."""

    __slots__ = ("data", "max_output", "model", "model_at", "model_end", "stream")

    def __init__(self, data: bytes, model: object, span: tuple[int, int], stream: bool, max_output: int | None) -> None:
        self.data = data
        self.model = model
        self.model_at, self.model_end = span
        self.stream = stream
        self.max_output = max_output


def read_body(data: bytes, *, chat: bool) -> Request:
    """Refuses what is not a JSON object, and what different readers would understand differently."""
    try:
        read, probe = _probe(data)
        if not data.isascii():
            data.decode()
    except msgspec.ValidationError:
        raise _bad("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _bad("The request body is not valid JSON.") from None
    raw = bytes(probe.model)
    if not raw:
        raise _bad("The request body has no `model`.", "model")
    try:
        model = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise _bad("The request body is not valid JSON.") from None
    if not isinstance(model, str):
        raise _bad("`model` must be a string: the alias of a model.", "model")
    if chat and bytes(probe.messages).translate(None, b" \t\r\n") in (b"", b"[]", b"null"):
        raise _bad("`messages` must hold at least one message.", "messages")
    # A limit on output may be spelled in three ways; the dialects read one each, and an estimate takes what is there.
    limit = probe.max_output_tokens or probe.max_completion_tokens or probe.max_tokens
    max_output = min(limit, _MOST_OUTPUT) if type(limit) is int and limit > 0 else None
    return Request(data, model, _model_span(read, raw), probe.stream is True, max_output)


def _probe(data: bytes) -> tuple[bytes, Probe]:
    """With the bytes that were read, as many as there are. Half a surrogate pair is nothing that the gateway needs."""
    try:
        return data, _decode(data)
    except msgspec.DecodeError:
        read = whole_characters(data)
        if read is data:
            raise
        return read, _decode(read)


def _model_span(data: bytes, raw: bytes) -> tuple[int, int]:
    """Where the value of the top-level `model` stands."""
    # One literal "model" in the body, and no escape that could spell another: it is the key.
    if data.count(b'"model"') == 1 and b"\\u006" not in data:
        at = data.index(raw, data.index(b'"model"') + 7)
        return at, at + len(raw)
    found = top_level_spans(data, "model")
    if len(found) != 1:
        raise _bad("The request body has `model` more than once.", "model")
    return found[0]


def replace_model(request: Request, upstream: bytes) -> bytes:
    """The body with `upstream`, a JSON string, in the place of the model's name."""
    data = request.data
    return b"%b%b%b" % (data[: request.model_at], upstream, data[request.model_end :])


def _bad(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "invalid_request_error", message, param=param)
