"""JSON bodies and events: parsing for inspection, and writing of masks.

The recipient may use another parser, and parsers differ on duplicate keys: some use the first value, some the last. So a
request with a duplicate key is refused, and a reply with one is serialised again. An escaped lone surrogate is read as
U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import orjson

from penstock.gateway.dialects.field_map import KEY
from penstock.gateway.dialects.texts import TextRef
from penstock.gateway.json_edits import Replacements, replace_in_place
from penstock.gateway.surrogates import replace_unpaired_surrogates

_BACKSLASH = ord("\\")


class DuplicateKeyError(ValueError):
    """An object in the body has a duplicate key."""


def read_request(body: bytes) -> tuple[bytes, list[Any]]:
    """Return the bytes that were parsed, with the length of `body`, and a list with the parsed value.

    Raises `DuplicateKeyError`, and ValueError if the body is not JSON.
    """
    source = replace_unpaired_surrogates(body)
    return source, [_decode(source, _decode_unique)]


def read_reply(body: bytes) -> tuple[bytes, list[Any]]:
    """Like `read_request`, but the last of duplicate keys wins: detecting them takes four times as long."""
    try:
        return body, [orjson.loads(body)]
    except orjson.JSONDecodeError:
        source = replace_unpaired_surrogates(body)
        return source, [_decode(source, json.loads)]


def _unique_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(members)
    if len(result) != len(members):
        raise DuplicateKeyError
    return result


_decode_unique = json.JSONDecoder(object_pairs_hook=_unique_members).decode


def _parse_int(digits: str) -> int | str:
    return int(digits) if len(digits) < _MAX_DIGITS else digits


_decode_long = json.JSONDecoder(object_pairs_hook=_unique_members, parse_int=_parse_int).decode
_MAX_DIGITS = 4000
"""Below Python's limit of 4300 digits for int()."""


def _decode(source: bytes, decode: Callable[[str], Any]) -> Any:
    text = source.decode()
    try:
        return decode(text)
    except (DuplicateKeyError, json.JSONDecodeError):
        raise
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError:  # an integer above the digit limit; parse_int is slow, so it is not used by default
        return _decode_long(text)


def without_duplicate_keys(source: bytes, value: Any) -> bytes:
    """Return `source`, whose parsed value is `value`, or the value serialised again if an object has a duplicate key.

    The value is serialised and the colons are counted: a dropped member had one colon, and new colons appear only if the
    source escapes a colon. Only if the counts differ or a colon may be escaped is the source parsed once more.
    """
    try:
        serialised = orjson.dumps(value)
    except TypeError:  # a lone surrogate, a long integer, or nested deeper than orjson allows
        return _dumps(value) if _has_duplicates(source) else source
    if serialised == source:
        return source
    may_escape_colon = _BACKSLASH in source and rb"\u003" in source
    if not may_escape_colon and _count_colons(serialised) == _count_colons(source):
        return source
    return serialised if _has_duplicates(source) else source


def _count_colons(data: bytes) -> int:
    """Count the colons in a third of the time of `bytes.count`."""
    return len(data) - len(data.replace(b":", b""))


def _has_duplicates(source: bytes) -> bool:
    try:
        _decode(source, _decode_unique)
    except DuplicateKeyError:
        return True
    return False


def _dumps(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value, separators=(",", ":")).encode()


def write_changes(
    body: bytes, source: bytes, root: list[Any], refs: Iterable[TextRef], tokens: Iterable[tuple[Any, str]]
) -> bytes:
    """Return the body with the replacements of `refs`, and with the `tokens` emptied: they repeat the text.

    `source` is the body as it was parsed: it has the same length and the same token positions.
    """
    keys: Replacements = {}
    values: Replacements = {}
    for ref in refs:
        if ref.replacement is not None:
            replacements = keys if ref.kind == KEY else values
            replacements[id(ref.container), ref.key] = _dumps(ref.written(ref.replacement))
    for holder, key in tokens:
        values[id(holder), key] = b"[]" if type(holder[key]) is list else b"null"
    return replace_in_place(body, source, root, keys, values) if keys or values else body
