"""Recognition of delta events by their bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.gateway.dialects.texts import TextRef
from penstock.gateway.guardrails.delta_template import DeltaTemplate
from penstock.gateway.resources.snapshot import GuardrailSpec
from penstock.gateway.routes import BY_NAME
from support.guardrail_streams import chat_chunks, chat_text, delta_text, event, guards, keyword, pii, run


def delta(text: str, number: int, **more: Any) -> dict[str, Any]:
    place = {"output_index": 0, "content_index": 0, "item_id": "msg_1"}
    return {"type": "response.output_text.delta", "sequence_number": number, **place, "delta": text, **more}


def template_of(raw: bytes, payload: dict[str, Any], text: str) -> DeltaTemplate | None:
    return DeltaTemplate.of(raw, payload, BY_NAME["responses"].event_texts(), TextRef(payload, "delta", text, "delta"))


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("more", [{}, {"logprobs": [], "obfuscation": "aB3"}])
def test_template_reads_the_text_and_the_number_of_equal_events(
    separators: tuple[str, str], more: dict[str, Any]
) -> None:
    def raw(text: str, number: int, **changed: Any) -> bytes:
        payload = json.dumps({**delta(text, number), **more, **changed}, separators=separators, ensure_ascii=False)
        return f"event: response.output_text.delta\ndata: {payload}\n\n".encode()

    payload = {**delta("Hello", 9), **more}
    template = template_of(raw("Hello", 9), payload, "Hello")
    assert template is not None
    assert template.match(raw(" wörld, 中文", 123)) == (" wörld, 中文", 123)
    others = [
        raw("", 1),
        raw("a\nb", 1),
        raw('say "hi"', 1),
        raw("x\u200by", 1),
        raw("x", -1),
        raw("x", 1, item_id="m"),
    ]
    others += [raw("x", 1, extra="y"), raw("x", 1)[:-1], raw("x", 1) + b"\n", raw("x", 1).replace(b'"x"', b'"\xff"')]
    others += [raw("x", 1).replace(b'"delta"', b'"gamma"'), raw('x","delta":"y', 1), b""]
    assert [template.match(other) for other in others] == [None] * len(others)


def test_event_whose_values_are_not_unique_has_no_template() -> None:
    payload = delta("Hello", 9)
    data = json.dumps(payload)
    assert template_of(f"data: {data}\n\n".encode(), payload, "Bye") is None
    twice = data[:-1] + ', "delta": "Hello"}'
    assert template_of(f"data: {twice}\n\n".encode(), payload, "Hello") is None


STREAMS: dict[str, tuple[list[str], GuardrailSpec, str | None]] = {
    "a literal in one event": (["a ", "b ", "c ", "FORBIDDEN", " d"], keyword("forbidden"), None),
    "a literal over events": (["a ", "b ", "c ", "FOR", "BID", "DEN", " d"], keyword("forbidden"), None),
    "look-alikes": (["a ", "b ", "c ", "ＦＯＲ", "BIDDEN", " d"], keyword("forbidden"), None),
    "an escape": (["a ", "b ", "c ", "x: \\u0046OR", "BIDDEN", " d"], keyword("forbidden"), None),
    "an address": (
        ["a ", "b ", "c ", "bob", "@exa", "mple.com", " d ", "e "],
        pii("email"),
        "a b c [EMAIL_REDACTED] d e ",
    ),
    "clean text": (
        ["a ", "b ", "c\n", "d ", '"e" ', "f ", "for ", "me "],
        keyword("forbidden"),
        'a b c\nd "e" f for me ',
    ),
}


@pytest.mark.parametrize(("texts", "spec", "expected"), STREAMS.values(), ids=STREAMS)
@pytest.mark.parametrize("per_read", [1, 2, 3, 100])
def test_events_that_are_recognised_are_inspected_like_others(
    texts: list[str], spec: GuardrailSpec, expected: str | None, per_read: int
) -> None:
    chats = [event(payload) for payload in chat_chunks(texts)]
    deltas = [event(delta(text, number)) for number, text in enumerate(texts)]
    for route, events in (("chat", chats), ("responses", deltas)):
        guard = guards(spec, mode="window").stream(route)  # type: ignore[arg-type]
        assert guard is not None
        reads = [b"".join(events[start : start + per_read]) for start in range(0, len(events), per_read)]
        outcome = run(guard, reads)
        text = chat_text(outcome.payloads) if route == "chat" else delta_text(outcome.payloads)
        if expected is None:
            assert outcome.blocked is not None
            assert "a b c ".startswith(text)
            assert guard.next_sequence == (len(outcome.payloads) if route == "responses" else 0)
        else:
            assert (outcome.blocked, text) == (None, expected)


def test_text_that_moves_to_another_part_is_inspected() -> None:
    payloads = [delta(text, number) for number, text in enumerate(["a ", "b ", "c "])]
    payloads += [delta("FORB", 3, content_index=1), delta("x ", 4), delta("IDDEN", 5, content_index=1)]
    outcome = run(guards(keyword("forbidden"), mode="window").stream("responses"), map(event, payloads))
    assert outcome.blocked is not None
    assert delta_text(outcome.payloads) == "a b c "
