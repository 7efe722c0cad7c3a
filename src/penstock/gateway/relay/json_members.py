"""Members of a JSON object, found in its bytes, so that one can be replaced and all the others stay as they are."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import orjson

__all__ = ["top_level_spans", "with_members"]

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_FLAT = rb'[^"{}\[\]]++|' + _STRING
_TOKEN = re.compile(_STRING + rb"|[{}\[\],:]", re.DOTALL)
_BRACKET = re.compile(rb"(?:%b|[{\[](?:%b)*+[}\]])*+[{}\[\]]" % (_FLAT, _FLAT), re.DOTALL)
"""The next one behind which it goes deeper or back. What has none inside is passed over in one go, which makes
a list of 20,000 messages five times as fast."""
_BEGIN = re.compile(rb"\s*\{")
_COMMA = re.compile(rb"\s*,\s*")


class _Member(NamedTuple):
    name: bytes
    """However its key is spelled."""
    at: int
    """Where its key stands."""
    key_end: int
    value_at: int
    end: int


def top_level_spans(data: bytes, name: str) -> list[tuple[int, int]]:
    """The values of every top-level member of that name. `data` is valid JSON, or the beginning of it."""
    wanted = name.encode()
    return [(member.value_at, member.end) for member in _members(data) if member.name == wanted]


def with_members(data: bytes, renames: Mapping[bytes, bytes], defaults: Mapping[bytes, bytes]) -> bytes:
    """An object, which is not empty, with its keys renamed where they stand, and at its end what it lacks of the defaults,
    which are JSON. Every other byte stays as it is.

    A member whose new name is there already goes: what the caller says in the provider's own words counts.
    """
    members = list(_members(data))
    names: list[bytes | None] = [member.name for member in members]
    for old, new in renames.items():
        if old != new and old in names:
            goes = new in names
            names = [(None if goes else new) if name == old else name for name in names]
    pieces: list[bytes] = []
    at = 0
    for member, name in zip(members, names, strict=True):
        if name == member.name:
            continue
        pieces.append(data[at : member.at])
        at = member.end
        if name is not None:
            pieces.append(_quoted(name))
            at = member.key_end
        elif (comma := _COMMA.match(data, at)) is not None:
            at = comma.end()
        else:  # of the last one it is the comma before it that goes
            pieces = [b"".join(pieces).rstrip().removesuffix(b",")]
    end = data.rindex(b"}")
    pieces.append(data[at:end])
    pieces += [b",%b:%b" % (_quoted(name), value) for name, value in defaults.items() if name not in names]
    return b"".join([*pieces, data[end:]])


def _quoted(name: bytes) -> bytes:
    return orjson.dumps(name.decode())


def _members(data: bytes) -> Iterator[_Member]:
    key: re.Match[bytes] | None = None
    value_at = -1
    begin = _BEGIN.match(data)
    at = begin.end() if begin is not None else len(data)
    while (token := _TOKEN.search(data, at)) is not None:
        at = token.end()
        first = data[token.start()]
        if first in b"{[":
            at = _behind(data, at)
        elif first == 0x22 and key is None:
            key = token
        elif first == 0x3A:
            value_at = at
        elif first in b",}":
            if key is not None and value_at >= 0:
                value = data[value_at : token.start()]
                start = value_at + len(value) - len(value.lstrip())
                yield _Member(_spelled(key.group()), key.start(), key.end(), start, start + len(value.strip()))
            key, value_at = None, -1
            if first == 0x7D:
                return


def _behind(data: bytes, at: int) -> int:
    """The end of the object or list that begins before `at`."""
    depth = 1
    while depth:
        bracket = _BRACKET.match(data, at)
        if bracket is None:
            return len(data)
        at = bracket.end()
        depth += 1 if data[at - 1] in b"{[" else -1
    return at


def _spelled(key: bytes) -> bytes:
    if b"\\" not in key:
        return key[1:-1]
    try:
        return str(orjson.loads(key)).encode()
    except orjson.JSONDecodeError:  # half of a surrogate pair: the name of nothing that is looked for
        return key
