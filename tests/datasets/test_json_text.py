"""JSON that msgspec refuses is accepted or explained, and its bytes keep their positions."""

from __future__ import annotations

import io
import json
from random import Random

import msgspec
import pytest

from penstock.datasets.json_text import TOO_DEEP, address, is_json, replace_lone_surrogates, syntax_error
from penstock.datasets.json_window import Malformed, Truncated, Window

PARTS = [
    *(b"{", b"}", b"[", b"]", b'"', b",", b":", b"1", b"0", b"-", b".", b"e", b"true", b"null", b" ", b"\\", b"a"),
    *(b"\\u00e9", b"\\ud800", b'"a"', b'"b":'),
]


def value_end(text: bytes) -> int:
    window = Window(io.BytesIO(text))
    window.skip_space()
    return window.value_end()


def json_accepts(text: bytes) -> bool:
    def refuse(_: str) -> None:
        raise ValueError

    try:
        json.loads(text, parse_constant=refuse)
    except ValueError:
        return False
    return True


def test_is_json_agrees_with_the_standard_library() -> None:
    draw = Random(4)
    texts = [b"".join(draw.choices(PARTS, k=draw.randint(1, 8))) for _ in range(20_000)]
    assert [text for text in texts if is_json(text) != json_accepts(text)] == []
    assert sum(map(is_json, texts)) > 200


@pytest.mark.parametrize(
    "text", [b'{"a":[1,2,{"b":"\\u00e9\\n"}],"c":true,"d":-1.5e+3,"e":null}', b'[[],{},"x"]', b'"\\ud83d"']
)
def test_incomplete_value_is_reported_as_truncated(text: bytes) -> None:
    for length in range(1, len(text)):
        with pytest.raises(Truncated):
            value_end(text[:length])
    assert value_end(text + b" , more") == len(text)


def test_value_may_be_long_and_nested_500_levels() -> None:
    text = b'{"a":' * 250 + b"[" * 250 + b"]" * 250 + b"}" * 250
    assert value_end(text) == len(text)
    text = b'"' + b"\\n" * 300_000 + b'"'
    assert value_end(text) == len(text)
    assert value_end(b"9" * 10_000) == 10_000


def test_nesting_beyond_the_recursion_limit_is_refused() -> None:
    with pytest.raises(Malformed) as caught:
        value_end(b" " + b"[" * 100_000 + b"]" * 100_000)
    assert (caught.value.offset, caught.value.reason) == (1, TOO_DEEP)
    assert not is_json(b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize(
    ("text", "offset", "reason"),
    [
        (b'{"a" 1}', 5, "expecting ':' delimiter"),
        (b'{"a":1 "b"}', 7, "expecting ',' delimiter"),
        (b"[1 2]", 3, "expecting ',' delimiter"),
        (b"{a:1}", 1, "expecting property name enclosed in double quotes"),
        (b'["\\x"]', 2, "invalid \\escape"),
        (b'["\\u00g0"]', 3, "invalid \\uXXXX escape"),
        (b'["a\tb"]', 3, "invalid control character"),
        (b'["\\"NaN", "\xc3\xa9", NaN]', 16, "NaN is not a JSON value"),
        (b"[-Infinity]", 1, "-Infinity is not a JSON value"),
        (b"[01]", 2, "expecting ',' delimiter"),
    ],
)
def test_syntax_error_has_a_byte_offset_and_a_reason(text: bytes, offset: int, reason: str) -> None:
    assert syntax_error(text, 0) == (offset, reason)
    with pytest.raises(Malformed) as caught:
        value_end(b"\n" + text)
    assert caught.value.offset == offset + 1


def test_lone_surrogates_are_replaced_without_moving_any_byte() -> None:
    text = rb'"\ud83d\ude00 \ud83d \uDC00\\ud800 \ud83d\u0041 \ud8zz"'
    assert replace_lone_surrogates(text) == rb'"\ud83d\ude00 \u003f \u003f\\ud800 \u003f\u0041 \ud8zz"'


@pytest.mark.parametrize("end", [b"", b"\\", b"\\u", b"\\ude0"])
def test_pair_that_is_cut_by_the_end_of_the_data_is_kept(end: bytes) -> None:
    assert replace_lone_surrogates(b'"\\ud83d' + end) == b'"\\ud83d' + end


def test_addresses_give_the_offset_of_a_raw_value() -> None:
    text = b'{"a": 1, "b": [2]}'
    raw = msgspec.json.decode(text, type=dict[str, msgspec.Raw])["b"]
    assert address(raw) - address(text) == text.index(b"[2]")
