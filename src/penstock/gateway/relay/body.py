"""The request body: the few members that the gateway reads, and the replacement of the model name in place.

All other bytes stay as the caller wrote them: spelling of numbers, order of members, white space.
"""

from __future__ import annotations

import msgspec
import orjson

from penstock.gateway.dialects.base import Dialect, RequestBody
from penstock.gateway.json_edits import MAX_BRACKETS, TooComplexError, top_level_spans
from penstock.gateway.refusal import Refusal
from penstock.gateway.surrogates import replace_unpaired_surrogates

__all__ = ["Request", "check_complexity", "read_body", "replace_model", "too_complex"]

MAX_VALUES = 100_000
"""Values of a body that can be inspected. Parsing and walking them takes 0.3 s in another process."""


class Request:
    """A request body: its bytes, and the members that the gateway reads."""

    __slots__ = ("data", "members", "model", "model_end", "model_start", "stream")

    def __init__(self, data: bytes, members: RequestBody, model: str, span: tuple[int, int]) -> None:
        self.data = data
        self.members = members
        self.model = model
        self.model_start, self.model_end = span
        self.stream = members.stream is True


def read_body(data: bytes, dialect: Dialect) -> Request:
    """Parse a request body. Raise Refusal for invalid JSON and for bodies that other parsers may read differently."""
    try:
        decoded, members = _parse(data, dialect)
        if not data.isascii():
            data.decode()
    except msgspec.ValidationError:
        raise _invalid("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _invalid("The request body is not valid JSON.") from None
    raw = bytes(members.model)
    if not raw:
        raise _invalid("The request body has no `model`.", "model")
    try:
        model = orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise _invalid("The request body is not valid JSON.") from None
    if not isinstance(model, str):
        raise _invalid("`model` must be a string: the alias of a model.", "model")
    dialect.check_body(members)
    for name, key in dialect.reference_keys:  # another parser may use the first of two, which would not be checked
        if data.count(key) > 1 and len(_spans(data, name)) > 1:
            raise _invalid(f"The request body has `{name}` more than once.", name)
    return Request(data, members, model, _model_span(decoded, raw))


def check_complexity(request: Request) -> None:
    """Raise Refusal for a body with more values than can be inspected. Commas in texts count as well."""
    if len(request.data) > MAX_VALUES and request.data.count(b",") > MAX_VALUES:
        raise too_complex()


def too_complex() -> Refusal:
    return Refusal(413, "invalid_request_error", "The request body has too many values.")


def _parse(data: bytes, dialect: Dialect) -> tuple[bytes, RequestBody]:
    """Decode the body. msgspec rejects unpaired surrogate escapes, so replace them by escapes of the same length.

    Return the bytes that were decoded, whose offsets are those of `data`.
    """
    try:
        return data, dialect.parse_body(data)
    except msgspec.DecodeError:
        repaired = replace_unpaired_surrogates(data)
        if repaired is data:
            raise
        return repaired, dialect.parse_body(repaired)


def _model_span(data: bytes, raw: bytes) -> tuple[int, int]:
    """Return the start and end of the value of the top-level `model`."""
    # If "model" occurs once, and no escape could spell it again, that occurrence is the key.
    if data.count(b'"model"') == 1 and b"\\u006" not in data:
        start = data.index(raw, data.index(b'"model"') + 7)
        return start, start + len(raw)
    spans = _spans(data, "model")
    if len(spans) != 1:
        raise _invalid("The request body has `model` more than once.", "model")
    return spans[0]


def _spans(data: bytes, name: str) -> list[tuple[int, int]]:
    try:
        return top_level_spans(data, name, MAX_BRACKETS)
    except TooComplexError:
        raise too_complex() from None


def replace_model(request: Request, upstream: bytes) -> bytes:
    """Return the body with the model name replaced by `upstream`, a JSON string."""
    data = request.data
    return b"%b%b%b" % (data[: request.model_start], upstream, data[request.model_end :])


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "invalid_request_error", message, param=param)
