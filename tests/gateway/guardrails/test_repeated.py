"""A key that stands twice in a reply: what was read goes on, and nothing else."""

from __future__ import annotations

import json
from typing import Any, Literal

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.gateway.guardrails import SearchBudgets
from penstock.gateway.guardrails.splice import repeated, without
from support.guardrail_streams import guards, keyword, pii, run

Mode = Literal["buffer", "window"]
MODES: tuple[Mode, ...] = ("buffer", "window")
BLOCK = keyword(regexes=["code-[0-9]{4}"])
DEEP = b"[" * 400 + b"]" * 400

CUT = {
    b'{"text":"it is code-1234","text":"clean"}': b'{"text":"clean"}',
    b'{"output":[{"text" : "code-1234", "a":1 , "te\\u0078t":"clean"} ]}': b'{"output":[{"a":1 , "te\\u0078t":"clean"} ]}',
    b'{"text":"code-1234","a":"x\\u003a","text":"clean"}': b'{"a":"x\\u003a","text":"clean"}',
    b'{"text":{"a":"code-1234","a":"code-1234"},"text":[1,{"b":1,"b":2}]}': b'{"text":[1,{"b":2}]}',
    b'{"a":1,"a":2,"text":"code-1234","text":"2","text":"3"}': b'{"a":2,"text":"3"}',
    b'{"text":"code-1234","h":"\\ud800","text":"clean"}': b'{"h":"\\ud800","text":"clean"}',
    b'{"text":"code-1234","text":"clean","a":%b}' % DEEP: b'{"text":"clean","a":%b}' % DEEP,
}
"""Replies and what the caller gets of them."""


@pytest.mark.parametrize(("body", "left"), CUT.items())
def test_what_nobody_read_does_not_leave(body: bytes, left: bytes) -> None:
    found = guards(BLOCK).made.reply(body, SearchBudgets(1.0))
    assert (found.body, found.blocked_by) == (left, None)
    frame = b": x\nevent: e\ndata: %b\n\n"
    for mode in MODES:
        guard = guards(BLOCK, mode=mode, max_lengths={"words": 9}).stream("responses")
        outcome = run(guard, [frame % body, frame % b"{}"])
        assert (outcome.body, outcome.blocked) == (frame % left + frame % b"{}", None)


def test_what_is_read_is_masked_and_blocked() -> None:
    body = b'{"text":"ann@example.com","n":"bob@example.com","text":"cid@example.com"}'
    assert guards(pii("email")).made.reply(body, SearchBudgets(1.0)).body == (
        b'{"n":"[EMAIL_REDACTED]","text":"[EMAIL_REDACTED]"}'
    )
    assert guards(BLOCK).made.reply(b'{"text":"clean","text":"code-1234"}', SearchBudgets(1.0)).blocked_by == "words"


@pytest.mark.parametrize("mode", MODES)
def test_deltas(mode: Mode) -> None:
    event = b'data: {"type":"response.output_text.delta","output_index":0,"delta":%b"delta":"%b"}\n\n'
    body = [event % (b'"x ann@example.com ",', word) for word in (b"one ", b"bob@exam", b"ple.com ")]
    outcome = run(guards(pii("email"), mode=mode).stream("responses"), body)
    assert b"ann@" not in outcome.body
    assert [payload["delta"] for payload in outcome.payloads] == ["one ", "[EMAIL_REDACTED]", " "]
    assert outcome.body.count(b'"delta":') == 3


def test_what_only_watches_changes_nothing() -> None:
    body = b'{"text":"it is code-1234","text":"clean"}'
    made = guards(keyword(regexes=["code-[0-9]{4}"], enforcement="monitor"))
    assert made.made.reply(body, SearchBudgets(1.0)).body is body
    assert run(made.stream("responses"), [b"data: " + body + b"\n\n"]).body == b"data: " + body + b"\n\n"


NAMES = st.sampled_from(["a", "b", ":", '"', "\\", "a:", "é"])
SPELLED = {"a": ['"a"', '"\\u0061"'], ":": ['":"', '"\\u003a"', '"\\u003A"'], '"': ['"\\""', '"\\u0022"']}


@st.composite
def written(draw: st.DrawFn, depth: int = 0) -> str:
    """JSON in any spelling, with keys that may stand twice."""
    kind = draw(st.sampled_from(["object", "object", "list", "string", "number"] if depth < 3 else ["string"]))
    space = st.sampled_from(["", "", " ", "\n"])
    if kind == "number":
        return draw(st.sampled_from(["1", "2.50", "-0", "1e5", "true", "null"]))

    def string() -> str:
        name = draw(NAMES)
        return draw(st.sampled_from(SPELLED.get(name, [json.dumps(name), json.dumps(name, ensure_ascii=False)])))

    if kind == "string":
        return string()
    values = [draw(written(depth + 1)) for _ in range(draw(st.integers(0, 3)))]
    if kind == "list":
        return f"[{draw(space)}" + f"{draw(space)},".join(values) + "]"
    return "{" + ",".join([f"{draw(space)}{string()}{draw(space)}:{draw(space)}{value}" for value in values]) + "}"


def once(members: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len(dict(members)) == len(members)
    return dict(members)


@settings(max_examples=400, deadline=None, derandomize=True)
@given(written())
def test_exactly_what_a_later_key_replaces_is_cut(text: str) -> None:
    source = text.encode()
    value = orjson.loads(source)
    left = without(source, repeated(source, value))
    assert json.loads(left, object_pairs_hook=once) == value
    try:
        json.loads(source, object_pairs_hook=once)
    except AssertionError:
        assert len(left) < len(source)
    else:
        assert left == source
