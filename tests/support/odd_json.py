"""Strategies for unusual valid JSON: escapes, numbers, repeated keys, nesting, white space and any Unicode."""

from __future__ import annotations

from hypothesis import strategies as st

SPACE = st.sampled_from(["", "", "", " ", "  ", "\t", " \t "])
NUMBERS = st.one_of(
    st.sampled_from(
        [
            "0",
            "-0",
            "1e0",
            "1.00",
            "1E+5",
            "-0.0e-0",
            "0.1000",
            "1e999",
            "12345678901234567890123",
            "9" * 5000,
            "2.5E-12",
        ]
    ),
    st.integers().map(str),
)
CONSTANTS = st.sampled_from(["true", "false", "null"])


def _escaped(character: str, variant: int) -> str:
    """Return one of the forms that the character can have in a JSON string."""
    code = ord(character)
    short_forms = {
        '"': '\\"',
        "\\": "\\\\",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "/": "\\/",
    }
    if 0xD800 <= code <= 0xDFFF:
        return f"\\u{code:04x}" if variant % 2 else f"\\u{code:04X}"
    if character in short_forms and (variant % 3 or character in '"\\'):
        return short_forms[character]
    if code < 0x20 or variant == 0:
        return "".join(f"\\u{unit:04x}" for unit in _utf16_units(code))
    return character


def _utf16_units(code: int) -> list[int]:
    if code < 0x10000:
        return [code]
    return [0xD800 + (code - 0x10000 >> 10), 0xDC00 + (code - 0x10000 & 0x3FF)]


CHARACTERS = st.one_of(
    st.characters(codec="utf-8"),
    st.characters(categories=["Cs"]),
    st.sampled_from(list('"\\/\b\f\n\r\t\x00\x7f\u2028\u2029\ufeff\ufffd\U0001f600')),
)
STRINGS = st.lists(st.tuples(CHARACTERS, st.integers(0, 8)), max_size=12).map(
    lambda parts: '"' + "".join(_escaped(*part) for part in parts) + '"'
)


@st.composite
def _lists(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    items = draw(st.lists(inner, max_size=3))
    return "[" + draw(SPACE) + ",".join(draw(SPACE) + item + draw(SPACE) for item in items) + "]"


@st.composite
def _objects(draw: st.DrawFn, inner: st.SearchStrategy[str]) -> str:
    keys = st.one_of(STRINGS, st.sampled_from(['"a"', '"messages"', '"data"', '"model"']))
    members = draw(st.lists(st.tuples(keys, inner), max_size=3))
    return "{" + draw(SPACE) + ",".join(f"{key}{draw(SPACE)}:{draw(SPACE)}{value}" for key, value in members) + "}"


VALUES = st.recursive(
    st.one_of(NUMBERS, CONSTANTS, STRINGS), lambda inner: st.one_of(_lists(inner), _objects(inner)), max_leaves=8
)
DEEP = st.tuples(st.sampled_from(["[]", '{"a":}']), st.integers(1, 480)).map(
    lambda shape: (shape[0][:-1] * shape[1]) + ("0" if ":" in shape[0] else "") + shape[0][-1] * shape[1]
)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Draw a request body for chat: an object whose last `messages` is a list."""
    members = [
        f"{key}{draw(SPACE)}:{draw(SPACE)}{value}"
        for key, value in draw(st.lists(st.tuples(STRINGS, st.one_of(VALUES, VALUES, VALUES, DEEP)), max_size=3))
    ]
    members.append(f'"messages"{draw(SPACE)}:{draw(SPACE)}{draw(_lists(VALUES))}')
    return (draw(SPACE) + "{" + ",".join(members) + "}" + draw(SPACE)).encode()
