"""Texts that a reader sees without a gap: the parts of a message, consecutive messages, and consecutive content blocks."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from support.guardrail_streams import FramedGuard, delta_text, event, guards, keyword, pii, run

Mode = Literal["buffer", "window"]
both_modes = pytest.mark.parametrize("mode", ["buffer", "window"])


def typed(kind: str, **fields: Any) -> dict[str, Any]:
    return {"type": kind, **fields}


def message(output_index: int, texts: list[str]) -> dict[str, Any]:
    content = [{"type": "output_text", "text": text} for text in texts]
    return {"id": f"msg_{output_index}", "type": "message", "role": "assistant", "content": content}


CALL = {"id": "fc_1", "type": "function_call", "name": "f", "call_id": "c", "arguments": "{}"}


def response(*items: list[str] | None, size: int = 2) -> list[dict[str, Any]]:
    """Return the events of a response with messages of these parts. None is a function call."""
    events: list[dict[str, Any]] = [typed("response.created", response={"id": "resp_1", "output": []})]
    output: list[dict[str, Any]] = []
    for index, texts in enumerate(items):
        item = CALL if texts is None else message(index, texts)
        output.append(item)
        events.append(typed("response.output_item.added", output_index=index, item={**item, "content": []}))
        for number, text in enumerate(texts or ()):
            place = {"output_index": index, "content_index": number, "item_id": item["id"]}
            part = {"type": "output_text", "text": text}
            events.append(typed("response.content_part.added", **place, part={**part, "text": ""}))
            for start in range(0, len(text), size):
                events.append(typed("response.output_text.delta", **place, delta=text[start : start + size]))
            events.append(typed("response.output_text.done", **place, text=text))
            events.append(typed("response.content_part.done", **place, part=part))
        events.append(typed("response.output_item.done", output_index=index, item=item))
    events.append(typed("response.completed", response={"id": "resp_1", "object": "response", "output": output}))
    return events


SPLIT = {
    "two parts": [["so BLOCK", "ME now"]],
    "three parts": [["so BLO", "CK", "ME now"]],
    "a part per letter": [list("so BLOCKME")],
    "two messages": [["so BLOCK"], ["ME now"]],
    "two messages after a call": [None, ["so BLOCK"], ["ME now"]],
    "parts and messages": [["so B", "LOC"], ["K"], ["M", "E now"]],
    "look-alikes": [["so ＢＬＯ", "ＣＫ"], ["\u200bＭＥ"]],
    "look-alikes in the second part only": [["so BLO", "ＣＫＭＥ now"]],
    "a space at the border": [["so secret ", " plan"]],
    "after a JSON text": [['{"a": "\\n"} BLOCK', "ME"]],
}
NOT_SPLIT = {
    "other text between": [["so BLOCK", "  ME now"]],
    "a call between": [["so BLOCK"], None, ["ME now"]],
    "the beginning at the end": [["so BLOCK"]],
    "the beginning in each part": [["BLOCK", "BLOCK", "BLOCK"], ["BLOCK"]],
}
PHRASE = keyword("BLOCKME", "secret plan")


@both_modes
@pytest.mark.parametrize("items", SPLIT.values(), ids=SPLIT)
def test_literal_split_over_parts_is_blocked_and_no_piece_of_it_is_released(
    items: list[list[str] | None], mode: Mode
) -> None:
    for size in (1, 2, 100):
        outcome = run(guards(PHRASE, mode=mode).stream("responses"), map(event, response(*items, size=size)))
        assert outcome.blocked is not None
        assert not {"B", "Ｂ", "c"} & set(delta_text(outcome.payloads))
    output = [CALL if texts is None else message(index, texts) for index, texts in enumerate(items)]
    reply = {"object": "response", "output": output}
    assert guards(PHRASE).reply("responses", reply).blocked_by == "words"


@both_modes
@pytest.mark.parametrize("items", NOT_SPLIT.values(), ids=NOT_SPLIT)
def test_texts_that_are_not_joined_to_a_literal_are_released_unchanged(
    items: list[list[str] | None], mode: Mode
) -> None:
    for size in (1, 2, 100):
        events = [event(payload) for payload in response(*items, size=size)]
        assert run(guards(PHRASE, mode=mode).stream("responses"), events).body == b"".join(events)
    output = [CALL if texts is None else message(index, texts) for index, texts in enumerate(items)]
    assert guards(PHRASE).reply("responses", {"object": "response", "output": output}).blocked_by is None


def test_end_of_a_part_is_held_only_until_the_next_item_begins() -> None:
    guard = FramedGuard(guards(keyword("secret"), mode="window").stream("responses"))
    released = [guard.feed(event(payload)).count(b"\n\n") for payload in response(["so se"], None, size=100)]
    assert released == [0, 0, 0, 0, 0, 0, 0, 7, 2, 1]


@both_modes
def test_literal_split_over_parts_without_events_that_end_them_is_blocked(mode: Mode) -> None:
    deltas = [
        typed("response.output_text.delta", output_index=0, content_index=part, item_id="i", delta=text)
        for part, text in ((0, "so "), (0, "BLO"), (0, "CK"), (1, "M"), (1, "E"))
    ]
    outcome = run(guards(PHRASE, mode=mode).stream("responses"), map(event, deltas))
    assert outcome.blocked is not None
    assert b"BLO" not in outcome.body


@both_modes
def test_literal_split_over_two_content_blocks_is_blocked(mode: Mode) -> None:
    def blocks(*texts: str) -> list[bytes]:
        events = [typed("message_start", message={"id": "msg_1", "type": "message", "content": []})]
        for index, text in enumerate(texts):
            block = {"type": "text", "text": ""} if text else {"type": "tool_use", "id": "t", "name": "f", "input": {}}
            delta = {"type": "text_delta", "text": text} if text else {"type": "input_json_delta", "partial_json": "{}"}
            events.append(typed("content_block_start", index=index, content_block=block))
            events.append(typed("content_block_delta", index=index, delta=delta))
            events.append(typed("content_block_stop", index=index))
        return [event(payload) for payload in [*events, typed("message_stop")]]

    outcome = run(guards(PHRASE, mode=mode).stream("messages"), blocks("so ", "BLOCK", "ME"))
    assert outcome.blocked is not None
    assert b"BLOCK" not in outcome.body
    clean = blocks("BLOCK", "", "ME")
    assert run(guards(PHRASE, mode=mode).stream("messages"), clean).body == b"".join(clean)


@both_modes
def test_number_split_over_two_parts_is_blocked(mode: Mode) -> None:
    """It cannot be masked, because the events that end the parts repeat its halves."""
    card = response(["pay with 4111 1111", " 1111 1111."], size=3)
    outcome = run(guards(pii("bank_card"), mode=mode).stream("responses"), map(event, card))
    assert outcome.blocked is not None
    assert b"4111" not in outcome.body
    for parts in ([["pay with 4111 1111", " 1111 1111"]], [["pay with 4111 1111 1"], ["111 1111"], None]):
        outcome = run(guards(pii("bank_card"), mode=mode).stream("responses"), map(event, response(*parts)))
        assert outcome.blocked is not None
        assert b"4111" not in outcome.body
    apart = response(["pay with 4111 1111 1111 1111", "2 times"], size=3)
    outcome = run(guards(pii("bank_card"), mode=mode).stream("responses"), map(event, apart))
    assert delta_text(outcome.payloads) == "pay with [BANK_CARD_REDACTED]2 times"


def test_text_that_continues_after_a_break_is_searched_and_released() -> None:
    def delta(part: int, text: str) -> dict[str, Any]:
        return typed("response.output_text.delta", output_index=0, content_index=part, item_id="i", delta=text)

    call = typed("response.output_item.added", output_index=1, item=CALL)
    mode: Mode
    for mode in ("buffer", "window"):
        blocked = [delta(0, "BLO"), call, delta(0, "CKME")]
        assert run(guards(PHRASE, mode=mode).stream("responses"), map(event, blocked)).blocked is not None
        clean = [event(payload) for payload in (delta(0, "BLO"), call, delta(0, "CK"), delta(1, "m"))]
        assert run(guards(PHRASE, mode=mode).stream("responses"), clean).body == b"".join(clean)
