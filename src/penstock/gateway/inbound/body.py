"""The request body: the few members that the gateway reads, and the replacement of the model name in place.

All other bytes stay as the caller wrote them: spelling of numbers, order of members, white space.
"""

from __future__ import annotations

import json
import re

import msgspec
import orjson

from penstock.gateway.dialects.base import MAX_OUTPUT_TOKENS, Dialect, RequestMembers
from penstock.gateway.dialects.media_parts import MediaParts
from penstock.gateway.json_edits import (
    MAX_BRACKETS,
    set_member,
    too_complex,
    top_level_names,
    top_level_spans,
    with_members,
)
from penstock.gateway.refusal import Refusal
from penstock.gateway.surrogates import replace_unpaired_surrogates

MAX_VALUES = 100_000
"""Values of a body that can be inspected. Parsing and walking them takes 0.3 s in another process."""


class ParsedBody(msgspec.Struct):
    """A request body: its bytes, and what the gateway reads from it."""

    data: bytes
    model: str
    model_start: int
    model_end: int
    stream: bool
    asked_output: int
    """The most output tokens that the request asks for; 0 if it does not limit them."""
    output_limit: int
    """The same, with the default for a request that does not limit them."""
    references: list[tuple[str, str]]
    """Ids of stored replies, each with the name of its member."""
    usage_options: bytes | None
    """The `stream_options`, as JSON, with which the stream reports its usage; None if the caller asked for it."""
    media: MediaParts = MediaParts()
    values: int | None = None
    input_tokens: int | None = None
    """The number of commas outside of strings, which is about that of the values, and the estimated input tokens. Only for
    large bodies: counting takes too long for the event loop."""

    @property
    def was_read_in_process(self) -> bool:
        """True if another process has read the body."""
        return self.values is not None


def read_body(data: bytes, dialect: Dialect, default_output: int) -> ParsedBody:
    """Parse a request body. Raise Refusal for invalid JSON and for bodies that other parsers may read differently.

    `default_output` is the number of output tokens of a reply that the request does not limit.
    """
    try:
        decoded, members = _parse(data, dialect)
        if not data.isascii():
            data.decode()
    except msgspec.ValidationError:
        raise _invalid("The request body must be a JSON object.") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _invalid("The request body is not valid JSON.") from None
    _check_spelling(decoded, dialect)
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
    if dialect.reference_keys:
        _check_references(data, dialect)
    start, end = _model_span(decoded, raw)
    stream = members.stream is True
    asked_output = _output_limit(dialect, members, 0)
    return ParsedBody(
        data,
        model,
        start,
        end,
        stream,
        asked_output,
        asked_output or _output_limit(dialect, members, default_output),
        dialect.references(members),
        _usage_options(dialect, members) if stream else None,
        dialect.media_parts(data),
    )


_ESCAPED_KEY = re.compile(rb'"[^"\\]*+\\u0(?:0[4-7]|17f)[^"]*+"\s*:')
"""A key with an escape that can spell a letter of a name."""


def _check_spelling(data: bytes, dialect: Dialect) -> None:
    """Refuse a member that differs in its case only from one that the gateway reads: some parsers ignore the case."""
    if dialect.misspelled_key.search(data) is None and (b"\\u0" not in data or _ESCAPED_KEY.search(data) is None):
        return
    known = dialect.body.__struct_fields__
    for name in top_level_names(data, MAX_BRACKETS):
        if name not in known and name.casefold() in known:
            raise _invalid(f"The request body has `{name}`; did you mean `{name.casefold()}`?", name.casefold())


def _check_references(data: bytes, dialect: Dialect) -> None:
    """Refuse a reference that is given twice: another parser may use the first one, which would not be checked."""
    # Escapes can spell the letters and the underscore of a name.
    is_escaped = b"\\u00" in data and any(prefix in data for prefix in (b"\\u005", b"\\u006", b"\\u007"))
    for name, key in dialect.reference_keys:
        if (is_escaped or data.count(key) > 1) and len(top_level_spans(data, name, MAX_BRACKETS)) > 1:
            raise _invalid(f"The request body has `{name}` more than once.", name)


def _output_limit(dialect: Dialect, members: RequestMembers, default: int) -> int:
    return min(dialect.output_limit(members, default), MAX_OUTPUT_TOKENS)


def _usage_options(dialect: Dialect, members: RequestMembers) -> bytes | None:
    options = dialect.usage_request(members)
    return None if options is None else json.dumps(options).encode()  # orjson refuses integers of more than 64 bits


def check_complexity(request: ParsedBody) -> None:
    """Raise Refusal for a body with more values than can be inspected. A body that is not large has fewer."""
    if request.values is not None and request.values > MAX_VALUES:
        raise too_complex()


def _parse(data: bytes, dialect: Dialect) -> tuple[bytes, RequestMembers]:
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
    spans = top_level_spans(data, "model", MAX_BRACKETS)
    if len(spans) != 1:
        raise _invalid("The request body has `model` more than once.", "model")
    return spans[0]


def edit_body(
    request: ParsedBody,
    model: bytes,
    usage_options: bytes | None,
    renames: dict[bytes, bytes],
    defaults: dict[bytes, bytes],
) -> bytes:
    """Return the body for an upstream. `model` is a JSON string. Raise Refusal."""
    body = replace_model(request, model)
    if usage_options is not None:
        body = set_member(body, "stream_options", usage_options)
    return with_members(body, renames, defaults) if renames or defaults else body


def replace_model(request: ParsedBody, upstream: bytes) -> bytes:
    """Return the body with the model name replaced by `upstream`, a JSON string."""
    data = request.data
    return b"%b%b%b" % (data[: request.model_start], upstream, data[request.model_end :])


def _invalid(message: str, param: str | None = None) -> Refusal:
    return Refusal(400, "invalid_request_error", message, param=param)
