"""Members of a JSON object, found in its bytes, so that one can be replaced and all the others stay as they are."""

from __future__ import annotations

import re

import orjson

__all__ = ["top_level_spans"]

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\],:]', re.DOTALL)


def top_level_spans(data: bytes, name: str) -> list[tuple[int, int]]:
    """The values of every top-level member of that name, however its key is spelled. `data` is valid JSON, or the
    beginning of it."""
    spans: list[tuple[int, int]] = []
    depth = 0
    key: bytes | None = None
    value_at = -1
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        if first in b"{[":
            depth += 1
        elif first in b"}]":
            depth -= 1
        if depth > 1 or (depth == 1 and first in b"]}"):
            continue
        if first == 0x22 and key is None:
            key = token.group()
        elif first == 0x3A:
            value_at = token.end()
        elif (first == 0x2C or depth == 0) and key is not None:
            if value_at >= 0 and _spells(key, name):
                value = data[value_at : token.start()]
                start = value_at + len(value) - len(value.lstrip())
                spans.append((start, start + len(value.strip())))
            key, value_at = None, -1
    return spans


def _spells(key: bytes, name: str) -> bool:
    if b"\\" not in key:
        return key[1:-1] == name.encode()
    try:
        return bool(orjson.loads(key) == name)
    except orjson.JSONDecodeError:  # half of a surrogate pair
        return False
