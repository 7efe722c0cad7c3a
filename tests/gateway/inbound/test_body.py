"""The request body: the model name is replaced in place, and no other byte changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.gateway.inbound.body import read_body, replace_model
from penstock.gateway.refusal import Refusal
from penstock.gateway.routes import BY_NAME

RESPONSES = BY_NAME["responses"]
KEYS = st.sampled_from(["model", "a", 'm"', "\\u"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(st.characters(codec="utf-8"), max_size=12)
    | st.sampled_from(["model", '"model":"x"', "\\", '"', "{", "}", ":", ","]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)  # fmt: skip


@given(
    before=st.dictionaries(st.text(max_size=6).filter(lambda name: name != "model"), VALUES, max_size=4),
    name=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
    ascii_only=st.booleans(),
    spaces=st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", "\t:  ")]),
    position=st.integers(0, 4),
)
def test_only_the_model_name_is_replaced(
    before: dict[str, Any], name: str, ascii_only: bool, spaces: tuple[str, str], position: int
) -> None:
    members = list(before.items())
    members.insert(position, ("model", name))
    data = json.dumps(dict(members), ensure_ascii=ascii_only, separators=spaces).encode()
    request = read_body(data, RESPONSES, 0)
    assert request.model == name
    assert json.loads(data[request.model_start : request.model_end]) == name
    rewritten = replace_model(request, b'"upstream"')
    assert json.loads(rewritten) == dict(members) | {"model": "upstream"}
    assert rewritten[: request.model_start] == data[: request.model_start]
    assert rewritten.endswith(data[request.model_end :])


@pytest.mark.parametrize(
    "data",
    [
        b'{"model":"a","x":1,"model":"b"}',
        b'{"model":"a","\\u006dodel":"b"}',
        b'{"mo\\u0064el":"a","mod\\u0065l":"b"}',
    ],
)
def test_duplicate_model_is_refused(data: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        read_body(data, RESPONSES, 0)
    assert (refused.value.status, refused.value.param) == (400, "model")


@pytest.mark.parametrize("name", ["previous_response_id", "conversation"])
def test_duplicate_reference_is_refused(name: str) -> None:
    once = b'{"model":"a","x":{"%b":"n"},"%b":"b"}' % (name.encode(), name.encode())
    assert read_body(once, RESPONSES, 0).references == [(name, "b")]
    for spelling in (name, name.replace("v", "\\u0076"), name.replace("o", "\\u006F")):
        with pytest.raises(Refusal) as refused:
            read_body(once[:-1] + b',"%b":null}' % spelling.encode(), RESPONSES, 0)
        assert (refused.value.status, refused.value.param) == (400, name)


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b'{"model":"a","Model":"b"}', "model"),
        (b'{"MODEL":"b","model":"a","input":[{"model":1}]}', "model"),
        (b'{"model":"a","Previous_Response_Id":"resp_1"}', "previous_response_id"),
        (b'{"model":"a","previous_response_\\u0049d":"resp_1"}', "previous_response_id"),
        ('{"model":"a","previou\u017f_response_id":"resp_1"}'.encode(), "previous_response_id"),
        (b'{"model":"a","previou\\u017f_response_id":"resp_1"}', "previous_response_id"),
        (b'{"model":"a","conversatioN" : {"id":"c"}}', "conversation"),
        (b'{"model":"a","Max_Output_Tokens":1}', "max_output_tokens"),
        (b'{"model":"a","previous_response_id":["resp_1"]}', "previous_response_id"),
        (b'{"model":"a","previous_response_id":{"id":"resp_1"}}', "previous_response_id"),
        (b'{"model":"a","conversation":["conv_1"]}', "conversation"),
        (b'{"model":"a","conversation":{"id":["conv_1"]}}', "conversation"),
    ],
)
def test_member_that_another_parser_may_take_for_a_checked_one_is_refused(data: bytes, param: str) -> None:
    with pytest.raises(Refusal) as refused:
        read_body(data, RESPONSES, 0)
    assert (refused.value.status, refused.value.param) == (400, param)


def test_other_spellings_below_the_top_level_are_allowed() -> None:
    data = b'{"model":"a","input":"\\u0041 \\"Model\\": 1","metadata":{"Model":"b","\\u0053tream":"c"},"Models":1}'
    assert read_body(data, RESPONSES, 0).model == "a"


def test_reference_may_be_spelled_with_escapes() -> None:
    data = b'{"model":"a","previous\\u005fresponse_id":"r"}'
    assert read_body(data, RESPONSES, 0).references == [("previous_response_id", "r")]


@pytest.mark.parametrize(
    ("route", "members", "expected"),
    [
        ("responses", {}, 1000),
        ("responses", {"max_output_tokens": 7}, 7),
        ("responses", {"max_output_tokens": 7, "max_tokens": 9}, 7),
        ("chat", {"max_completion_tokens": 8, "max_tokens": 9}, 9),
        ("chat", {"max_output_tokens": 1, "max_tokens": 4000}, 4000),
        ("chat", {"max_output_tokens": 1}, 1000),
        ("chat", {"max_tokens": 9, "n": 3}, 27),
        ("chat", {"n": 2}, 2000),
        ("chat", {"max_tokens": 0}, 1000),
        ("chat", {"max_tokens": -3}, 1000),
        ("chat", {"max_tokens": True, "n": False}, 1000),
        ("chat", {"max_tokens": "9"}, 1000),
        ("chat", {"max_tokens": 10**30}, 100_000_000),
        ("chat", {"max_tokens": 10**30, "n": 10**30}, 100_000_000),
        ("completions", {"max_tokens": 5, "n": 2, "best_of": 3, "prompt": "a"}, 15),
        ("completions", {"max_tokens": 5, "prompt": ["a", "b"]}, 10),
        ("completions", {"max_tokens": 5, "prompt": [1, 2, 3]}, 5),
        ("completions", {"max_tokens": 5, "prompt": [[1, 2], [3]]}, 10),
        ("embeddings", {"max_tokens": 5}, 0),
    ],
)
def test_output_limit_is_the_largest_that_the_route_reads(route: str, members: dict[str, Any], expected: int) -> None:
    data = json.dumps({"model": "a", "messages": ["m"], **members}).encode()
    assert read_body(data, BY_NAME[route], 1000).output_limit == expected


@pytest.mark.parametrize(
    ("stream", "expected"), [(True, True), (False, False), (1, False), ("true", False), (None, False)]
)
def test_only_true_requests_a_stream(stream: Any, expected: bool) -> None:
    assert read_body(json.dumps({"model": "a", "stream": stream}).encode(), RESPONSES, 0).stream is expected
