"""Edits of JSON bytes: replace strings and values, and rename or add members. All other bytes stay as they are."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

from penstock.gateway.refusal import Refusal

_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_EVERY_STRING = re.compile(_STRING, re.DOTALL)
_ANY_TOKEN = re.compile(rb'(%b)(\s*+:)?|([{\[])|([}\]])|(,)|[^\s{}\[\],:"]++' % _STRING, re.DOTALL)
_KEY, _BEGIN, _END, _COMMA = 2, 3, 4, 5
"""The last matched group gives the kind of a token; any other kind is a value."""
_OPEN_BRACE = ord("{")

_FLAT = rb'[^"{}\[\]]++|' + _STRING
_TOKEN = re.compile(_STRING + rb"|[{}\[\],:]", re.DOTALL)
_BRACKET = re.compile(rb"(?:%b|[{\[](?:%b)*+[}\]])*+[{}\[\]]" % (_FLAT, _FLAT), re.DOTALL)
"""Matches up to the next bracket that changes the depth. Flat objects and lists are skipped in one match, which makes
a list of 20,000 messages five times as fast."""
_FIRST_BRACE = re.compile(rb"\s*\{")
_SEPARATOR = re.compile(rb"\s*,\s*")

Replacements = dict[tuple[int, Any], bytes]
"""(id of the parsed container, key or index) -> the bytes that replace the value, or the key itself."""


def count_values(data: bytes) -> int:
    """Return the number of commas outside of strings, which is about that of the values."""
    return _EVERY_STRING.sub(b"", data).count(b",")


# -- at any depth ---------------------------------------------------------------------------------------------------------


class _OpenContainer:
    """An open container and the current position in it."""

    def __init__(self, node: Any, replaced_at: int, discarded: bool) -> None:
        self.node = node
        self.key_or_index: Any = 0
        """0, which is not a valid key, in an object before its first key."""
        self.replaced_at = replaced_at
        """Start of the container if all of it is replaced, otherwise -1."""
        self.discarded = discarded or replaced_at >= 0
        """True if this container or one around it is replaced, so that its content is not written."""


def replace_in_place(body: bytes, source: bytes, root: list[Any], keys: Replacements, values: Replacements) -> bytes:
    """Return the body with keys and values replaced.

    `source` is the body as it was parsed: it has the same length and the same token positions. `root` is a list with the
    parsed value as its only member.
    """
    out: list[bytes] = []
    done = 0
    current = _OpenContainer(root, -1, False)
    stack = [current]
    for token in _ANY_TOKEN.finditer(source):
        kind = token.lastindex
        if kind == _COMMA:
            if type(current.node) is list:
                current.key_or_index += 1
            continue
        start, end = token.span()
        if kind == _BEGIN:
            replaced = start if (id(current.node), current.key_or_index) in values and not current.discarded else -1
            current = _OpenContainer(
                _child(current, dict if source[start] == _OPEN_BRACE else list), replaced, current.discarded
            )
            stack.append(current)
            continue
        if kind == _END:
            replaced = stack.pop().replaced_at
            current = stack[-1]
            if replaced >= 0:
                out += (body[done:replaced], values[id(current.node), current.key_or_index])
                done = end
            continue
        if kind == _KEY:
            end = token.end(1)
            current.key_or_index = _decoded_name(source[start:end])
            replacement = keys.get((id(current.node), current.key_or_index)) if keys else None
        else:
            replacement = values.get((id(current.node), current.key_or_index))
        if replacement is not None and not current.discarded:
            out += (body[done:start], replacement)
            done = end
    out.append(body[done:])
    return b"".join(out)


def _child(current: _OpenContainer, kind: type) -> Any:
    """Return the parsed container that starts here, or an empty one if a duplicate key overrode it."""
    node = current.node
    try:
        child = node[current.key_or_index]
    except (LookupError, TypeError):
        child = None
    return child if type(child) is kind else kind()


def _decoded_name(token: bytes) -> Any:
    return json.loads(token) if b"\\" in token else token[1:-1].decode("utf-8", "replace")


# -- top-level members ----------------------------------------------------------------------------------------------------


MAX_BRACKETS = 200_000
"""Brackets below the top level that a search in a request may pass: 0.1 s. Those of flat values do not count."""
_MEMBER_COST = 10
"""A member of the top level takes as long as so many brackets."""


def too_complex() -> Refusal:
    """Return the refusal of JSON with more members or nested values than a search may pass."""
    return Refusal(413, "invalid_request_error", "The request body has too many values.")


class _Member(NamedTuple):
    name: bytes
    """The decoded key."""
    start: int
    """Start of its key."""
    key_end: int
    value_start: int
    end: int


def top_level_spans(data: bytes, name: str, max_brackets: int = 0) -> list[tuple[int, int]]:
    """Return start and end of the value of every top-level member of that name. `data` is a prefix of valid JSON.

    Raise Refusal after `max_brackets`, if that is not 0.
    """
    encoded = name.encode()
    return [(member.value_start, member.end) for member in _members(data, max_brackets) if member.name == encoded]


def top_level_names(data: bytes, max_brackets: int) -> list[str]:
    """Return the names of the top-level members. Raise Refusal after `max_brackets`."""
    return [member.name.decode("utf-8", "replace") for member in _members(data, max_brackets)]


def with_members(data: bytes, renames: Mapping[bytes, bytes], defaults: Mapping[bytes, bytes]) -> bytes:
    """Return a non-empty object with its keys renamed in place, and missing `defaults` (JSON values) added at its end.

    If an object already has a member with the new name, the renamed member is dropped: the caller's explicit use of the
    provider's name wins. All other bytes stay as they are.
    """
    members = list(_members(data, MAX_BRACKETS))
    names: list[bytes | None] = [member.name for member in members]
    for old, new in renames.items():
        if old != new and old in names:
            drop = new in names
            names = [(None if drop else new) if name == old else name for name in names]
    pieces: list[bytes] = []
    position = 0
    for member, name in zip(members, names, strict=True):
        if name == member.name:
            continue
        pieces.append(data[position : member.start])
        position = member.end
        if name is not None:
            pieces.append(_quoted(name))
            position = member.key_end
        elif (comma := _SEPARATOR.match(data, position)) is not None:
            position = comma.end()
        else:  # the last member: remove the comma before it
            pieces = [b"".join(pieces).rstrip().removesuffix(b",")]
    end = data.rindex(b"}")
    pieces.append(data[position:end])
    pieces += [b",%b:%b" % (_quoted(name), value) for name, value in defaults.items() if name not in names]
    return b"".join([*pieces, data[end:]])


def set_member(data: bytes, name: str, value: bytes) -> bytes:
    """Return a non-empty object with a top-level member set to a JSON value: in place, or added at its end."""
    # Without the quoted name or an escape, no search is needed.
    may_have = _quoted(name.encode()) in data or b"\\u" in data
    spans = top_level_spans(data, name, MAX_BRACKETS) if may_have else []
    if not spans:
        end = data.rindex(b"}")
        return b"%b,%b:%b%b" % (data[:end], _quoted(name.encode()), value, data[end:])
    for start, end in reversed(spans):
        data = b"%b%b%b" % (data[:start], value, data[end:])
    return data


def _quoted(name: bytes) -> bytes:
    return orjson.dumps(name.decode())


def _members(data: bytes, max_brackets: int) -> Iterator[_Member]:
    key: re.Match[bytes] | None = None
    value_start = -1
    left = max_brackets or sys.maxsize
    begin = _FIRST_BRACE.match(data)
    position = begin.end() if begin is not None else len(data)
    while (token := _TOKEN.search(data, position)) is not None:
        position = token.end()
        first = data[token.start()]
        if first in b"{[":
            position, left = _container_end(data, position, left)
        elif first == 0x22 and key is None:
            key = token
        elif first == 0x3A:
            value_start = position
        elif first in b",}":
            if key is not None and value_start >= 0:
                value = data[value_start : token.start()]
                start = value_start + len(value) - len(value.lstrip())
                yield _Member(_decode_key(key.group()), key.start(), key.end(), start, start + len(value.strip()))
            key, value_start = None, -1
            left -= _MEMBER_COST
            if first == 0x7D:
                return
            if left <= 0:
                raise too_complex()


def _container_end(data: bytes, position: int, left: int) -> tuple[int, int]:
    """Return the end of the object or list whose opening bracket is just before `position`, and how many of the `left`
    brackets are left after it."""
    depth = 1
    while depth:
        bracket = _BRACKET.match(data, position)
        if bracket is None:
            return len(data), left
        position = bracket.end()
        depth += 1 if data[position - 1] in b"{[" else -1
        left -= 1
        if left <= 0:
            raise too_complex()
    return position, left


def _decode_key(key: bytes) -> bytes:
    if b"\\" not in key:
        return key[1:-1]
    try:
        return str(orjson.loads(key)).encode()
    except orjson.JSONDecodeError:  # an unpaired surrogate: no name that is looked for
        return key
