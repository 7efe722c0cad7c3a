"""Duplicate keys in replies: the reply is serialised again with the last value, which was inspected."""

from __future__ import annotations

import json
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.guardrails import SearchBudgets
from penstock.gateway.guardrails.json_input import without_duplicate_keys
from penstock.gateway.routes import BY_NAME
from support.guardrail_streams import guards, keyword, pii, run

Mode = Literal["buffer", "window"]
MODES: tuple[Mode, ...] = ("buffer", "window")
BLOCK = keyword(regexes=["code-[0-9]{4}"])
DEEP = b"[" * 400 + b"]" * 400

REPLIES = {
    b'{"text":"it is code-1234","text":"clean"}': b'{"text":"clean"}',
    b'{"output":[{"text" : "code-1234", "a":1 , "te\\u0078t":"clean"} ]}': b'{"output":[{"text":"clean","a":1}]}',
    b'{"text":"code-1234","a":"x\\u003a","text":"clean"}': b'{"text":"clean","a":"x:"}',
    b'{"text":{"a":"code-1234","a":"code-1234"},"text":[1,{"b":1,"b":2}]}': b'{"text":[1,{"b":2}]}',
    b'{"a":1,"a":2,"text":"code-1234","text":"2","text":"3"}': b'{"a":2,"text":"3"}',
    b'{"text":"code-1234","h":"x","text":"clean","a":%b}' % DEEP: b'{"text":"clean","h":"x","a":%b}' % DEEP,
}
"""Upstream reply -> the reply to the caller."""


@pytest.mark.parametrize(("body", "remaining"), REPLIES.items())
def test_overridden_duplicates_are_removed_from_replies(body: bytes, remaining: bytes) -> None:
    inspection = guards(BLOCK).compiled.inspect_reply(BY_NAME["responses"], body, SearchBudgets(1.0))
    assert (inspection.body, inspection.blocked_by) == (remaining, None)
    frame = b"data: %b\n\n"
    for mode in MODES:
        guard = guards(BLOCK, mode=mode, max_lengths={"words": 9}).stream("responses")
        outcome = run(guard, [frame % body, frame % b"{}"])
        assert (outcome.body, outcome.blocked) == (frame % remaining + frame % b"{}", None)


def test_last_duplicate_is_masked_or_blocked() -> None:
    body = b'{"text":"ann@example.com","n":"bob@example.com","text":"cid@example.com"}'
    assert guards(pii("email")).compiled.inspect_reply(BY_NAME["responses"], body, SearchBudgets(1.0)).body == (
        b'{"text":"[EMAIL_REDACTED]","n":"[EMAIL_REDACTED]"}'
    )
    assert (
        guards(BLOCK)
        .compiled.inspect_reply(BY_NAME["responses"], b'{"text":"clean","text":"code-1234"}', SearchBudgets(1.0))
        .blocked_by
        == "words"
    )


@pytest.mark.parametrize("mode", MODES)
def test_duplicate_deltas_are_removed(mode: Mode) -> None:
    event = b'data: {"type":"response.output_text.delta","output_index":0,"delta":%b"delta":"%b"}\n\n'
    body = [event % (b'"x ann@example.com ",', text) for text in (b"one ", b"bob@exam", b"ple.com ")]
    outcome = run(guards(pii("email"), mode=mode).stream("responses"), body)
    assert b"ann@" not in outcome.body
    assert [payload["delta"] for payload in outcome.payloads] == ["one ", "[EMAIL_REDACTED]", " "]
    assert outcome.body.count(b'"delta":') == 3


def test_monitoring_keeps_duplicates() -> None:
    body = b'{"text":"it is code-1234","text":"clean"}'
    harness = guards(keyword(regexes=["code-[0-9]{4}"], enforcement="monitor"))
    assert harness.compiled.inspect_reply(BY_NAME["responses"], body, SearchBudgets(1.0)).body is body
    assert run(harness.stream("responses"), [b"data: " + body + b"\n\n"]).body == b"data: " + body + b"\n\n"


NAMES = st.sampled_from(["a", "b", ":", '"', "\\", "a:", "é"])
ESCAPINGS = {"a": ['"a"', '"\\u0061"'], ":": ['":"', '"\\u003a"', '"\\u003A"'], '"': ['"\\""', '"\\u0022"']}


@st.composite
def json_texts(draw: st.DrawFn, depth: int = 0) -> str:
    """JSON texts with arbitrary whitespace and escapes, and possibly duplicate keys."""
    kind = draw(st.sampled_from(["object", "object", "list", "string", "number"] if depth < 3 else ["string"]))
    space = st.sampled_from(["", "", " ", "\n"])
    if kind == "number":
        return draw(st.sampled_from(["1", "2.50", "-0", "1e5", "true", "null"]))

    def string() -> str:
        name = draw(NAMES)
        return draw(st.sampled_from(ESCAPINGS.get(name, [json.dumps(name), json.dumps(name, ensure_ascii=False)])))

    if kind == "string":
        return string()
    values = [draw(json_texts(depth + 1)) for _ in range(draw(st.integers(0, 3)))]
    if kind == "list":
        return f"[{draw(space)}" + f"{draw(space)},".join(values) + "]"
    return "{" + ",".join([f"{draw(space)}{string()}{draw(space)}:{draw(space)}{value}" for value in values]) + "}"


def unique_members(members: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(members)) == len(members)
    return dict(members)


@settings(max_examples=200, deadline=None, derandomize=True)
@given(json_texts())
def test_only_json_with_duplicate_keys_is_serialised_again(text: str) -> None:
    source = text.encode()
    value = orjson.loads(source)
    unique = without_duplicate_keys(source, value)
    assert json.loads(unique, object_pairs_hook=unique_members) == value
    try:
        json.loads(source, object_pairs_hook=unique_members)
    except AssertionError:
        assert len(unique) < len(source)
    else:
        assert unique is source
