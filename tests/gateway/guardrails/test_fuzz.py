"""Fuzzing: any input is released or blocked, and both stream modes agree."""

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
STRINGS = st.sampled_from(
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
    st.one_of(st.none(), st.booleans(), st.integers(-2, 3), st.floats(allow_nan=True), STRINGS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(KEYS, inner, max_size=4)),
    max_leaves=12,
)
ROUTES: list[Route] = ["responses", "chat", "completions", "embeddings"]
ENDS = (b"[DONE]", b"finish_reason", b".done", b".completed")
"""After an end of text, window mode has released the text; buffer mode still joins it with text that follows."""
SPECS = (keyword("secret", "é"), pii("email", "bank_card", patterns=[Pattern(kind="regex", value="x+")]))


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(ROUTES), st.lists(st.one_of(JSON, st.binary(max_size=20)), max_size=6), st.integers(1, 60))
def test_both_modes_agree_on_any_stream(route: Route, events: list[Any], size: int) -> None:
    body = b"".join(
        b"data: " + (item if isinstance(item, bytes) else json.dumps(item).encode()) + b"\n\n" for item in events
    )
    reads = [body[start : start + size] for start in range(0, len(body), size)]
    buffered, windowed = [
        run(guards(*SPECS, mode=mode, max_lengths={"private": 3}).stream(route), reads)  # type: ignore[arg-type]
        for mode in ("buffer", "window")
    ]
    if not any(end in body for end in ENDS):
        assert (buffered.blocked is None) == (windowed.blocked is None)
        if (
            buffered.blocked is None and b"choices" not in body
        ):  # window mode may send a piece of a chat as a separate event
            assert buffered.body == windowed.body
    monitored = guards(keyword("secret", regexes=["s.*t"], enforcement="monitor")).stream(route)
    assert run(monitored, reads).body == body


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(ROUTES), st.dictionaries(KEYS, JSON, max_size=5))
@example(ROUTES[0], {"metadata": {"note": "joe@example.com", "logprobs": ["joe@example.com"]}})
def test_inspecting_a_masked_body_again_changes_nothing(route: Route, body: dict[str, Any]) -> None:
    harness = guards(*SPECS)
    for inspect in (harness.request, harness.reply):
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
    by_address: dict[Any, str] = {}
    for payload in outcome.payloads:
        address = payload["type"], payload["output_index"], payload["content_index"]
        by_address[address] = by_address.get(address, "") + payload["delta"]
    return by_address


@settings(max_examples=120, deadline=None)
@given(PIECES)
def test_both_modes_agree_on_interleaved_texts(pieces: list[tuple[int, int, str, str]]) -> None:
    events = [
        {"type": f"response.{kind}.delta", "output_index": item, "content_index": part, "delta": text}
        for item, part, kind, text in pieces
    ]
    body = [f"data: {json.dumps(event)}\n\n".encode() for event in events]
    buffered = run(guards(*SPECS, mode="buffer").stream("responses"), body)
    windowed = run(guards(*SPECS, mode="window").stream("responses"), body)
    assert (buffered.blocked is None) == (windowed.blocked is None)
    if buffered.blocked is None:
        assert texts(buffered) == texts(windowed)
        assert buffered.body == windowed.body
    else:
        assert b"sec" not in windowed.body or all("secret" not in text for text in texts(windowed).values())
