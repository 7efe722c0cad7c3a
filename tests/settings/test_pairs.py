from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import UserError
from penstock.settings.pairs import extra_fields, headers, value_of


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", {"a": 1}),
        ("a:1,b:two", {"a": 1, "b": "two"}),
        ("a: 1 , b : two", {"a": 1, "b": "two"}),
        ('{"a":1,"b":[1,2]}', {"a": 1, "b": [1, 2]}),
        (' {"a":{"b":null}} ', {"a": {"b": None}}),
        ("temperature:0.7", {"temperature": 0.7}),
        ("p:1e-3", {"p": 1e-3}),
        ("p:-2,q:-0.5", {"p": -2, "q": -0.5}),
        ("p:.5,q:1.", {"p": 0.5, "q": 1.0}),
        ("ok:true,no:False,none:None,null:null", {"ok": True, "no": False, "none": None, "null": None}),
        ('stop:["a","b"]', {"stop": ["a", "b"]}),
        ('stop:["a,b","]"],n:2', {"stop": ["a,b", "]"], "n": 2}),
        ('format:{"type":"json","x":[1,{"y":2}]},n:2', {"format": {"type": "json", "x": [1, {"y": 2}]}, "n": 2}),
        ('stop:"a,b",n:2', {"stop": "a,b", "n": 2}),
        ('id:"7"', {"id": "7"}),
        ('say:"hi" there', {"say": '"hi" there'}),
        ('disk:5" wide,n:1', {"disk": '5" wide', "n": 1}),
        ('"quoted":1', {"quoted": 1}),
        ("url:http://a:1/b", {"url": "http://a:1/b"}),
        ("id:007,zip:00.5", {"id": "007", "zip": "00.5"}),
        ("empty:", {"empty": ""}),
        ("big:123456789012345678901234567890", {"big": 123456789012345678901234567890}),
        ("huge:1e999", {"huge": "1e999"}),
        ("nan:nan,inf:inf", {"nan": "nan", "inf": "inf"}),
        ("don't:it's", {"don't": "it's"}),
    ],
)
def test_extra_fields_keep_json_types(text: str, expected: dict[str, Any]) -> None:
    actual = dict(extra_fields(text, "--extra-inputs"))
    assert actual == expected
    assert [type(value) for value in actual.values()] == [type(value) for value in expected.values()]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("temperature", "has a part 'temperature' that is not key:value"),
        ("stop:a,b", "has a part 'b' that is not key:value"),
        ("a,b:1", "has a part 'a' that is not key:value"),
        ("a:1,", "has a part '' that is not key:value"),
        (":1", "has a part '' that is not key:value"),
        ("stop:[a,b]", "The value of stop in --extra-inputs looks like JSON but is not"),
        ("stop:[1,2", "The value of stop in --extra-inputs looks like JSON but is not"),
        ("stop:[1]x", "continues with 'x' after the end of its JSON"),
        ('{"a":1', "The value of --extra-inputs looks like JSON but is not"),
        ('{"a":NaN}', "NaN is not JSON"),
        ('{"a":1e999}', "1e999 is too large"),
        ("a:" + "[" * 100_000, "looks like JSON but is not"),
    ],
)
def test_invalid_extra_fields_are_refused(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        extra_fields(text, "--extra-inputs")
    assert sentence in str(caught.value)


@given(st.text())
def test_extra_fields_raise_only_user_errors(text: str) -> None:
    with contextlib.suppress(UserError):
        assert extra_fields(text, "--extra-inputs")


@given(st.integers(-(10**30), 10**30) | st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_keep_value_and_type(number: float) -> None:
    assert value_of(repr(number)) == number
    assert type(value_of(repr(number))) is type(number)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("X-A:b", [("X-A", "b")]),
        ("X-A: b c ", [("X-A", "b c")]),
        ("Accept:text/html, */*;q=0.8", [("Accept", "text/html, */*;q=0.8")]),
        ("X-Mock:ttft=50;itl=5", [("X-Mock", "ttft=50;itl=5")]),
        ("X-N:5", [("X-N", "5")]),
        ("X-B:true", [("X-B", "true")]),
        ("X-Url:http://a:1", [("X-Url", "http://a:1")]),
        ("X-Empty:", [("X-Empty", "")]),
        ('{"X-A":"b, c","X-N":5,"X-B":true}', [("X-A", "b, c"), ("X-N", "5"), ("X-B", "true")]),
    ],
)
def test_headers_keep_strings(text: str, expected: list[tuple[str, str]]) -> None:
    assert headers(text, "-H") == expected


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("hunter2", "-H must be Name:Value"),
        ("Authorization Bearer hunter2:x", "not a valid header name"),
        (":hunter2", "not a valid header name"),
        ("X-A:hunter2\r\nX-B:1", "control character"),
        ("X-A:hunter2☃", "outside Latin-1"),
        ("Content-Length:5", "cannot set Content-Length"),
        ("transfer-encoding:chunked", "cannot set transfer-encoding"),
        ('{"X-A":["hunter2"]}', "must be a string or a number"),
        ('{"X-A":"hunter2"', "not a JSON object"),
    ],
)
def test_invalid_headers_are_refused_without_showing_the_value(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as caught:
        headers(text, "-H")
    assert sentence in str(caught.value)
    assert "hunter2" not in str(caught.value)
