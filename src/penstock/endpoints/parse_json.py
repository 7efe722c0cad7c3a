"""JSON of replies, in which lone surrogates are replaced: they are valid in JSON, but cannot be encoded as UTF-8.

Some servers cut a reply between the halves of a pair, or escape them separately.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

__all__ = ["UNREADABLE", "decode_typed", "parse_json", "without_lone_surrogates"]

T = TypeVar("T")

UNREADABLE = (ValueError, RecursionError)
"""The exceptions of `json` and of a typed decoder for data that is not JSON, or not of the type."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]")
"""A surrogate as an escape, or in the bytes that UTF-8 forbids and `json` accepts."""


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
