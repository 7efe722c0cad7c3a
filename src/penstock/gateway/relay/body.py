"""The request body: the few members that the gateway reads, and the replacement of the model name in place.

All other bytes stay as the caller wrote them: spelling of numbers, order of members, white space.
"""

from __future__ import annotations

from typing import Any

import msgspec
import orjson

from penstock.gateway.json_edits import top_level_spans
from penstock.gateway.refusal import Refusal
from penstock.gateway.surrogates import replace_unpaired_surrogates

__all__ = ["Probe", "Request", "read_body", "replace_model"]

_NO_RAW = msgspec.Raw(b"")
_MAX_OUTPUT_TOKENS = 100_000_000
"""Upper bound of the output tokens reserved for a request; no model writes more."""


class Probe(msgspec.Struct):
    """The members that the gateway reads; msgspec skips the others at about 2 GB/s."""

    model: msgspec.Raw = _NO_RAW
    stream: Any = None
    max_output_tokens: Any = None
    max_completion_tokens: Any = None
    max_tokens: Any = None
    messages: msgspec.Raw = _NO_RAW


_decode = msgspec.json.Decoder(Probe).decode


class Request:
    """A request body: its bytes, and the members that the gateway reads."""

    __slots__ = ("data", "max_output", "model", "model_end", "model_start", "stream")

    def __init__(self, data: bytes, model: object, span: tuple[int, int], stream: bool, max_output: int | None) -> None:
        self.data = data
        self.model = model
        self.model_start, self.model_end = span
        self.stream = stream
        self.max_output = max_output


def read_body(data: bytes, *, chat: bool) -> Request:
    """Parse a request body. Raise Refusal for invalid JSON and for bodies that other parsers may read differently."""
    try:
        decoded, probe = _probe(data)
        if not data.isascii():
            data.decode()
    except msgspec.ValidationError:
        raise _invalid("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _invalid("The request body is not valid JSON.") from None
    raw = bytes(probe.model)
    if not raw:
        raise _invalid("The request body has no `model`.", "model")
    try:
        model = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise _invalid("The request body is not valid JSON.") from None
    if not isinstance(model, str):
        raise _invalid("`model` must be a string: the alias of a model.", "model")
    if chat and bytes(probe.messages).translate(None, b" \t\r\n") in (b"", b"[]", b"null"):
        raise _invalid("`messages` must hold at least one message.", "messages")
    # The APIs name the output limit differently; use whichever is present.
    limit = probe.max_output_tokens or probe.max_completion_tokens or probe.max_tokens
    max_output = min(limit, _MAX_OUTPUT_TOKENS) if type(limit) is int and limit > 0 else None
    return Request(data, model, _model_span(decoded, raw), probe.stream is True, max_output)


def _probe(data: bytes) -> tuple[bytes, Probe]:
    """Decode the body. msgspec rejects unpaired surrogate escapes, so replace them by escapes of the same length.

    Return the bytes that were decoded, whose offsets are those of `data`.
    """
    try:
        return data, _decode(data)
    except msgspec.DecodeError:
        repaired = replace_unpaired_surrogates(data)
        if repaired is data:
            raise
        return repaired, _decode(repaired)


def _model_span(data: bytes, raw: bytes) -> tuple[int, int]:
    """Return the start and end of the value of the top-level `model`."""
    # If "model" occurs once, and no escape could spell it again, that occurrence is the key.
    if data.count(b'"model"') == 1 and b"\\u006" not in data:
        start = data.index(raw, data.index(b'"model"') + 7)
        return start, start + len(raw)
    spans = top_level_spans(data, "model")
    if len(spans) != 1:
        raise _invalid("The request body has `model` more than once.", "model")
    return spans[0]


def replace_model(request: Request, upstream: bytes) -> bytes:
    """Return the body with the model name replaced by `upstream`, a JSON string."""
    data = request.data
    return b"%b%b%b" % (data[: request.model_start], upstream, data[request.model_end :])


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "invalid_request_error", message, param=param)
