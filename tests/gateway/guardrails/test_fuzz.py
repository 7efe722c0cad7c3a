"""Whatever comes, the answer is a release or a block; and both modes give the same one."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.gateway.resources.snapshot import Pattern
from penstock.gateway.routes import Route
from support.guardrail_streams import Outcome, guards, keyword, pii, run

KEYS = st.sampled_from(
    [
        *(
            "type",
            "delta",
            "choices",
            "index",
            "text",
            "content",
            "output_index",
            "content_index",
            "response",
            "output",
        ),
        *(
            "item",
            "part",
            "arguments",
            "tool_calls",
            "function",
            "finish_reason",
            "logprobs",
            "data",
            "audio",
            "metadata",
        ),
        *(
            "properties",
            "input",
            "messages",
            "message",
            "error",
            "instructions",
            "summary_index",
            "sequence_number",
            "x",
        ),
    ]
)
WORDS = st.sampled_from(
    [
        *(
            "response.output_text.delta",
            "response.output_text.done",
            "response.completed",
            "response.output_item.added",
        ),
        *("output_text", "function_call", "secret", "sec", "ret", "a@b.example", "a@", "b.exa", "", "x", "\ud800", "é"),
    ]
)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(allow_nan=True), WORDS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
ROUTES: list[Route] = ["responses", "chat", "completions", "embeddings"]
ENDS = (b"[DONE]", b"finish_reason", b".done", b".completed")
"""Behind an end no more of a text is expected, so a window has let it go; a buffer reads it with what comes nevertheless."""
SPECS = (keyword("secret", "é"), pii("email", "bank_card", patterns=[Pattern(kind="regex", value="x+")]))


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ROUTES), st.lists(st.one_of(JSON, st.binary(max_size=20)), max_size=6), st.integers(1, 60))
def test_any_stream(route: Route, events: list[Any], size: int) -> None:
    body = b"".join(
        b"data: " + (item if isinstance(item, bytes) else json.dumps(item).encode()) + b"\n\n" for item in events
    )
    portions = [body[place : place + size] for place in range(0, len(body), size)]
    whole, flowing = [
        run(guards(*SPECS, mode=mode, max_lengths={"private": 3}).stream(route), portions)  # type: ignore[arg-type]
        for mode in ("buffer", "window")
    ]
    if not any(sign in body for sign in ENDS):
        assert (whole.blocked is None) == (flowing.blocked is None)
        if whole.blocked is None and b"choices" not in body:  # of a chat, a piece may leave in an event of its own
            assert whole.body == flowing.body
    watched = guards(keyword("secret", regexes=["s.*t"], enforcement="monitor")).stream(route)
    assert run(watched, portions).body == body


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(ROUTES), st.dictionaries(KEYS, JSON, max_size=5))
@example(ROUTES[0], {"metadata": {"note": "joe@example.com", "logprobs": ["joe@example.com"]}})
def test_any_body(route: Route, body: dict[str, Any]) -> None:
    made = guards(*SPECS)
    for inspect in (made.request, made.reply):
        inspect(route, body)
        again = inspect(route, body)
        assert not again.changed


PIECES = st.lists(
    st.tuples(
        st.integers(0, 1),
        st.integers(0, 1),
        st.sampled_from(["output_text", "refusal", "function_call_arguments"]),
        st.sampled_from(["sec", "ret", "s", "e", "joe", "@", "exa", "mple", ".", "com", " ", "é", "xx", "x"]),
    ),
    max_size=14,
)


def texts(outcome: Outcome) -> dict[Any, str]:
    found: dict[Any, str] = {}
    for payload in outcome.payloads:
        key = payload["type"], payload["output_index"], payload["content_index"]
        found[key] = found.get(key, "") + payload["delta"]
    return found


@settings(max_examples=300, deadline=None)
@given(PIECES)
def test_both_modes_agree_on_texts_that_are_told_by_turns(pieces: list[tuple[int, int, str, str]]) -> None:
    events = [
        {"type": f"response.{kind}.delta", "output_index": item, "content_index": part, "delta": text}
        for item, part, kind, text in pieces
    ]
    body = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    whole = run(guards(*SPECS, mode="buffer").stream("responses"), body)
    flowing = run(guards(*SPECS, mode="window").stream("responses"), body)
    assert (whole.blocked is None) == (flowing.blocked is None)
    if whole.blocked is None:
        assert texts(whole) == texts(flowing)
        assert whole.body == flowing.body
    else:
        assert b"sec" not in flowing.body or all("secret" not in text for text in texts(flowing).values())
