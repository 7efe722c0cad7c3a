"""JSON bodies as Python values, for the inspection of their texts.

Whoever gets the body after us may read it with another parser, and where a key stands twice one parser takes the first value,
another the last. So such a request is refused, and of such a reply only what was read goes on (see `repeated`). Half a
surrogate pair, in an escape, is read as U+FFFD.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import orjson

from penstock.gateway.surrogates import replace_unpaired_surrogates

__all__ = ["Ambiguous", "read_reply", "read_request"]


class Ambiguous(ValueError):
    """A key of the body stands twice in its object."""


def read_request(body: bytes) -> tuple[bytes, list[Any]]:
    """The bytes that were read, as many as there are, and what they say, in a list; raises `Ambiguous`, ValueError."""
    source = replace_unpaired_surrogates(body)
    return source, [_decoded(source, _decode_once)]


def read_reply(body: bytes) -> tuple[bytes, list[Any]]:
    """The same without looking for keys that stand twice, which takes four times as long: the last one counts."""
    try:
        return body, [orjson.loads(body)]
    except orjson.JSONDecodeError:
        source = replace_unpaired_surrogates(body)
        return source, [_decoded(source, json.loads)]


def _once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(found) != len(members):
        raise Ambiguous
    return found


_decode_once = json.JSONDecoder(object_pairs_hook=_once).decode


def _number(digits: str) -> int | str:
    return int(digits) if len(digits) < _MOST_DIGITS else digits


_decode_long = json.JSONDecoder(object_pairs_hook=_once, parse_int=_number).decode
_MOST_DIGITS = 4000
"""Python converts a few more."""


def _decoded(source: bytes, decode: Callable[[str], Any]) -> Any:
    text = source.decode()
    try:
        return decode(text)
    except (Ambiguous, json.JSONDecodeError):
        raise
    except RecursionError:
        raise ValueError("nested too deep") from None
    except ValueError:  # a number with more digits than that; a function call for each number would cost
        return _decode_long(text)
