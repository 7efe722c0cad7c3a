"""The texts in a JSON body or an event, found by the map of its fields (see `field_map`).

Texts are searched one by one, so that no match extends from one message into the next. The exception is a list of content
parts: the reader sees them without a gap, so they are searched one by one and also joined. Token ids (a prompt or an input of
numbers) are not text; guardrails do not decode them.
"""

from __future__ import annotations

import re
from typing import Any

from penstock.gateway.dialects.field_map import (
    FILE,
    FREE,
    ID,
    KEY,
    LABEL,
    MEDIA,
    SETTING,
    SKIP,
    TEXT,
    TOKENS,
    UNKNOWN,
    WORD,
    FieldMap,
    Kind,
    Shape,
    join_parts,
)
from penstock.gateway.dialects.media import EncodedText, encoded_texts

Address = tuple[Any, ...]
"""Identifies a text of a stream: the item or choice, and the path below it."""

DELTA = "delta"
"""The `source` of pieces."""

_COMMON_VALUES = frozenset(
    (
        *("user", "assistant", "system", "developer", "tool", "function", "message", "text", "input_text"),
        *(
            "output_text",
            "object",
            "string",
            "number",
            "integer",
            "boolean",
            "array",
            "null",
            "auto",
            "completed",
            "stop",
        ),
        *("chat.completion.chunk", "response.output_text.delta", "response.function_call_arguments.delta"),
    )
)
"""Frequent protocol values: a set lookup is faster than the regular expression."""
_MAX_SETTING = 64
_SETTING = re.compile(r"[A-Za-z][A-Za-z_.:/-]*|[a-z][a-z_.:/-]*(?:[0-9](?![.:][0-9])[a-z_.:/-]*){1,8}")
"""Matches `response.output_text.delta`, `date-time`, `MAX_TOKENS`, `web_search_20250305`. Matches no number that a detector
finds, and no API key: those have capitals and digits."""
_INDEX = "index"
_MAX_DEPTH = 16


class TextRef:
    """A string, key or number in a JSON body: its container and key, and its replacement if it is masked."""

    def __init__(self, container: Any, key: Any, text: str, source: str, kind: Kind = TEXT) -> None:
        self.container = container
        self.key = key
        self.text = text
        self.source = source
        self.kind = kind
        self.replacement: str | None = None

    def written(self, text: str) -> str:
        """Return `text` as it is written in the body."""
        return text


class EncodedRef(TextRef):
    """An encoded text, such as the data of a file; `text` is decoded."""

    def __init__(self, container: Any, key: Any, encoded: EncodedText, source: str) -> None:
        super().__init__(container, key, encoded.text, source, FILE)
        self._encoded = encoded

    def written(self, text: str) -> str:
        return self._encoded.write(text)


class JoinedText:
    """A text in parts, each of which consists of one or more strings. Each part is searched, and so are the parts joined."""

    def __init__(self, parts: list[list[TextRef]]) -> None:
        self.parts = parts


InspectedText = TextRef | JoinedText


class Texts:
    """The texts of a body or an event."""

    def __init__(self) -> None:
        self.complete: list[InspectedText] = []
        self.pieces: list[tuple[Address, TextRef]] = []
        """Pieces that continue a text of the stream."""
        self.ended: list[Address] = []
        """Address prefixes of texts that have ended."""
        self.switched: list[Address] = []
        """Addresses that the stream has switched away from."""
        self.tokens: list[tuple[dict[str, Any], str]] = []
        """Objects and the keys of the tokens in them."""


def is_setting(text: str) -> bool:
    """Return True if `text` looks like a protocol value (a type, role or state)."""
    return text in _COMMON_VALUES or (len(text) <= _MAX_SETTING and _SETTING.fullmatch(text) is not None)


def walk(root: Any, shape: Shape, source: str, found: Texts | None = None, address: Address | None = None) -> Texts:
    """Return the texts below `root`. With an address, its strings are pieces of the texts below that address."""
    found = Texts() if found is None else found
    complete = found.complete
    joined: set[tuple[int, str]] = set()
    # Not recursive: a body may be nested deeper than Python's recursion limit.
    stack: list[tuple[Any, Shape, Address | None]] = [(root, shape, address)]
    while stack:
        node, shape, address = stack.pop()
        if type(node) is list:
            _walk_list(node, shape, source, found, address, stack, joined)
            continue
        if type(node) is not dict:
            continue
        first = len(stack)
        if isinstance(shape, FieldMap):
            shape = shape.of(node) if shape.by_type else shape
            members, others = shape.members, shape.others
        else:
            members, others = _NO_MEMBERS, FREE if shape in (FREE, LABEL) else UNKNOWN
        for key, value in node.items():
            member = members.get(key)
            if member is None:
                member = others
                if key:
                    complete.append(TextRef(node, key, key, source, KEY))
            kind = type(value)
            if kind is str:
                if not value:
                    continue
                string = member.string if isinstance(member, FieldMap) else member
                if string == SKIP:
                    continue
                if string > UNKNOWN:
                    if string > WORD or value not in _COMMON_VALUES:
                        _add_encoded(node, key, value, string, source, complete)
                elif address is not None:
                    found.pieces.append((_below(address, key), TextRef(node, key, value, DELTA, string)))
                elif not joined or (id(node), key) not in joined:
                    complete.append(TextRef(node, key, value, source, string))
            elif kind is dict or kind is list:
                if member == TOKENS:
                    if value:
                        found.tokens.append((node, key))
                elif member != SKIP:
                    stack.append((value, member, None if address is None else _below(address, key)))
            elif kind is int or kind is float:
                _add_number(node, key, value, member, source, complete)
        if address is not None:
            stack[first:] = reversed(stack[first:])  # pieces of one text must be in order
    return found


_NO_MEMBERS: dict[str, Shape] = {}
_Stack = list[tuple[Any, Shape, Address | None]]


def _walk_list(
    node: list[Any],
    shape: Shape,
    source: str,
    found: Texts,
    address: Address | None,
    stack: _Stack,
    joined: set[tuple[int, str]],
) -> None:
    kind, join = (shape.string, shape.join) if isinstance(shape, FieldMap) else (shape, None)
    if shape == UNKNOWN:
        join = join_parts
    if join is not None and address is None and len(node) > 1:
        _join(join(node), source, found, joined)
    first = len(stack)
    for index, value in enumerate(node):
        value_type = type(value)
        if value_type is dict or value_type is list:
            below = None
            if address is not None:
                below = _below(address, value.get(_INDEX, index) if value_type is dict else index)
            stack.append((value, shape, below))
        elif value_type is str:
            if value and kind <= UNKNOWN:
                if address is not None:
                    found.pieces.append((_below(address, index), TextRef(node, index, value, DELTA, kind)))
                else:
                    found.complete.append(TextRef(node, index, value, source, kind))
            elif value:
                _add_encoded(node, index, value, kind, source, found.complete)
        elif (value_type is int or value_type is float) and kind in (FREE, UNKNOWN, LABEL):
            _add_number(node, index, value, kind, source, found.complete)
    if address is not None:
        stack[first:] = reversed(stack[first:])


def _below(address: Address, key: Any) -> Address:
    return (*address, key) if len(address) < _MAX_DEPTH else address


def _join(
    runs: list[list[tuple[dict[str, Any], str]]], source: str, found: Texts, joined: set[tuple[int, str]]
) -> None:
    for run in runs:
        places = [(node, key) for node, key in run if (id(node), key) not in joined]
        if len(places) > 1:
            found.complete.append(JoinedText([[TextRef(node, key, node[key], source)] for node, key in places]))
            joined.update([(id(node), key) for node, key in places])


def _add_number(
    node: Any, key: Any, value: int | float, shape: Shape, source: str, complete: list[InspectedText]
) -> None:
    """Add an integer, which may be written as a float."""
    kind = shape.string if isinstance(shape, FieldMap) else shape
    if kind > UNKNOWN:
        return
    if type(value) is float:
        if not value.is_integer():
            return
        value = int(value)
    complete.append(TextRef(node, key, str(value), source, ID if kind == UNKNOWN else kind))


def _add_encoded(node: Any, key: Any, value: str, kind: Kind, source: str, complete: list[InspectedText]) -> None:
    """Add a string that is not plain text."""
    if kind == SETTING:
        if not is_setting(value):
            complete.append(TextRef(node, key, value, source))
    elif kind == ID:
        complete.append(TextRef(node, key, value, source, ID))
    elif kind in (TOKENS, WORD):
        complete.append(TextRef(node, key, value, source))
    elif kind in (MEDIA, FILE):
        encoded = encoded_texts(value, is_file=kind == FILE)
        complete += [EncodedRef(node, key, text, source) for text in encoded]
