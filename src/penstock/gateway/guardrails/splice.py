"""Masks written into JSON where their strings stand; every other byte stays as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import orjson

from penstock.gateway.guardrails.texts import KeySlot, Slot

__all__ = ["splice"]

_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+"|[{}\[\],:]|[^\s{}\[\],:"]++', re.DOTALL)

Places = dict[tuple[int, Any], bytes]
"""Container's id and key -> what is to stand there."""


def splice(body: bytes, source: bytes, root: Any, slots: Iterable[Slot]) -> bytes:
    """The body with new texts in the places of `slots`.

    `source` is the body as it was read: of the same length, and the tokens at the same places. `root` is what it says,
    inside a list of its own.
    """
    keys: Places = {}
    values: Places = {}
    for slot in slots:
        if slot.new is not None:
            places = keys if isinstance(slot, KeySlot) else values
            places[id(slot.container), slot.key] = _string(slot.new)
            if type(slot.container) is dict:
                _forget_probabilities(slot.container, values)
    if not keys and not values:
        return body
    if type(root[0]) is dict and type(root[0].get("choices")) is list:
        for choice in root[0]["choices"]:
            if type(choice) is dict:
                _forget_probabilities(choice, values)
    return _spliced(body, source, root, keys, values)


def _forget_probabilities(holder: dict[str, Any], values: Places) -> None:
    """They spell out the text that was masked."""
    if found := holder.get("logprobs"):
        values[id(holder), "logprobs"] = b"[]" if type(found) is list else b"null"


class _Open:
    """A container that the reading is in, and where in it."""

    __slots__ = ("gone", "node", "place", "replaced_at")

    def __init__(self, node: Any, replaced_at: int, gone: bool) -> None:
        self.node = node
        self.place: Any = 0 if type(node) is list else None
        """Index, or key; None where a key comes next."""
        self.replaced_at = replaced_at
        """Where it begins when all of it is to be replaced, else -1."""
        self.gone = gone or replaced_at >= 0
        """Nothing in it is written any more: it is replaced, or one around it is."""


def _spliced(body: bytes, source: bytes, root: Any, keys: Places, values: Places) -> bytes:
    out: list[bytes] = []
    done = 0
    stack = [_Open(root, -1, False)]
    for token in _TOKEN.finditer(source):
        start, end = token.span()
        sign = source[start : start + 1]
        top = stack[-1]
        at = id(top.node), top.place
        if sign in b"{[":
            replaced = start if at in values and not top.gone else -1
            stack.append(_Open(_below(top, dict if sign == b"{" else list), replaced, top.gone))
        elif sign in b"}]":
            stack.pop()
            if top.replaced_at >= 0:
                above = stack[-1]
                out += (body[done : top.replaced_at], values[id(above.node), above.place])
                done = end
        elif sign == b",":
            top.place = top.place + 1 if type(top.node) is list else None
        elif sign != b":":
            found = None
            if top.place is None:
                top.place = _name(source[start:end])
                found = keys.get((id(top.node), top.place))
            elif at in values:
                found = values[at]
            if found is not None and not top.gone:
                out += (body[done:start], found)
                done = end
    out.append(body[done:])
    return b"".join(out)


def _below(top: _Open, kind: type) -> Any:
    """What the container that begins here was read as. A key that is there twice was read as the last one says."""
    node = top.node
    try:
        found = node[top.place]
    except (LookupError, TypeError):
        found = None
    return found if type(found) is kind else kind()


def _string(text: str) -> bytes:
    try:
        return orjson.dumps(text)
    except TypeError:  # half a character, of an upstream that escapes it so
        return json.dumps(text).encode()


def _name(token: bytes) -> Any:
    return json.loads(token) if b"\\" in token else token[1:-1].decode("utf-8", "replace")
