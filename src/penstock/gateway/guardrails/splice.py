"""Changes to JSON where it stands, masks in the place of strings and members cut out; every other byte stays as it was."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

import orjson

from penstock.gateway.guardrails.texts import KeySlot, Slot

__all__ = ["repeated", "splice", "without"]

_TOKEN = re.compile(rb'("(?:[^"\\]++|\\.)*+")(\s*+:)?|([{\[])|([}\]])|(,)|[^\s{}\[\],:"]++', re.DOTALL)
_KEY, _BEGIN, _END, _COMMA = 2, 3, 4, 5
"""The last group of a token says what it is; other than these, it is a value."""

_BRACE = ord("{")
_BACKSLASH = ord("\\")

_COLON = rb"\u003"
"""How one is spelled that is no colon of the grammar, and perhaps a few other signs."""

Span = tuple[int, int]

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
        self.place: Any = 0
        """Index, or key; in an object that has had none, nothing that it could hold."""
        self.replaced_at = replaced_at
        """Where it begins when all of it is to be replaced, else -1."""
        self.gone = gone or replaced_at >= 0
        """Nothing in it is written any more: it is replaced, or one around it is."""


def _spliced(body: bytes, source: bytes, root: Any, keys: Places, values: Places) -> bytes:
    out: list[bytes] = []
    done = 0
    top = _Open(root, -1, False)
    stack = [top]
    for token in _TOKEN.finditer(source):
        kind = token.lastindex
        if kind == _COMMA:
            if type(top.node) is list:
                top.place += 1
            continue
        start, end = token.span()
        if kind == _BEGIN:
            replaced = start if (id(top.node), top.place) in values and not top.gone else -1
            top = _Open(_below(top, dict if source[start] == _BRACE else list), replaced, top.gone)
            stack.append(top)
            continue
        if kind == _END:
            replaced = stack.pop().replaced_at
            top = stack[-1]
            if replaced >= 0:
                out += (body[done:replaced], values[id(top.node), top.place])
                done = end
            continue
        if kind == _KEY:
            end = token.end(1)
            top.place = _name(source[start:end])
            found = keys.get((id(top.node), top.place)) if keys else None
        else:
            found = values.get((id(top.node), top.place))
        if found is not None and not top.gone:
            out += (body[done:start], found)
            done = end
    out.append(body[done:])
    return b"".join(out)


def repeated(source: bytes, value: Any) -> list[Span]:
    """Where members stand that a later one with the same key replaced when `value` was read, each up to the next member.

    What was read is written again, and the colons are counted: each member that is gone had one, and none comes to be but
    where it was spelled as an escape. Only then, or when they differ, is the source gone through, which takes 50 times as long.
    """
    try:
        written = orjson.dumps(value)
    except TypeError:  # half a character, a long number, or deeper than orjson writes
        return _repeated(source)
    if written == source:
        return []
    if (_BACKSLASH not in source or _COLON not in source) and _colons(written) == _colons(source):
        return []
    return _repeated(source)


def _colons(data: bytes) -> int:
    """A third of the time that `count` takes, which looks at each byte by itself."""
    return len(data) - len(data.replace(b":", b""))


def _repeated(source: bytes) -> list[Span]:
    spans: list[Span] = []
    names: dict[Any, int] = {}
    starts: list[int] = []
    around: list[tuple[dict[Any, int], list[int]]] = []
    for token in _TOKEN.finditer(source):
        kind = token.lastindex
        if kind == _BEGIN:
            around.append((names, starts))
            names, starts = {}, []
        elif kind == _END:
            names, starts = around.pop()
        elif kind == _KEY:
            name = _name(token[1])
            before = names.get(name)
            names[name] = len(starts)
            starts.append(token.start())
            if before is not None:
                spans.append((starts[before], starts[before + 1]))
    return spans


def without(body: bytes, spans: list[Span]) -> bytes:
    """The body without these stretches, of which one may lie in another."""
    out: list[bytes] = []
    done = 0
    for start, end in sorted(spans):
        out.append(body[done:start])
        done = max(done, end)
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
