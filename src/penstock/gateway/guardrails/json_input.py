"""Parsing of JSON bodies for inspection.

The recipient may use another parser, and parsers differ on duplicate keys: some use the first value, some the last. So a
request with a duplicate key is refused, and earlier duplicates are removed from a reply (see `duplicate_member_spans`). An
escaped lone surrogate is read as U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson

from penstock.gateway.surrogates import replace_unpaired_surrogates

__all__ = ["DuplicateKeyError", "read_reply", "read_request"]


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
