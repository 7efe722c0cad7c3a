"""The slow reader takes what RFC 8259 allows, and says where the rest goes wrong."""

from __future__ import annotations

import json
from random import Random

import pytest

from penstock.datasets.json_text import Cut, Malformed, end_of_value, items, members, outline, skip_space

PARTS = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"1", b"0", b"-", b".", b"e", b"true", b"null", b" ", b"\\", b"a"),
    *(b"\\u00e9", b"\\ud800", b'"a"', b'"b":'),
]


def accepts(text: bytes) -> bool:
    try:
        return skip_space(text, end_of_value(text, skip_space(text, 0))) == len(text)
    except (Cut, Malformed):
        return False


def standard(text: bytes) -> bool:
    def refuse(_: str) -> None:
        raise ValueError

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def test_it_agrees_with_the_standard_library() -> None:
    draw = Random(4)
    texts = [b"".join(draw.choices(PARTS, k=draw.randint(1, 8))) for _ in range(20_000)]
    assert [text for text in texts if accepts(text) != standard(text)] == []
    assert sum(map(accepts, texts)) > 200


@pytest.mark.parametrize(
    "text", [b'{"a":[1,2,{"b":"\\u00e9\\n"}],"c":true,"d":-1.5e+3,"e":null}', b'[[],{},"x"]', b'"\\ud83d"']
)
def test_a_text_that_breaks_off_is_cut_and_not_malformed(text: bytes) -> None:
    for length in range(1, len(text)):
        with pytest.raises(Cut):
            end_of_value(text[:length], 0)
    assert end_of_value(text + b" , more", 0) == len(text)


def test_depth_and_length_do_not_matter() -> None:
    text = b'{"a":' * 30_000 + b"[" * 30_000 + b"]" * 30_000 + b"}" * 30_000
    assert end_of_value(text, 0) == len(text)
    text = b'"' + b"\\n" * 300_000 + b'"'
    assert end_of_value(text, 0) == len(text)
    assert end_of_value(b"9" * 10_000, 0) == 10_000


@pytest.mark.parametrize(
    ("text", "at", "reason"),
    [
        (b'{"a" 1}', 5, "a colon should be here"),
        (b'{"a":1 "b"}', 7, "a comma or } should be here"),
        (b"[1 2]", 3, "a comma or ] should be here"),
        (b"{a:1}", 1, "a key in quotes should be here"),
        (b'["\\x"]', 2, "'\\\\x' is not an escape"),
        (b'["\\u00g0"]', 2, "'\\\\u00g0' is not an escape"),
        (b'["a\tb"]', 3, "a control character stands bare in a string; write it as an escape"),
        (b"[NaN]", 1, "'NaN' is not a JSON value"),
        (b"[01]", 1, "'01' is not a JSON value"),
        (b"[1,]", 3, "']' is not a JSON value"),
    ],
)
def test_what_is_wrong_and_where(text: bytes, at: int, reason: str) -> None:
    with pytest.raises(Malformed) as caught:
        end_of_value(text, 0)
    assert (caught.value.at, caught.value.reason) == (at, reason)


def test_members_and_items() -> None:
    text = b'{ "a" : 1 , "a":[ 2 , {"x":[]} ],"\\u0062":"c" }'
    found = [(each.name, text[each.begin : each.end]) for each in members(text, 0)]
    assert found == [("a", b"1"), ("a", b'[ 2 , {"x":[]} ]'), ("b", b'"c"')]
    begin = text.index(b"[ 2")
    assert [text[a:b] for a, b in items(text, begin)] == [b"2", b'{"x":[]}']
    assert outline(text) == {"a": [], "b": "c"}
    assert outline(b"[1]") is outline(b'{"a":') is outline(b"{} {}") is None
